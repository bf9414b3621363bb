// What every node says to the edges that enter it and to those that leave it, from the path flow through it:
//
//   bounded = max(flow, least)      into = bounded^exponent      out = into * sqrt(flow / bounded), into where flow is 0
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct FlowSidesCall {
  int64_t count;
  const F *flow, *least;  // (count)
  F *out, *into;          // (count)
  double exponent;
};

}  // namespace pathsgd
