// w = min(largest, sqrt(scale) rows_i columns_j / sqrt(kappa_ij)), and 0 where kappa is 0.
#pragma once
#include <cstdint>

namespace pathsgd {

// K: type of kappa, F: type of w.
template <class K, class F>
struct InverseRootCall {
  int64_t rows, columns, threads;
  const K* kappa;                              // (rows, columns)
  const double *row_factors, *column_factors;  // (rows), (columns), or null for ones
  double scale;
  F* to;  // (rows, columns)
};

}  // namespace pathsgd
