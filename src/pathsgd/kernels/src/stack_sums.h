// Sums over the sequences of the squared network of a stack of recurrent layers, in one or both directions in time:
//
//   h_t = A h_{t-1} + W_in^2 x_t + b^2        delta_t = A^T delta_{t+1} + what enters from above at t        A = W_rec^2
//   into = sum_t delta_t      through = sum_t h_t .* delta_t      recurrent = sum_t delta_{t+1} h_t^T
//   w_in = sum_t delta_t x_t^T, of layers above the lowest
//
// A direction backwards in time has t+1 and t-1 exchanged. h_t is kept as h_t decay^(t-1), delta_t as delta_t decay^(T-t).
// All sums are divided by gamma^2 at the end, unless that is out of range: then nothing but gamma_sq has been written.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct StackCell {
  const F *w_in, *w_rec;   // (hidden, inputs), (hidden, hidden); inputs: directions * hidden above the lowest layer
  const F *b_in, *b_rec;   // (hidden), or null
  F *into, *recurrent;     // (hidden), (hidden, hidden)
  double* through;         // (hidden)
  F* kappa_in;             // (hidden, directions * hidden), or null in the lowest layer
  int64_t is_unused;       // whether no path uses w_rec
};

template <class F>
struct StackSumsCall {
  int64_t steps, hidden, inputs, layers, directions, outputs, threads;
  StackCell<F>* cells;     // (layers, directions), from the lowest
  const F *w_out, *b_out;  // (outputs, directions * hidden), (outputs) or null
  const double* e;         // (inputs), what each input carries, or null for ones
  const int64_t* reads;    // (directions), the step that the output layer reads, or -1 for every step
  F* out;                  // (directions * hidden), what the output layer has read
  double decay, lowest_gamma_sq, highest_gamma_sq;
  // Results. largest: of all states and derivatives, infinite where anything is not finite; least: of all sums that
  // paths use, before the division; gain: the product over upper layers of their largest sum of W_in^2, 1 at least.
  double gamma_sq, growth, largest, least, gain;
};

}  // namespace pathsgd
