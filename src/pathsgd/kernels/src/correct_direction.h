// Takes the growth of one direction of h -> keep h + gain relu(W h) down to a cap, in place: arithmetic/growth.py says how.
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
  F* left;               // (units): where the left vector starts from, and on return the one that was used
  double share;          // of the image of the ray that goes: 1 - cap / rate
  double condition;      // largest |l| |r| / (l . r) at which a left vector is used
};

}  // namespace pathsgd
