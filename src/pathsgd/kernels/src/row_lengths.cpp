// Squared lengths of rows in a metric: see row_lengths.h for what is computed.
#include "row_lengths.h"

#include <algorithm>

#include "entry.h"
#include "threads.h"

namespace pathsgd {
namespace {

constexpr int64_t kStretch = 512;  // entries divided before they are summed up: two loops that both become vectors

template <class F>
void divide(const F* __restrict p, const F* __restrict w, int64_t count, F* __restrict to) {
  for (int64_t i = 0; i < count; i++) {
    const F ratio = p[i] / w[i];
    to[i] = w[i] != 0 ? ratio : F(0);
  }
}

template <class F>
double square_sum(const F* values, int64_t count) {
  constexpr int kWide = 8;
  double sums[kWide] = {}, total = 0;
  const int64_t whole = count / kWide * kWide;
  for (int64_t i = 0; i < whole; i += kWide)
    for (int lane = 0; lane < kWide; lane++) {
      const double value = static_cast<double>(values[i + lane]);
      sums[lane] += value * value;
    }
  for (int64_t i = whole; i < count; i++) total += static_cast<double>(values[i]) * values[i];
  for (double sum : sums) total += sum;
  return total;
}

template <class F>
double square(const F* p, const F* w, int64_t count) {
  F ratios[kStretch];
  double total = 0;
  for (int64_t first = 0; first < count; first += kStretch) {
    const int64_t length = std::min(kStretch, count - first);
    divide(p + first, w + first, length, ratios);
    total += square_sum(ratios, length);
  }
  return total;
}

template <class F>
void row_lengths(const RowLengthsCall<F>& call) {
  const int64_t wanted = std::max<int64_t>(1, std::min(call.threads, call.rows * call.columns / kWorthAThread));
  on_threads(wanted, [&](long thread, long threads) {
    for (int64_t r = call.rows * thread / threads; r < call.rows * (thread + 1) / threads; r++)
      call.squares[r] = square(call.p + r * call.columns, call.w + r * call.columns, call.columns);
  });
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(row_lengths, RowLengthsCall)
