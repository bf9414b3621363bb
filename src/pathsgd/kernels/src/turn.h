// How far one direction has turned from another.
#pragma once
#include <cmath>
#include <cstdint>

namespace pathsgd {

// |a / |a| - b / |b||
template <class F>
double turn(const F* a, const F* b, int64_t count) {
  double a_square = 0, b_square = 0, square = 0;
  for (int64_t i = 0; i < count; i++) {
    a_square += static_cast<double>(a[i]) * a[i];
    b_square += static_cast<double>(b[i]) * b[i];
  }
  const double a_length = std::sqrt(a_square), b_length = std::sqrt(b_square);
  for (int64_t i = 0; i < count; i++) {
    const double difference = a[i] / a_length - b[i] / b_length;
    square += difference * difference;
  }
  return std::sqrt(square);
}

}  // namespace pathsgd
