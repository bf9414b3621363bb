// Matrices turned over, a square of vectors at a time in registers.
#pragma once
#include <utility>

#include "vector.h"

namespace pathsgd {

// Lanes of `a` (0 .. lanes-1) and `b` (lanes ..) that belong to the lower or upper of two vectors once blocks of `Step`
// lanes have changed places between them.
template <int Lanes, int Step, bool Upper>
constexpr int exchanged_lane(int lane) {
  const bool second = lane & Step;
  const int from = second ? lane - Step : lane;
  return (Upper ? from + Step : from) + (second ? Lanes : 0);
}
template <class F, int Step, bool Upper, int... Lane>
PATHSGD_INLINE Vec<F> exchange(Vec<F> a, Vec<F> b, std::integer_sequence<int, Lane...>) {
  return __builtin_shufflevector(a, b, exchanged_lane<kLanes<F>, Step, Upper>(Lane)...);
}

template <class F, int Step = kLanes<F> / 2>
PATHSGD_INLINE void transpose_square(Vec<F> (&rows)[kLanes<F>]) {
  constexpr auto lanes = std::make_integer_sequence<int, kLanes<F>>{};
  PATHSGD_UNROLL for (int i = 0; i < kLanes<F>; i++) {
    if (i & Step) continue;
    const Vec<F> low = exchange<F, Step, false>(rows[i], rows[i + Step], lanes);
    rows[i + Step] = exchange<F, Step, true>(rows[i], rows[i + Step], lanes);
    rows[i] = low;
  }
  if constexpr (Step > 1) transpose_square<F, Step / 2>(rows);
}

// to (columns, rows) = or += from (rows, columns)^T.
template <class F>
void transpose(const F* from, long from_stride, long rows, long columns, F* to, long to_stride, bool adds) {
  constexpr long lanes = kLanes<F>;
  const long whole_rows = rows / lanes * lanes, whole_columns = columns / lanes * lanes;
  for (long r = 0; r < whole_rows; r += lanes)
    for (long c = 0; c < whole_columns; c += lanes) {
      Vec<F> square[lanes];
      PATHSGD_UNROLL for (int i = 0; i < lanes; i++) square[i] = load(from + (r + i) * from_stride + c);
      transpose_square<F>(square);
      PATHSGD_UNROLL for (int i = 0; i < lanes; i++) {
        F* place = to + (c + i) * to_stride + r;
        store(place, adds ? load(place) + square[i] : square[i]);
      }
    }
  for (long r = 0; r < rows; r++)
    for (long c = r < whole_rows ? whole_columns : 0; c < columns; c++) {
      F& place = to[c * to_stride + r];
      place = from[r * from_stride + c] + (adds ? place : F(0));
    }
}

}  // namespace pathsgd
