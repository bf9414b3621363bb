// |row|^2 = sum over the entries of a row of (p / w)^2, those with w = 0 left out; in float64.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct RowLengthsCall {
  int64_t rows, columns, threads;
  const F *p, *w;   // (rows, columns)
  double* squares;  // (rows)
};

}  // namespace pathsgd
