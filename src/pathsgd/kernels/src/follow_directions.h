// Power iterations through h -> keep h + gain relu(W h), from several directions that are kept from call to call:
// arithmetic/growth.py says what for.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct FollowDirectionsCall {
  int64_t units, count, iterations, settle, ripe, memory;
  int64_t renewing;          // whether the slowest of the ripe directions makes room for a new one
  int64_t inside;            // relu(keep h + gain W h) instead
  int64_t started;           // how many directions there have been; raised on return
  const F* weight;           // (units, units)
  const F* scale;            // (units)
  const F *keep, *gain;      // (units), or null for 0 and 1
  F* rays;                   // (count, units), in coordinates h / scale, the fastest first
  F *age, *mean;             // (count)
  double fixed;              // a direction that turns by less in an iteration counts at once
  double alike;              // by which rates of one direction, reached twice, may differ: they stay in their order
  double rate;               // the result: the largest growth rate of a ripe direction, or 0
};

}  // namespace pathsgd
