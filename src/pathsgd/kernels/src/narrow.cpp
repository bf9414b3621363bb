// Float64 numbers in a shorter type, counted in another unit: see narrow.h for what is computed.
#include "narrow.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "entry.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

template <class F>
void range(NarrowCall<F>& call) {
  constexpr int kWide = 8;  // independent lanes, so that the compiler may make vectors of them
  double largest[kWide] = {}, least[kWide];
  std::fill(least, least + kWide, kInfinity);
  const auto include = [&](double x, int lane) {
    const double seen = x > 0 ? x : kInfinity;
    largest[lane] = x > largest[lane] ? x : largest[lane];
    least[lane] = seen < least[lane] ? seen : least[lane];
  };
  const int64_t whole = call.count / kWide * kWide;
  for (int64_t i = 0; i < whole; i += kWide)
    for (int lane = 0; lane < kWide; lane++) include(call.x[i + lane], lane);
  for (int64_t i = whole; i < call.count; i++) include(call.x[i], 0);
  call.largest = *std::max_element(largest, largest + kWide);
  call.least = *std::min_element(least, least + kWide);
}

template <class F>
void multiply(const double* __restrict x, double factor, int64_t count, F* __restrict to) {
  for (int64_t i = 0; i < count; i++) to[i] = static_cast<F>(x[i] * factor);
}

// 2^-e for a largest entry in [2^(e-1), 2^e), within the range in which it and its inverse are ordinary numbers.
double power_for(double largest) {
  if (!(largest > 0 && largest < kInfinity)) return 1.0;
  int exponent;
  std::frexp(largest, &exponent);
  return std::ldexp(1.0, -std::clamp(exponent, -1000, 1000));
}

template <class F>
void narrow(NarrowCall<F>& call) {
  range(call);
  if (call.factor == 0) call.factor = power_for(call.largest);
  multiply(call.x, call.factor, call.count, call.to);
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRY(narrow, NarrowCall, float)
