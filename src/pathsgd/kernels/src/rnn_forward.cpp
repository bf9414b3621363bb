// Forward pass: see rnn.h for the recurrence and the meaning of rows and steps.
#include "entry.h"
#include "rnn.h"
#include "simd/pairs.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr long kTileRows = 128;  // rows that one thread carries through time together

// What a block of rows needs at one step.
template <class F>
struct Rows {
  const F* before;  // a slice of the states before this step, or null
  long before_stride;
  const F* x;       // inputs, or null when `out` holds the projected inputs
  F* out;
};

template <class F>
class RnnForward {
 public:
  explicit RnnForward(const RnnForwardCall<F>& call)
      : call_(call), walk_(call.shape), hidden_(call.shape.hidden), inputs_(call.x ? call.shape.inputs : 0),
        columns_(padded<F>(hidden_)), skip_zeros_(all_finite(call.w_rec, hidden_ * hidden_)),
        by_pairs_(skip_zeros_ && hidden_ >= kLeastForPairs), most_vectors_(by_pairs_ ? kPairVectors : kMaxVectors),
        w_rec_(call.w_rec, hidden_, hidden_, 1, hidden_, most_vectors_),
        w_in_(call.w_in, inputs_, hidden_, 1, inputs_, most_vectors_), bias_(columns_) {
    bias_.clear();
    for (const F* bias : {call.b_in, call.b_rec})
      for (long n = 0; bias && n < hidden_; n++) bias_.data()[n] += bias[n];
  }

  void run() {
    const long batch = call_.shape.batch;
    on_threads(std::min<long>(call_.shape.threads, batch), [&](long thread, long threads) {
      for_pieces(share_begin(batch, thread, threads), share_begin(batch, thread + 1, threads), kTileRows, kMaxRows,
                 [&](long first, long count) { sweep(first, first + count); });
    });
  }

 private:
  struct Space {
    RowBlocks<F> blocks;
    PairSpace<F> pairs;
  };

  F* state(long row) const { return call_.out + row * call_.out_stride; }

  // All steps for the sequences in rows [first, last).
  void sweep(long first, long last) const {
    Space space{RowBlocks<F>(last - first, std::min(kDepth, hidden_)),
                PairSpace<F>(by_pairs_ ? last - first : 0, hidden_)};
    for (long position = 0; position < call_.shape.steps; position++) {
      const long t = walk_.step(position), end = std::min(last, walk_.rows(t));
      const long starts = std::clamp(walk_.continued(position), first, std::max(first, end));
      if (first < starts) {
        const long before = walk_.first_row(walk_.step(position - 1));
        step(t, first, starts, state(before + first), call_.out_stride, space);
      }
      if (starts < end) step(t, starts, end, call_.h0 ? call_.h0 + starts * hidden_ : nullptr, hidden_, space);
      keep_final(t, std::max(first, walk_.continuing(position)), end);
    }
  }

  void step(long t, long first, long last, const F* before, long before_stride, Space& space) const {
    const long row = walk_.first_row(t) + first, count = last - first;
    if (by_pairs_) {
      return for_even_starts(first, last, [&](long skipped, long rows) {
        step_by_pairs(row + skipped, rows, before ? before + skipped * before_stride : nullptr, before_stride,
                      space.pairs);
      });
    }
    for (long k0 = 0; k0 < hidden_; k0 += kDepth) {
      const long depth = std::min(kDepth, hidden_ - k0);
      const F* slice = before ? before + k0 : nullptr;
      const Rows<F> rows{slice, before_stride, call_.x ? call_.x + row * inputs_ : nullptr, state(row)};
      const auto& found = space.blocks.find(slice, before_stride, count, depth, skip_zeros_);
      // The panel's slice stays in L1 while all rows pass by it.
      for (size_t p = 0; p < w_rec_.panels().size(); p++)
        for (const RowBlock& at : found) {
          if (hidden_ > kDepth) w_rec_.fetch_ahead(p, k0, depth, at.first, at.rows, count);
          for_block(at.rows, w_rec_.panels()[p].vectors, [&](auto block_rows, auto vectors) {
            block<block_rows, vectors>(rows, at, p, k0);
          });
        }
    }
  }

  template <int BlockRows, int Vectors>
  PATHSGD_NOINLINE void block(const Rows<F>& rows, const RowBlock& at, size_t p, long k0) const {
    const Panel& panel = w_rec_.panels()[p];
    const long column = panel.first_column, left = hidden_ - column;
    F* out = rows.out + at.first * call_.out_stride + column;
    Vec<F> acc[BlockRows][Vectors];
    if (k0 == 0 && rows.x) {
      load_block(acc, bias_.data() + column, 0, columns_ - column);
      multiply_add(acc, rows.x + at.first * inputs_, inputs_, w_in_.row(w_in_.panels()[p], 0), inputs_);
    } else {
      load_block(acc, out, call_.out_stride, left);
    }
    if (at.active > 0) {
      const F* before = rows.before + at.first * rows.before_stride;
      const long depth = std::min(kDepth, hidden_ - k0);
      multiply_add_active(acc, at, before, rows.before_stride, w_rec_.row(panel, k0), depth);
    }
    if (k0 + kDepth >= hidden_) {
      PATHSGD_UNROLL for (int i = 0; i < BlockRows; i++)
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = relu<F>(acc[i][j]);
    }
    store_block(acc, out, call_.out_stride, left);
  }

  void step_by_pairs(long row, long count, const F* before, long before_stride, PairSpace<F>& space) const {
    F* out = state(row);
    const auto start = [&](size_t p, auto vectors, long r, F* sums) {
      const long column = w_rec_.panels()[p].first_column;
      Vec<F> acc[1][vectors];
      if (call_.x) {
        load_block(acc, bias_.data() + column, 0, columns_ - column);
        multiply_add(acc, call_.x + (row + r) * inputs_, inputs_, w_in_.row(w_in_.panels()[p], 0), inputs_);
      } else {
        load_block(acc, out + r * call_.out_stride + column, 0, hidden_ - column);
      }
      store_block(acc, sums, 0, vectors * kLanes<F>);
    };
    const auto finish = [&](size_t p, auto vectors, long r, const F* sums) {
      const long column = w_rec_.panels()[p].first_column;
      Vec<F> acc[1][vectors];
      constexpr int width = vectors;
      PATHSGD_UNROLL for (int j = 0; j < width; j++) acc[0][j] = relu<F>(load(sums + j * kLanes<F>));
      store_block(acc, out + r * call_.out_stride + column, 0, hidden_ - column);
    };
    PairProduct<F>(w_rec_, hidden_, before, before_stride, count, space).run(start, finish);
  }

  void keep_final(long t, long first, long last) const {
    for (long r = first; r < last; r++)
      std::memcpy(call_.h_n + r * hidden_, state(walk_.first_row(t) + r), hidden_ * sizeof(F));
  }

  const RnnForwardCall<F>& call_;
  const Walk walk_;
  const long hidden_, inputs_, columns_;
  const bool skip_zeros_, by_pairs_;
  const int most_vectors_;
  const Packed<F> w_rec_, w_in_;
  Buffer<F> bias_;
};

template <class F>
void rnn_forward(const RnnForwardCall<F>& call) {
  RnnForward<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(rnn_forward, RnnForwardCall)
