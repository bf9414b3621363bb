// q = w^2 elementwise, with the largest q and the least q of a w that is not zero.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct SquaresCall {
  int64_t count, threads;
  const F* w;             // (count)
  F* q;                   // (count)
  double largest, least;  // results; 0 and infinity where all of w is zero
};

}  // namespace pathsgd
