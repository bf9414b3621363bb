// Largest singular value of a matrix by power iteration.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct SpectralNormCall {
  int64_t rows, columns, iterations;
  const F* matrix;  // (rows, columns)
  F* vector;        // (columns): where to start, and on return where to start next time
  double length;    // the result
};

}  // namespace pathsgd
