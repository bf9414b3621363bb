// to = factor * x rounded to F, with the largest entry of x and the least above zero.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct NarrowCall {
  int64_t count;
  const double* x;                // (count), not negative
  F* to;                          // (count)
  double factor;                  // 0: chosen here, the power of two that takes the largest entry into [1/2, 1)
  double largest, least;          // results; 0 and infinity where all of x is zero
};

}  // namespace pathsgd
