// Products with W squared elementwise, in float64: into = W^2 x, out = (W^2)^T y.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class W>
struct SquaredProductsCall {
  int64_t rows, columns, threads;
  const W* w;           // (rows, columns)
  const double *x, *y;  // (columns), (rows), or null for ones
  double *into, *out;   // (rows), (columns), or null: not wanted
};

template <class W>
void squared_products(const SquaredProductsCall<W>& call);

}  // namespace pathsgd
