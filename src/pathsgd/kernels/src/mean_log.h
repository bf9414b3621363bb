// The mean of the logarithms of numbers; -infinity where one is zero.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct MeanLogCall {
  int64_t count, threads;
  const F* x;   // (count), not negative
  double mean;  // the result
};

template <class F>
double sum_of_logs(const F* x, int64_t count);

}  // namespace pathsgd
