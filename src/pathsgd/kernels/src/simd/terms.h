// The numbers of a matrix that are not zero, two lines at a time, and sums over them:
//
//   to[:] = start[:] + sum over the terms of a line: value * from[place][:]
//
// A single line that skips all of its zeros needs one read from the first-level cache for each multiply-add, which is
// more than can be sustained; blocks of many lines (blocks.h) read little but skip only zeros that all of them share.
// Here two lines share what is read for terms that both have; their other terms are taken side by side, one of each.
#pragma once
#include <numeric>

#include "active.h"

namespace pathsgd {

constexpr int kPairVectors = 6;  // twice as many accumulators are held in registers
// Rows that leave some of a cache of 32 KB to others, a multiple of the height of any block.
constexpr long kPairDepth = 21 * 1024 / (kPairVectors * PATHSGD_VECTOR_BYTES) / 12 * 12;
static_assert(kPairDepth % kMaxRows == 0, "pieces of a tile are whole blocks");

template <class F>
struct PairTerm {
  F a, b;
  int32_t a_place, b_place;
};

template <class F>
struct LinePair {
  long a, b;  // the two lines; b is the number of lines where there is none left
  const PairTerm<F> *shared, *separate, *end;
};

template <class F>
class PairTerms {
 public:
  // Room for all of (lines, depth). The depth is cut into pieces of at most kPairDepth; places count from a piece's first.
  PairTerms(long lines, long depth)
      : order_(lines + 1), separate_(2 * kPairDepth + 2), starts_(2 * pieces(depth) * pairs(lines) + 1),
        terms_(pairs(lines) * depth + 1) {}

  // Element (i, k) is matrix[i * line_stride + k * stride]. Lines are paired with their neighbours, or with lines that
  // have about as many terms.
  // `skip_zeros` false: zeros are terms, too.
  void list(const F* matrix, long lines, long depth, long line_stride, long stride, bool by_count,
            bool skip_zeros = true) {
    lines_ = lines;
    std::iota(order_.begin(), order_.begin() + lines + 1, 0L);
    if (by_count) sort_by_count(matrix, depth, line_stride, stride);
    int64_t count = 0, *start = starts_.data();
    for_pieces(0, depth, kPairDepth, kMaxRows, [&](long first, int size) {
      for (long p = 0; p < pairs(lines); p++) {
        const F* from = matrix + first * stride;
        *start++ = count;
        const F *a = from + order_[2 * p] * line_stride, *b = from + order_[2 * p + 1] * line_stride;
        const bool has_b = 2 * p + 1 < lines;
        PairTerm<F>* to = terms_.data() + count;
        int64_t* shared = start++;
        count += stride == 1 ? list_pair(a, b, size, has_b, skip_zeros, to, shared)
                             : list_pair_apart(a, b, size, stride, has_b, skip_zeros, to, shared);
        start[-1] += start[-2];
      }
    });
    *start = count;
  }

  // Calls body(LinePair) for all pairs, over the terms of one piece.
  template <class Body>
  void for_pairs(long piece, Body&& body) const {
    const int64_t* start = starts_.data() + 2 * piece * pairs(lines_);
    const PairTerm<F>* terms = terms_.data();
    for (long p = 0; p < pairs(lines_); p++, start += 2)
      body(LinePair<F>{order_[2 * p], order_[2 * p + 1], terms + start[0], terms + start[1], terms + start[2]});
  }

 private:
  static long pairs(long lines) { return (lines + 1) / 2; }
  static long pieces(long depth) { return (depth + kPairDepth - 1) / kPairDepth; }

  void sort_by_count(const F* matrix, long depth, long line_stride, long stride) {
    std::vector<long> counts(lines_, 0);
    if (stride == 1) {
      for (long i = 0; i < lines_; i++)
        for (long k = 0; k < depth; k++) counts[i] += matrix[i * line_stride + k] != 0;
    } else {
      for (long k = 0; k < depth; k++)
        for (long i = 0; i < lines_; i++) counts[i] += matrix[i * line_stride + k * stride] != 0;
    }
    std::stable_sort(order_.begin(), order_.begin() + lines_, [&](long i, long j) { return counts[i] < counts[j]; });
  }

  // Returns the number of terms, sets that of the shared ones. Without branches, which would be guessed wrong.
  static long list_pair(const F* a, const F* b, int size, bool has_b, bool skip_zeros, PairTerm<F>* to,
                        int64_t* shared) {
    int both[kPairDepth + kSpare], only_a[kPairDepth + kSpare], only_b[kPairDepth + kSpare];
    long n_both = 0, n_a = 0, n_b = 0;
    for (int k = 0; k < size; k += kLanes<F>) {
      const unsigned lanes = (1u << std::min<int>(kLanes<F>, size - k)) - 1;
      const unsigned in_a = skip_zeros ? bits_of<F>(load_part(a + k, size - k) != zero<F>()) : lanes;
      const unsigned in_b = !has_b ? 0 : skip_zeros ? bits_of<F>(load_part(b + k, size - k) != zero<F>()) : lanes;
      n_both = list_lanes(in_a & in_b, kLanes<F>, k, both, n_both);
      n_a = list_lanes(in_a & ~in_b, kLanes<F>, k, only_a, n_a);
      n_b = list_lanes(in_b & ~in_a, kLanes<F>, k, only_b, n_b);
    }
    *shared = n_both;
    for (long i = 0; i < n_both; i++) to[i] = {a[both[i]], b[both[i]], both[i], both[i]};
    to += n_both;
    const long sides = std::min(n_a, n_b), separate = std::max(n_a, n_b);
    for (long i = 0; i < sides; i++) to[i] = {a[only_a[i]], b[only_b[i]], only_a[i], only_b[i]};
    for (long i = sides; i < n_a; i++) to[i] = {a[only_a[i]], F(0), only_a[i], 0};
    for (long i = sides; i < n_b; i++) to[i] = {F(0), b[only_b[i]], 0, only_b[i]};
    return n_both + separate;
  }

  // The same for numbers that do not follow each other.
  long list_pair_apart(const F* a, const F* b, int size, long stride, bool has_b, bool skip_zeros, PairTerm<F>* to,
                       int64_t* shared) {
    PairTerm<F>* own = separate_.data();
    long both = 0, only_a = 0, only_b = 0;
    for (int k = 0; k < size; k++) {
      const F of_a = a[k * stride], of_b = has_b ? b[k * stride] : F(0);
      const bool in_a = of_a != 0 || !skip_zeros, in_b = of_b != 0 || (has_b && !skip_zeros);
      to[both] = {of_a, of_b, k, k};
      own[only_a].a = of_a;
      own[only_a].a_place = k;
      own[only_b].b = of_b;
      own[only_b].b_place = k;
      both += in_a && in_b;
      only_a += in_a && !in_b;
      only_b += in_b && !in_a;
    }
    for (; only_a < only_b; only_a++) own[only_a].a = 0, own[only_a].a_place = 0;
    for (long i = only_b; i < only_a; i++) own[i].b = 0, own[i].b_place = 0;
    *shared = both;
    std::copy_n(own, only_a, to + both);
    return both + only_a;
  }

  long lines_ = 0;
  std::vector<long> order_;
  std::vector<PairTerm<F>> separate_;
  Buffer<int64_t> starts_;
  Buffer<PairTerm<F>> terms_;
};

// Both lines of a pair. All rows are `Vectors` vectors that follow each other directly: with a stride the processor
// would fetch what lies between them, and the tile no longer stay in the first-level cache.
template <class F, int Vectors = kPairVectors>
PATHSGD_NOINLINE void add_terms(const LinePair<F>& pair, F* to_a, F* to_b, const F* start_a, const F* start_b,
                                const F* from) {
  constexpr long stride = Vectors * kLanes<F>;
  Vec<F> a[Vectors], b[Vectors];
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) a[j] = load(start_a + j * kLanes<F>);
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) b[j] = load(start_b + j * kLanes<F>);
  const PairTerm<F>* term = pair.shared;
  for (; term < pair.separate; term++) {
    const F* row = from + term->a_place * stride;
    const Vec<F> of_a = broadcast(term->a), of_b = broadcast(term->b);
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
      const Vec<F> value = held<F>(load(row + j * kLanes<F>));
      a[j] += of_a * value;
      b[j] += of_b * value;
    }
  }
  for (; term < pair.end; term++) {
    const F *row_a = from + term->a_place * stride, *row_b = from + term->b_place * stride;
    const Vec<F> of_a = broadcast(term->a), of_b = broadcast(term->b);
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
      a[j] += of_a * load(row_a + j * kLanes<F>);
      b[j] += of_b * load(row_b + j * kLanes<F>);
    }
  }
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) store(to_a + j * kLanes<F>, a[j]);
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) store(to_b + j * kLanes<F>, b[j]);
}

}  // namespace pathsgd
