// kappa2's sum for a matrix whose powers approach rank one. With before[s] = h_s, delta[t-1] = delta_t, T steps,
//
//   S = sum_{n=0}^{T-2} (A^n)^T .* M_n        M_n = sum_s delta_{s+n+2} h_s^T
//
//   A^n ~ l^n v w^T,  A v = l v,  w A = l w,  w v = 1        B = A / l
//
// If |B^m - v w^T| <= tolerance * v w^T holds entrywise for one m it holds for every n >= m, because B >= 0 and B v = v.
// Then powers below m and one more term are enough. fallback/rank_one_sum.py has the same sums in torch, and says how
// those of delta are shortened where delta_t = A^T delta_{t+1} (`adjoint`).
#pragma once
#include <cstdint>

namespace pathsgd {

enum RankOne {
  kNoGap,      // no power up to `most` is rank one, or the vectors do not come near enough
  kCertified,  // `total` is S
  kTooSmall,   // numbers below the range of F may matter
};

template <class F>
struct RankOneSumCall {
  int64_t steps, hidden, adjoint, most, threads;  // steps > 8, 2 most <= steps
  const double* a;                                // (hidden, hidden)
  const F *before, *delta;                        // (steps, hidden)
  double* total;                                  // (hidden, hidden)
  double tolerance;
  int64_t result;  // a RankOne; `total` is written for kCertified alone
};

}  // namespace pathsgd
