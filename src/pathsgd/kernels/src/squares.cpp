// Squares and their range in one pass over memory: see squares.h for what is computed.
#include "squares.h"

#include <algorithm>
#include <vector>

#include "entry.h"
#include "simd/squared.h"
#include "threads.h"

namespace pathsgd {
namespace {

template <class F>
void squares(SquaresCall<F>& call) {
  const int64_t wanted = std::max<int64_t>(1, std::min(call.threads, call.count / kWorthAThread));
  std::vector<Range<F>> ranges(wanted);
  on_threads(wanted, [&](long thread, long threads) {
    const int64_t first = call.count * thread / threads, last = call.count * (thread + 1) / threads;
    ranges[thread] = squared(call.w + first, call.q + first, last - first);
  });
  for (const Range<F>& range : ranges) ranges[0].include(range);
  call.largest = ranges[0].largest;
  call.least = ranges[0].least;
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(squares, SquaresCall)
