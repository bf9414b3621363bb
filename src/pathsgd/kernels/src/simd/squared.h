// Numbers squared, and the range of the squares.
#pragma once
#include <algorithm>
#include <cstdint>
#include <limits>

namespace pathsgd {

// The largest of some squares w^2, and the least of those whose w is not zero.
template <class F>
struct Range {
  F largest = 0, least = std::numeric_limits<F>::infinity();

  void include(F w, F q) {
    largest = q > largest ? q : largest;
    const F seen = w != 0 ? q : std::numeric_limits<F>::infinity();
    least = seen < least ? seen : least;
  }
  void include(const Range& other) {
    largest = std::max(largest, other.largest);
    least = std::min(least, other.least);
  }
};

// q = w^2.
template <class F>
Range<F> squared(const F* __restrict w, F* __restrict q, int64_t count) {
  constexpr int kWide = 16;  // independent lanes, so that the compiler may make vectors of them
  F largest[kWide] = {}, least[kWide];
  std::fill(least, least + kWide, std::numeric_limits<F>::infinity());
  const int64_t whole = count / kWide * kWide;
  for (int64_t i = 0; i < whole; i += kWide)
    for (int lane = 0; lane < kWide; lane++) {
      const F square = w[i + lane] * w[i + lane];
      const F seen = w[i + lane] != 0 ? square : std::numeric_limits<F>::infinity();
      q[i + lane] = square;
      largest[lane] = square > largest[lane] ? square : largest[lane];
      least[lane] = seen < least[lane] ? seen : least[lane];
    }
  Range<F> range;
  for (int lane = 0; lane < kWide; lane++) range.include({largest[lane], least[lane]});
  for (int64_t i = whole; i < count; i++) range.include(w[i], q[i] = w[i] * w[i]);
  return range;
}

}  // namespace pathsgd
