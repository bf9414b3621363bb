// Sparse rows times a packed matrix, two rows at a time, for matrices of more units than blocks.h serves well:
//
//   sums[r][:] = start[r][:] + sum over the k where rows[r][k] is not zero: rows[r][k] * w[k][:]
//
// Of four rows with half of their units at zero one unit in sixteen is zero in all, of two rows one in four, and the
// terms of only one of the two need not be multiplied by the other's zeros (terms.h). In exchange the matrix is read in
// panels twice as wide, and a piece of a panel that fits into the first-level cache is half as deep: the sums are moved
// more often. They lie panel by panel, the rows of one panel directly one after the other.
#pragma once
#include "active.h"
#include "terms.h"

namespace pathsgd {

constexpr long kLeastForPairs = 256;  // units below which the lists of terms cost more than they save

// Two rows that are a pair are one whatever rows a thread has, because the order of a sum depends on it: threads share
// out the batch by whole pairs, and rows that begin with the second of a pair begin with a pair of one.
inline long share_begin(long batch, long thread, long threads) {
  return thread == threads ? batch : batch * thread / threads / 2 * 2;
}
// Calls body(rows before, rows) once, or twice if `first` is odd.
template <class Body>
void for_even_starts(long first, long last, Body&& body) {
  const long single = std::min(first % 2, last - first);
  if (single) body(0, single);
  if (last - first > single) body(single, last - first - single);
}

// What a thread needs to multiply up to `rows` rows.
template <class F>
struct PairSpace {
  PairSpace(long rows, long hidden) : terms(rows, hidden), sums((rows + 1) * padded<F>(hidden)) {}
  PairTerms<F> terms;
  Buffer<F> sums;  // and of a row to spare, in case their number is odd
};

template <class F>
class PairProduct {
 public:
  // `w` has panels of up to kPairVectors vectors; rows may be null: then there are no terms.
  PairProduct(const Packed<F>& w, long depth, const F* rows, long stride, long count, PairSpace<F>& space)
      : w_(w), depth_(depth), count_(count), space_(space), pieces_(rows ? (depth + kPairDepth - 1) / kPairDepth : 0) {
    if (rows) space.terms.list(rows, count, depth, stride, 1, false);
  }

  // Calls start(number of the panel, Constant<its vectors>, row, to) and finish(..., from), a row of sums each, before
  // and after its terms are added.
  template <class Start, class Finish>
  void run(Start&& start, Finish&& finish) const {
    for (long first = 0; first == 0 || first < pieces_; first += kTogether)
      for (size_t p = 0; p < w_.panels().size(); p++)
        for_vectors<1, kPairVectors>(w_.panels()[p].vectors, [&](auto vectors) {
          F* sums = space_.sums.data() + w_.panels()[p].first_column * (count_ + 1);
          constexpr long width = vectors * kLanes<F>;
          for (long r = 0; r < count_ && first == 0; r++) start(p, vectors, r, sums + r * width);
          const long end = std::min(pieces_, first + kTogether);
          for (long piece = first; piece < end; piece++)
            add_piece<vectors>(p, piece, sums, piece + 1 < end ? slice(p, piece + 1) : slice(p + 1, first));
          for (long r = 0; r < count_ && first + kTogether >= pieces_; r++) finish(p, vectors, r, sums + r * width);
        });
  }

 private:
  // Pieces of all rows whose terms stay in the second-level cache while the panels pass by.
  static constexpr long kTogether = 4;

  template <int Vectors>
  void add_piece(size_t p, long piece, F* sums, const F* ahead) const {
    constexpr long width = Vectors * kLanes<F>;
    const F* w = slice(p, piece);
    const long share = kPairDepth * width / ((count_ + 1) / 2);
    space_.terms.for_pairs(piece, [&](const LinePair<F>& pair) {
      // A large matrix is read anew at every step: each pair fetches its share of the piece that comes next.
      for (long i = 0; i < share; i += 64 / sizeof(F)) __builtin_prefetch(ahead + i, 0, 2);
      ahead += share;
      F *a = sums + pair.a * width, *b = sums + pair.b * width;
      add_terms<F, Vectors>(pair, a, b, a, b, w);
    });
  }

  // Where a piece of a panel begins, the depth being cut as for_pieces does. Beyond the last panel: the first.
  const F* slice(size_t p, long piece) const {
    const long units = (depth_ + kMaxRows - 1) / kMaxRows;
    return w_.row(w_.panels()[p % w_.panels().size()], units * piece / pieces_ * kMaxRows);
  }

  const Packed<F>& w_;
  const long depth_, count_;
  PairSpace<F>& space_;
  const long pieces_;
};

}  // namespace pathsgd
