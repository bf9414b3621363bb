// A rank-one correction: see correct_direction.h for what is computed.
#include "correct_direction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "entry.h"

namespace pathsgd {
namespace {

template <class F>
double dot(const F* a, const F* b, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; i++) total += static_cast<double>(a[i]) * b[i];
  return total;
}

// The same in F, as many numbers at a time as there are lanes.
template <class F>
F product(const F* a, const F* b, int64_t count) {
  Vec<F> sums = zero<F>();
  int64_t i = 0;
  for (; i + kLanes<F> <= count; i += kLanes<F>) sums += load(a + i) * load(b + i);
  F total = 0;
  for (int lane = 0; lane < kLanes<F>; lane++) total += sums[lane];
  for (; i < count; i++) total += a[i] * b[i];
  return total;
}

// The transposed map without its ReLU, on the units of the ray; of length one.
template <class F>
void go_back(const CorrectDirectionCall<F>& call, F* left, F* __restrict sums) {
  const int64_t n = call.units;
  std::fill_n(sums, n, F(0));
  for (int64_t i = 0; i < n; i++) {
    const F factor = (call.gain ? call.gain[i] : F(1)) * left[i] / call.scale[i];
    if (factor == 0) continue;
    const F* __restrict row = call.weight + i * n;
    for (int64_t j = 0; j < n; j++) sums[j] += factor * row[j];
  }
  for (int64_t j = 0; j < n; j++) {
    const F kept = call.keep ? call.keep[j] * left[j] : F(0);
    left[j] = call.ray[j] > 0 ? kept + sums[j] * call.scale[j] : F(0);
  }
  const double length = std::max<double>(std::sqrt(dot(left, left, n)), std::numeric_limits<F>::min());
  for (int64_t j = 0; j < n; j++) left[j] = static_cast<F>(left[j] / length);
}

// What the ReLU lets through of W times the ray, with what is kept, before the gain: in the coordinates of states.
template <class F>
F image_of(const CorrectDirectionCall<F>& call, int64_t i, const F* state) {
  const F* row = call.weight + i * call.units;
  const F through = product(row, state, call.units) / call.scale[i];
  if (!call.keep) return (through > 0 ? through : F(0)) * call.scale[i];
  const F kept = call.keep[i] * call.ray[i];
  F image = call.gain[i] * (call.inside || through > 0 ? through : F(0)) + kept;
  image = image > 0 ? image : F(0);
  return image / call.gain[i] * call.scale[i];
}

template <class F>
void correct_direction(CorrectDirectionCall<F>& call) {
  const FlushDenormals guard;
  const int64_t n = call.units;
  std::vector<F> left(n), sums(n), state(n), images(n);
  for (int64_t j = 0; j < n; j++) left[j] = call.ray[j] > 0 ? call.left[j] : F(0);
  for (int64_t t = 0; t < call.iterations; t++) go_back(call, left.data(), sums.data());
  double along = dot(left.data(), call.ray, n);
  if (along < 0) {
    along = -along;
    for (F& value : left) value = -value;
  }
  const double lengths = std::sqrt(dot(left.data(), left.data(), n) * dot(call.ray, call.ray, n));
  if (!(along > 0 && call.condition * along >= lengths)) {
    std::copy_n(call.ray, n, left.data());
    along = dot(call.ray, call.ray, n);
  }
  for (int64_t j = 0; j < n; j++) state[j] = call.ray[j] * call.scale[j];
  for (int64_t i = 0; i < n; i++) images[i] = static_cast<F>(call.share / along) * image_of(call, i, state.data());
  for (int64_t j = 0; j < n; j++) sums[j] = left[j] / call.scale[j];
  for (int64_t i = 0; i < n; i++) {
    if (images[i] == 0) continue;
    F* __restrict row = call.weight + i * n;
    for (int64_t j = 0; j < n; j++) row[j] -= images[i] * sums[j];
  }
  std::copy_n(left.data(), n, call.left);
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(correct_direction, CorrectDirectionCall)
