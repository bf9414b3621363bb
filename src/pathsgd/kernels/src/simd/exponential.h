// e^x for x <= 0, a vector at a time, to about one unit in the last place.
//
//   x = n ln 2 + r, |r| <= ln 2 / 2:  e^x = 2^n e^r,  e^r by its Taylor series
//
// Below the range of normal numbers the result is zero; NaN stays NaN.
#pragma once
#include "vector.h"

namespace pathsgd {

template <class F>
struct ExpOf;

template <>
struct ExpOf<float> {
  typedef int32_t Integer;
  static constexpr int kTerms = 7, kMantissa = 23;  // (ln 2 / 2)^8 / 8! = 5e-9
  static constexpr Integer kOne = 127;
  static constexpr float kLeast = -87.33f, kRounding = 12582912.0f;  // 1.5 * 2^23: what is added to it loses its fraction
  static constexpr float kLn2 = 0.693359375f, kLn2Rest = -2.12194440e-4f;
};
template <>
struct ExpOf<double> {
  typedef int64_t Integer;
  static constexpr int kTerms = 13, kMantissa = 52;  // (ln 2 / 2)^14 / 14! = 4e-18
  static constexpr Integer kOne = 1023;
  static constexpr double kLeast = -708.39, kRounding = 6755399441055744.0;
  static constexpr double kLn2 = 0.693145751953125, kLn2Rest = 1.42860682030941723212e-6;
};

template <class F>
constexpr F inverse_factorial(int n) {
  double product = 1;
  for (int i = 2; i <= n; i++) product *= i;
  return static_cast<F>(1 / product);
}

template <class F>
PATHSGD_INLINE Vec<F> exponential(Vec<F> x) {
  typedef ExpOf<F> Of;
  typedef typename Of::Integer Bits __attribute__((vector_size(PATHSGD_VECTOR_BYTES), aligned(sizeof(F)), may_alias));
  const Vec<F> shifted = x * static_cast<F>(1.4426950408889634) + Of::kRounding, n = shifted - Of::kRounding;
  const Vec<F> r = (x - n * Of::kLn2) - n * Of::kLn2Rest;
  Vec<F> sum = broadcast(inverse_factorial<F>(Of::kTerms));
  PATHSGD_UNROLL for (int k = Of::kTerms - 1; k >= 0; k--) sum = sum * r + inverse_factorial<F>(k);
  // The last bits of `shifted` are n.
  const Bits power = ((Bits)shifted + Of::kOne) << Of::kMantissa;
  return x < broadcast<F>(Of::kLeast) ? zero<F>() : sum * (Vec<F>)power;
}

}  // namespace pathsgd
