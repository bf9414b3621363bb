// The squared network of a plain recurrent net: its sequences (squared_sequences.h) and what kappa1 is made of, their
// sums over time, relative to gamma^2. With s = 0 .. T-1, in the common scale root^(T-1),
//
//   u = W_in^2 e + b_in^2 + b_rec^2      v = (W_out^2)^T 1      gamma^2 = v . out + output_rows |b_out|^2
//   into = sum root^-s delta_s           out = sum root^-(T-1-s) h_s, or the last h        flow = sum h_s .* delta_s
//   recurrent = sum delta_{s+1} h_s^T
//
// and into, out and flow are divided by gamma^2, recurrent by root gamma^2, unless gamma^2 is zero.
#pragma once
#include <cstdint>

namespace pathsgd {

// W: type of the weights, F: type of the computation.
template <class W, class F>
struct PlainSumsCall {
  int64_t steps, hidden, inputs, outputs, every_step, threads;
  const W *w_in, *b_in, *b_rec;  // (hidden, inputs), (hidden) or null
  const W* w_rec;                // (hidden, hidden)
  const W *w_out, *b_out;        // (outputs, hidden), (outputs) or null
  const double* e;               // (inputs), or null for ones
  F *h, *delta;                  // (steps, hidden)
  double *into, *out, *flow;     // (hidden)
  F* recurrent;                  // (hidden, hidden)
  double decay;                  // 1 / root
  double output_rows;
  // Results:
  double gamma_sq;
  double growth;   // of the sum of h in the last step; 0 where there is only one
  double largest;  // entry of h and delta; infinite where anything is not finite
  double least;    // entry of into, out and, where T > 1, recurrent, before they are divided
};

}  // namespace pathsgd
