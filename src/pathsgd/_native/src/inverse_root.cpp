// Inverse square roots of kappa: see inverse_root.h for what is computed.
#pragma GCC optimize("no-math-errno")  // sqrt then is an instruction, and loops with it can be vectors
#include "inverse_root.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "entry.h"
#include "threads.h"

namespace pathsgd {
namespace {

template <class K, class F>
void inverse_root(const InverseRootCall<K, F>& call) {
  const int64_t wanted = std::min(call.threads, call.rows * call.columns / kWorthAThread);
  const K largest = static_cast<K>(std::numeric_limits<F>::max());
  on_threads(std::max<int64_t>(1, wanted), [&](long thread, long threads) {
    for (int64_t r = call.rows * thread / threads; r < call.rows * (thread + 1) / threads; r++) {
      const K* __restrict kappa = call.kappa + r * call.columns;
      const double* __restrict factors = call.column_factors;
      F* __restrict to = call.to + r * call.columns;
      const K scale = static_cast<K>(std::sqrt(call.scale) * (call.row_factors ? call.row_factors[r] : 1.0));
      const auto entry = [=](int64_t i, K factor) {
        const K value = factor / std::sqrt(kappa[i]);
        to[i] = static_cast<F>(kappa[i] > 0 ? (value < largest ? value : largest) : K(0));
      };
      if (factors) for (int64_t i = 0; i < call.columns; i++) entry(i, scale * static_cast<K>(factors[i]));
      else for (int64_t i = 0; i < call.columns; i++) entry(i, scale);
    }
  });
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRY_2(inverse_root, InverseRootCall, float, float)
PATHSGD_ENTRY_2(inverse_root, InverseRootCall, double, float)
PATHSGD_ENTRY_2(inverse_root, InverseRootCall, double, double)
