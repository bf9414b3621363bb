// A rank-one correction: see correct_direction.h.
#include "correct_direction.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "entry.h"
#include "turn.h"

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

// F(r) and, in `active`, the gain of each unit that the ReLU lets through, 0 of the others.
template <class F>
void map_ray(const CorrectDirectionCall<F>& call, F* image, F* active) {
  const int64_t n = call.units;
  std::vector<F> state(n);
  for (int64_t j = 0; j < n; j++) state[j] = call.ray[j] * call.scale[j];
  for (int64_t i = 0; i < n; i++) {
    const F kept = call.keep ? call.keep[i] * call.ray[i] : F(0), gain = call.gain ? call.gain[i] : F(1);
    const F through = product(call.weight + i * n, state.data(), n) / call.scale[i];
    const F all = kept + gain * (call.inside || through > 0 ? through : F(0));
    image[i] = all > 0 ? all : F(0);
    active[i] = (call.inside ? all : through) > 0 ? gain : F(0);
  }
}

// J^T l on the units of the ray, J the map's Jacobian there; of length one.
template <class F>
void go_back(const CorrectDirectionCall<F>& call, const F* active, F* left, F* __restrict sums) {
  const int64_t n = call.units;
  std::fill_n(sums, n, F(0));
  for (int64_t i = 0; i < n; i++) {
    const F factor = active[i] * left[i] / call.scale[i];
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

// The left vector l of the direction, with l . F(r) > 0; false where its angle to F(r) is too large.
template <class F>
bool find_left(const CorrectDirectionCall<F>& call, const F* image, const F* active, F* left, F* sums) {
  const int64_t n = call.units;
  for (int64_t j = 0; j < n; j++) left[j] = call.ray[j] > 0 ? call.left[j] : F(0);
  for (int64_t t = 0; t < call.iterations; t++) go_back(call, active, left, sums);
  const double along = dot(left, image, n);
  if (along < 0)
    for (int64_t j = 0; j < n; j++) left[j] = -left[j];
  return std::abs(along) > call.normal * std::sqrt(dot(left, left, n) * dot(image, image, n));
}

template <class F>
void correct_direction(CorrectDirectionCall<F>& call) {
  const FlushDenormals guard;
  const int64_t n = call.units;
  std::vector<F> image(n), rows(n), left(n), columns(n);
  map_ray(call, image.data(), rows.data());
  const F* along = image.data();  // lowering along . F(r) lowers the growth
  if (turn(image.data(), call.ray, n) < call.fixed &&
      find_left(call, image.data(), rows.data(), left.data(), columns.data())) {
    std::copy_n(left.data(), n, call.left);
    along = left.data();
  }
  for (int64_t i = 0; i < n; i++) rows[i] *= along[i];
  const double length = dot(rows.data(), rows.data(), n) * dot(call.ray, call.ray, n);
  const F size = static_cast<F>(call.share * dot(along, image.data(), n) / length);
  if (!(std::abs(size) <= std::numeric_limits<F>::max())) return;  // no entry of W acts on this ray
  for (int64_t j = 0; j < n; j++) columns[j] = call.ray[j] / call.scale[j];
  for (int64_t i = 0; i < n; i++) {
    const F factor = size * rows[i] * call.scale[i];
    if (factor == 0) continue;
    F* __restrict row = call.weight + i * n;
    for (int64_t j = 0; j < n; j++) row[j] -= factor * columns[j];
  }
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(correct_direction, CorrectDirectionCall)
