// Sums over the squared network's sequences: see squared.h for what is computed.
#include <algorithm>
#include <cmath>

#include "product.h"
#include "squared.h"

extern "C" {
int pathsgd_squared_float_float(const pathsgd::SquaredCall<float, float>* call);
int pathsgd_squared_float_double(const pathsgd::SquaredCall<float, double>* call);
int pathsgd_squared_double_double(const pathsgd::SquaredCall<double, double>* call);
}

namespace pathsgd {
namespace {

int sequences(const SquaredCall<float, float>& call) { return pathsgd_squared_float_float(&call); }
int sequences(const SquaredCall<float, double>& call) { return pathsgd_squared_float_double(&call); }
int sequences(const SquaredCall<double, double>& call) { return pathsgd_squared_double_double(&call); }

// One pass over both sequences.
template <class W, class F>
void sums_over_time(SquaredSumsCall<W, F>& call) {
  const long steps = call.steps, n = call.hidden;
  double *__restrict into = call.into, *__restrict out = call.out, *__restrict flow = call.flow;
  for (double* sums : {into, out, flow}) std::fill_n(sums, n, 0.0);
  Buffer<F> tops(n);
  tops.clear();
  F* __restrict top = tops.data();
  for (long s = 0; s < steps; s++) {
    const F *__restrict h = call.h + s * n, *__restrict delta = call.delta + s * n;
    const double fade_in = std::pow(call.inverse_rho, s);
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
    const FlushDenormals guard;
    sums_over_time(call);
    call.least = std::min(*std::min_element(call.into, call.into + n), *std::min_element(call.out, call.out + n));
    if (call.steps == 1) {
      std::fill_n(call.recurrent, n * n, F(0));
      return 0;
    }
    multiply_matrices<F>({call.delta + n, 1, n}, {call.h, n, 1}, call.recurrent, n, n, n, call.steps - 1, false,
                         call.threads);
    F least = call.recurrent[0];
    for (long i = 1; i < n * n; i++) least = call.recurrent[i] < least ? call.recurrent[i] : least;
    call.least = std::min(call.least, static_cast<double>(least));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

}  // namespace
}  // namespace pathsgd

using namespace pathsgd;
PATHSGD_EXPORT int pathsgd_squared_sums_float_float(SquaredSumsCall<float, float>* call) { return sums(*call); }
PATHSGD_EXPORT int pathsgd_squared_sums_float_double(SquaredSumsCall<float, double>* call) { return sums(*call); }
PATHSGD_EXPORT int pathsgd_squared_sums_double_double(SquaredSumsCall<double, double>* call) { return sums(*call); }
