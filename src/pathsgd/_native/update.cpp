// Steps of path optimisers: see update.h for what is computed.
#pragma GCC optimize("no-math-errno")  // sqrt then is an instruction, and loops with it can be vectors
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "blocks.h"
#include "threads.h"
#include "update.h"

namespace pathsgd {
namespace {

constexpr int64_t kWorthAThread = 1 << 16;  // entries; sharing fewer costs more than it saves

// A stretch of one row of a parameter.
template <class F>
struct Stretch {
  F* p;
  const F *grad, *w;  // w: one number when its column stride is 0
  F *first, *second;
};

template <class F>
class Update {
 public:
  explicit Update(const UpdateCall<F>& call) : call_(call) {}

  // Calls body(stretch, length, part, wide) for all rows of all parameters that fall to this thread.
  template <class Body>
  void each(long thread, long threads, Body&& body) const {
    for (int64_t part = 0; part < call_.count; part++) {
      const int64_t rows = call_.rows[part], columns = call_.columns[part];
      // Whole rows for each thread where there are enough of them, shares of every row otherwise.
      const bool by_rows = rows >= 2 * threads;
      const int64_t r0 = by_rows ? rows * thread / threads : 0, r1 = by_rows ? rows * (thread + 1) / threads : rows;
      const int64_t c0 = by_rows ? 0 : columns * thread / threads;
      const int64_t c1 = by_rows ? columns : columns * (thread + 1) / threads;
      for (int64_t r = r0; r < r1; r++) body(stretch(part, r, c0), c1 - c0, part);
    }
  }

  Stretch<F> stretch(int64_t part, int64_t row, int64_t column) const {
    const int64_t at = row * call_.columns[part] + column;
    const F* w = call_.whitenings[part] + row * call_.row_strides[part] + column * call_.column_strides[part];
    F* p = call_.parameters ? call_.parameters[part] + at : nullptr;
    return {p, call_.gradients[part] + at, w, call_.first ? call_.first[part] + at : nullptr,
            call_.second ? call_.second[part] + at : nullptr};
  }

  long threads() const {
    int64_t total = 0;
    for (int64_t part = 0; part < call_.count; part++) total += call_.rows[part] * call_.columns[part];
    return static_cast<long>(std::max<int64_t>(1, std::min(call_.threads, total / kWorthAThread)));
  }

  bool constant(int64_t part) const { return call_.column_strides[part] == 0; }

  const UpdateCall<F>& call_;
};

// body(w, i) for every i, w loaded or broadcast; the compiler makes vectors of the loop.
template <class F, class Body>
PATHSGD_INLINE void with_whitening(const F* w, bool constant, int64_t length, Body&& body) {
  if (constant) {
    const F value = *w;
    for (int64_t i = 0; i < length; i++) body(value, i);
  } else {
    for (int64_t i = 0; i < length; i++) body(w[i], i);
  }
}

template <class F>
double sum_of_lanes(Vec<F> values) {
  double total = 0;
  for (int lane = 0; lane < kLanes<F>; lane++) total += values[lane];
  return total;
}

// sum (w grad)^2. In float64, whose range no square of a float32 leaves.
template <class F>
double square_sum(const Stretch<F>& s, bool constant, int64_t length) {
  constexpr int kWide = 8;
  double sums[kWide] = {}, total = 0;
  const int64_t whole = length / kWide * kWide;
  const auto add = [&](auto whitening) {
    for (int64_t i = 0; i < whole; i += kWide)
      for (int lane = 0; lane < kWide; lane++) {
        const double u = static_cast<double>(s.grad[i + lane] * whitening(i + lane));
        sums[lane] += u * u;
      }
    for (int64_t i = whole; i < length; i++) {
      const double u = static_cast<double>(s.grad[i] * whitening(i));
      total += u * u;
    }
  };
  const F first = *s.w;
  if (constant) add([first](int64_t) { return first; });
  else add([&s](int64_t i) { return s.w[i]; });
  for (double sum : sums) total += sum;
  return total;
}

template <class F>
int square_sums(const UpdateCall<F>& call, double* to) {
  const Update<F> update(call);
  const long wanted = update.threads();
  std::vector<double> sums(wanted * call.count, 0.0);
  on_threads(wanted, [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      if (length > 0) sums[thread * call.count + part] += square_sum(s, update.constant(part), length);
    });
  });
  for (int64_t part = 0; part < call.count; part++) {
    to[part] = 0;
    for (long thread = 0; thread < wanted; thread++) to[part] += sums[thread * call.count + part];
  }
  return 0;
}

template <class F>
int moments(const UpdateCall<F>& call) {
  const Update<F> update(call);
  const F factor = static_cast<F>(call.factor), momentum = static_cast<F>(call.momentum);
  const F beta2 = static_cast<F>(call.beta2), new1 = static_cast<F>(1 - call.beta1), new2 = static_cast<F>(1 - call.beta2);
  on_threads(update.threads(), [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      const F* __restrict grad = s.grad;
      F *__restrict first = s.first, *__restrict second = s.second;
      if (call.direction != kAdam) {
        with_whitening(s.w, update.constant(part), length, [=](F w, int64_t i) {
          first[i] = momentum * first[i] + factor * (grad[i] * w);
        });
      } else if (call.whitens) {
        with_whitening(s.w, update.constant(part), length, [=](F w, int64_t i) {
          const F x = grad[i] * w * factor;
          first[i] += new1 * (x - first[i]);
          second[i] = beta2 * second[i] + new2 * x * x;
        });
      } else {
        with_whitening(s.w, update.constant(part), length, [=](F w, int64_t i) {
          const F x = grad[i] * w * factor * w;
          first[i] += new1 * (x - first[i]);
          second[i] = beta2 * second[i] + new2 * x * x;
        });
      }
    });
  });
  return 0;
}

// use(i, d, w) for the direction d that the rule asks for.
template <class F, class Use>
PATHSGD_INLINE void with_direction(const UpdateCall<F>& call, const Stretch<F>& s, bool constant, int64_t length,
                                   Use&& use) {
  const F factor = static_cast<F>(call.factor), momentum = static_cast<F>(call.momentum), eps = static_cast<F>(call.eps);
  const F* __restrict grad = s.grad;
  const F *__restrict first = s.first, *__restrict second = s.second;
  switch (call.direction) {
    case kGradient:
      return with_whitening(s.w, constant, length, [=](F w, int64_t i) { use(i, grad[i] * w, w); });
    case kMomentum:
      return with_whitening(s.w, constant, length, [=](F w, int64_t i) { use(i, first[i], w); });
    case kNesterov:
      return with_whitening(s.w, constant, length,
                            [=](F w, int64_t i) { use(i, factor * (grad[i] * w) + momentum * first[i], w); });
    default:
      return with_whitening(s.w, constant, length,
                            [=](F w, int64_t i) { use(i, first[i] / (std::sqrt(second[i]) + eps), w); });
  }
}

template <class F>
int apply(const UpdateCall<F>& call) {
  const Update<F> update(call);
  const F keep = static_cast<F>(call.keep), alpha = static_cast<F>(call.alpha);
  on_threads(update.threads(), [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      F* __restrict p = s.p;
      const bool constant = update.constant(part);
      if (call.whitens) {
        with_direction(call, s, constant, length, [=](int64_t i, F d, F w) { p[i] = keep * p[i] + alpha * (d * w); });
      } else {
        with_direction(call, s, constant, length, [=](int64_t i, F d, F) { p[i] = keep * p[i] + alpha * d; });
      }
    });
  });
  return 0;
}

// d of one parameter, 0 where w is 0 and nothing moves.
template <class F>
int direction(const UpdateCall<F>& call, int64_t part, F* to) {
  const Update<F> update(call);
  const FlushDenormals guard;
  const int64_t columns = call.columns[part];
  for (int64_t r = 0; r < call.rows[part]; r++) {
    F* __restrict row = to + r * columns;
    with_direction(call, update.stretch(part, r, 0), update.constant(part), columns,
                   [=](int64_t i, F d, F w) { row[i] = w == 0 ? F(0) : d; });
  }
  return 0;
}

template <class F>
double length_of(const F* vector, int64_t count) {
  double total = 0;
  for (int64_t i = 0; i < count; i++) total += static_cast<double>(vector[i]) * vector[i];
  return std::sqrt(total);
}

template <class F>
void scale_by(F* vector, int64_t count, double factor) {
  for (int64_t i = 0; i < count; i++) vector[i] = static_cast<F>(vector[i] * factor);
}

// y = matrix x, and its length.
template <class F>
void multiply(const SpectralCall<F>& call, const F* x, F* y, double* length) {
  const int64_t whole = call.columns / kLanes<F> * kLanes<F>;
  for (int64_t r = 0; r < call.rows; r++) {
    const F* row = call.matrix + r * call.columns;
    Vec<F> sum = zero<F>(), other = zero<F>();
    int64_t c = 0;
    for (; c + 2 * kLanes<F> <= whole; c += 2 * kLanes<F>) {
      sum += load(row + c) * load(x + c);
      other += load(row + c + kLanes<F>) * load(x + c + kLanes<F>);
    }
    for (; c < whole; c += kLanes<F>) sum += load(row + c) * load(x + c);
    double total = sum_of_lanes<F>(sum + other);
    for (; c < call.columns; c++) total += static_cast<double>(row[c]) * x[c];
    y[r] = static_cast<F>(total);
  }
  *length = length_of(y, call.rows);
}

template <class F>
void multiply_transposed(const SpectralCall<F>& call, const F* y, F* __restrict x) {
  std::fill_n(x, call.columns, F(0));
  int64_t r = 0;
  for (; r + 4 <= call.rows; r += 4) {
    const F* __restrict row = call.matrix + r * call.columns;
    const int64_t n = call.columns;
    for (int64_t c = 0; c < n; c++)
      x[c] += y[r] * row[c] + y[r + 1] * row[n + c] + y[r + 2] * row[2 * n + c] + y[r + 3] * row[3 * n + c];
  }
  for (; r < call.rows; r++)
    for (int64_t c = 0; c < call.columns; c++) x[c] += y[r] * call.matrix[r * call.columns + c];
}

// Vectors have length one between products: nothing leaves the range unless the result does.
template <class F>
int spectral(SpectralCall<F>& call) {
  try {
    const FlushDenormals guard;
    Buffer<F> y(call.rows), x(call.columns);
    F* v = x.data();
    std::memcpy(v, call.vector, call.columns * sizeof(F));
    scale_by(v, call.columns, 1 / std::max(length_of(v, call.columns), 1e-300));
    for (int64_t i = 0;; i++) {
      multiply(call, v, y.data(), &call.length);
      if (i == call.iterations || !(call.length > 0) || !std::isfinite(call.length)) break;
      scale_by(y.data(), call.rows, 1 / call.length);
      multiply_transposed(call, y.data(), v);
      const double length = length_of(v, call.columns);
      if (!(length > 0) || !std::isfinite(length)) {
        call.length = length;
        return 0;
      }
      scale_by(v, call.columns, 1 / length);
    }
    std::memcpy(call.vector, v, call.columns * sizeof(F));
    return 0;
  } catch (const std::bad_alloc&) {
    return 1;
  }
}

template <class K, class F>
int inverse_root(const InverseRootCall<K, F>& call) {
  const int64_t wanted = std::min(call.threads, call.rows * call.columns / kWorthAThread);
  const K largest = static_cast<K>(std::numeric_limits<F>::max());
  on_threads(std::max<int64_t>(1, wanted), [&](long thread, long threads) {
    for (int64_t r = call.rows * thread / threads; r < call.rows * (thread + 1) / threads; r++) {
      const K* __restrict kappa = call.kappa + r * call.columns;
      const double* __restrict factors = call.column_factors;
      F* __restrict to = call.to + r * call.columns;
      const K scale = static_cast<K>(std::sqrt(call.scale) * (call.row_factors ? call.row_factors[r] : 1.0));
      const auto entry = [=](int64_t i, K factor) {
        const K value = factor / std::sqrt(kappa[i]);
        to[i] = static_cast<F>(kappa[i] > 0 ? (value < largest ? value : largest) : K(0));
      };
      if (factors) for (int64_t i = 0; i < call.columns; i++) entry(i, scale * static_cast<K>(factors[i]));
      else for (int64_t i = 0; i < call.columns; i++) entry(i, scale);
    }
  });
  return 0;
}

}  // namespace
}  // namespace pathsgd

using namespace pathsgd;
#define PATHSGD_UPDATES(F)                                                                                            \
  PATHSGD_EXPORT int pathsgd_square_sums_##F(const UpdateCall<F>* call, double* to) { return square_sums(*call, to); } \
  PATHSGD_EXPORT int pathsgd_moments_##F(const UpdateCall<F>* call) { return moments(*call); }                         \
  PATHSGD_EXPORT int pathsgd_apply_##F(const UpdateCall<F>* call) { return apply(*call); }                             \
  PATHSGD_EXPORT int pathsgd_direction_##F(const UpdateCall<F>* call, int64_t part, F* to) {                           \
    return direction(*call, part, to);                                                                                 \
  }                                                                                                                    \
  PATHSGD_EXPORT int pathsgd_spectral_##F(SpectralCall<F>* call) { return spectral(*call); }
PATHSGD_UPDATES(float)
PATHSGD_UPDATES(double)
PATHSGD_EXPORT int pathsgd_inverse_root_float_float(const InverseRootCall<float, float>* call) {
  return inverse_root(*call);
}
PATHSGD_EXPORT int pathsgd_inverse_root_double_float(const InverseRootCall<double, float>* call) {
  return inverse_root(*call);
}
PATHSGD_EXPORT int pathsgd_inverse_root_double_double(const InverseRootCall<double, double>* call) {
  return inverse_root(*call);
}
