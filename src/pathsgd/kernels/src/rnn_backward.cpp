// Backward pass: see rnn.h for the recurrence and the meaning of rows and steps.
#include <memory>

#include "entry.h"
#include "rnn.h"
#include "simd/outer.h"
#include "simd/pairs.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr long kTileRows = 64;  // rows that one thread carries through time together

// A block of rows of W_rec^T dz_after + dout + dh_n, cut where h is not active.
template <class F>
struct Rows {
  const F* after;  // dz one step later, or null
  const F* dout;   // or null
  const F* dh_n;   // or null
  const F* h;      // or null: nothing is cut
  const F* soon;   // states needed next, fetched into cache meanwhile, or null
  F* to;
  long to_stride, to_columns;
};

template <class F>
class RnnBackward {
 public:
  explicit RnnBackward(const RnnBackwardCall<F>& call)
      : call_(call), walk_(call.shape), hidden_(call.shape.hidden), recurrent_(call.dw_rec ? hidden_ : 0),
        inputs_(call.dw_in ? call.shape.inputs : 0), skip_zeros_(all_finite(call.w_rec, hidden_ * hidden_)),
        by_pairs_(skip_zeros_ && hidden_ >= kLeastForPairs),
        w_rec_(call.w_rec, hidden_, hidden_, hidden_, 1, by_pairs_ ? kPairVectors : kMaxVectors) {
    const long threads = std::max<long>(1, std::min<long>(call.shape.threads, call.shape.batch));
    const long columns = recurrent_ + inputs_ + 1, tile = std::min<long>(kTileRows, call.shape.batch);
    // Every thread's sums exist and are clear even when fewer threads arrive than were asked for. Three steps of room:
    // the rows of the step after must outlive a return to the start.
    for (long thread = 0; thread < threads; thread++)
      outer_.push_back(std::make_unique<OuterSum<F>>(3 * tile, hidden_, columns));
  }

  void run() {
    const long batch = call_.shape.batch;
    on_threads(static_cast<long>(outer_.size()), [&](long thread, long threads) {
      for_pieces(share_begin(batch, thread, threads), share_begin(batch, thread + 1, threads), kTileRows, kMaxRows,
                 [&](long first, long count) { sweep(first, first + count, *outer_[thread]); });
    });
    finish(call_.dw_rec, recurrent_, 0);
    finish(call_.dw_in, inputs_, recurrent_);
    finish(call_.dbias, 1, recurrent_ + inputs_);
  }

 private:
  struct Space {
    RowBlocks<F> blocks;
    PairSpace<F> pairs;
  };

  const F* state(long row) const { return call_.out + row * call_.out_stride; }

  // All steps for the sequences in rows [first, last).
  void sweep(long first, long last, OuterSum<F>& outer) const {
    Space space{RowBlocks<F>(last - first, std::min(kDepth, hidden_)),
                PairSpace<F>(by_pairs_ ? last - first : 0, hidden_)};
    const F* after = nullptr;
    for (long position = call_.shape.steps - 1; position >= 0; position--) {
      const long t = walk_.step(position), end = std::min(last, walk_.rows(t));
      if (end <= first) continue;
      if (!outer.has_room(end - first)) outer.flush();
      const long ends = std::clamp(walk_.continuing(position), first, end);
      const long starts = std::clamp(walk_.continued(position), first, end);
      const F* before = starts > first ? state(walk_.first_row(walk_.step(position - 1)) + first) : nullptr;
      const long stride = outer.dz_stride();
      F* dz = outer.dz();
      step(t, first, ends, after, before, dz, stride, space);
      step(t, ends, end, nullptr, nullptr, dz + (ends - first) * stride, stride, space);
      if (call_.dh0) to_start(starts, end, dz + (starts - first) * stride, stride, space);
      if (call_.dz) keep(t, first, end, dz, stride);
      gather(t, first, starts, end, before, outer);
      outer.advance(end - first);
      after = dz;
    }
    outer.flush();
  }

  // dz of rows [first, last) of step t; `after` is null for rows that end here.
  void step(long t, long first, long last, const F* after, const F* soon, F* dz, long dz_stride,
            Space& space) const {
    const long row = walk_.first_row(t) + first;
    const F* dout = call_.dout ? call_.dout + row * call_.dout_stride : nullptr;
    const F* dh_n = call_.dh_n && !after ? call_.dh_n + first * hidden_ : nullptr;
    product({after, dout, dh_n, state(row), soon, dz, dz_stride, padded<F>(hidden_)}, first, last, dz_stride, space);
  }

  // Rows [first, last) begin at the step whose dz is given: what they pass on is the gradient of h_0.
  void to_start(long first, long last, const F* dz, long dz_stride, Space& space) const {
    F* dh0 = call_.dh0 + first * hidden_;
    product({dz, nullptr, nullptr, nullptr, nullptr, dh0, hidden_, hidden_}, first, last, dz_stride, space);
  }

  void product(const Rows<F>& rows, long first, long last, long dz_stride, Space& space) const {
    const long count = last - first;
    if (by_pairs_)
      return for_even_starts(first, last, [&](long skipped, long size) {
        product_by_pairs(rows, skipped, size, dz_stride, space.pairs);
      });
    for (long k0 = 0; k0 < hidden_; k0 += kDepth) {
      const long depth = std::min(kDepth, hidden_ - k0);
      const auto& found = space.blocks.find(rows.after ? rows.after + k0 : nullptr, dz_stride, count, depth, skip_zeros_);
      for (size_t p = 0; p < w_rec_.panels().size(); p++)
        for (const RowBlock& at : found) {
          if (hidden_ > kDepth) w_rec_.fetch_ahead(p, k0, depth, at.first, at.rows, count);
          const Panel& panel = w_rec_.panels()[p];
          for_block(at.rows, panel.vectors, [&](auto block_rows, auto vectors) {
            block<block_rows, vectors>(rows, at, panel, k0, dz_stride);
          });
        }
    }
  }

  void product_by_pairs(const Rows<F>& rows, long first, long count, long dz_stride, PairSpace<F>& space) const {
    const auto start = [](size_t, auto vectors, long, F* sums) { std::fill_n(sums, vectors * kLanes<F>, F(0)); };
    const auto finish = [&](size_t p, auto vectors, long r, const F* sums) {
      const long column = w_rec_.panels()[p].first_column;
      Vec<F> acc[1][vectors];
      load_block(acc, sums, 0, vectors * kLanes<F>);
      complete(acc, rows, first + r, column);
      store_block(acc, rows.to + (first + r) * rows.to_stride + column, 0, rows.to_columns - column);
    };
    const F* after = rows.after ? rows.after + first * dz_stride : nullptr;
    PairProduct<F>(w_rec_, hidden_, after, dz_stride, count, space).run(start, finish);
  }

  template <int BlockRows, int Vectors>
  PATHSGD_NOINLINE void block(const Rows<F>& rows, const RowBlock& at, const Panel& panel, long k0,
                              long dz_stride) const {
    const long column = panel.first_column, left = rows.to_columns - column, r = at.first;
    F* to = rows.to + r * rows.to_stride + column;
    Vec<F> acc[BlockRows][Vectors];
    if (k0 == 0) {
      PATHSGD_UNROLL for (int i = 0; i < BlockRows; i++)
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = zero<F>();
    } else {
      load_block(acc, to, rows.to_stride, left);
    }
    if (rows.soon) {
      PATHSGD_UNROLL for (int i = 0; i < BlockRows; i++)
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++)
          __builtin_prefetch(rows.soon + (r + i) * call_.out_stride + column + j * kLanes<F>);
    }
    if (at.active > 0) {
      const long depth = std::min(kDepth, hidden_ - k0);
      multiply_add_active(acc, at, rows.after + r * dz_stride + k0, dz_stride, w_rec_.row(panel, k0), depth);
    }
    if (k0 + kDepth >= hidden_) complete(acc, rows, r, column);
    store_block(acc, to, rows.to_stride, left);
  }

  template <int BlockRows, int Vectors>
  PATHSGD_INLINE void complete(Vec<F> (&acc)[BlockRows][Vectors], const Rows<F>& rows, long r, long column) const {
    const long left = hidden_ - column;
    if (rows.dout) add_block(acc, rows.dout + r * call_.dout_stride + column, call_.dout_stride, left);
    if (rows.dh_n) add_block(acc, rows.dh_n + r * hidden_ + column, hidden_, left);
    if (!rows.h) return;
    const F* h = rows.h + r * call_.out_stride + column;
    PATHSGD_UNROLL for (int i = 0; i < BlockRows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++)
        acc[i][j] = where_active<F>(load_vector<Vectors>(h + i * call_.out_stride, j, left), acc[i][j]);
  }

  void keep(long t, long first, long last, const F* dz, long dz_stride) const {
    F* to = call_.dz + (walk_.first_row(t) + first) * hidden_;
    for (long r = 0; r < last - first; r++) std::memcpy(to + r * hidden_, dz + r * dz_stride, hidden_ * sizeof(F));
  }

  // [h_before, x, 1] of each row; rows from `starts` on come from h_0.
  void gather(long t, long first, long starts, long last, const F* before, OuterSum<F>& outer) const {
    for (long r = first; r < last; r++) {
      const F* h = r < starts ? before + (r - first) * call_.out_stride : call_.h0 ? call_.h0 + r * hidden_ : nullptr;
      F* to = outer.before(r - first);
      if (h) std::memcpy(to, h, recurrent_ * sizeof(F));
      else std::fill_n(to, recurrent_, F(0));
      std::copy_n(call_.x + (walk_.first_row(t) + r) * inputs_, inputs_, to + recurrent_);
      to[recurrent_ + inputs_] = 1;
    }
  }

  // Adds up the threads' sums over `count` columns from `first` on.
  void finish(F* to, long count, long first) const {
    for (long n = 0; n < hidden_; n++)
      for (long k = 0; k < count; k++) {
        F total = 0;
        for (const auto& outer : outer_) total += outer->sum(n, first + k);
        to[n * count + k] = total;
      }
  }

  const RnnBackwardCall<F>& call_;
  const Walk walk_;
  const long hidden_, recurrent_, inputs_;
  const bool skip_zeros_, by_pairs_;
  const Packed<F> w_rec_;
  std::vector<std::unique_ptr<OuterSum<F>>> outer_;
};

template <class F>
void rnn_backward(const RnnBackwardCall<F>& call) {
  RnnBackward<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(rnn_backward, RnnBackwardCall)
