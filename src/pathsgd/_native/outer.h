// Sums of outer products over rows, for all weight gradients of a sweep at once:
//
//   sums[k][:] += sum_r left[r][k] * dz[r][:]        left[r] = [h_before, x, 1],  sums = [dW_rec^T; dW_in^T; dbias]
//
// Rows are gathered over several steps before they are summed, so that the sums are not moved at every step.
// Both sides are copies with a stride of their own: rows of 128 numbers, say, would all compete for the same few
// places of the cache.
#pragma once
#include "blocks.h"

namespace pathsgd {

constexpr long kGatheredRows = 96;

// A row length that is an odd number of cache lines.
template <class F>
long spread_stride(long columns) {
  const long line = 64 / sizeof(F), lines = (columns + line - 1) / line;
  return (lines | 1) * line;
}

template <class F>
class OuterSum {
 public:
  static constexpr long kGroup = 4;  // depths summed together; `left` is stored group by group, rows inside a group

  // Room for `rows` rows at least.
  OuterSum(long rows, long depth, long columns)
      : capacity_(std::max(rows, kGatheredRows)), groups_((depth + kGroup - 1) / kGroup),
        group_stride_(spread_stride<F>(capacity_ * kGroup)), dz_stride_(spread_stride<F>(columns)),
        stride_(padded<F>(columns)), panels_(panels_of<F>(columns, depth)), sums_(groups_ * kGroup * stride_),
        left_(groups_ * group_stride_), dz_(capacity_ * dz_stride_) {
    sums_.clear();
  }

  long dz_stride() const { return dz_stride_; }
  bool has_room(long rows) const { return used_ + rows <= capacity_; }
  F* dz() { return dz_.data() + used_ * dz_stride_; }
  // left[used + row][first .. first+count) = values, or zeros.
  void put(long row, long first, const F* values, long count) {
    F* to = left_.data() + (used_ + row) * kGroup + first / kGroup * group_stride_;
    long k = 0;
    if (first % kGroup == 0)
      for (; k + kGroup <= count; k += kGroup, to += group_stride_) {
        if (values) std::memcpy(to, values + k, kGroup * sizeof(F));
        else std::memset(to, 0, kGroup * sizeof(F));
      }
    for (long lane = (first + k) % kGroup; k < count; k++) {
      to[lane] = values ? values[k] : 0;
      if (++lane == kGroup) lane = 0, to += group_stride_;
    }
  }
  void advance(long rows) { used_ += rows; }
  F sum(long k, long column) const { return sums_.data()[k * stride_ + column]; }

  void flush() {
    if (used_ == 0) return;
    for (const Panel& panel : panels_)
      for (long group = 0; group < groups_; group++)
        for_vectors(panel.vectors, [&](auto vectors) { block<vectors>(group, panel.first_column); });
    used_ = 0;
  }

 private:
  template <int Vectors>
  PATHSGD_NOINLINE void block(long group, long column) {
    F* sums = sums_.data() + group * kGroup * stride_ + column;
    Vec<F> acc[kGroup][Vectors];
    load_block(acc, sums, stride_, stride_ - column);
    const F *left = left_.data() + group * group_stride_, *dz = dz_.data() + column;
    for (long r = 0; r < used_; r++, left += kGroup, dz += dz_stride_) {
      Vec<F> row[Vectors];
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(dz + j * kLanes<F>);
      PATHSGD_UNROLL for (int i = 0; i < kGroup; i++) {
        const Vec<F> value = broadcast(left[i]);
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
      }
    }
    store_block(acc, sums, stride_, stride_ - column);
  }

  const long capacity_, groups_, group_stride_, dz_stride_, stride_;
  const std::vector<Panel> panels_;
  Buffer<F> sums_, left_, dz_;
  long used_ = 0;
};

}  // namespace pathsgd
