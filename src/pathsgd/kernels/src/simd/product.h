// Products of matrices, C (+)= A B.
//
//   A (m, depth), B (depth, n): element (i, k) is data[i * row_stride + k * column_stride]; C (m, n) has rows of its own
//
// Blocks of B stay in the second-level cache, a panel of one in the first, and groups of rows of A pass by it. Both are
// packed: A in groups of kMaxRows rows, depth by depth, so that a block reads both sides in order.
#pragma once
#include "blocks.h"
#include "../threads.h"

namespace pathsgd {

template <class F>
struct Matrix {
  const F* data;
  int64_t row_stride, column_stride;
  Matrix from(long row, long column) const {
    return {data + row * row_stride + column * column_stride, row_stride, column_stride};
  }
};

template <class F>
class Product {
 public:
  Product(Matrix<F> a, Matrix<F> b, F* c, long c_stride, long depth, bool adds)
      : a_(a), b_(b), c_(c), c_stride_(c_stride), depth_(depth), adds_(adds) {}

  // The part of C of m rows and n columns that begins at (row, column).
  void run(long row, long m, long column, long n) const {
    if (depth_ == 0) return;
    Buffer<F> rows(kBlockRows * kDepth);
    for (long k0 = 0; k0 < depth_; k0 += kDepth)
      for (long n0 = 0; n0 < n; n0 += kBlockColumns) {
        const long depth = std::min(kDepth, depth_ - k0), columns = std::min(kBlockColumns, n - n0);
        const Matrix<F> right = b_.from(k0, column + n0);
        const Packed<F> panels(right.data, depth, columns, right.row_stride, right.column_stride);
        for (long m0 = 0; m0 < m; m0 += kBlockRows) {
          const long count = std::min(kBlockRows, m - m0);
          pack(a_.from(row + m0, k0), count, depth, rows.data());
          for (const Panel& panel : panels.panels())
            for (long r = 0; r < count; r += kMaxRows)
              for_vectors(panel.vectors, [&](auto vectors) {
                F* to = c_ + (row + m0 + r) * c_stride_ + column + n0 + panel.first_column;
                block<vectors>(rows.data() + r * depth, panels.row(panel, 0), depth, to,
                               std::min<long>(kMaxRows, count - r), columns - panel.first_column, adds_ || k0 > 0);
              });
        }
      }
  }

 private:
  static constexpr long kBlockRows = 24 * kMaxRows, kBlockColumns = 10 * kMaxVectors * kLanes<F>;

  // Groups of kMaxRows rows, inside a group depth by depth; rows that do not exist are zero.
  static void pack(Matrix<F> a, long count, long depth, F* to) {
    for (long r = 0; r < count; r += kMaxRows, to += kMaxRows * depth) {
      const long rows = std::min<long>(kMaxRows, count - r);
      if (rows < kMaxRows) std::fill_n(to, kMaxRows * depth, F(0));
      if (a.column_stride == 1) {
        for (long i = 0; i < rows; i++) {
          const F* from = a.data + (r + i) * a.row_stride;
          for (long k = 0; k < depth; k++) to[k * kMaxRows + i] = from[k];
        }
      } else if (a.row_stride == 1 && rows == kMaxRows) {
        for (long k = 0; k < depth; k++)
          std::memcpy(to + k * kMaxRows, a.data + r + k * a.column_stride, kMaxRows * sizeof(F));
      } else {
        for (long k = 0; k < depth; k++)
          for (long i = 0; i < rows; i++) to[k * kMaxRows + i] = a.data[(r + i) * a.row_stride + k * a.column_stride];
      }
    }
  }

  template <int Vectors>
  PATHSGD_NOINLINE static void block(const F* a, const F* panel, long depth, F* to, long rows, long left, bool adds,
                                     long stride) {
    Vec<F> acc[kMaxRows][Vectors];
    PATHSGD_UNROLL for (int i = 0; i < kMaxRows; i++)
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = zero<F>();
    for (long k = 0; k < depth; k++) {
      Vec<F> row[Vectors];
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(panel + (k * Vectors + j) * kLanes<F>);
      PATHSGD_UNROLL for (int i = 0; i < kMaxRows; i++) {
        const Vec<F> value = broadcast(a[k * kMaxRows + i]);
        PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
      }
    }
    PATHSGD_UNROLL for (int i = 0; i < kMaxRows; i++) {
      if (i >= rows) break;
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
        F* place = to + i * stride + j * kLanes<F>;
        const Vec<F> before = adds ? load_vector<Vectors>(to + i * stride, j, left) : zero<F>();
        const Vec<F> value = acc[i][j] + before;
        j == Vectors - 1 ? store_part(place, value, left - j * kLanes<F>) : store(place, value);
      }
    }
  }
  template <int Vectors>
  void block(const F* a, const F* panel, long depth, F* to, long rows, long left, bool adds) const {
    block<Vectors>(a, panel, depth, to, rows, left, adds, c_stride_);
  }

  const Matrix<F> a_, b_;
  F* const c_;
  const long c_stride_, depth_;
  const bool adds_;
};

// The whole product, shared out by rows or columns of C, whichever there are more of.
template <class F>
void multiply_matrices(Matrix<F> a, Matrix<F> b, F* c, long c_stride, long m, long n, long depth, bool adds,
                       long threads) {
  const Product<F> product(a, b, c, c_stride, depth, adds);
  const bool by_rows = m >= n;
  const long size = by_rows ? m : n, unit = by_rows ? kMaxRows : kMaxVectors * kLanes<F>;
  const long wanted = std::max<long>(1, std::min<long>(threads, size / (4 * unit)));
  on_threads(wanted, [&](long thread, long arrived) {
    const long units = (size + unit - 1) / unit;
    const long first = units * thread / arrived * unit, last = std::min(size, units * (thread + 1) / arrived * unit);
    if (by_rows) product.run(first, last - first, 0, n);
    else product.run(0, m, first, last - first);
  });
}

}  // namespace pathsgd
