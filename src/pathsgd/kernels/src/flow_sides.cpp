// What nodes say to their edges: see flow_sides.h for what is computed.
#include "flow_sides.h"

#include <cmath>

#include "entry.h"

namespace pathsgd {
namespace {

template <class F>
void flow_sides(const FlowSidesCall<F>& call) {
  const bool is_fourth_root = call.exponent == 0.25;  // by far the commonest, and pow takes thirty times as long
  for (int64_t i = 0; i < call.count; i++) {
    const F flow = call.flow[i], bounded = flow < call.least[i] ? call.least[i] : flow;
    const F power = is_fourth_root ? std::sqrt(std::sqrt(bounded)) : std::pow(bounded, static_cast<F>(call.exponent));
    call.into[i] = power;
    call.out[i] = flow > 0 ? std::sqrt(flow / bounded) * power : power;
  }
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRY(flow_sides, FlowSidesCall, double)
