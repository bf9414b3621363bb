// The sums of a plain net's squared network: see plain_sums.h for what is computed.
#include "plain_sums.h"

#include <algorithm>
#include <cmath>

#include "entry.h"
#include "simd/product.h"
#include "squared_products.h"
#include "squared_sequences.h"

namespace pathsgd {
namespace {

// Several least values side by side: one alone would wait for itself at every step.
template <class F>
F least_of(const F* values, long count) {
  constexpr long kSide = 32;
  F least[kSide];
  std::fill_n(least, kSide, values[0]);
  for (long i = 0; i + kSide <= count; i += kSide)
    for (long j = 0; j < kSide; j++) least[j] = values[i + j] < least[j] ? values[i + j] : least[j];
  for (long i = count / kSide * kSide; i < count; i++) least[0] = values[i] < least[0] ? values[i] : least[0];
  return *std::min_element(least, least + kSide);
}

// One pass over both sequences.
template <class W, class F>
void sums_over_time(PlainSumsCall<W, F>& call) {
  const FlushDenormals guard;
  const long steps = call.steps, n = call.hidden;
  double *__restrict into = call.into, *__restrict out = call.out, *__restrict flow = call.flow;
  for (double* sums : {into, out, flow}) std::fill_n(sums, n, 0.0);
  Buffer<F> tops(n);
  tops.clear();
  F* __restrict top = tops.data();
  double fade_in = 1 / call.decay;
  for (long s = 0; s < steps; s++) {
    const F *__restrict h = call.h + s * n, *__restrict delta = call.delta + s * n;
    fade_in *= call.decay;
    const double fade_out = call.every_step ? std::pow(call.decay, steps - 1 - s) : s == steps - 1 ? 1.0 : 0.0;
    for (long i = 0; i < n; i++) {
      const double state = h[i], derivative = delta[i];
      into[i] += fade_in * derivative;
      out[i] += fade_out * state;
      flow[i] += state * derivative;
      const F larger = h[i] > delta[i] ? h[i] : delta[i];
      top[i] = larger > top[i] ? larger : top[i];
    }
  }
  call.largest = static_cast<double>(*std::max_element(top, top + n));
  // Infinities times zero make NaN, which no comparison would find.
  for (long i = 0; i < n; i++)
    if (!std::isfinite(flow[i]) || !std::isfinite(into[i]) || !std::isfinite(out[i])) call.largest = INFINITY;
}

// The sequences and their sums, not yet divided.
template <class W, class F>
void make_sums(PlainSumsCall<W, F>& call, const double* given_u, const double* given_v) {
  const long n = call.hidden;
  Buffer<F> u(n), v(n);
  std::copy_n(given_u, n, u.data());
  std::copy_n(given_v, n, v.data());
  squared_sequences<W, F>({call.steps, n, call.every_step, call.threads, call.w_rec, u.data(), v.data(), call.h,
                           call.delta, call.decay});
  sums_over_time(call);
  call.least = std::min(*std::min_element(call.into, call.into + n), *std::min_element(call.out, call.out + n));
  if (call.steps == 1) {
    std::fill_n(call.recurrent, n * n, F(0));
    return;
  }
  multiply_matrices<F>({call.delta + n, 1, n}, {call.h, n, 1}, call.recurrent, n, n, n, call.steps - 1, false,
                       call.threads);
  call.least = std::min(call.least, static_cast<double>(least_of(call.recurrent, n * n)));
}

template <class W>
double square_of(W value) {
  return static_cast<double>(value) * value;
}

// Divides by gamma^2 the sums over time.
template <class W, class F>
void make_relative(PlainSumsCall<W, F>& call, const double* v) {
  const long n = call.hidden, steps = call.steps;
  double bias = 0;
  for (long o = 0; call.b_out && o < call.outputs; o++) bias += square_of(call.b_out[o]);
  call.gamma_sq = call.output_rows * bias;
  for (long i = 0; i < n; i++) call.gamma_sq += v[i] * call.out[i];
  // Of what an output collects: no rescaling changes it, by powers of two not even in its last bit.
  double last = 0, before = 0;
  for (long i = 0; i < n && steps > 1; i++) {
    last += v[i] * call.h[(steps - 1) * n + i];
    before += v[i] * call.h[(steps - 2) * n + i];
  }
  call.growth = before > 0 ? last / before : 0;
  const double share = call.gamma_sq > 0 ? 1 / call.gamma_sq : 1;
  for (double* vector : {call.into, call.out, call.flow})
    for (long i = 0; i < n; i++) vector[i] *= share;
  // Gamma^2 may leave the range of F where the quotient does not.
  const double of_recurrent = share * call.decay;
  for (long i = 0; i < n * n; i++) call.recurrent[i] = static_cast<F>(call.recurrent[i] * of_recurrent);
}

template <class W, class F>
void plain_sums(PlainSumsCall<W, F>& call) {
  const long n = call.hidden;
  Buffer<double> u(n), v(n);
  squared_products<W>({n, call.inputs, call.threads, call.w_in, call.e, nullptr, u.data(), nullptr});
  squared_products<W>({call.outputs, n, call.threads, call.w_out, nullptr, nullptr, nullptr, v.data()});
  for (const W* bias : {call.b_in, call.b_rec})
    for (long i = 0; bias && i < n; i++) u.data()[i] += square_of(bias[i]);
  make_sums(call, u.data(), v.data());
  make_relative(call, v.data());
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRY_2(plain_sums, PlainSumsCall, float, float)
PATHSGD_ENTRY_2(plain_sums, PlainSumsCall, float, double)
PATHSGD_ENTRY_2(plain_sums, PlainSumsCall, double, double)
