// Sums over the squared network's sequences, and what a plain net makes of them: see squared.h for what is computed.
#include <algorithm>
#include <cmath>

#include "product.h"
#include "squared.h"

extern "C" {
int pathsgd_squared_float_float(const pathsgd::SquaredCall<float, float>* call);
int pathsgd_squared_float_double(const pathsgd::SquaredCall<float, double>* call);
int pathsgd_squared_double_double(const pathsgd::SquaredCall<double, double>* call);
int pathsgd_squared_products_float(const pathsgd::SquaredProductsCall<float>* call);
int pathsgd_squared_products_double(const pathsgd::SquaredProductsCall<double>* call);
}

namespace pathsgd {
namespace {

int sequences(const SquaredCall<float, float>& call) { return pathsgd_squared_float_float(&call); }
int sequences(const SquaredCall<float, double>& call) { return pathsgd_squared_float_double(&call); }
int sequences(const SquaredCall<double, double>& call) { return pathsgd_squared_double_double(&call); }
int products(const SquaredProductsCall<float>& call) { return pathsgd_squared_products_float(&call); }
int products(const SquaredProductsCall<double>& call) { return pathsgd_squared_products_double(&call); }

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
void sums_over_time(SquaredSumsCall<W, F>& call) {
  const FlushDenormals guard;
  const long steps = call.steps, n = call.hidden;
  double *__restrict into = call.into, *__restrict out = call.out, *__restrict flow = call.flow;
  for (double* sums : {into, out, flow}) std::fill_n(sums, n, 0.0);
  Buffer<F> tops(n);
  tops.clear();
  F* __restrict top = tops.data();
  double fade_in = 1 / call.inverse_rho;
  for (long s = 0; s < steps; s++) {
    const F *__restrict h = call.h + s * n, *__restrict delta = call.delta + s * n;
    fade_in *= call.inverse_rho;
    const double fade_out = call.every_step ? std::pow(call.inverse_rho, steps - 1 - s) : s == steps - 1 ? 1.0 : 0.0;
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

template <class W, class F>
int sums(SquaredSumsCall<W, F>& call) {
  try {
    const long n = call.hidden;
    Buffer<F> u(n), v(n);
    std::copy_n(call.u, n, u.data());
    std::copy_n(call.v, n, v.data());
    if (sequences({call.steps, n, call.every_step, call.threads, call.w_rec, u.data(), v.data(), call.h, call.delta,
                   call.inverse_rho}))
      return 1;
    sums_over_time(call);
    call.least = std::min(*std::min_element(call.into, call.into + n), *std::min_element(call.out, call.out + n));
    if (call.steps == 1) {
      std::fill_n(call.recurrent, n * n, F(0));
      return 0;
    }
    multiply_matrices<F>({call.delta + n, 1, n}, {call.h, n, 1}, call.recurrent, n, n, n, call.steps - 1, false,
                         call.threads);
    call.least = std::min(call.least, static_cast<double>(least_of(call.recurrent, n * n)));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

template <class W>
double square_of(W value) {
  return static_cast<double>(value) * value;
}

// Divides by gamma^2 what `sums` has found.
template <class W, class F>
void make_relative(PlainSumsCall<W, F>& call) {
  const long n = call.sums.hidden, steps = call.sums.steps;
  double bias = 0;
  for (long o = 0; call.b_out && o < call.outputs; o++) bias += square_of(call.b_out[o]);
  call.gamma_sq = call.output_rows * bias;
  for (long i = 0; i < n; i++) call.gamma_sq += call.sums.v[i] * call.sums.out[i];
  double last = 0, before = 0;
  for (long i = 0; i < n && steps > 1; i++) {
    last += call.sums.h[(steps - 1) * n + i];
    before += call.sums.h[(steps - 2) * n + i];
  }
  call.growth = before > 0 ? last / before : 0;
  const double share = call.gamma_sq > 0 ? 1 / call.gamma_sq : 1;
  for (double* vector : {call.sums.into, call.sums.out, call.sums.flow})
    for (long i = 0; i < n; i++) vector[i] *= share;
  const double of_recurrent = share * call.sums.inverse_rho;  // gamma^2 may leave the range of F where the quotient does not
  for (long i = 0; i < n * n; i++) call.sums.recurrent[i] = static_cast<F>(call.sums.recurrent[i] * of_recurrent);
}

template <class W, class F>
int plain_sums(PlainSumsCall<W, F>& call) {
  try {
    const long n = call.sums.hidden, threads = call.sums.threads;
    Buffer<double> u(n), v(n);
    if (products({n, call.inputs, threads, call.w_in, call.e, nullptr, u.data(), nullptr}) ||
        products({call.outputs, n, threads, call.w_out, nullptr, nullptr, nullptr, v.data()}))
      return 1;
    for (const W* bias : {call.b_in, call.b_rec})
      for (long i = 0; bias && i < n; i++) u.data()[i] += square_of(bias[i]);
    call.sums.u = u.data();
    call.sums.v = v.data();
    if (sums(call.sums)) return 1;
    make_relative(call);
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace
}  // namespace pathsgd

using namespace pathsgd;
PATHSGD_EXPORT int pathsgd_plain_sums_float_float(PlainSumsCall<float, float>* call) { return plain_sums(*call); }
PATHSGD_EXPORT int pathsgd_plain_sums_float_double(PlainSumsCall<float, double>* call) { return plain_sums(*call); }
PATHSGD_EXPORT int pathsgd_plain_sums_double_double(PlainSumsCall<double, double>* call) { return plain_sums(*call); }
PATHSGD_EXPORT int pathsgd_squared_sums_float_float(SquaredSumsCall<float, float>* call) { return sums(*call); }
PATHSGD_EXPORT int pathsgd_squared_sums_float_double(SquaredSumsCall<float, double>* call) { return sums(*call); }
PATHSGD_EXPORT int pathsgd_squared_sums_double_double(SquaredSumsCall<double, double>* call) { return sums(*call); }
