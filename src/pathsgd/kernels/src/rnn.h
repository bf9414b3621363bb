// One direction of one layer of a ReLU RNN, forward and backward.
//
//   h_t = relu(W_in x_t + b_in + b_rec + W_rec h_before(t))      t = 0 .. steps-1
//   dz_t = [h_t > 0] * (dout_t + W_rec^T dz_after(t))            dz: gradient of the value inside relu
//   dW_rec = sum_t dz_t h_before(t)^T    dW_in = sum_t dz_t x_t^T    dbias = sum_t dz_t    dh_0 = W_rec^T dz_first
//
// Time. Every array over time is (all rows, features): the rows of step t follow those of step t-1. Step t has
// rows(t) <= batch rows and row r is the same sequence at every step, so packed sequences (rows(t) falling with t)
// and padded ones (rows(t) = batch) are one case. A reversed layer walks t = steps-1 .. 0. "Before" and "after" are
// meant along the walk: a row starts (from h_0) where it has no step before, and ends (its state is h_n) where it
// has none after.
#pragma once
#include <cstdint>

#include "simd/blocks.h"

namespace pathsgd {

struct Shape {
  int64_t steps, batch, hidden, inputs, reversed, threads;
  const int64_t* row_starts;  // steps+1 numbers, or null when every step has `batch` rows
};

// The C interface hands over these structures; any pointer marked "or null" may be absent.
template <class F>
struct RnnForwardCall {
  Shape shape;
  const F* x;      // (all rows, inputs), or null: then `out` already holds W_in x_t + b_in + b_rec
  const F* w_in;   // (hidden, inputs)
  const F* b_in;   // (hidden), or null
  const F* b_rec;  // (hidden), or null
  const F* w_rec;  // (hidden, hidden)
  const F* h0;     // (batch, hidden), or null for zeros
  F* out;          // (all rows, out_stride)
  int64_t out_stride;
  F* h_n;          // (batch, hidden)
};

template <class F>
struct RnnBackwardCall {
  Shape shape;
  const F* x;      // (all rows, inputs), or null: no dW_in wanted
  const F* w_rec;  // (hidden, hidden)
  const F* h0;     // or null
  const F* out;
  int64_t out_stride;
  const F* dout;   // (all rows, dout_stride), or null for zeros
  int64_t dout_stride;
  const F* dh_n;   // (batch, hidden), or null for zeros
  F* dz;           // (all rows, hidden), or null: not kept
  F* dh0;          // (batch, hidden), or null
  F* dw_rec;       // (hidden, hidden), or null; for many units recurrent_gradient.cpp makes it of a dz that was kept
  F* dw_in;        // (hidden, inputs), or null
  F* dbias;        // (hidden)
};

// dW_rec alone, after the sweep.
template <class F>
struct RecurrentGradientCall {
  Shape shape;
  const F* dz;   // (all rows, hidden)
  const F* h0;   // or null
  const F* out;
  int64_t out_stride;
  F* dw_rec;     // (hidden, hidden)
};

class Walk {
 public:
  explicit Walk(const Shape& shape) : shape_(shape) {}
  long step(long position) const { return shape_.reversed ? shape_.steps - 1 - position : position; }
  long first_row(long t) const { return shape_.row_starts ? shape_.row_starts[t] : t * shape_.batch; }
  long rows(long t) const { return shape_.row_starts ? shape_.row_starts[t + 1] - shape_.row_starts[t] : shape_.batch; }
  // Rows of the step at `position` that also exist at the position before / after it; they come first.
  long continued(long position) const { return position == 0 ? 0 : shared(position, position - 1); }
  long continuing(long position) const { return position == shape_.steps - 1 ? 0 : shared(position, position + 1); }

 private:
  long shared(long p, long q) const { return std::min(rows(step(p)), rows(step(q))); }
  const Shape& shape_;
};

}  // namespace pathsgd
