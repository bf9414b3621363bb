// Sequences of the squared network: see squared.h for what is computed.
//
// Several steps at a time. With row k the k-th state (k = 0 .. T-1, delta counted backwards) and `add` u or v,
//   row_k = (A/rho)^R row_{k-R} + rho^-(k-R+1) row_{R-1}
// so R rows follow from the R rows before them, one product with the R-th power.
#include <memory>

#include "blocks.h"
#include "squared.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr long kPackedHidden = 256;  // up to here A fits in L2 with its transpose; beyond, W is read once per step
constexpr long kMostRows = 4;

// A sequence of rows, stored forwards or backwards in time.
template <class F>
struct Sequence {
  F* first;
  long stride;
  bool adds;  // `row 0` is added at every step, not only at the first
  F* row(long k) const { return first + k * stride; }
};

template <class W, class F>
class Squared {
 public:
  explicit Squared(const SquaredCall<W, F>& call)
      : call_(call), hidden_(call.hidden), h_{call.h, hidden_, true},
        delta_{call.delta + (call.steps - 1) * hidden_, -hidden_, call.every_step != 0} {
    std::memcpy(h_.row(0), call.u, hidden_ * sizeof(F));
    std::memcpy(delta_.row(0), call.v, hidden_ * sizeof(F));
  }

  void run() { hidden_ <= kPackedHidden ? run_packed() : run_in_passes(); }

 private:
  // Powers pay when the steps saved outweigh the squarings of A.
  long rows_at_a_time() const { return call_.steps < hidden_ / 2 ? 1 : call_.steps < 2 * hidden_ ? 2 : kMostRows; }

  void run_packed() {
    const long rows = rows_at_a_time(), size = hidden_ * hidden_;
    std::vector<std::unique_ptr<Buffer<F>>> powers;  // (A/rho)^1, ^2, ^4
    powers.push_back(std::make_unique<Buffer<F>>(size));
    for (long i = 0; i < size; i++)
      powers[0]->data()[i] = static_cast<F>(call_.w_rec[i]) * static_cast<F>(call_.w_rec[i]) * static_cast<F>(call_.inverse_rho);
    for (long power = 1; power < rows; power *= 2) {
      const F* a = powers.back()->data();
      const Packed<F> packed(a, hidden_, hidden_, hidden_, 1);
      powers.push_back(std::make_unique<Buffer<F>>(size));
      const FlushDenormals guard;
      for_pieces(0, hidden_, kMostRows, 1, [&](long i, int count) {
        times(packed, a + i * hidden_, hidden_, powers.back()->data() + i * hidden_, hidden_, count, nullptr, nullptr);
      });
    }
    on_threads(std::min<long>(call_.threads, 2), [&](long thread, long threads) {
      for (long direction = thread; direction < 2; direction += threads) {
        const long k_stride = direction ? hidden_ : 1, n_stride = direction ? 1 : hidden_;  // rows times A^T, or times A
        const Packed<F> one(powers.front()->data(), hidden_, hidden_, k_stride, n_stride);
        const Sequence<F>& sequence = direction ? delta_ : h_;
        advance(sequence, one, 1, 1, rows == 1 ? call_.steps : std::min<long>(rows, call_.steps));
        if (rows > 1)
          advance(sequence, Packed<F>(powers.back()->data(), hidden_, hidden_, k_stride, n_stride), rows, rows, call_.steps);
      }
    });
  }

  // Rows [first, last), `rows` at a time, with the power of A that belongs to it.
  void advance(const Sequence<F>& sequence, const Packed<F>& power, long rows, long first, long last) const {
    F scale = 1;
    for (long k = rows; k < first; k++) scale *= static_cast<F>(call_.inverse_rho);
    for (long k = first; k < last; k += rows) {
      F scales[kMostRows];
      for (long i = 0; i < rows; i++) scales[i] = scale *= static_cast<F>(call_.inverse_rho);
      times(power, sequence.row(k - rows), sequence.stride, sequence.row(k), sequence.stride,
            static_cast<int>(std::min(rows, last - k)), scales, sequence.adds ? sequence.row(rows - 1) : nullptr);
    }
  }

  // to[i] = from[i] * matrix + scales[i] * added, for at most kMostRows rows; `added` may be null.
  void times(const Packed<F>& matrix, const F* from, long from_stride, F* to, long to_stride, int count, const F* scales,
             const F* added) const {
    for (const Panel& panel : matrix.panels())
      for_block(count, panel.vectors, [&](auto rows, auto vectors) {
        block<rows, vectors>(matrix.row(panel, 0), panel.first_column, from, from_stride, to, to_stride, scales, added);
      });
  }

  template <int Rows, int Vectors>
  PATHSGD_NOINLINE void block(const F* panel, long column, const F* from, long from_stride, F* to, long to_stride, const F* scales,
                              const F* added) const {
    const long left = hidden_ - column;
    Vec<F> acc[Rows][Vectors];
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++)
        acc[i][j] = added ? broadcast(scales[i]) * load_vector<Vectors>(added + column, j, left) : zero<F>();
    multiply_add(acc, from, from_stride, panel, hidden_);
    store_block(acc, to + column, to_stride, left);
  }

  // One pass over W per step serves both sequences; squares are taken on the fly and A is never stored.
  void run_in_passes() {
    const long threads = std::max<long>(1, std::min<long>(call_.threads, hidden_ / kMostRows));
    std::vector<std::unique_ptr<Buffer<F>>> partial;  // each thread's share of A^T delta
    for (long thread = 0; thread < threads; thread++) partial.push_back(std::make_unique<Buffer<F>>(hidden_));
    F scale = 1;
    for (long k = 1; k < call_.steps; k++) {
      scale *= static_cast<F>(call_.inverse_rho);
      long shares = 1;
      on_threads(threads, [&](long thread, long arrived) {
        if (thread == 0) shares = arrived;  // may be fewer than were asked for
        F* sums = partial[thread]->data();
        std::memset(static_cast<void*>(sums), 0, hidden_ * sizeof(F));
        for_pieces(hidden_ * thread / arrived, hidden_ * (thread + 1) / arrived, kMostRows, 1, [&](long i, int count) {
          for_rows<1>(count, [&](auto rows, auto) { pass<rows>(k, i, scale, sums); });
        });
      });
      for (long j = 0; j < hidden_; j++) {
        F total = 0;
        for (long share = 0; share < shares; share++) total += partial[share]->data()[j];
        delta_.row(k)[j] = total * static_cast<F>(call_.inverse_rho) + (delta_.adds ? scale * call_.v[j] : 0);
      }
    }
  }

  // Rows i .. i+Rows of A: their entries of h, and their share in A^T delta.
  template <int Rows>
  PATHSGD_NOINLINE void pass(long k, long i, F scale, F* sums) const {
    typedef W Weights __attribute__((vector_size(kLanes<F> * sizeof(W)), aligned(alignof(W)), may_alias));
    const F *h = h_.row(k - 1), *delta = delta_.row(k - 1) + i;
    const W* w = call_.w_rec + i * hidden_;
    Vec<F> acc[Rows], factor[Rows];
    PATHSGD_UNROLL for (int r = 0; r < Rows; r++) acc[r] = zero<F>(), factor[r] = broadcast(delta[r]);
    long j = 0;
    for (; j + kLanes<F> <= hidden_; j += kLanes<F>) {
      Vec<F> sum = load(sums + j);
      PATHSGD_UNROLL for (int r = 0; r < Rows; r++) {
        const Vec<F> weight = __builtin_convertvector(*reinterpret_cast<const Weights*>(w + r * hidden_ + j), Vec<F>);
        acc[r] += weight * weight * load(h + j);
        sum += weight * weight * factor[r];
      }
      store(sums + j, sum);
    }
    for (int r = 0; r < Rows; r++) {
      F total = 0;
      for (int lane = 0; lane < kLanes<F>; lane++) total += acc[r][lane];
      for (long rest = j; rest < hidden_; rest++) {
        const F weight = static_cast<F>(w[r * hidden_ + rest]);
        total += weight * weight * h[rest];
        sums[rest] += weight * weight * delta[r];
      }
      h_.row(k)[i + r] = total * static_cast<F>(call_.inverse_rho) + scale * call_.u[i + r];
    }
  }

  const SquaredCall<W, F>& call_;
  const long hidden_;
  const Sequence<F> h_, delta_;
};

template <class W, class F>
int squared(const SquaredCall<W, F>& call) {
  try {
    Squared<W, F>(call).run();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace
}  // namespace pathsgd

PATHSGD_EXPORT int pathsgd_squared_float_float(const pathsgd::SquaredCall<float, float>* call) { return pathsgd::squared(*call); }
PATHSGD_EXPORT int pathsgd_squared_float_double(const pathsgd::SquaredCall<float, double>* call) { return pathsgd::squared(*call); }
PATHSGD_EXPORT int pathsgd_squared_double_double(const pathsgd::SquaredCall<double, double>* call) { return pathsgd::squared(*call); }
