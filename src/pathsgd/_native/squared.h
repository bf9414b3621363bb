// States and their derivatives in the squared network of one recurrent layer, for one example:
//
//   h_1 = u,  h_{s+1} = A h_s + u          delta_T = v,  delta_s = A^T delta_{s+1} (+ v when every step has an output)
//
// with A = W_rec squared elementwise. Everything is scaled so that nothing overflows: what is computed is
// h_s rho^-(s-1) and delta_s rho^-(T-s), by the same recurrences with A/rho and with u rho^-s, v rho^-(T-s) added.
#pragma once
#include <cstdint>

namespace pathsgd {

// W: type of the weights, F: type of the computation.
template <class W, class F>
struct SquaredCall {
  int64_t steps, hidden, every_step, threads;
  const W* w_rec;  // (hidden, hidden)
  const F *u, *v;  // (hidden)
  F *h, *delta;    // (steps, hidden): row s-1 belongs to step s
  double inverse_rho;
};

// The sequences and their sums over time, in the common scale rho^(T-1); s = 0 .. T-1:
//   into = sum rho^-s delta_s    out = sum rho^-(T-1-s) h_s, or the last h    flow = sum h_s delta_s
//   recurrent = sum delta_{s+1} h_s^T, (hidden, hidden)
template <class W, class F>
struct SquaredSumsCall {
  int64_t steps, hidden, every_step, threads;
  const W* w_rec;
  const double *u, *v;
  F *h, *delta;
  double inverse_rho;
  double *into, *out, *flow;  // (hidden)
  F* recurrent;
  double largest, least;  // of the entries of h and delta; of those of into, out and recurrent (of the first two if T = 1)
};

// The sums of a plain net, relative to its gamma^2: u and v are made of the weights themselves,
//   u = W_in^2 e + b_in^2 + b_rec^2      v = (W_out^2)^T 1      gamma^2 = v . out + output_rows |b_out|^2
// and into, out and flow are divided by gamma^2, recurrent by rho gamma^2, unless it is zero.
template <class W, class F>
struct PlainSumsCall {
  SquaredSumsCall<W, F> sums;  // u and v need not be given
  int64_t inputs, outputs;
  const W *w_in, *b_in, *b_rec;  // (hidden, inputs), (hidden) or null
  const W *w_out, *b_out;        // (outputs, hidden), (outputs) or null
  const double* e;               // (inputs), or null for ones
  double output_rows, gamma_sq;
  double growth;  // of the sum of h in the last step; 0 where there is only one
};

// Products with W squared elementwise, in float64: into = W^2 x, out = (W^2)^T y.
template <class W>
struct SquaredProductsCall {
  int64_t rows, columns, threads;
  const W* w;             // (rows, columns)
  const double *x, *y;    // (columns), (rows), or null for ones
  double *into, *out;     // (rows), (columns), or null: not wanted
};

}  // namespace pathsgd
