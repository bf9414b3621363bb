// Lowers the growth of one direction of h -> keep h + gain relu(W h), in place, by the smallest change of W:
// arithmetic/growth.py has the equations.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct CorrectDirectionCall {
  int64_t units, iterations, inside;
  F* weight;             // (units, units), changed
  const F* scale;        // (units)
  const F *keep, *gain;  // (units), or null for 0 and 1
  const F* ray;          // (units), in coordinates h / scale
  F* left;               // (units): start of the left vector l; on return l, or as it was where none was used
  double share;          // 1 - cap / rate: how much of the image of the ray goes
  double fixed;          // largest |F(r) / |F(r)| - r / |r|| of a fixed direction
  double normal;         // smallest cos(l, F(r)) at which l is used
};

}  // namespace pathsgd
