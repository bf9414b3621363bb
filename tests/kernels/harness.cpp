// Runs the kernels under sanitizers: every array has exactly its size, every option is used, and each result is
// compared with plain loops. Inputs are multiples of 1/8, so that forward passes of these few steps are exact and a
// value near zero falls on the same side of relu for both. Without arguments: the known cases; with one: those of the input.
#include <cmath>
#include <cstdio>
#include <iostream>
#include <string>
#include <vector>

#include "correct_direction.h"
#include "cross_entropy.h"
#include "entry.h"
#include "follow_directions.h"
#include "linear_sweep.h"
#include "mean_log.h"
#include "narrow.h"
#include "plain_sums.h"
#include "rank_one_sum.h"
#include "rnn.h"
#include "row_lengths.h"
#include "spectral_norm.h"
#include "squared_convolution.h"
#include "squared_products.h"
#include "squared_sequences.h"
#include "squares.h"
#include "stack_sums.h"
#include "threads.h"
#include "update.h"
#include "whiten.h"

// The C interface: one function for each operation and type (entry.h).
#define DECLARE(operation, Call, F) extern "C" int pathsgd_##operation##_##F(pathsgd::Call<F>*);
#define DECLARE_2(operation, Call, A, B) extern "C" int pathsgd_##operation##_##A##_##B(pathsgd::Call<A, B>*);
#define OVERLOAD(operation, Call, F) \
  DECLARE(operation, Call, F)        \
  int operation(pathsgd::Call<F> call) { return pathsgd_##operation##_##F(&call); }
#define OVERLOADS(operation, Call) OVERLOAD(operation, Call, float) OVERLOAD(operation, Call, double)
OVERLOADS(rnn_forward, RnnForwardCall)
OVERLOADS(rnn_backward, RnnBackwardCall)
OVERLOADS(recurrent_gradient, RecurrentGradientCall)
OVERLOADS(squared_products, SquaredProductsCall)
OVERLOADS(linear_sweep, LinearSweepCall)
OVERLOADS(row_lengths, RowLengthsCall)
DECLARE(rank_one_sum, RankOneSumCall, float)
DECLARE(rank_one_sum, RankOneSumCall, double)
DECLARE(stack_sums, StackSumsCall, float)
DECLARE(stack_sums, StackSumsCall, double)
DECLARE(squares, SquaresCall, float)
DECLARE(squares, SquaresCall, double)
DECLARE(narrow, NarrowCall, float)
DECLARE(squared_convolution, SquaredConvolutionCall, float)
DECLARE(squared_convolution, SquaredConvolutionCall, double)
DECLARE(mean_log, MeanLogCall, float)
DECLARE(mean_log, MeanLogCall, double)
OVERLOADS(square_sums, UpdateCall)
OVERLOADS(moments, UpdateCall)
OVERLOADS(direction, UpdateCall)
OVERLOADS(direction_square, UpdateCall)
OVERLOADS(apply, UpdateCall)
OVERLOADS(advance, UpdateCall)
DECLARE(spectral_norm, SpectralNormCall, float)
DECLARE(whiten, WhitenCall, float)
DECLARE(flow_sides, FlowSidesCall, double)
DECLARE(follow_directions, FollowDirectionsCall, float)
DECLARE(correct_direction, CorrectDirectionCall, float)
DECLARE(cross_entropy, CrossEntropyCall, float)
DECLARE(cross_entropy, CrossEntropyCall, double)
DECLARE_2(squared_sequences, SquaredSequencesCall, float, float)
DECLARE_2(squared_sequences, SquaredSequencesCall, float, double)
DECLARE_2(squared_sequences, SquaredSequencesCall, double, double)
DECLARE_2(plain_sums, PlainSumsCall, float, float)
DECLARE_2(plain_sums, PlainSumsCall, float, double)
DECLARE_2(plain_sums, PlainSumsCall, double, double)
extern "C" void pathsgd_set_thread_runner(pathsgd::ThreadRunner);

namespace {

using std::vector;
int failures = 0;
unsigned state = 1;

double draw() {  // a multiple of 1/8 in [-1, 1)
  state = state * 1664525u + 1013904223u;
  return static_cast<int>(state >> 28) / 8.0 - 1.0;
}
template <class F>
vector<F> random(size_t count) {
  vector<F> values(count);
  for (F& value : values) value = static_cast<F>(draw());
  return values;
}
template <class F>
void expect_same(const char* what, const vector<F>& found, const vector<double>& expected) {
  double largest = 1e-30, worst = 0;
  for (double value : expected) largest = std::max(largest, std::abs(value));
  for (size_t i = 0; i < found.size(); i++) {
    const double difference = std::abs(found[i] - expected[i]);
    worst = difference <= worst ? worst : difference;  // keeps NaN
  }
  if (!(worst <= largest * (sizeof(F) == 4 ? 1e-5 : 1e-13))) {
    std::printf("%s: differs by %g of %g\n", what, worst, largest);
    failures++;
  }
}

struct Case {
  long steps, batch, hidden, inputs;
  bool packed, reversed, x, bias, h0, dout, dh_n, keep, sums;
};

// Rows of each step: falling for packed sequences.
vector<int64_t> starts_of(const Case& c) {
  vector<int64_t> starts{0};
  for (long t = 0; t < c.steps; t++)
    starts.push_back(starts.back() + (c.packed ? std::max(1L, c.batch - 3 * t) : c.batch));
  return starts;
}

template <class F>
void run(const Case& c) {
  const long H = c.hidden, I = c.inputs, stride = H + 3;  // rows of out lie apart, as those of one direction do
  const vector<int64_t> starts = starts_of(c);
  const long rows = starts.back();
  const auto x = random<F>(rows * I), w_in = random<F>(H * I), b_in = random<F>(H), b_rec = random<F>(H);
  const auto w_rec = random<F>(H * H), h0 = random<F>(c.batch * H), dh_n = random<F>(c.batch * H);
  const auto dout = random<F>((rows - 1) * stride + H);
  const pathsgd::Shape shape{c.steps, c.batch, H, I, c.reversed, 3, c.packed ? starts.data() : nullptr};
  const auto rows_at = [&](long t) { return starts[t + 1] - starts[t]; };
  const auto step_at = [&](long p) { return c.reversed ? c.steps - 1 - p : p; };

  // Plain loops, forward: z and h per row.
  vector<double> projected(rows * H), h(rows * H), h_n(c.batch * H);
  for (long r = 0; r < rows; r++)
    for (long n = 0; n < H; n++) {
      double z = c.bias ? b_in[n] + b_rec[n] : 0;
      for (long i = 0; i < I; i++) z += double(w_in[n * I + i]) * x[r * I + i];
      projected[r * H + n] = z;
    }
  const auto before = [&](long p, long r, long k) -> double {
    if (p > 0 && r < rows_at(step_at(p - 1))) return h[(starts[step_at(p - 1)] + r) * H + k];
    return c.h0 ? h0[r * H + k] : 0;
  };
  for (long p = 0; p < c.steps; p++)
    for (long r = 0; r < rows_at(step_at(p)); r++)
      for (long n = 0; n < H; n++) {
        const long row = starts[step_at(p)] + r;
        double z = projected[row * H + n];
        for (long k = 0; k < H; k++) z += double(w_rec[n * H + k]) * before(p, r, k);
        h_n[r * H + n] = h[row * H + n] = z > 0 ? z : 0;
      }

  vector<F> out((rows - 1) * stride + H), last(c.batch * H);
  if (!c.x)
    for (long r = 0; r < rows; r++)
      for (long n = 0; n < H; n++) out[r * stride + n] = static_cast<F>(projected[r * H + n]);
  const auto either = [](bool given, auto& values) { return given ? values.data() : nullptr; };
  failures += rnn_forward(pathsgd::RnnForwardCall<F>{shape, either(c.x, x), w_in.data(), either(c.bias, b_in), either(c.bias, b_rec), w_rec.data(),
                          either(c.h0, h0), out.data(), stride, last.data()});
  vector<F> dense(rows * H);
  for (long r = 0; r < rows; r++)
    for (long n = 0; n < H; n++) dense[r * H + n] = out[r * stride + n];
  expect_same("h", dense, h);
  expect_same("h_n", last, h_n);

  // Plain loops, backward.
  vector<double> dz(rows * H), carry(c.batch * H), dw_rec(H * H), dw_in(H * I), dbias(H);
  for (long k = 0; k < c.batch * H; k++) carry[k] = c.dh_n ? dh_n[k] : 0;
  for (long p = c.steps - 1; p >= 0; p--)
    for (long r = 0; r < rows_at(step_at(p)); r++) {
      const long row = starts[step_at(p)] + r;
      vector<double> next(H);
      for (long n = 0; n < H; n++) {
        const double d = h[row * H + n] > 0 ? carry[r * H + n] + (c.dout ? dout[row * stride + n] : 0) : 0;
        dz[row * H + n] = d;
        dbias[n] += d;
        for (long k = 0; k < H; k++) next[k] += w_rec[n * H + k] * d, dw_rec[n * H + k] += d * before(p, r, k);
        for (long i = 0; i < I; i++) dw_in[n * I + i] += d * x[row * I + i];
      }
      for (long k = 0; k < H; k++) carry[r * H + k] = next[k];
    }
  vector<F> got_dz(rows * H), got_dh0(c.batch * H), got_rec(H * H), got_in(H * I), got_bias(H);
  pathsgd::RnnBackwardCall<F> call{shape, x.data(), w_rec.data(), either(c.h0, h0), out.data(), stride,
                                either(c.dout, dout), stride, either(c.dh_n, dh_n), either(c.keep, got_dz),
                                either(c.h0, got_dh0), either(c.sums, got_rec), either(c.sums && c.x, got_in),
                                got_bias.data()};
  failures += rnn_backward(call);
  if (c.keep) expect_same("dz", got_dz, dz);
  if (c.h0) expect_same("dh0", got_dh0, carry);
  if (c.sums) expect_same("dW_rec", got_rec, dw_rec);
  if (c.keep) {
    failures += recurrent_gradient(pathsgd::RecurrentGradientCall<F>{shape, got_dz.data(), either(c.h0, h0), out.data(),
                                                                     stride, got_rec.data()});
    expect_same("dW_rec after the sweep", got_rec, dw_rec);
  }
  if (c.sums && c.x) expect_same("dW_in", got_in, dw_in);
  expect_same("dbias", got_bias, dbias);
}

template <class W, class F, class Kernel>
void run_squared_sequences(Kernel kernel, long steps, long hidden, bool every) {
  const auto w = random<W>(hidden * hidden);
  auto u = random<F>(hidden), v = random<F>(hidden);
  for (long n = 0; n < hidden; n++) u[n] += F(1.125), v[n] += F(1.125);
  const double scale = 1.0 / hidden;
  vector<double> h(steps * hidden), delta(steps * hidden);
  for (long s = 0; s < steps; s++)
    for (long n = 0; n < hidden; n++) {
      const double power = std::pow(scale, s);
      double a = power * u[n], b = every || s == 0 ? power * v[n] : 0;
      for (long k = 0; k < hidden && s > 0; k++) {
        a += scale * w[n * hidden + k] * w[n * hidden + k] * h[(s - 1) * hidden + k];
        b += scale * w[k * hidden + n] * w[k * hidden + n] * delta[(steps - s) * hidden + k];
      }
      h[s * hidden + n] = a;
      delta[(steps - 1 - s) * hidden + n] = b;
    }
  vector<F> got_h(steps * hidden), got_delta(steps * hidden);
  pathsgd::SquaredSequencesCall<W, F> call{steps, hidden, every, 3, w.data(), u.data(), v.data(), got_h.data(),
                                           got_delta.data(), scale};
  failures += kernel(&call);
  expect_same("squared h", got_h, h);
  expect_same("squared delta", got_delta, delta);
}

// u and v made of weights, the sequences that `run_squared_sequences` has checked, and their sums relative to gamma^2.
template <class W, class F, class Kernel, class Sums>
void run_plain_sums(Kernel sequences, Sums sums, long steps, long hidden, bool every, bool biased) {
  const long inputs = 1 + hidden % 3, outputs = 1 + hidden % 4;
  const double scale = 1.0 / hidden, rows = 0.25;
  const auto w_in = random<W>(hidden * inputs), w_rec = random<W>(hidden * hidden), w_out = random<W>(outputs * hidden);
  const auto b_in = random<W>(hidden), b_rec = random<W>(hidden), b_out = random<W>(outputs);
  auto e = random<double>(inputs);
  for (double& value : e) value += 1.125;
  const auto square = [](W value) { return double(value) * value; };
  vector<double> u(hidden), v(hidden);
  for (long n = 0; n < hidden; n++) {
    for (long i = 0; i < inputs; i++) u[n] += square(w_in[n * inputs + i]) * (biased ? e[i] : 1.0);
    if (biased) u[n] += square(b_in[n]) + square(b_rec[n]);
    for (long o = 0; o < outputs; o++) v[n] += square(w_out[o * hidden + n]);
  }
  const vector<F> u_as(u.begin(), u.end()), v_as(v.begin(), v.end());
  vector<F> h(steps * hidden), delta(steps * hidden);
  pathsgd::SquaredSequencesCall<W, F> of_sequences{steps, hidden, every, 3, w_rec.data(), u_as.data(), v_as.data(),
                                                   h.data(), delta.data(), scale};
  failures += sequences(&of_sequences);
  vector<double> into(hidden), out(hidden), flow(hidden), recurrent(hidden * hidden);
  for (long s = 0; s < steps; s++)
    for (long n = 0; n < hidden; n++) {
      into[n] += std::pow(scale, s) * delta[s * hidden + n];
      if (every || s == steps - 1) out[n] += std::pow(scale, steps - 1 - s) * h[s * hidden + n];
      flow[n] += double(h[s * hidden + n]) * delta[s * hidden + n];
      for (long k = 0; k < hidden && s + 1 < steps; k++)
        recurrent[n * hidden + k] += double(delta[(s + 1) * hidden + n]) * h[s * hidden + k];
    }
  double gamma_sq = 0;
  for (long n = 0; n < hidden; n++) gamma_sq += v[n] * out[n];
  for (long o = 0; o < outputs && biased; o++) gamma_sq += rows * square(b_out[o]);
  const double share = gamma_sq > 0 ? 1 / gamma_sq : 1;
  for (auto* sum : {&into, &out, &flow})
    for (double& value : *sum) value *= share;
  for (double& value : recurrent) value *= share * scale;
  vector<F> got_h(steps * hidden), got_delta(steps * hidden), got(hidden * hidden);
  vector<double> got_into(hidden), got_out(hidden), got_flow(hidden);
  const auto maybe = [&](auto& values) { return biased ? values.data() : nullptr; };
  pathsgd::PlainSumsCall<W, F> call{steps, hidden, inputs, outputs, every, 3,
                                    w_in.data(), maybe(b_in), maybe(b_rec), w_rec.data(), w_out.data(), maybe(b_out), maybe(e),
                                    got_h.data(), got_delta.data(), got_into.data(), got_out.data(), got_flow.data(), got.data(),
                                    scale, rows, 0, 0, 0, 0};
  failures += sums(&call);
  expect_same("gamma^2", vector<F>{F(call.gamma_sq)}, {gamma_sq});
  expect_same("into over gamma^2", got_into, into);
  expect_same("out over gamma^2", got_out, out);
  expect_same("flow over gamma^2", got_flow, flow);
  expect_same("recurrent over gamma^2", got, recurrent);
}

template <class F>
void run_linear_sweep(long steps, long rows, long hidden, bool transposed, bool backwards, bool from_zero, bool plain) {
  const long size = rows * hidden;
  auto a = random<F>(hidden * hidden);
  for (F& value : a) value /= F(hidden);  // so that nothing grows beyond what plain loops round alike
  const auto u = random<F>(steps * size), start = random<F>(size);
  const auto ratios = random<double>(steps);
  vector<double> m(steps * size);
  for (long step = 0; step < steps; step++) {
    const long t = backwards ? steps - 1 - step : step, before = backwards ? t + 1 : t - 1;
    for (long row = 0; row < rows; row++)
      for (long n = 0; n < hidden; n++) {
        double sum = 0;
        for (long k = 0; k < hidden; k++) {
          const double state = step ? m[before * size + row * hidden + k] : from_zero ? 0.0 : start[row * hidden + k];
          sum += a[transposed ? k * hidden + n : n * hidden + k] * state;
        }
        m[t * size + row * hidden + n] = (plain ? 1.0 : ratios[t]) * sum + u[t * size + row * hidden + n];
      }
  }
  vector<F> got(steps * size);
  failures += linear_sweep(pathsgd::LinearSweepCall<F>{steps, rows, hidden, transposed, backwards, a.data(), u.data(),
                                                       from_zero ? nullptr : start.data(),
                                                       plain ? nullptr : ratios.data(), got.data()});
  expect_same("sweep", got, m);
}

// Every pair of a state and a derivative, with the power of A between them. A has a gap, so that there are few powers.
template <class F>
void run_rank_one_sum(long steps, long hidden, bool adjoint, int (*run)(pathsgd::RankOneSumCall<F>*)) {
  auto a = random<double>(hidden * hidden);
  for (double& value : a) value = (2 + value) / (2 * hidden);
  auto before = random<F>(steps * hidden), delta = random<F>(steps * hidden);
  for (F& value : before) value = F(1.25) + value;
  for (F& value : delta) value = F(1.25) + value;
  for (long t = steps - 2; adjoint && t >= 0; t--)
    for (long i = 0; i < hidden; i++) {
      double sum = 0;
      for (long k = 0; k < hidden; k++) sum += a[k * hidden + i] * delta[(t + 1) * hidden + k];
      delta[t * hidden + i] = static_cast<F>(sum);
    }
  vector<double> total(hidden * hidden), power(hidden * hidden), next(hidden * hidden);
  for (long i = 0; i < hidden; i++) power[i * hidden + i] = 1;
  for (long n = 0; n + 1 < steps; n++) {
    for (long i = 0; i < hidden; i++)
      for (long j = 0; j < hidden; j++) {
        double lagged = 0, sum = 0;
        for (long s = 0; s + n + 1 < steps; s++)
          lagged += static_cast<double>(delta[(s + n + 1) * hidden + i]) * before[s * hidden + j];
        total[i * hidden + j] += power[j * hidden + i] * lagged;
        for (long k = 0; k < hidden; k++) sum += power[i * hidden + k] * a[k * hidden + j];
        next[i * hidden + j] = sum;
      }
    power.swap(next);
  }
  vector<double> got(hidden * hidden);
  const double tolerance = sizeof(F) == 4 ? 2e-6 : 1e-10;
  pathsgd::RankOneSumCall<F> call{steps,        hidden,     adjoint, steps / 2, 2, a.data(), before.data(),
                                  delta.data(), got.data(), tolerance, -1};
  failures += run(&call);
  if (call.result == pathsgd::kCertified) expect_same("kappa2's sum", vector<float>(got.begin(), got.end()), total);
  else if (call.result != pathsgd::kNoGap || (steps > 60 && hidden > 12)) std::printf("no sum: %ld\n", long(call.result)), failures++;
}

// A stack beside plain loops: the states from the lowest layer, the derivatives from the highest, all in double.
template <class F>
void run_stack_sums(long steps, long hidden, long inputs, long layers, bool both, bool last, bool bias,
                    int (*run)(pathsgd::StackSumsCall<F>*)) {
  const long directions = both ? 2 : 1, width = directions * hidden, count = layers * directions, outputs = 2;
  vector<vector<F>> w_in(count), w_rec(count), b(count), into(count), recurrent(count), kappa_in(count);
  vector<vector<double>> through(count), h(count), delta(count, vector<double>(steps * hidden, 0.0));
  vector<pathsgd::StackCell<F>> cells(count);
  const auto square = [](F value) { return static_cast<double>(value) * value; };
  for (long k = 0; k < count; k++) {
    const long entering = k < directions ? inputs : width;
    w_in[k] = random<F>(hidden * entering), w_rec[k] = random<F>(hidden * hidden), b[k] = random<F>(hidden);
    for (F& value : w_rec[k]) value /= F(std::sqrt(hidden));
    into[k].resize(hidden), recurrent[k].resize(hidden * hidden), through[k].resize(hidden);
    if (k >= directions) kappa_in[k].resize(hidden * width);
    cells[k] = {w_in[k].data(), w_rec[k].data(), bias ? b[k].data() : nullptr, nullptr, into[k].data(),
                recurrent[k].data(), through[k].data(), k < directions ? nullptr : kappa_in[k].data(), 0};
  }
  const auto w_out = random<F>(outputs * width);
  vector<int64_t> reads(directions, last ? steps - 1 : -1);
  vector<F> out(width);
  const auto below = [&](long k, long t, long i) { return k < directions ? 1.0 : h[(k / directions - 1) * directions + i / hidden][t * hidden + i % hidden]; };
  for (long k = 0; k < count; k++) {
    h[k].assign(steps * hidden, 0.0);
    const long entering = k < directions ? inputs : width;
    for (long step = 0; step < steps; step++)
      for (long n = 0, t = k % directions ? steps - 1 - step : step; n < hidden; n++) {
        double sum = bias ? square(b[k][n]) : 0.0;
        for (long i = 0; i < entering; i++) sum += square(w_in[k][n * entering + i]) * below(k, t, i);
        for (long i = 0; step && i < hidden; i++)
          sum += square(w_rec[k][n * hidden + i]) * h[k][(k % directions ? t + 1 : t - 1) * hidden + i];
        h[k][t * hidden + n] = sum;
      }
  }
  double gamma_sq = 0;
  for (long d = 0; d < directions; d++)
    for (long t = last ? steps - 1 : 0; t < steps; t++)
      for (long i = 0; i < hidden; i++) {
        double v = 0;
        for (long o = 0; o < outputs; o++) v += square(w_out[o * width + d * hidden + i]);
        delta[count - directions + d][t * hidden + i] = v;
        gamma_sq += v * h[count - directions + d][t * hidden + i];
      }
  for (long k = count - 1; k >= 0; k--) {
    const bool turned = k % directions;
    for (long step = 0; step < steps; step++)
      for (long n = 0, t = turned ? step : steps - 1 - step; n < hidden; n++) {
        for (long i = 0; step && i < hidden; i++)
          delta[k][t * hidden + n] += square(w_rec[k][i * hidden + n]) * delta[k][(turned ? t - 1 : t + 1) * hidden + i];
      }
    for (long t = 0; k >= directions && t < steps; t++)
      for (long i = 0; i < width; i++)
        for (long n = 0; n < hidden; n++)
          delta[(k / directions - 1) * directions + i / hidden][t * hidden + i % hidden] += square(w_in[k][n * width + i]) * delta[k][t * hidden + n];
  }
  pathsgd::StackSumsCall<F> call{steps, hidden, inputs, layers, directions, outputs, 2, cells.data(), w_out.data(), nullptr,
                                 nullptr, reads.data(), out.data(), 1.0, 1e-200, 1e200, 0, 0, 0, 0, 0};
  failures += run(&call);
  if (gamma_sq == 0) return;  // out of range: there are no sums
  for (long k = 0; k < count; k++) {
    vector<double> expected(hidden, 0.0), flow(hidden, 0.0), of_matrix(hidden * hidden, 0.0);
    for (long t = 0; t < steps; t++)
      for (long n = 0; n < hidden; n++) {
        expected[n] += delta[k][t * hidden + n] / gamma_sq;
        flow[n] += delta[k][t * hidden + n] * h[k][t * hidden + n] / gamma_sq;
        const long before = k % directions ? t + 1 : t - 1;
        for (long i = 0; before >= 0 && before < steps && i < hidden; i++)
          of_matrix[n * hidden + i] += delta[k][t * hidden + n] * h[k][before * hidden + i] / gamma_sq;
      }
    expect_same("stack into", into[k], expected);
    expect_same("stack through", through[k], flow);
    expect_same("stack recurrent", recurrent[k], of_matrix);
  }
}

void run_flow_sides(long count, bool is_root) {
  auto flow = random<double>(count), least = random<double>(count);
  vector<double> out(count), into(count), expected_out(count), expected_into(count);
  const double exponent = is_root ? 0.25 : 0.1;
  for (long i = 0; i < count; i++) {
    flow[i] = i % 3 ? flow[i] + 1 : 0, least[i] += 1.125;
    const double bounded = std::max(flow[i], least[i]);
    expected_into[i] = std::pow(bounded, exponent);
    expected_out[i] = expected_into[i] * (flow[i] > 0 ? std::sqrt(flow[i] / bounded) : 1.0);
  }
  pathsgd::FlowSidesCall<double> call{count, flow.data(), least.data(), out.data(), into.data(), exponent};
  failures += pathsgd_flow_sides_double(&call);
  expect_same("out side", out, expected_out);
  expect_same("into side", into, expected_into);
}

void run_squared_products(long rows, long columns) {
  const auto w = random<float>(rows * columns);
  vector<double> x = random<double>(columns), y = random<double>(rows), into(rows), out(columns);
  vector<double> expected_into(rows), expected_out(columns);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < columns; c++) {
      const double square = double(w[r * columns + c]) * w[r * columns + c];
      expected_into[r] += square * x[c];
      expected_out[c] += square * y[r];
    }
  failures += squared_products(pathsgd::SquaredProductsCall<float>{rows, columns, 3, w.data(), x.data(), y.data(),
                                                                   into.data(), out.data()});
  expect_same("W^2 x", into, expected_into);
  expect_same("W^2T y", out, expected_out);
}

template <class F>
void run_squares(long count, int (*squares)(pathsgd::SquaresCall<F>*)) {
  const auto w = random<F>(count);
  vector<F> q(count);
  vector<double> expected(count);
  double largest = 0, least = INFINITY;
  for (long i = 0; i < count; i++) {
    expected[i] = double(w[i]) * w[i];
    largest = std::max(largest, expected[i]);
    if (w[i] != 0) least = std::min(least, expected[i]);
  }
  pathsgd::SquaresCall<F> call{count, 3, w.data(), q.data(), 0, 0};
  failures += squares(&call);
  expect_same("w^2", q, expected);
  failures += call.largest != largest || call.least != least;
}

void run_narrow(long count, double factor) {
  vector<double> x = random<double>(count), expected(count);
  double largest = 0, least = INFINITY;
  for (double& value : x) {
    value = std::max(0.0, 1000 * value);
    largest = std::max(largest, value);
    if (value > 0) least = std::min(least, value);
  }
  vector<float> to(count);
  pathsgd::NarrowCall<float> call{count, x.data(), to.data(), factor, 0, 0};
  failures += pathsgd_narrow_float(&call);
  const bool fits = largest == 0 || (call.factor * largest >= 0.5 && call.factor * largest < 1);
  failures += call.largest != largest || call.least != least || (factor == 0 ? !fits : call.factor != factor);
  for (long i = 0; i < count; i++) expected[i] = x[i] * call.factor;
  expect_same("x in short", to, expected);
}

// Options are drawn from the bits: strides and dilations of 1 and 2, paddings of 0 to 3.
template <class F>
void run_squared_convolution(long inputs, long outputs, long width, unsigned bits,
                             int (*convolution)(pathsgd::SquaredConvolutionCall<F>*)) {
  const long kernel[2] = {1 + (bits & 3) % 3, 1 + (bits >> 2 & 3) % 3}, stride[2] = {1 + (bits >> 4 & 1), 1 + (bits >> 5 & 1)};
  const long pad[2] = {bits >> 6 & 3, bits >> 8 & 3}, dilation[2] = {1 + (bits >> 10 & 1), 1 + (bits >> 11 & 1)};
  const long size[2] = {5, width + 5};
  long result[2];
  for (int d = 0; d < 2; d++) result[d] = (size[d] + 2 * pad[d] - dilation[d] * (kernel[d] - 1) - 1) / stride[d] + 1;
  const long depth = inputs * kernel[0] * kernel[1], places = result[0] * result[1], pixels = size[0] * size[1];
  const auto w = random<F>(outputs * depth), x = random<F>(inputs * pixels), y_bar = random<F>(outputs * places);
  vector<F> y(outputs * places), x_bar(inputs * pixels), kappa(outputs * depth);
  vector<double> expected_y(y.size()), expected_x(x.size()), expected_kappa(w.size());
  for (long o = 0; o < outputs; o++)
    for (long j = 0; j < depth; j++)
      for (long s = 0; s < places; s++) {
        const long i = j / (kernel[0] * kernel[1]), ky = j / kernel[1] % kernel[0], kx = j % kernel[1];
        const long row = s / result[1] * stride[0] + ky * dilation[0] - pad[0];
        const long column = s % result[1] * stride[1] + kx * dilation[1] - pad[1];
        if (row < 0 || row >= size[0] || column < 0 || column >= size[1]) continue;
        const long at = i * pixels + row * size[1] + column;
        const double square = double(w[o * depth + j]) * w[o * depth + j];
        expected_y[o * places + s] += square * x[at];
        expected_x[at] += square * y_bar[o * places + s];
        expected_kappa[o * depth + j] += double(y_bar[o * places + s]) * x[at];
      }
  pathsgd::SquaredConvolutionCall<F> call{
      inputs, outputs, size[0], size[1], result[0], result[1], kernel[0], kernel[1], stride[0], stride[1], pad[0], pad[1],
      dilation[0], dilation[1], 3, w.data(), x.data(), y.data(), y_bar.data(), x_bar.data(), kappa.data(), 0, 0};
  failures += convolution(&call);
  expect_same("W^2 * x", y, expected_y);
  expect_same("x-bar of W^2 * x", x_bar, expected_x);
  expect_same("kappa of W^2 * x", kappa, expected_kappa);
}

template <class F>
void run_row_lengths(long rows, long columns) {
  const auto p = random<F>(rows * columns), w = random<F>(rows * columns);
  vector<double> squares(rows), expected(rows);
  for (long i = 0; i < rows * columns; i++)
    if (w[i] != 0) expected[i / columns] += (double(p[i]) / w[i]) * (double(p[i]) / w[i]);
  failures += row_lengths(pathsgd::RowLengthsCall<F>{rows, columns, 3, p.data(), w.data(), squares.data()});
  for (long r = 0; r < rows; r++) squares[r] = static_cast<F>(squares[r]);
  expect_same("|row|^2", vector<F>(squares.begin(), squares.end()), expected);
}

template <class F>
void run_mean_log(long count, bool zero, int (*mean_log)(pathsgd::MeanLogCall<F>*)) {
  auto x = random<F>(count);
  for (F& value : x) value = std::exp(40 * std::abs(value) - 20);
  if (zero) x[count / 2] = 0;
  double expected = 0;
  for (F value : x) expected += std::log(double(value)) / count;
  pathsgd::MeanLogCall<F> call{count, 3, x.data(), 0};
  failures += mean_log(&call);
  failures += zero ? call.mean != -INFINITY : !(std::abs(call.mean - expected) < 1e-12 * (1 + std::abs(expected)));
}

template <class F>
void run_short(long rows, long columns, double factor, int (*squares)(pathsgd::SquaresCall<F>*)) {
  run_squares<F>(rows * columns, squares);
  run_narrow(rows * columns, factor);
  run_row_lengths<F>(rows, columns);
}

// A (rows, columns) parameter whose w is constant along rows, columns, both or neither, or multiplied by one number for
// each column, and a second one of 3 numbers.
void run_update(long rows, long columns, int64_t direction, bool by_row, bool by_column) {
  auto p = random<float>(rows * columns), q = random<float>(3), m = random<float>(rows * columns), n = random<float>(3);
  auto v = random<float>(rows * columns), o = random<float>(3);
  for (float& value : v) value = value * value;
  for (float& value : o) value = value * value;
  const auto g = random<float>(rows * columns), h = random<float>(3), x = random<float>(3);
  const auto w = random<float>((by_row ? (rows - 1) * (by_column ? columns : 1) : 0) + (by_column ? columns : 1));
  const int64_t row_stride = by_row ? (by_column ? columns : 1) : 0;
  const int64_t sizes[][2] = {{rows, 1}, {columns, 3}, {row_stride, 0}, {by_column, 1}};
  float *const parameters[] = {p.data(), q.data()}, *const first[] = {m.data(), n.data()};
  float *const second[] = {v.data(), o.data()};
  const float *const gradients[] = {g.data(), h.data()}, *const whitenings[] = {w.data(), x.data()};
  const auto by = random<float>(columns);
  const float* const column_whitenings[] = {by_column ? nullptr : by.data(), nullptr};
  vector<double> sums(2);
  vector<float> found(rows * columns);
  pathsgd::UpdateCall<float> call{2, 3, sizes[0], sizes[1], sizes[2], sizes[3], parameters, gradients, whitenings,
                                  column_whitenings, first, second, direction, direction != 4, 0.5, 0.75, 0.5, 0.25, 0.125, 0.5, -0.25,
                                  sums.data(), 0, found.data()};
  if (direction == 4) call.direction = pathsgd::kAdam;
  vector<double> moved(rows * columns), square(2), of_direction(1);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < columns; c++) {
      const long i = r * columns + c;
      const double white = w[r * row_stride + (by_column ? c : 0)] * (by_column ? 1.0f : by[c]), u = g[i] * white;
      const double step = direction == 4 ? 0.5 * u * white : 0.5 * u;
      const double adam = 0.5 * m[i] + 0.5 * step, second_moment = 0.25 * v[i] + 0.75 * step * step;
      const double momentum = 0.75 * m[i] + 0.5 * u;
      const double d = call.direction == pathsgd::kGradient ? u : call.direction == pathsgd::kMomentum ? momentum
                       : call.direction == pathsgd::kNesterov ? 0.5 * u + 0.75 * momentum
                                                              : adam / (std::sqrt(second_moment) + 0.125);
      moved[i] = 0.5 * p[i] - 0.25 * d * (direction == 4 ? 1 : white);
      square[0] += u * u;
      of_direction[0] += white == 0 ? 0 : d * d;
    }
  for (long i = 0; i < 3; i++) square[1] += double(h[i]) * x[i] * h[i] * x[i];
  failures += square_sums(call);
  auto p2 = p, q2 = q, m2 = m, n2 = n, v2 = v, o2 = o;
  if (direction != pathsgd::kGradient) {
    float *const moving[] = {p2.data(), q2.data()}, *const first2[] = {m2.data(), n2.data()}, *const second2[] = {v2.data(), o2.data()};
    auto together = call;
    together.parameters = moving, together.first = first2, together.second = second2;
    failures += advance(together) + moments(call);
  }
  expect_same("sum u^2", sums, square);
  failures += ::direction(call) + direction_square(call) + apply(call);
  expect_same("sum d^2", vector<float>{float(sums[0])}, of_direction);  // d itself is rounded
  if (direction != pathsgd::kGradient)  // both passes in one make the same bits
    failures += p2 != p || q2 != q || m2 != m || n2 != n || v2 != v || o2 != o;
  expect_same("p", p, moved);
}

void run_spectral_norm(long rows, long columns) {
  vector<float> left(rows), matrix(rows * columns), start(columns, 1);
  for (long r = 0; r < rows; r++)  // rank one: one iteration finds it
    for (long c = 0; c < columns; c++) matrix[r * columns + c] = float(r + 1) * float(c + 1);
  pathsgd::SpectralNormCall<float> call{rows, columns, 1, matrix.data(), start.data(), 0};
  failures += pathsgd_spectral_norm_float(&call);
  double squares = 0;
  for (float value : matrix) squares += double(value) * value;
  expect_same("|M|_2", vector<float>{float(call.length)}, {std::sqrt(squares)});
}

// kappa = (r + 1)(c + 1) as a matrix and as an outer product; the nodes of columns say 1/2, in pieces of `repeat`.
void run_whiten(long rows, long columns, long repeat) {
  const long pieces = (columns + repeat - 1) / repeat;
  vector<float> matrix(rows * columns), root(rows * columns), by_row(rows), by_column(columns);
  vector<double> sides(pieces + 1, 0.5), high(rows), wide(columns), expected;
  vector<int64_t> nodes(pieces);
  for (long c = 0; c < pieces; c++) nodes[c] = c + 1;
  for (long r = 0; r < rows; r++) high[r] = double(r + 1);
  for (long c = 0; c < columns; c++) wide[c] = double(c + 1);
  for (long r = 0; r < rows; r++)
    for (long c = 0; c < columns; c++) {
      matrix[r * columns + c] = float(high[r] * wide[c]);
      expected.push_back(0.5 / std::sqrt(high[r] * wide[c]));
    }
  vector<pathsgd::WhitenJob<float>> jobs{
      {rows, columns, repeat, pathsgd::kMatrix, 0, matrix.data(), nullptr, nullptr, nullptr, nullptr, nullptr, nodes.data(),
       root.data(), nullptr, 0, NAN, 0},
      {rows, columns, repeat, pathsgd::kOuter, 1, high.data(), wide.data(), sides.data(), nullptr, nullptr, nullptr, nodes.data(),
       by_row.data(), by_column.data(), 0, NAN, 0}};
  pathsgd::WhitenCall<float> call{2, 3, sides.data(), sides.data(), 1.0, jobs.data()};
  failures += pathsgd_whiten_float(&call);
  expect_same("1/sqrt(kappa)", root, expected);
  for (long i = 0; i < rows * columns; i++) root[i] = by_row[i / columns] * by_column[i % columns];
  expect_same("1/sqrt(kappa) of an outer product", root, expected);
  // Once more, with a mean logarithm of 0.25.
  double mean = 0;
  for (double value : expected) mean += std::log(value) / expected.size();
  for (double& value : expected) value *= std::exp(0.25 - mean);
  for (auto& job : jobs) job.log_size = 0.25;
  failures += pathsgd_whiten_float(&call);
  failures += !jobs[0].is_sized + !jobs[1].is_sized;
  expect_same("sized 1/sqrt(kappa)", root, expected);
  for (long i = 0; i < rows * columns; i++) root[i] = by_row[i / columns] * by_column[i % columns];
  expect_same("sized 1/sqrt(kappa) of an outer product", root, expected);
}

// All entries alike, so that one iteration finds the direction; scales that cancel.
void run_follow_directions(long units, long count, bool leaky) {
  vector<float> weight(units * units), scale(units), keep(units, 0.5f), gain(units, 0.5f), rays(units * count, 0);
  vector<float> age(count, 0), mean(count, 0);
  for (long i = 0; i < units; i++) scale[i] = float(1 << i % 4);
  for (long i = 0; i < units * units; i++) weight[i] = 1.5f / units * scale[i / units] / scale[i % units];
  for (long k = 0; k < count; k++) rays[k * units + k % units] = 1;
  pathsgd::FollowDirectionsCall<float> call{
      units, count, 8, 16, 40, 40, 1, leaky, count, weight.data(), scale.data(), leaky ? keep.data() : nullptr,
      leaky ? gain.data() : nullptr, rays.data(), age.data(), mean.data(), 0.02,
      1e-4, 0};
  for (int i = 0; i < 12; i++) failures += pathsgd_follow_directions_float(&call);
  expect_same("growth rate", vector<float>{float(call.rate)}, {leaky ? 1.25 : 1.5});
  vector<float> left(units, 1);
  pathsgd::CorrectDirectionCall<float> correction{
      units, 8, leaky, weight.data(), scale.data(), leaky ? keep.data() : nullptr, leaky ? gain.data() : nullptr,
      rays.data(), left.data(), 0.25, 0.02, 0.01};
  failures += pathsgd_correct_direction_float(&correction);
  const double remaining = leaky ? 2 * (0.75 * 1.25 - 0.5) : 0.75 * 1.5;  // W's own rate when the map's is three quarters
  vector<double> expected;
  for (long i = 0; i < units * units; i++)
    expected.push_back(remaining / units * scale[i / units] / scale[i % units]);
  expect_same("corrected", weight, expected);
}

int cross_entropy(pathsgd::CrossEntropyCall<float>& call) { return pathsgd_cross_entropy_float(&call); }
int cross_entropy(pathsgd::CrossEntropyCall<double>& call) { return pathsgd_cross_entropy_double(&call); }

// Class 0 is ignored; `zeros` of eight numbers of h are zero.
template <class F>
void run_cross_entropy(long rows, long inputs, long classes, long chunk, int zeros, bool biased, bool mean, int wanted) {
  auto h = random<F>(rows * inputs);
  for (F& value : h) value = draw() < zeros / 4.0 - 1.0 ? F(0) : value;
  const auto w = random<F>(classes * inputs), bias = random<F>(classes);
  vector<int64_t> target(rows);
  long counted = 0;
  for (long r = 0; r < rows; r++) counted += (target[r] = r * 7 % classes) != 0;
  vector<double> dh(rows * inputs), dw(classes * inputs), db(classes), l(classes);
  double loss = 0;
  for (long r = 0; r < rows; r++) {
    double total = 0;
    for (long c = 0; c < classes; c++) {
      l[c] = biased ? bias[c] : 0;
      for (long i = 0; i < inputs; i++) l[c] += double(h[r * inputs + i]) * w[c * inputs + i];
      total += std::exp(l[c]);
    }
    if (target[r] == 0) continue;
    const double weight = mean ? 1.0 / counted : 1.0;
    loss += weight * (std::log(total) - l[target[r]]);
    for (long c = 0; c < classes; c++) {
      const double d = weight * (std::exp(l[c]) / total - (c == target[r]));
      db[c] += d;
      for (long i = 0; i < inputs; i++) {
        dh[r * inputs + i] += d * w[c * inputs + i];
        dw[c * inputs + i] += d * h[r * inputs + i];
      }
    }
  }
  vector<F> got_dh(rows * inputs), got_dw(classes * inputs), got_db(classes);
  pathsgd::CrossEntropyCall<F> call{rows, inputs, classes, 3, chunk, 0, mean, h.data(), w.data(),
                                    biased ? bias.data() : nullptr, target.data(), wanted & 1 ? got_dh.data() : nullptr,
                                    wanted & 2 ? got_dw.data() : nullptr, wanted & 4 ? got_db.data() : nullptr, 0};
  failures += cross_entropy(call);
  if (counted) expect_same("loss", vector<F>{F(call.loss)}, {loss});
  if (wanted & 1) expect_same("dh", got_dh, dh);
  if (wanted & 2) expect_same("dW", got_dw, dw);
  if (wanted & 4) expect_same("db", got_db, db);
  target[rows - 1] = classes;
  failures += cross_entropy(call) != pathsgd::kNoSuchClass;
}

// Threads one after the other; of three asked for, only two come.
void two_threads(int, pathsgd::ThreadBody body, void* context) {
  for (int thread = 0; thread < 2; thread++) body(context, thread, 2);
}

template <class F>
void run_all_squared(long steps, long hidden, bool every, bool biased);

template <>
void run_all_squared<float>(long steps, long hidden, bool every, bool biased) {
  run_squared_sequences<float, float>(pathsgd_squared_sequences_float_float, steps, hidden, every);
  run_squared_sequences<float, double>(pathsgd_squared_sequences_float_double, steps, hidden, every);
  run_plain_sums<float, float>(pathsgd_squared_sequences_float_float, pathsgd_plain_sums_float_float, steps, hidden,
                               every, biased);
  run_plain_sums<float, double>(pathsgd_squared_sequences_float_double, pathsgd_plain_sums_float_double, steps, hidden,
                                every, biased);
}

template <>
void run_all_squared<double>(long steps, long hidden, bool every, bool biased) {
  run_squared_sequences<double, double>(pathsgd_squared_sequences_double_double, steps, hidden, every);
  run_plain_sums<double, double>(pathsgd_squared_sequences_double_double, pathsgd_plain_sums_double_double, steps,
                                 hidden, every, biased);
}

// The cases that are always run: every option of every operation at sizes around those of vectors and blocks.
void run_known() {
  const long shapes[][4] = {{4, 1, 1, 1},    {4, 5, 3, 2},    {3, 11, 7, 1},   {4, 13, 16, 3},
                            {3, 140, 25, 2}, {2, 9, 100, 17}, {2, 5, 260, 1}, {1, 3, 40, 4}, {2, 7, 333, 2}};
  for (pathsgd::ThreadRunner runner : {static_cast<pathsgd::ThreadRunner>(nullptr), &two_threads}) {
    pathsgd_set_thread_runner(runner);
    for (const auto& s : shapes)
      for (int bits = 0; bits < 16; bits++) {
        const bool a = bits & 1, b = bits & 2, c = bits & 4, d = bits & 8;
        const Case one{s[0], s[1], s[2], s[3], a, b, c, a != c, d, a == d, b != d, c == d, a || b};
        run<float>(one);
        run<double>(one);
      }
    for (const auto& s : shapes) {
      run_squared_products(s[1], s[2]);
      for (bool is_root : {false, true}) run_flow_sides(s[2], is_root);
      for (int bits = 0; bits < 16; bits++) {
        run_linear_sweep<float>(s[0], s[1], s[2], bits & 1, bits & 2, bits & 4, bits & 8);
        run_linear_sweep<double>(s[0], s[3], s[2], bits & 1, bits & 2, bits & 4, bits & 8);
      }
      const auto drawn = state;  // the cases of the other operations stay as they were
      for (int bits = 0; bits < 8; bits++)
        run_stack_sums<double>(s[0], s[2], s[3], 1 + s[1] % 3, bits & 1, bits & 2, bits & 4, pathsgd_stack_sums_double);
      state = drawn;
      for (long steps : {9, 10, 33, 90})
        for (bool adjoint : {false, true}) {
          run_rank_one_sum<float>(steps, 1 + s[2] % 60, adjoint, pathsgd_rank_one_sum_float);
          run_rank_one_sum<double>(steps, 1 + s[2] % 60, adjoint, pathsgd_rank_one_sum_double);
        }
      state = drawn;
      run_spectral_norm(s[1], s[2]);
      run_whiten(s[1], s[2], 1 + s[2] / 3);
      for (long count : {1, 6, 7})
        for (bool leaky : {false, true}) run_follow_directions(s[2], count, leaky);
      for (int64_t direction = 0; direction < 5; direction++)
        for (int bits = 0; bits < 4; bits++) run_update(s[1], s[2], direction, bits & 1, bits & 2);
    }
    const long losses[][4] = {{1, 1, 2, 1}, {5, 3, 30, 2}, {7, 16, 97, 7}, {30, 7, 400, 11}, {230, 5, 53, 230}, {3, 230, 19, 3}};
    for (const auto& s : losses)
      for (int bits = 0; bits < 8; bits++) {
        run_cross_entropy<float>(s[0], s[1], s[2], s[3], bits, bits & 1, bits & 2, bits);
        run_cross_entropy<double>(s[0], s[1], s[2], s[3], bits, bits & 1, bits & 2, 7 - bits);
      }
    run_update(260, 600, 3, true, true);  // large enough for threads
    run_squared_products(260, 600);
    for (long hidden : {1, 5, 16, 33, 259})
      for (long steps : {1L, 2L, 7L, hidden < 100 ? 70L : 5L})
        for (bool every : {false, true}) {
          for (bool biased : {false, true}) {
            run_all_squared<float>(steps, hidden, every, biased);
            run_all_squared<double>(steps, hidden, every, biased);
          }
        }
  }
  for (pathsgd::ThreadRunner runner : {static_cast<pathsgd::ThreadRunner>(nullptr), &two_threads}) {
    pathsgd_set_thread_runner(runner);
    for (const auto& s : shapes) {
      run_short<float>(s[1], s[2], 0, pathsgd_squares_float);
      run_short<double>(s[1], s[2], 0.125, pathsgd_squares_double);
    }
    run_short<float>(260, 600, 0, pathsgd_squares_float);  // large enough for threads
    const auto drawn = state;
    for (unsigned bits = 0; bits < 4096; bits += 113) {
      run_squared_convolution<float>(1 + bits % 7, 1 + bits % 19, 1 + bits % 23, bits, pathsgd_squared_convolution_float);
      run_squared_convolution<double>(1 + bits % 5, 1 + bits % 150, bits % 11, bits, pathsgd_squared_convolution_double);
    }
    run_squared_convolution<float>(40, 150, 3, 0x14a, pathsgd_squared_convolution_float);  // several pieces, threads
    state = drawn;
    for (long count : {1, 7, 8, 9, 8001, 140000})
      for (bool zero : {false, true}) {
        run_mean_log<float>(count, zero, pathsgd_mean_log_float);
        run_mean_log<double>(count, zero, pathsgd_mean_log_double);
      }
  }
}

// One case of one operation for each line of the input: its name, a seed and four sizes; the seed draws the options.
template <class F>
void run_one(const std::string& operation, unsigned seed, long a, long b, long c, long d) {
  const auto option = [seed](int i) { return (seed >> i & 1) != 0; };
  state = seed;
  pathsgd_set_thread_runner(option(0) ? two_threads : nullptr);
  if (operation == "rnn")
    run<F>({a, b, c, d, option(1), option(2), option(3), option(4), option(5), option(6), option(7), option(8), option(9)});
  else if (operation == "squared") run_all_squared<F>(a, c, option(1), option(2));
  else if (operation == "flow_sides") run_flow_sides(c, option(1));
  else if (operation == "linear_sweep") run_linear_sweep<F>(a, b, c, option(1), option(2), option(3), option(4));
  else if (operation == "stack_sums")
    run_stack_sums<float>(a, c, d, 1 + b % 3, option(1), option(2), option(3), pathsgd_stack_sums_float),
        run_stack_sums<double>(a, c, d, 1 + b % 3, option(1), option(2), option(3), pathsgd_stack_sums_double);
  else if (operation == "rank_one_sum")
    run_rank_one_sum<float>(9 + a, 1 + c % 60, option(1), pathsgd_rank_one_sum_float),
        run_rank_one_sum<double>(9 + a, 1 + c % 60, option(1), pathsgd_rank_one_sum_double);
  else if (operation == "squared_products") run_squared_products(b, c);
  else if (operation == "spectral_norm") run_spectral_norm(b, c);
  else if (operation == "squares") run_squares<float>(b * c, pathsgd_squares_float);
  else if (operation == "squared_convolution")
    run_squared_convolution<float>(1 + d, b, c % 40, seed >> 1, pathsgd_squared_convolution_float);
  else if (operation == "narrow") run_narrow(b * c, option(1) ? 0.25 : 0.0);
  else if (operation == "row_lengths") run_row_lengths<F>(b, c);
  else if (operation == "mean_log") run_mean_log<float>(b * c * d, option(1), pathsgd_mean_log_float);
  else if (operation == "whiten") run_whiten(b, c, 1 + c / 3);
  else if (operation == "follow_directions") run_follow_directions(c, d, option(1));
  else if (operation == "update") run_update(b, c, d % 5, option(1), option(2));
  else if (operation == "cross_entropy")
    run_cross_entropy<F>(b, d, 1 + c, 1 + a, static_cast<int>(seed >> 3 & 7), option(1), option(2), seed >> 6 & 7);
  else std::printf("no operation %s\n", operation.c_str()), failures++;
}

void run_given() {
  std::string operation;
  for (long seed, a, b, c, d; std::cin >> operation >> seed >> a >> b >> c >> d;) {
    const int before = failures;
    run_one<float>(operation, static_cast<unsigned>(seed), a, b, c, d);
    run_one<double>(operation, static_cast<unsigned>(seed), a, b, c, d);
    if (failures > before) std::printf("in %s %ld %ld %ld %ld %ld\n", operation.c_str(), seed, a, b, c, d);
  }
}

}  // namespace

int main(int count, char**) {
  count > 1 ? run_given() : run_known();
  std::printf("%d failures\n", failures);
  return failures != 0;
}
