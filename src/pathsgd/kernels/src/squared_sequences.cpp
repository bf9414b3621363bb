// Sequences of the squared network: see squared_sequences.h for what is computed.
//
// Several steps at a time. With row k the k-th state (k = 0 .. T-1, delta counted backwards) and `add` u or v,
//   row_k = (A/root)^R row_{k-R} + root^-(k-R+1) row_{R-1}
// so R rows follow from the R rows before them, one product with the R-th power.
#include "squared_sequences.h"

#include <memory>

#include "entry.h"
#include "simd/blocks.h"
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
class SquaredSequences {
 public:
  explicit SquaredSequences(const SquaredSequencesCall<W, F>& call)
      : call_(call), hidden_(call.hidden), decay_(static_cast<F>(call.decay)), h_{call.h, hidden_, true},
        delta_{call.delta + (call.steps - 1) * hidden_, -hidden_, call.every_step != 0} {
    std::memcpy(h_.row(0), call.u, hidden_ * sizeof(F));
    std::memcpy(delta_.row(0), call.v, hidden_ * sizeof(F));
  }

  void run() { hidden_ <= kPackedHidden ? run_packed() : run_in_passes(); }

 private:
  // Powers pay when the steps saved outweigh the squarings of A.
  long rows_at_a_time() const {
    return call_.steps < hidden_ / 2 ? 1 : call_.steps < 2 * hidden_ ? 2 : kMostRows;
  }

  void run_packed() {
    const long rows = rows_at_a_time(), size = hidden_ * hidden_;
    Buffer<F> first(size), power(size), square(size);  // A/root, and its powers up to `rows`
    for (long i = 0; i < size; i++) {
      const F weight = static_cast<F>(call_.w_rec[i]);
      first.data()[i] = power.data()[i] = weight * weight * decay_;
    }
    for (long exponent = 1; exponent < rows; exponent *= 2) {
      multiply(power.data(), square.data());
      power.swap(square);
    }
    // A row vector times A^T moves h on, times A moves delta back.
    const long n = hidden_;
    const Packed<F> h_first(first.data(), n, n, 1, n), h_power(power.data(), n, n, 1, n);
    const Packed<F> d_first(first.data(), n, n, n, 1), d_power(power.data(), n, n, n, 1);
    on_threads(std::min<long>(call_.threads, 2), [&](long thread, long threads) {
      for (long direction = thread; direction < 2; direction += threads) {
        const Sequence<F>& sequence = direction ? delta_ : h_;
        advance(sequence, direction ? d_first : h_first, 1, std::min<long>(rows, call_.steps));
        advance(sequence, direction ? d_power : h_power, rows, call_.steps);
      }
    });
  }

  // to = a * a, (hidden, hidden).
  void multiply(const F* a, F* to) const {
    const FlushDenormals guard;
    const Packed<F> packed(a, hidden_, hidden_, hidden_, 1);
    for_pieces(0, hidden_, kMostRows, 1, [&](long i, int count) {
      times(packed, {a + i * hidden_, hidden_, to + i * hidden_, hidden_, nullptr, nullptr}, count);
    });
  }

  // Rows `rows` .. last-1, `rows` at a time, by the power of A that belongs to it.
  void advance(const Sequence<F>& sequence, const Packed<F>& power, long rows, long last) const {
    F scale = 1;
    for (long k = rows; k < last; k += rows) {
      F scales[kMostRows];
      for (long i = 0; i < rows; i++) scales[i] = scale *= decay_;
      const F* added = sequence.adds ? sequence.row(rows - 1) : nullptr;
      const Product product{sequence.row(k - rows), sequence.stride, sequence.row(k), sequence.stride, scales, added};
      times(power, product, static_cast<int>(std::min(rows, last - k)));
    }
  }

  // to[i] = from[i] * matrix + scales[i] * added, for at most kMostRows rows i; `added` may be null.
  struct Product {
    const F* from;
    long from_stride;
    F* to;
    long to_stride;
    const F *scales, *added;
  };

  void times(const Packed<F>& matrix, const Product& product, int count) const {
    for (const Panel& panel : matrix.panels())
      for_block(count, panel.vectors, [&](auto rows, auto vectors) {
        block<rows, vectors>(matrix.row(panel, 0), panel.first_column, product);
      });
  }

  template <int Rows, int Vectors>
  PATHSGD_NOINLINE void block(const F* panel, long column, const Product& product) const {
    const long left = hidden_ - column;
    Vec<F> acc[Rows][Vectors];
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
        const F* added = product.added ? product.added + column : nullptr;
        acc[i][j] = added ? broadcast(product.scales[i]) * load_vector<Vectors>(added, j, left) : zero<F>();
      }
    multiply_add(acc, product.from, product.from_stride, panel, hidden_);
    store_block(acc, product.to + column, product.to_stride, left);
  }

  // One pass over W per step serves both sequences; squares are taken on the fly and A is never stored.
  void run_in_passes() {
    const long threads = std::max<long>(1, std::min<long>(call_.threads, hidden_ / kMostRows));
    std::vector<std::unique_ptr<Buffer<F>>> partial;  // each thread's share of A^T delta
    for (long thread = 0; thread < threads; thread++) partial.push_back(std::make_unique<Buffer<F>>(hidden_));
    F scale = 1;
    for (long k = 1; k < call_.steps; k++) {
      scale *= decay_;
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
        delta_.row(k)[j] = total * decay_ + (delta_.adds ? scale * call_.v[j] : 0);
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
      h_.row(k)[i + r] = total * decay_ + scale * call_.u[i + r];
    }
  }

  const SquaredSequencesCall<W, F>& call_;
  const long hidden_;
  const F decay_;
  const Sequence<F> h_, delta_;
};

}  // namespace

template <class W, class F>
void squared_sequences(const SquaredSequencesCall<W, F>& call) {
  SquaredSequences<W, F>(call).run();
}
template void squared_sequences(const SquaredSequencesCall<float, float>&);
template void squared_sequences(const SquaredSequencesCall<float, double>&);
template void squared_sequences(const SquaredSequencesCall<double, double>&);

}  // namespace pathsgd

PATHSGD_ENTRY_2(squared_sequences, SquaredSequencesCall, float, float)
PATHSGD_ENTRY_2(squared_sequences, SquaredSequencesCall, float, double)
PATHSGD_ENTRY_2(squared_sequences, SquaredSequencesCall, double, double)
