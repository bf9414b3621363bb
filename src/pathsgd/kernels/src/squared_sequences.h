// States and their derivatives in the squared network of one recurrent layer, for one example:
//
//   h_1 = u,  h_{s+1} = A h_s + u          delta_T = v,  delta_s = A^T delta_{s+1} (+ v when every step has an output)
//
// with A = W_rec squared elementwise. Everything is scaled by a root near A's Perron root, so that nothing overflows:
// what is computed is h_s root^-(s-1) and delta_s root^-(T-s), by the same recurrences with A/root and with u root^-s,
// v root^-(T-s) added.
#pragma once
#include <cstdint>

namespace pathsgd {

// W: type of the weights, F: type of the computation.
template <class W, class F>
struct SquaredSequencesCall {
  int64_t steps, hidden, every_step, threads;
  const W* w_rec;  // (hidden, hidden)
  const F *u, *v;  // (hidden)
  F *h, *delta;    // (steps, hidden): row s-1 belongs to step s
  double decay;    // 1 / root
};

template <class W, class F>
void squared_sequences(const SquaredSequencesCall<W, F>& call);

}  // namespace pathsgd
