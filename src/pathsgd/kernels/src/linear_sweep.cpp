// One sweep through a linear recurrence: see linear_sweep.h for what is computed.
#include "linear_sweep.h"

#include "entry.h"
#include "simd/blocks.h"

namespace pathsgd {
namespace {

// A step of few rows waits for its own multiply-adds: their terms are summed in parts, side by side.
template <int Rows>
constexpr int kParts = Rows == 1 ? 4 : Rows == 2 ? 2 : 1;

template <class F>
class LinearSweep {
 public:
  // Rows are multiplied from the left: by A^T, or by A where the transpose is wanted.
  explicit LinearSweep(const LinearSweepCall<F>& call)
      : call_(call), n_(call.hidden),
        matrix_(call.a, n_, n_, call.transposed ? n_ : 1, call.transposed ? 1 : n_) {}

  void run() const {
    const FlushDenormals guard;
    const long size = call_.rows * n_;
    const F* before = call_.start;
    for (long step = 0; step < call_.steps; step++) {
      const long t = call_.backwards ? call_.steps - 1 - step : step;
      const F* u = call_.u + t * size;
      F* m = call_.m + t * size;
      if (!before) std::copy_n(u, size, m);
      else if (step > 1 && stands_still(t, call_.backwards ? t + 1 : t - 1)) std::copy_n(before, size, m);
      else advance(before, static_cast<F>(call_.ratios ? call_.ratios[t] : 1.0), u, m);
      before = m;
    }
  }

 private:
  // Whether step t does to the same state the same as the step before it: where memory fades, states soon stop changing
  // in their last bit. Bits are compared, so what is copied is what would be computed.
  bool stands_still(long t, long before) const {
    const long size = call_.rows * n_, earlier = 2 * before - t;
    const auto same = [&](const F* values, long a, long b) {
      return std::memcmp(values + a * size, values + b * size, size * sizeof(F)) == 0;
    };
    const bool same_ratio = !call_.ratios || call_.ratios[t] == call_.ratios[before];
    return same_ratio && same(call_.u, t, before) && same(call_.m, before, earlier);
  }

  void advance(const F* before, F ratio, const F* u, F* m) const {
    for_pieces(0, call_.rows, kMaxRows, 1, [&](long row, int count) {
      const long at = row * n_;
      for (const Panel& panel : matrix_.panels())
        for_block(count, panel.vectors, [&](auto rows, auto vectors) {
          block<rows, vectors>(panel, before + at, ratio, u + at, m + at);
        });
    });
  }

  template <int Rows, int Vectors>
  PATHSGD_NOINLINE void block(const Panel& panel, const F* before, F ratio, const F* u, F* m) const {
    constexpr int parts = kParts<Rows>;
    const long column = panel.first_column, left = n_ - column, whole = n_ / parts * parts;
    const F* matrix = matrix_.row(panel, 0);
    Vec<F> acc[parts][Rows][Vectors];
    PATHSGD_UNROLL for (int p = 0; p < parts; p++)
      PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[p][i][j] = zero<F>();
    for (long k = 0; k < whole; k += parts)
      PATHSGD_UNROLL for (int p = 0; p < parts; p++)
        multiply_add(acc[p], before + k + p, n_, matrix + (k + p) * Vectors * kLanes<F>, 1);
    multiply_add(acc[0], before + whole, n_, matrix + whole * Vectors * kLanes<F>, n_ - whole);
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
        PATHSGD_UNROLL for (int p = 1; p < parts; p++) acc[0][i][j] += acc[p][i][j];
        acc[0][i][j] = broadcast(ratio) * acc[0][i][j] + load_vector<Vectors>(u + i * n_ + column, j, left);
      }
    store_block(acc[0], m + column, n_, left);
  }

  const LinearSweepCall<F>& call_;
  const long n_;
  const Packed<F> matrix_;
};

}  // namespace

template <class F>
void linear_sweep(const LinearSweepCall<F>& call) {
  LinearSweep<F>(call).run();
}
template void linear_sweep(const LinearSweepCall<float>&);
template void linear_sweep(const LinearSweepCall<double>&);

}  // namespace pathsgd

PATHSGD_ENTRIES(linear_sweep, LinearSweepCall)
