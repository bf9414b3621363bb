// Power iterations through a ReLU: see follow_directions.h for what is computed.
#include "follow_directions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "entry.h"

namespace pathsgd {
namespace {

constexpr int kTogether = 6;  // directions for which a row of the matrix is read once

// A direction of about half of the units, others for every number: `Map.start` of the fallback.
template <class F>
void start(F* ray, int64_t units, int64_t number) {
  int64_t chosen = 0;
  for (int64_t n = 0; n < units; n++) {
    const uint64_t mixed = static_cast<uint64_t>((n + 1) * (2 * number + 1)) % 2147483648u * 2654435761u;
    ray[n] = F(mixed >> 20 & 1);
    chosen += ray[n] > 0;
  }
  for (int64_t n = 0; n < units; n++) ray[n] = chosen ? ray[n] / F(chosen) : F(1) / F(units);
}

// images[k] = W rays[k], for kTogether rows of `stride` elements, zero from `units` on.
template <class F>
void multiply(const F* weight, int64_t units, int64_t stride, const F* rays, F* images) {
  const int64_t whole = units / kLanes<F> * kLanes<F>;
  for (int64_t i = 0; i < units; i++) {
    const F* row = weight + i * units;
    Vec<F> sums[kTogether] = {};
    for (int64_t c = 0; c < whole; c += kLanes<F>) {
      const Vec<F> w = held<F>(load(row + c));
      PATHSGD_UNROLL
      for (int k = 0; k < kTogether; k++) sums[k] += w * load(rays + k * stride + c);
    }
    if (whole < units) {
      const Vec<F> w = load_part(row + whole, units - whole);
      for (int k = 0; k < kTogether; k++) sums[k] += w * load(rays + k * stride + whole);
    }
    for (int k = 0; k < kTogether; k++) {
      F total = 0;
      for (int lane = 0; lane < kLanes<F>; lane++) total += sums[k][lane];
      images[k * stride + i] = total;
    }
  }
}

// One iteration of one direction: its image, of sum 1, and the logarithm of its growth.
template <class F>
F advance(const FollowDirectionsCall<F>& call, F* ray, const F* image) {
  F length = 0;
  for (int64_t i = 0; i < call.units; i++) {
    F through = image[i] / call.scale[i];
    if (!call.inside && !(through > 0)) through = 0;
    if (call.keep) through = call.keep[i] * ray[i] + call.gain[i] * through;
    ray[i] = through > 0 ? through : F(0);
    length += ray[i];
  }
  length = length > std::numeric_limits<F>::min() ? length : std::numeric_limits<F>::min();
  const F inverse = 1 / length;
  for (int64_t i = 0; i < call.units; i++) ray[i] *= inverse;
  return std::log(length);
}

template <class F>
void renew(FollowDirectionsCall<F>& call) {
  int64_t last = -1;  // ripe directions come first
  for (int64_t k = 0; k < call.count; k++) last += call.age[k] >= call.ripe;
  if (2 * last >= call.count) {
    start(call.rays + last * call.units, call.units, call.started);
    call.age[last] = 0;
  }
  call.started++;
}

template <class F>
void follow_directions(FollowDirectionsCall<F>& call) {
  const FlushDenormals guard;
  const int64_t n = call.units, groups = (call.count + kTogether - 1) / kTogether * kTogether;
  const int64_t stride = (n + kLanes<F> - 1) / kLanes<F> * kLanes<F>;
  std::vector<F> states(groups * stride, F(0)), images(groups * stride);
  std::vector<double> all(call.count, 0.0), recent(call.count, 0.0);
  std::vector<int64_t> order(call.count);
  if (call.renewing) renew(call);
  for (int64_t t = 0; t < call.iterations; t++) {
    for (int64_t k = 0; k < call.count; k++)
      for (int64_t i = 0; i < n; i++) states[k * stride + i] = call.rays[k * n + i] * call.scale[i];
    for (int64_t k = 0; k < groups; k += kTogether)
      multiply(call.weight, n, stride, states.data() + k * stride, images.data() + k * stride);
    for (int64_t k = 0; k < call.count; k++) {
      const double grown = advance(call, call.rays + k * n, images.data() + k * stride);
      all[k] += grown;
      if (t >= call.iterations / 2) recent[k] += grown;
    }
  }
  const int64_t recently = call.iterations - call.iterations / 2;
  std::vector<double> rates(call.count), keys(call.count);
  std::vector<F> age(call.count), mean(call.count);
  for (int64_t k = 0; k < call.count; k++) {
    F* ray = call.rays + k * n;
    const bool alive = std::any_of(ray, ray + n, [](F x) { return x > 0; });
    age[k] = alive ? call.age[k] + call.iterations : 0;
    if (!alive) start(ray, n, call.started);
    const double counted = std::min<double>(std::max<double>(age[k] - call.settle, call.iterations), call.memory);
    mean[k] = !alive ? F(0) : F(call.mean[k] + call.iterations / counted * (all[k] / call.iterations - call.mean[k]));
    const bool ripe = age[k] >= call.ripe;
    rates[k] = ripe ? std::exp(std::min<double>(mean[k], recent[k] / recently)) : 0;
    keys[k] = ripe ? rates[k] : age[k] - 2.0 * call.ripe;
  }
  call.started++;
  std::iota(order.begin(), order.end(), int64_t{0});
  std::stable_sort(order.begin(), order.end(), [&](int64_t a, int64_t b) { return keys[a] > keys[b]; });
  const std::vector<F> rays(call.rays, call.rays + call.count * n);
  for (int64_t k = 0; k < call.count; k++) {
    std::copy_n(rays.data() + order[k] * n, n, call.rays + k * n);
    call.age[k] = age[order[k]];
    call.mean[k] = mean[order[k]];
  }
  call.rate = rates[order[0]];
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(follow_directions, FollowDirectionsCall)
