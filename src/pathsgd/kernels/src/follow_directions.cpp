// Power iterations through a ReLU: see follow_directions.h for what is computed.
#include "follow_directions.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "entry.h"
#include "turn.h"

namespace pathsgd {
namespace {

constexpr int kTogether = 8;  // directions that lie side by side: an entry of the matrix is read once for all of them

template <class F>
struct SlotsOf {
  typedef F type __attribute__((vector_size(kTogether * sizeof(F)), aligned(alignof(F)), may_alias));
};
template <class F>
using Slots = typename SlotsOf<F>::type;  // one number of each direction

template <class F>
PATHSGD_INLINE const Slots<F>& slots(const F* from) {
  return *reinterpret_cast<const Slots<F>*>(from);
}

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

// images = W states, both (units, kTogether), for kRows rows of W that share what is read of the states.
constexpr int kRows = 8;

template <int Rows, class F>
void multiply_rows(const F* weight, int64_t units, const F* states, F* images) {
  Slots<F> sums[Rows] = {};
  for (int64_t c = 0; c < units; c++) {
    const Slots<F>& state = slots(states + c * kTogether);
    PATHSGD_UNROLL
    for (int r = 0; r < Rows; r++) sums[r] += weight[r * units + c] * state;
  }
  for (int r = 0; r < Rows; r++) *reinterpret_cast<Slots<F>*>(images + r * kTogether) = sums[r];
}

template <class F>
void multiply(const F* weight, int64_t units, const F* states, F* images) {
  int64_t i = 0;
  for (; i + kRows <= units; i += kRows) multiply_rows<kRows>(weight + i * units, units, states, images + i * kTogether);
  for (; i < units; i++) multiply_rows<1>(weight + i * units, units, states, images + i * kTogether);
}

// One iteration: the rays' images, each of sum 1, and the logarithms of their growth.
template <class F>
void advance(const FollowDirectionsCall<F>& call, F* rays, const F* images, F* logs) {
  const Slots<F> none = {};
  Slots<F> length = {};
  for (int64_t i = 0; i < call.units; i++) {
    Slots<F>& ray = *reinterpret_cast<Slots<F>*>(rays + i * kTogether);
    Slots<F> through = slots(images + i * kTogether) / call.scale[i];
    if (!call.inside) through = through > none ? through : none;
    if (call.keep) through = call.keep[i] * ray + call.gain[i] * through;
    ray = through > none ? through : none;
    length += ray;
  }
  Slots<F> inverse;
  for (int k = 0; k < kTogether; k++) {
    const F positive = length[k] > std::numeric_limits<F>::min() ? length[k] : std::numeric_limits<F>::min();
    logs[k] = std::log(positive);
    inverse[k] = 1 / positive;
  }
  for (int64_t i = 0; i < call.units; i++) *reinterpret_cast<Slots<F>*>(rays + i * kTogether) *= inverse;
}

template <class F>
void give_back(FollowDirectionsCall<F>& call, int64_t first, const std::vector<F>& rays) {
  const int64_t n = call.units, some = std::min<int64_t>(kTogether, call.count - first);
  for (int64_t k = 0; k < some; k++)
    for (int64_t i = 0; i < n; i++) call.rays[(first + k) * n + i] = rays[i * kTogether + k];
}

constexpr double kUnripe = 1e12;  // below every rate in the order

// What the last of the iterations of one direction did, and all of them.
struct Seen {
  double all = 0, recent = 0, turn = 0;  // log growth in all and in the later half; |F(r) / |F(r)| - r / |r||
};

// All iterations of the directions from `first` on: rays are transposed to lie side by side, and back.
template <class F>
void iterate(FollowDirectionsCall<F>& call, int64_t first, Seen* seen) {
  const int64_t n = call.units, some = std::min<int64_t>(kTogether, call.count - first);
  std::vector<F> rays(n * kTogether, F(0)), states(n * kTogether), images(n * kTogether);
  for (int64_t k = 0; k < some; k++)
    for (int64_t i = 0; i < n; i++) rays[i * kTogether + k] = call.rays[(first + k) * n + i];
  for (int64_t t = 0; t < call.iterations; t++) {
    for (int64_t i = 0; i < n; i++)
      *reinterpret_cast<Slots<F>*>(&states[i * kTogether]) = call.scale[i] * slots(&rays[i * kTogether]);
    multiply(call.weight, n, states.data(), images.data());
    F logs[kTogether];
    advance(call, rays.data(), images.data(), logs);
    for (int64_t k = 0; k < some; k++) {
      seen[first + k].all += logs[k];
      if (t >= call.iterations / 2) seen[first + k].recent += logs[k];
    }
    if (t == call.iterations - 2) give_back(call, first, rays);
  }
  std::vector<F> before(call.rays + first * n, call.rays + (first + some) * n);
  give_back(call, first, rays);
  for (int64_t k = 0; k < some; k++) seen[first + k].turn = turn(call.rays + (first + k) * n, &before[k * n], n);
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
  const int64_t n = call.units;
  std::vector<Seen> seen(call.count);
  std::vector<int64_t> order(call.count);
  if (call.renewing) renew(call);
  for (int64_t first = 0; first < call.count; first += kTogether) iterate(call, first, seen.data());
  const int64_t recently = call.iterations - call.iterations / 2;
  std::vector<double> rates(call.count), keys(call.count);
  std::vector<F> age(call.count), mean(call.count);
  for (int64_t k = 0; k < call.count; k++) {
    F* ray = call.rays + k * n;
    const bool alive = std::any_of(ray, ray + n, [](F x) { return x > 0; });
    age[k] = alive ? call.age[k] + call.iterations : 0;
    if (!alive) start(ray, n, call.started);
    const double counted = std::min<double>(std::max<double>(age[k] - call.settle, call.iterations), call.memory);
    mean[k] = !alive ? F(0) : F(call.mean[k] + call.iterations / counted * (seen[k].all / call.iterations - call.mean[k]));
    if (alive && seen[k].turn < call.fixed) age[k] = std::max<F>(age[k], call.ripe);
    const bool ripe = age[k] >= call.ripe;
    const double recent = seen[k].recent / recently, sure = std::log1p(-std::min(seen[k].turn, 1.0));
    const double rate = std::max(std::min<double>(mean[k], recent), recent + sure);
    rates[k] = ripe ? std::exp(rate) : 0;
    keys[k] = ripe ? std::round(rate / call.alike) : age[k] - kUnripe;
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
