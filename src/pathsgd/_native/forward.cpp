// Forward pass: see rnn.h for the recurrence and the meaning of rows and steps.
#include "rnn.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr long kTileRows = 128;  // rows that one thread carries through time together

// What a block of rows needs at one step.
template <class F>
struct Rows {
  const F* before;  // states before this step, or null
  long before_stride;
  const F* x;       // inputs, or null when `out` holds the projected inputs
  F* out;
};

template <class F>
class Forward {
 public:
  explicit Forward(const ForwardCall<F>& call)
      : call_(call), walk_(call.shape), hidden_(call.shape.hidden), inputs_(call.x ? call.shape.inputs : 0),
        columns_(padded<F>(hidden_)), w_rec_(call.w_rec, hidden_, hidden_, 1, hidden_),
        w_in_(call.w_in, inputs_, hidden_, 1, inputs_), bias_(columns_) {
    bias_.clear();
    for (const F* bias : {call.b_in, call.b_rec})
      for (long n = 0; bias && n < hidden_; n++) bias_.data()[n] += bias[n];
  }

  void run() {
    const long batch = call_.shape.batch;
    on_threads(std::min<long>(call_.shape.threads, batch), [&](long thread, long threads) {
      for_pieces(batch * thread / threads, batch * (thread + 1) / threads, kTileRows, kMaxRows,
                 [&](long first, long count) { sweep(first, first + count); });
    });
  }

 private:
  F* state(long row) const { return call_.out + row * call_.out_stride; }

  // All steps for the sequences in rows [first, last).
  void sweep(long first, long last) const {
    for (long position = 0; position < call_.shape.steps; position++) {
      const long t = walk_.step(position), end = std::min(last, walk_.rows(t));
      const long starts = std::clamp(walk_.continued(position), first, std::max(first, end));
      if (first < starts) {
        const long before = walk_.first_row(walk_.step(position - 1));
        step(t, first, starts, state(before + first), call_.out_stride);
      }
      if (starts < end) step(t, starts, end, call_.h0 ? call_.h0 + starts * hidden_ : nullptr, hidden_);
      keep_final(t, std::max(first, walk_.continuing(position)), end);
    }
  }

  void step(long t, long first, long last, const F* before, long before_stride) const {
    const long row = walk_.first_row(t) + first;
    const Rows<F> rows{before, before_stride, call_.x ? call_.x + row * inputs_ : nullptr, state(row)};
    // The panel's slice stays in L1 while all rows pass by it.
    for (long k0 = 0; k0 < hidden_; k0 += kDepth)
      for (size_t p = 0; p < w_rec_.panels().size(); p++)
        for_pieces(0, last - first, kMaxRows, 1, [&](long r, int count) {
          if (hidden_ > kDepth) w_rec_.fetch_ahead(p, k0, std::min(kDepth, hidden_ - k0), r, count, last - first);
          for_block(count, w_rec_.panels()[p].vectors, [&](auto block_rows, auto vectors) {
            block<block_rows, vectors>(rows, r, p, k0);
          });
        });
  }

  template <int BlockRows, int Vectors>
  PATHSGD_NOINLINE void block(const Rows<F>& rows, long r, size_t p, long k0) const {
    const Panel& panel = w_rec_.panels()[p];
    const long column = panel.first_column, left = hidden_ - column, depth = std::min(kDepth, hidden_ - k0);
    F* out = rows.out + r * call_.out_stride + column;
    Vec<F> acc[BlockRows][Vectors];
    if (k0 == 0 && rows.x) {
      load_block(acc, bias_.data() + column, 0, columns_ - column);
      multiply_add(acc, rows.x + r * inputs_, inputs_, w_in_.row(w_in_.panels()[p], 0), inputs_);
    } else {
      load_block(acc, out, call_.out_stride, left);
    }
    if (rows.before) {
      const F* before = rows.before + r * rows.before_stride + k0;
      multiply_add(acc, before, rows.before_stride, w_rec_.row(panel, k0), depth);
    }
    if (k0 + depth == hidden_) {
      PATHSGD_UNROLL for (int i = 0; i < BlockRows; i++)
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = relu<F>(acc[i][j]);
    }
    store_block(acc, out, call_.out_stride, left);
  }

  void keep_final(long t, long first, long last) const {
    for (long r = first; r < last; r++)
      std::memcpy(call_.h_n + r * hidden_, state(walk_.first_row(t) + r), hidden_ * sizeof(F));
  }

  const ForwardCall<F>& call_;
  const Walk walk_;
  const long hidden_, inputs_, columns_;
  const Packed<F> w_rec_, w_in_;
  Buffer<F> bias_;
};

template <class F>
int forward(const ForwardCall<F>& call) {
  try {
    Forward<F>(call).run();
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace
}  // namespace pathsgd

PATHSGD_EXPORT int pathsgd_forward_float(const pathsgd::ForwardCall<float>* call) { return pathsgd::forward(*call); }
PATHSGD_EXPORT int pathsgd_forward_double(const pathsgd::ForwardCall<double>* call) { return pathsgd::forward(*call); }
