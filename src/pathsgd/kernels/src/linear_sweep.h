// One sweep through a linear recurrence with an input of its own at every step:
//
//   m_t = r_t A m_{t-1} + u_t          m_0 = start
//
// or backwards in time, m_t = r_t A m_{t+1} + u_t from m_{T+1} = start; with A or its transpose. That is the squared network
// of any recurrent layer, in any direction, and its adjoint.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct LinearSweepCall {
  int64_t steps, rows, hidden, transposed, backwards;
  const F* a;            // (hidden, hidden)
  const F* u;            // (steps, rows, hidden)
  const F* start;        // (rows, hidden), or null for zero
  const double* ratios;  // (steps), or null for ones
  F* m;                  // (steps, rows, hidden)
};

template <class F>
void linear_sweep(const LinearSweepCall<F>& call);

}  // namespace pathsgd
