// A product of matrices as they lie in memory, whole vectors of columns: for those that are used too seldom for packing
// them, as product.h does, to pay.
#pragma once
#include "blocks.h"

namespace pathsgd {

// to[i][:] = start[i][:] + sum_k a(i, k) b[k][:], where a(i, k) = a[i * a_row + k * a_depth].
template <class F>
struct DenseProduct {
  F* to;
  long to_stride;
  const F* start;
  long start_stride;
  const F* a;
  long a_row, a_depth;
  const F* b;
  long b_stride, depth;
  long part, a_part;  // a(i, k) jumps by a_part after every `part` of k

  // `rows` rows and `columns` columns, which must be whole vectors in memory.
  void run(long rows, const std::vector<Panel>& columns) const {
    for (const Panel& panel : columns)
      for_pieces(0, rows, kMaxRows, 1, [&](long r, int count) {
        for_block(count, panel.vectors, [&](auto height, auto vectors) {
          block<height, vectors>(r, panel.first_column);
        });
      });
  }

 private:
  template <int Rows, int Vectors>
  PATHSGD_NOINLINE void block(long r, long c) const {
    Vec<F> acc[Rows][Vectors];
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++)
        acc[i][j] = load(start + (r + i) * start_stride + c + j * kLanes<F>);
    const F* right = b + c;
    for (long first = 0; first < depth; first += part) {
      const F* left = a + first / part * a_part + r * a_row;
      const long end = std::min(depth - first, part), rows = a_row, step = a_depth, stride = b_stride;
      for (long k = 0; k < end; k++, left += step, right += stride) {
        Vec<F> row[Vectors];
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(right + j * kLanes<F>);
        PATHSGD_UNROLL for (int i = 0; i < Rows; i++) {
          const Vec<F> value = broadcast(left[i * rows]);
          PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
        }
      }
    }
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++)
        store(to + (r + i) * to_stride + c + j * kLanes<F>, acc[i][j]);
  }
};

}  // namespace pathsgd
