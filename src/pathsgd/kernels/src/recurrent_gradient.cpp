// The recurrent weights' gradient of a net with many units, after the backward sweep: see rnn.h.
//
//   dW_rec[n][:] = sum over all rows r of dz[r][n] * h_before(r)[:]
//
// Two units n at a time skip the rows where their dz is zero (terms.h), about half of them. Columns are cut into panels
// that threads share out, rows into pieces: a piece of a panel of h_before stays in the first-level cache while all units
// pass by. The order of a sum does not depend on the number of threads.
#include "entry.h"
#include "rnn.h"
#include "simd/pairs.h"
#include "threads.h"

namespace pathsgd {
namespace {

template <class F>
class RecurrentGradient {
 public:
  explicit RecurrentGradient(const RecurrentGradientCall<F>& call)
      : call_(call), hidden_(call.shape.hidden), panels_(panels_of<F>(hidden_, hidden_ + 1, kPairVectors)),
        before_(rows_before(call)), finite_(all_rows_finite()), terms_(hidden_, kRows),
        turned_(hidden_ * kRows), sums_((hidden_ + 1) * padded<F>(hidden_)) {}

  void run() {
    const long rows = static_cast<long>(before_.size()), panels = static_cast<long>(panels_.size());
    const long threads = std::max<long>(1, std::min<long>(call_.shape.threads, panels / 2));
    sums_.clear();
    for (long first = 0; first < rows; first += kRows) {
      const long count = std::min(kRows, rows - first);
      transpose(call_.dz + first * hidden_, hidden_, count, hidden_, turned_.data(), kRows, false);
      terms_.list(turned_.data(), hidden_, count, kRows, 1, true, finite_);
      on_threads(threads, [&](long thread, long arrived) {
        for (long p = panels * thread / arrived; p < panels * (thread + 1) / arrived; p++)
          for_vectors<1, kPairVectors>(panels_[p].vectors, [&](auto vectors) {
            add_panel<vectors>(panels_[p], first, count);
            if (first + count == rows) keep<vectors>(panels_[p]);
          });
      });
    }
  }

 private:
  // Rows whose terms are listed at once: the sums of all units are moved once for each of them.
  static constexpr long kRows = 4 * kPairDepth;

  // The states before each row, null where they are zero.
  static std::vector<const F*> rows_before(const RecurrentGradientCall<F>& call) {
    const Walk walk(call.shape);
    std::vector<const F*> before(walk.first_row(call.shape.steps - 1) + walk.rows(call.shape.steps - 1));
    for (long position = 0; position < call.shape.steps; position++) {
      const long t = walk.step(position), continued = walk.continued(position);
      for (long r = 0; r < walk.rows(t); r++) {
        const F* start = call.h0 ? call.h0 + r * call.shape.hidden : nullptr;
        before[walk.first_row(t) + r] =
            r < continued ? call.out + (walk.first_row(walk.step(position - 1)) + r) * call.out_stride : start;
      }
    }
    return before;
  }

  bool all_rows_finite() const {
    for (const F* row : before_)
      if (row && !all_finite(row, hidden_)) return false;
    return true;
  }

  template <int Vectors>
  void add_panel(const Panel& panel, long first, long count) {
    constexpr long width = Vectors * kLanes<F>;
    F tile[kPairDepth * width], *sums = sums_.data() + panel.offset;
    long piece = 0;
    for_pieces(first, first + count, kPairDepth, kMaxRows, [&](long row, int rows) {
      for (int r = 0; r < rows; r++) copy_row<Vectors>(before_[row + r], panel.first_column, tile + r * width);
      terms_.for_pairs(piece++, [&](const LinePair<F>& pair) {
        F *a = sums + pair.a * width, *b = sums + pair.b * width;
        add_terms<F, Vectors>(pair, a, b, a, b, tile);
      });
    });
  }

  template <int Vectors>
  void copy_row(const F* row, long column, F* to) const {
    for (int j = 0; j < Vectors; j++)
      store(to + j * kLanes<F>, row ? load_vector<Vectors>(row + column, j, hidden_ - column) : zero<F>());
  }

  template <int Vectors>
  void keep(const Panel& panel) const {
    constexpr long width = Vectors * kLanes<F>;
    for (long n = 0; n < hidden_; n++)
      std::memcpy(call_.dw_rec + n * hidden_ + panel.first_column, sums_.data() + panel.offset + n * width,
                  std::min(width, hidden_ - panel.first_column) * sizeof(F));
  }

  const RecurrentGradientCall<F>& call_;
  const long hidden_;
  const std::vector<Panel> panels_;
  const std::vector<const F*> before_;
  const bool finite_;  // else every zero of dz must meet its state
  PairTerms<F> terms_;
  Buffer<F> turned_, sums_;
};

template <class F>
void recurrent_gradient(const RecurrentGradientCall<F>& call) {
  RecurrentGradient<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(recurrent_gradient, RecurrentGradientCall)
