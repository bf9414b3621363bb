// Softmax of rows that are met panel by panel: each panel is taken relative to its own maximum, and only when all of
// them are known does each row of a panel get its factor. Every exponential is computed once.
//
//   panel p:   top_p = max l      l <- e^(l - top_p)      sum_p = sum of those
//   then:      total = sum_p e^(top_p - top) sum_p      factor_p = weight e^(top_p - top) / total
#pragma once
#include <cmath>
#include <limits>

#include "blocks.h"
#include "exponential.h"

namespace pathsgd {

// One row of one panel, in place.
template <class F, int Vectors>
PATHSGD_INLINE void exponentials(F* row, F& top, F& sum) {
  Vec<F> largest = load(row);
  PATHSGD_UNROLL for (int j = 1; j < Vectors; j++) {
    const Vec<F> value = load(row + j * kLanes<F>);
    largest = value > largest ? value : largest;
  }
  top = largest[0];
  for (int lane = 1; lane < kLanes<F>; lane++) top = largest[lane] > top ? largest[lane] : top;
  // Where all are minus infinity nothing is to be subtracted. A NaN may escape the maximum, but not the sum.
  const Vec<F> base = broadcast(top == -std::numeric_limits<F>::infinity() ? F(0) : top);
  Vec<F> sums = zero<F>();
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
    const Vec<F> value = exponential<F>(load(row + j * kLanes<F>) - base);
    store(row + j * kLanes<F>, value);
    sums += value;
  }
  sum = 0;
  for (int lane = 0; lane < kLanes<F>; lane++) sum += sums[lane];
}

// The rows of a chunk, all panels of them: arrays (panels, stride), where the stride is a whole number of vectors.
template <class F>
class Softmax {
 public:
  Softmax(long rows, long panels)
      : stride_(padded<F>(rows)), panels_(panels), tops_(panels * stride_), sums_(panels * stride_), top_(stride_),
        total_(stride_) {
    tops_.clear();
    sums_.clear();
  }
  F& top(long panel, long row) { return tops_.data()[panel * stride_ + row]; }
  F& sum(long panel, long row) { return sums_.data()[panel * stride_ + row]; }
  F factor(long panel, long row) const { return tops_.data()[panel * stride_ + row]; }  // after `finish`
  F top(long row) const { return top_.data()[row]; }
  F total(long row) const { return total_.data()[row]; }

  // Turns the maxima of all panels into factors.
  void finish(const F* weights, long rows) {
    for (long r = 0; r < rows; r += kLanes<F>) {
      Vec<F> top = load(tops_.data() + r), total = zero<F>();
      for (long p = 1; p < panels_; p++) {
        const Vec<F> other = load(tops_.data() + p * stride_ + r);
        top = other > top ? other : top;
      }
      for (long p = 0; p < panels_; p++) {
        F* place = tops_.data() + p * stride_ + r;
        const Vec<F> share = exponential<F>(load(place) - top);
        total += share * load(sums_.data() + p * stride_ + r);
        store(place, share);
      }
      const Vec<F> scale = load_part(weights + r, rows - r) / total;
      for (long p = 0; p < panels_; p++) {
        F* place = tops_.data() + p * stride_ + r;
        store(place, load(place) * scale);
      }
      store(top_.data() + r, top);
      store(total_.data() + r, total);
    }
  }

 private:
  const long stride_, panels_;
  Buffer<F> tops_, sums_, top_, total_;
};

}  // namespace pathsgd
