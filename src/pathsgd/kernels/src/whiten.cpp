// Inverse square roots of kappa for many parameters: see whiten.h for what is computed.
#include "whiten.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <type_traits>
#include <vector>

#include "entry.h"
#include "mean_log.h"
#include "threads.h"

namespace pathsgd {
namespace {

template <class F>
double factor(const WhitenCall<F>& call, const WhitenJob<F>& job, const int64_t* out, const int64_t* into, int64_t at) {
  const double* out_side = job.out_side ? job.out_side : call.out_side;
  return (out ? out_side[out[at]] : 1.0) * (into ? call.into_side[into[at]] : 1.0);
}

template <class F>
std::vector<double> column_factors(const WhitenCall<F>& call, const WhitenJob<F>& job) {
  std::vector<double> factors(job.columns, 1.0);
  if (job.column_out || job.column_into)
    for (int64_t c = 0; c < job.columns; c++) factors[c] = factor(call, job, job.column_out, job.column_into, c / job.repeat);
  return factors;
}

constexpr double kGrid = 1 << 20;

// What gives a mean logarithm the size that a job asks for; 1 where it has none, or no mean. In float32 to a millionth: the
// last bits of a mean depend on how units are scaled, and would be seen in those of all that it multiplies.
template <class F>
double sizing(WhitenJob<F>& job, double mean) {
  job.is_sized = std::isfinite(mean) && !std::isnan(job.log_size);
  const double wanted = job.log_size - mean, met = std::is_same_v<F, float> ? std::round(wanted * kGrid) / kGrid : wanted;
  return job.is_sized ? std::exp(met) : 1.0;
}

// One row: everything by value, so that the compiler makes vectors of the loop.
template <class K, class F>
void whiten_row(const K* __restrict kappa, const K* __restrict by, K scale, int64_t count, F* __restrict to) {
  const K largest = static_cast<K>(std::numeric_limits<F>::max());
  for (int64_t i = 0; i < count; i++) {
    const K value = scale * by[i] / std::sqrt(kappa[i]), bounded = value < largest ? value : largest;
    to[i] = static_cast<F>(kappa[i] > 0 ? bounded : K(0));
  }
}

// The same where the result takes the place of kappa.
template <class F>
void whiten_row(F* __restrict values, const F* __restrict by, F scale, int64_t count) {
  constexpr F largest = std::numeric_limits<F>::max();
  for (int64_t i = 0; i < count; i++) {
    const F kappa = values[i], value = scale * by[i] / std::sqrt(kappa), bounded = value < largest ? value : largest;
    values[i] = kappa > 0 ? bounded : F(0);
  }
}

template <class F>
std::vector<double> row_factors(const WhitenCall<F>& call, const WhitenJob<F>& job) {
  std::vector<double> factors(job.rows, std::sqrt(call.scale));
  if (job.row_out || job.row_into)
    for (int64_t r = 0; r < job.rows; r++) factors[r] *= factor(call, job, job.row_out, job.row_into, r);
  return factors;
}

// The mean of log w of a matrix, w itself not yet written: one number then serves all, and w is written once.
template <class K, class F>
double mean_of_logs(const WhitenJob<F>& job, const std::vector<double>& rows, const std::vector<double>& columns, long wanted) {
  const double n = static_cast<double>(job.rows), m = static_cast<double>(job.columns);
  std::vector<double> sums(wanted, 0.0);
  on_threads(wanted, [&](long thread, long threads) {
    const int64_t begin = job.rows * job.columns * thread / threads, end = job.rows * job.columns * (thread + 1) / threads;
    sums[thread] = sum_of_logs(static_cast<const K*>(job.kappa) + begin, end - begin);
  });
  const double kappas = std::accumulate(sums.begin(), sums.end(), 0.0);
  return sum_of_logs(rows.data(), job.rows) / n + sum_of_logs(columns.data(), job.columns) / m - kappas / (2 * n * m);
}

// One row where its factor leaves the range of K: in double. `to` may be `kappa`.
template <class K, class F>
void whiten_far_row(const K* kappa, const std::vector<double>& by, double scale, F* to) {
  constexpr double largest = std::numeric_limits<F>::max();
  for (size_t i = 0; i < by.size(); i++) {
    const double value = scale * by[i] / std::sqrt(static_cast<double>(kappa[i]));
    to[i] = static_cast<F>(!(kappa[i] > 0) ? 0.0 : value < largest ? value : largest);
  }
}

template <class K, class F>
void whiten_matrix(const WhitenCall<F>& call, WhitenJob<F>& job) {
  constexpr double kFar = std::is_same_v<K, float> ? 1e30 : 1e200;
  std::vector<double> rows = row_factors(call, job);
  const std::vector<double> columns = column_factors(call, job);
  const std::vector<K> narrow(columns.begin(), columns.end());
  const int64_t wanted = std::max<int64_t>(1, std::min(call.threads, job.rows * job.columns / kWorthAThread));
  const double by = sizing(job, std::isnan(job.log_size) ? 0.0 : mean_of_logs<K>(job, rows, columns, wanted));
  for (double& value : rows) value *= by;
  on_threads(wanted, [&](long thread, long threads) {
    const int64_t begin = job.rows * thread / threads, end = job.rows * (thread + 1) / threads;
    for (int64_t r = begin; r < end; r++) {
      const K scale = static_cast<K>(rows[r]);
      const K* kappa = static_cast<const K*>(job.kappa) + r * job.columns;
      F* to = job.to + r * job.columns;
      if (!(rows[r] < kFar) || (rows[r] > 0 && rows[r] < 1 / kFar)) {
        whiten_far_row(kappa, columns, rows[r], to);
        continue;
      }
      if constexpr (std::is_same_v<K, F>) {
        if (kappa == to) {
          whiten_row(to, narrow.data(), scale, job.columns);
          continue;
        }
      }
      whiten_row(kappa, narrow.data(), scale, job.columns, to);
    }
  });
}

// factors_i / sqrt(kappa_i), 0 where kappa is 0; returns the largest.
template <class K>
double divide(std::vector<double>& factors, const K* kappa) {
  double largest = 0;
  for (size_t i = 0; i < factors.size(); i++) {
    if (kappa) factors[i] = kappa[i] > 0 ? factors[i] / std::sqrt(static_cast<double>(kappa[i])) : 0.0;
    largest = std::max(largest, factors[i]);
  }
  return largest;
}

// The least factor above zero as a share of `largest`.
inline double least_share(const std::vector<double>& factors, double largest) {
  double least = largest;
  for (double factor : factors)
    if (factor > 0) least = std::min(least, factor);
  return largest > 0 ? least / largest : 1.0;
}

inline void multiply(std::vector<double>& factors, double by) {
  for (double& factor : factors) factor *= by;
}

inline double mean_of_logs(const std::vector<double>& factors) {
  return sum_of_logs(factors.data(), factors.size()) / static_cast<double>(factors.size());
}

template <class F>
void write(const std::vector<double>& factors, F* to) {
  constexpr double kMost = std::numeric_limits<F>::max();
  for (size_t i = 0; i < factors.size(); i++) to[i] = static_cast<F>(std::min(kMost, factors[i]));
}

// Everything in double until it is written: a mean that has lost what leaves the range of F would be another mean.
template <class K, class F>
void whiten_outer(const WhitenCall<F>& call, WhitenJob<F>& job) {
  std::vector<double> rows = row_factors(call, job), columns(1, 1.0);
  if (job.to_columns) columns = column_factors(call, job);
  const double high = divide(rows, static_cast<const K*>(job.kappa));
  const double wide = divide(columns, static_cast<const K*>(job.column_kappa));
  job.least = 1.0;
  if (job.to) job.least = least_share(rows, high);
  if (job.to_columns) job.least = std::min(job.least, least_share(columns, wide));
  if (!job.to_columns) {  // where only one factor is written, it has all of the product
    multiply(rows, columns[0]);
  } else if (!job.to) {
    multiply(columns, rows[0]);
  } else if (high > 0 && wide > 0) {
    const double by = std::exp2(std::round((std::log2(wide) - std::log2(high)) / 2));  // rounds nothing
    multiply(rows, by);
    multiply(columns, 1 / by);
  }
  job.is_sized = 0;
  if (!std::isnan(job.log_size)) {
    const double mean = (job.to ? mean_of_logs(rows) : 0.0) + (job.to_columns ? mean_of_logs(columns) : 0.0);
    multiply(job.to ? rows : columns, sizing(job, mean));
  }
  const double most = *std::max_element(rows.begin(), rows.end()) * *std::max_element(columns.begin(), columns.end());
  if (job.to && job.to_columns && !(most <= std::numeric_limits<F>::max())) job.least = 0;  // an entry would be infinite
  if (job.to) write(rows, job.to);
  if (job.to_columns) write(columns, job.to_columns);
}

template <class F>
void whiten(const WhitenCall<F>& call) {
  for (int64_t k = 0; k < call.count; k++) {
    WhitenJob<F>& job = call.jobs[k];
    if (job.form == kMatrix) job.is_double ? whiten_matrix<double>(call, job) : whiten_matrix<float>(call, job);
    else job.is_double ? whiten_outer<double>(call, job) : whiten_outer<float>(call, job);
  }
}

template <class F>
void flow_sides(const FlowSidesCall<F>& call) {
  const bool is_fourth_root = call.exponent == 0.25;  // by far the commonest, and pow takes thirty times as long
  for (int64_t i = 0; i < call.count; i++) {
    const F flow = call.flow[i], bounded = flow < call.least[i] ? call.least[i] : flow;
    const F power = is_fourth_root ? std::sqrt(std::sqrt(bounded)) : std::pow(bounded, static_cast<F>(call.exponent));
    call.into[i] = power;
    call.out[i] = flow > 0 ? std::sqrt(flow / bounded) * power : power;
  }
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(whiten, WhitenCall)
PATHSGD_ENTRY(flow_sides, FlowSidesCall, double)
