// Products with a matrix squared elementwise: see squared_products.h for what is computed.
#include "squared_products.h"

#include <algorithm>
#include <vector>

#include "entry.h"
#include "threads.h"

namespace pathsgd {
namespace {

// W^2 x and (W^2)^T y of some rows; every thread sums the latter for itself.
template <class W>
void squared_rows(const SquaredProductsCall<W>& call, long first, long last, double* __restrict sums) {
  const long n = call.columns;
  for (long r = first; r < last; r++) {
    const W* __restrict w = call.w + r * n;
    const double y = call.y ? call.y[r] : 1.0;
    if (sums)
      for (long c = 0; c < n; c++) sums[c] += static_cast<double>(w[c]) * w[c] * y;
    if (!call.into) continue;
    constexpr int kWide = 8;
    double partial[kWide] = {}, total = 0;
    const long whole = n / kWide * kWide;
    for (long c = 0; c < whole; c += kWide)
      for (int lane = 0; lane < kWide; lane++) {
        const double value = w[c + lane];
        partial[lane] += value * value * (call.x ? call.x[c + lane] : 1.0);
      }
    for (long c = whole; c < n; c++) total += static_cast<double>(w[c]) * w[c] * (call.x ? call.x[c] : 1.0);
    for (double part : partial) total += part;
    call.into[r] = total;
  }
}

}  // namespace

template <class W>
void squared_products(const SquaredProductsCall<W>& call) {
  const long size = call.rows * call.columns;
  const long wanted = std::max<long>(1, std::min<long>(call.threads, size / kWorthAThread));
  std::vector<double> sums(call.out ? wanted * call.columns : 0, 0.0);
  on_threads(wanted, [&](long thread, long threads) {
    double* own = call.out ? sums.data() + thread * call.columns : nullptr;
    squared_rows(call, call.rows * thread / threads, call.rows * (thread + 1) / threads, own);
  });
  for (long c = 0; call.out && c < call.columns; c++) {
    call.out[c] = 0;
    for (long thread = 0; thread < wanted; thread++) call.out[c] += sums[thread * call.columns + c];
  }
}
template void squared_products(const SquaredProductsCall<float>&);
template void squared_products(const SquaredProductsCall<double>&);

}  // namespace pathsgd

PATHSGD_ENTRIES(squared_products, SquaredProductsCall)
