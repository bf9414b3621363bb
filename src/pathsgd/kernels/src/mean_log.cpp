// Means of logarithms: see mean_log.h for what is computed.
//
// A number is a mantissa in [1, 2) times a power of two. Exponents are added; mantissas are multiplied, and only their
// products have logarithms taken. A stretch of numbers is so short that no product leaves the range of float64.
#include "mean_log.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "entry.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr int kWide = 8;
constexpr int64_t kStretch = kWide * 1000;  // each lane multiplies a thousand mantissas below two

template <class F>
struct Bits;
template <>
struct Bits<float> {
  using Int = int32_t;
  static constexpr int kMantissa = 23;
  static constexpr Int kOne = 127;
};
template <>
struct Bits<double> {
  using Int = int64_t;
  static constexpr int kMantissa = 52;
  static constexpr Int kOne = 1023;
};

// Exponents and mantissas of a stretch; `is_plain` stays true if all numbers are positive, finite and not denormal.
template <class F>
double stretch_log(const F* x, int64_t count, bool& is_plain) {
  using Int = typename Bits<F>::Int;
  constexpr Int kMask = (Int(1) << Bits<F>::kMantissa) - 1, kOne = Bits<F>::kOne << Bits<F>::kMantissa;
  double products[kWide];
  Int exponents[kWide] = {}, odd[kWide] = {};
  std::fill(products, products + kWide, 1.0);
  const auto include = [&](int64_t i, int lane) {
    Int bits;
    F mantissa;
    std::memcpy(&bits, x + i, sizeof bits);
    const Int exponent = bits >> Bits<F>::kMantissa;  // with the sign, which makes it negative
    const Int unit = (bits & kMask) | kOne;
    std::memcpy(&mantissa, &unit, sizeof mantissa);
    odd[lane] |= (exponent - 1) | (2 * Bits<F>::kOne - exponent);  // negative if the exponent is no ordinary one
    exponents[lane] += exponent - Bits<F>::kOne;
    products[lane] *= mantissa;
  };
  const int64_t whole = count / kWide * kWide;
  for (int64_t i = 0; i < whole; i += kWide)
    for (int lane = 0; lane < kWide; lane++) include(i + lane, lane);
  for (int64_t i = whole; i < count; i++) include(i, static_cast<int>(i - whole));
  double sum = 0;
  for (int lane = 0; lane < kWide; lane++) {
    is_plain = is_plain && odd[lane] >= 0;
    sum += std::log(products[lane]) + static_cast<double>(exponents[lane]) * M_LN2;
  }
  return sum;
}

}  // namespace

template <class F>
double sum_of_logs(const F* x, int64_t count) {
  double total = 0;
  for (int64_t first = 0; first < count; first += kStretch) {
    const int64_t length = std::min(kStretch, count - first);
    bool is_plain = true;
    double sum = stretch_log(x + first, length, is_plain);
    if (!is_plain) {  // a zero, most likely
      sum = 0;
      for (int64_t i = 0; i < length; i++) sum += std::log(static_cast<double>(x[first + i]));
    }
    total += sum;
  }
  return total;
}

template double sum_of_logs(const float*, int64_t);
template double sum_of_logs(const double*, int64_t);

namespace {

template <class F>
void mean_log(MeanLogCall<F>& call) {
  const int64_t wanted = std::max<int64_t>(1, std::min(call.threads, call.count / kWorthAThread));
  std::vector<double> sums(wanted, 0.0);
  on_threads(wanted, [&](long thread, long threads) {
    const int64_t first = call.count * thread / threads, last = call.count * (thread + 1) / threads;
    sums[thread] = sum_of_logs(call.x + first, last - first);
  });
  double total = 0;
  for (double sum : sums) total += sum;
  call.mean = call.count ? total / static_cast<double>(call.count) : std::numeric_limits<double>::quiet_NaN();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(mean_log, MeanLogCall)
