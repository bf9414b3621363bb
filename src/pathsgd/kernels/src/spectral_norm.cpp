// Power iteration: see spectral_norm.h for what is computed.
#include "spectral_norm.h"

#include <cmath>

#include "entry.h"
#include "simd/blocks.h"

namespace pathsgd {
namespace {

template <class F>
double sum_of_lanes(Vec<F> values) {
  double total = 0;
  for (int lane = 0; lane < kLanes<F>; lane++) total += values[lane];
  return total;
}

template <class F>
double length_of(const F* vector, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; i++) total += static_cast<double>(vector[i]) * vector[i];
  return std::sqrt(total);
}

template <class F>
void scale_by(F* vector, int64_t count, double factor) {
  for (int64_t i = 0; i < count; i++) vector[i] = static_cast<F>(vector[i] * factor);
}

// y = matrix x, and its length.
template <class F>
void multiply(const SpectralNormCall<F>& call, const F* x, F* y, double* length) {
  const int64_t whole = call.columns / kLanes<F> * kLanes<F>;
  for (int64_t r = 0; r < call.rows; r++) {
    const F* row = call.matrix + r * call.columns;
    Vec<F> sum = zero<F>(), other = zero<F>();
    int64_t c = 0;
    for (; c + 2 * kLanes<F> <= whole; c += 2 * kLanes<F>) {
      sum += load(row + c) * load(x + c);
      other += load(row + c + kLanes<F>) * load(x + c + kLanes<F>);
    }
    for (; c < whole; c += kLanes<F>) sum += load(row + c) * load(x + c);
    double total = sum_of_lanes<F>(sum + other);
    for (; c < call.columns; c++) total += static_cast<double>(row[c]) * x[c];
    y[r] = static_cast<F>(total);
  }
  *length = length_of(y, call.rows);
}

template <class F>
void multiply_transposed(const SpectralNormCall<F>& call, const F* y, F* __restrict x) {
  std::fill_n(x, call.columns, F(0));
  int64_t r = 0;
  for (; r + 4 <= call.rows; r += 4) {
    const F* __restrict row = call.matrix + r * call.columns;
    const int64_t n = call.columns;
    for (int64_t c = 0; c < n; c++)
      x[c] += y[r] * row[c] + y[r + 1] * row[n + c] + y[r + 2] * row[2 * n + c] + y[r + 3] * row[3 * n + c];
  }
  for (; r < call.rows; r++)
    for (int64_t c = 0; c < call.columns; c++) x[c] += y[r] * call.matrix[r * call.columns + c];
}

// Vectors have length one between products: nothing leaves the range unless the result does.
template <class F>
void spectral_norm(SpectralNormCall<F>& call) {
  const FlushDenormals guard;
  Buffer<F> y(call.rows), x(call.columns);
  F* v = x.data();
  std::memcpy(v, call.vector, call.columns * sizeof(F));
  scale_by(v, call.columns, 1 / std::max(length_of(v, call.columns), 1e-300));
  for (int64_t i = 0;; i++) {
    multiply(call, v, y.data(), &call.length);
    if (i == call.iterations || !(call.length > 0) || !std::isfinite(call.length)) break;
    scale_by(y.data(), call.rows, 1 / call.length);
    multiply_transposed(call, y.data(), v);
    const double length = length_of(v, call.columns);
    if (!(length > 0) || !std::isfinite(length)) {
      call.length = length;
      return;
    }
    scale_by(v, call.columns, 1 / length);
  }
  std::memcpy(call.vector, v, call.columns * sizeof(F));
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(spectral_norm, SpectralNormCall)
