// Sums of outer products over rows, for all weight gradients of a sweep at once:
//
//   sums[n][:] += sum_r dz[r][n] * before[r][:]      before[r] = [h_before, x, 1],  sums = [dW_rec, dW_in, dbias]
//
// Rows are gathered over several steps before they are summed, so that the sums are not moved at every step. Units whose
// dz is zero in all of them are left out. Both sides have a stride of their own: rows of 128 numbers, say, would all
// compete for the same few places of the cache.
#pragma once
#include "active.h"

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
  // Room for `rows` rows at least, of `units` numbers dz and `columns` numbers before.
  OuterSum(long rows, long units, long columns)
      : capacity_(std::max(rows, kGatheredRows)), units_(units), columns_(columns),
        group_stride_(spread_stride<F>(capacity_ * kGroup)), dz_stride_(spread_stride<F>(units)),
        before_stride_(spread_stride<F>(columns)), sums_stride_(padded<F>(columns)),
        panels_(panels_of<F>(columns, units)), sums_((units + 1) * sums_stride_), dz_(capacity_ * dz_stride_),
        before_(capacity_ * before_stride_), groups_((units + kGroup) * group_stride_ / kGroup),
        places_(units + kSpare + kGroup) {
    sums_.clear();
    before_.clear();  // columns that only fill up a vector stay zero
  }

  long dz_stride() const { return dz_stride_; }
  bool has_room(long rows) const { return used_ + rows <= capacity_; }
  F* dz() { return dz_.data() + used_ * dz_stride_; }
  F* before(long row) { return before_.data() + (used_ + row) * before_stride_; }
  void advance(long rows) { used_ += rows; }
  F sum(long unit, long column) const { return sums_.data()[unit * sums_stride_ + column]; }

  void flush() {
    if (used_ == 0) return;
    const long groups = (list_units() + kGroup - 1) / kGroup;
    for (long group = 0; group < groups; group++) turn(group);
    for (const Panel& panel : panels_)
      for (long group = 0; group < groups; group++)
        for_vectors(panel.vectors, [&](auto vectors) { block<vectors>(group, panel.first_column); });
    used_ = 0;
  }

 private:
  static constexpr long kGroup = 4;  // units summed together: their dz lie row by row inside the group

  // Units to be summed, filled up to whole groups with a unit beyond the last, whose sums nobody reads.
  long list_units() {
    const bool finite = all_finite(before_.data(), used_ * before_stride_);
    const long listed = finite ? active_columns(dz_.data(), dz_stride_, used_, units_, places_.data())
                               : all_columns(units_, places_.data());
    std::fill_n(places_.data() + listed, kGroup, static_cast<int>(units_));
    return listed;
  }

  void turn(long group) {
    const int* place = places_.data() + group * kGroup;
    F* to = groups_.data() + group * group_stride_;
    const F* dz = dz_.data();
    for (long r = 0; r < used_; r++, dz += dz_stride_, to += kGroup)
      PATHSGD_UNROLL for (int i = 0; i < kGroup; i++) to[i] = dz[place[i]];
  }

  template <int Vectors>
  PATHSGD_NOINLINE void block(long group, long column) {
    const int* place = places_.data() + group * kGroup;
    F* sums = sums_.data() + column;
    Vec<F> acc[kGroup][Vectors];
    PATHSGD_UNROLL for (int i = 0; i < kGroup; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = load(sums + place[i] * sums_stride_ + j * kLanes<F>);
    const F *dz = groups_.data() + group * group_stride_, *before = before_.data() + column;
    for (long r = 0; r < used_; r++, dz += kGroup, before += before_stride_) {
      Vec<F> row[Vectors];
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(before + j * kLanes<F>);
      PATHSGD_UNROLL for (int i = 0; i < kGroup; i++) {
        const Vec<F> value = broadcast(dz[i]);
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
      }
    }
    PATHSGD_UNROLL for (int i = 0; i < kGroup; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) store(sums + place[i] * sums_stride_ + j * kLanes<F>, acc[i][j]);
  }

  const long capacity_, units_, columns_, group_stride_, dz_stride_, before_stride_, sums_stride_;
  const std::vector<Panel> panels_;
  Buffer<F> sums_, dz_, before_, groups_;
  Buffer<int> places_;
  long used_ = 0;
};

}  // namespace pathsgd
