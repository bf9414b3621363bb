// Steps of path optimisers: see update.h for what is computed.
#include "update.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "entry.h"
#include "threads.h"

namespace pathsgd {
namespace {

// A stretch of one row of a parameter.
template <class F>
struct Stretch {
  F* p;
  const F *grad, *w, *by;  // w: one number when its column stride is 0, multiplied by `by` if there is any
  F *first, *second;
};

template <class F>
class Update {
 public:
  explicit Update(const UpdateCall<F>& call) : call_(call) {}

  // Calls body(stretch, length, part) for all rows of all parameters that fall to this thread.
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
    const F* by = call_.column_whitenings ? call_.column_whitenings[part] : nullptr;
    return {p, call_.gradients[part] + at, w, by ? by + column : nullptr, call_.first ? call_.first[part] + at : nullptr,
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

// body(w, i) for every i, w loaded, broadcast or multiplied; the compiler makes vectors of the loop.
template <class F, class Body>
PATHSGD_INLINE void with_whitening(const Stretch<F>& s, bool constant, int64_t length, Body&& body) {
  const F *__restrict w = s.w, *__restrict by = s.by;
  if (by) {
    const F value = *w;
    for (int64_t i = 0; i < length; i++) body(value * by[i], i);
  } else if (constant) {
    const F value = *w;
    for (int64_t i = 0; i < length; i++) body(value, i);
  } else {
    for (int64_t i = 0; i < length; i++) body(w[i], i);
  }
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
  if (s.by) add([&s, first](int64_t i) { return first * s.by[i]; });
  else if (constant) add([first](int64_t) { return first; });
  else add([&s](int64_t i) { return s.w[i]; });
  for (double sum : sums) total += sum;
  return total;
}

template <class F>
void square_sums(const UpdateCall<F>& call) {
  const Update<F> update(call);
  const long wanted = update.threads();
  std::vector<double> sums(wanted * call.count, 0.0);
  on_threads(wanted, [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      if (length > 0) sums[thread * call.count + part] += square_sum(s, update.constant(part), length);
    });
  });
  for (int64_t part = 0; part < call.count; part++) {
    call.sums[part] = 0;
    for (long thread = 0; thread < wanted; thread++) call.sums[part] += sums[thread * call.count + part];
  }
}

// The moments of one stretch.
template <class F>
PATHSGD_NOINLINE void renew(const UpdateCall<F>& call, const Stretch<F>& s, bool constant, int64_t length) {
  const F factor = static_cast<F>(call.factor), momentum = static_cast<F>(call.momentum);
  const F beta2 = static_cast<F>(call.beta2), new1 = static_cast<F>(1 - call.beta1), new2 = static_cast<F>(1 - call.beta2);
  const F* __restrict grad = s.grad;
  F *__restrict first = s.first, *__restrict second = s.second;
  if (call.direction != kAdam) {
    with_whitening(s, constant, length, [=](F w, int64_t i) {
      first[i] = momentum * first[i] + factor * (grad[i] * w);
    });
  } else if (call.whitens) {
    with_whitening(s, constant, length, [=](F w, int64_t i) {
      const F x = grad[i] * w * factor;
      first[i] += new1 * (x - first[i]);
      second[i] = beta2 * second[i] + new2 * x * x;
    });
  } else {
    with_whitening(s, constant, length, [=](F w, int64_t i) {
      const F x = grad[i] * w * factor * w;
      first[i] += new1 * (x - first[i]);
      second[i] = beta2 * second[i] + new2 * x * x;
    });
  }
}

template <class F>
void moments(const UpdateCall<F>& call) {
  const Update<F> update(call);
  on_threads(update.threads(), [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      renew(call, s, update.constant(part), length);
    });
  });
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
      return with_whitening(s, constant, length, [=](F w, int64_t i) { use(i, grad[i] * w, w); });
    case kMomentum:
      return with_whitening(s, constant, length, [=](F w, int64_t i) { use(i, first[i], w); });
    case kNesterov:
      return with_whitening(s, constant, length,
                            [=](F w, int64_t i) { use(i, factor * (grad[i] * w) + momentum * first[i], w); });
    default:
      return with_whitening(s, constant, length,
                            [=](F w, int64_t i) { use(i, first[i] / (std::sqrt(second[i]) + eps), w); });
  }
}

// The step of one stretch.
template <class F>
PATHSGD_NOINLINE void step(const UpdateCall<F>& call, const Stretch<F>& s, bool constant, int64_t length) {
  const F keep = static_cast<F>(call.keep), alpha = static_cast<F>(call.alpha);
  F* __restrict p = s.p;
  if (call.whitens)
    with_direction(call, s, constant, length, [=](int64_t i, F d, F w) { p[i] = keep * p[i] + alpha * (d * w); });
  else
    with_direction(call, s, constant, length, [=](int64_t i, F d, F) { p[i] = keep * p[i] + alpha * d; });
}

template <class F>
void apply(const UpdateCall<F>& call) {
  const Update<F> update(call);
  on_threads(update.threads(), [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      step(call, s, update.constant(part), length);
    });
  });
}

// Both, with the same bits: what the first has read and written is still in the cache for the second.
template <class F>
void advance(const UpdateCall<F>& call) {
  constexpr int64_t kNear = 1024;
  const Update<F> update(call);
  on_threads(update.threads(), [&](long thread, long threads) {
    update.each(thread, threads, [&](const Stretch<F>& s, int64_t length, int64_t part) {
      const bool constant = update.constant(part);
      for (int64_t i = 0; i < length; i += kNear) {
        const int64_t count = std::min(kNear, length - i);
        const Stretch<F> near{s.p + i, s.grad + i, constant ? s.w : s.w + i, s.by ? s.by + i : nullptr,
                              s.first ? s.first + i : nullptr, s.second ? s.second + i : nullptr};
        renew(call, near, constant, count);
        step(call, near, constant, count);
      }
    });
  });
}

// d of one parameter, 0 where w is 0 and nothing moves.
template <class F>
void direction(const UpdateCall<F>& call) {
  const Update<F> update(call);
  const FlushDenormals guard;
  const int64_t part = call.part, columns = call.columns[part];
  for (int64_t r = 0; r < call.rows[part]; r++) {
    F* __restrict row = call.to + r * columns;
    with_direction(call, update.stretch(part, r, 0), update.constant(part), columns,
                   [=](int64_t i, F d, F w) { row[i] = w == 0 ? F(0) : d; });
  }
}

// sum d^2 of one parameter, a block at a time: d is written nowhere but next to the processor.
template <class F>
void direction_square(const UpdateCall<F>& call) {
  constexpr int64_t kBlock = 512, kWide = 8;
  const Update<F> update(call);
  const FlushDenormals guard;
  const int64_t part = call.part, columns = call.columns[part];
  F block[kBlock];
  double sums[kWide] = {}, total = 0;
  for (int64_t r = 0; r < call.rows[part]; r++)
    for (int64_t c = 0; c < columns; c += kBlock) {
      const int64_t length = std::min(kBlock, columns - c), padded = (length + kWide - 1) / kWide * kWide;
      F* __restrict to = block;
      with_direction(call, update.stretch(part, r, c), update.constant(part), length,
                     [=](int64_t i, F d, F w) { to[i] = w == 0 ? F(0) : d; });
      std::fill(block + length, block + padded, F(0));
      for (int64_t i = 0; i < padded; i += kWide)
        for (int lane = 0; lane < kWide; lane++) sums[lane] += static_cast<double>(block[i + lane]) * block[i + lane];
    }
  for (double sum : sums) total += sum;
  call.sums[part] = total;
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(square_sums, UpdateCall)
PATHSGD_ENTRIES(moments, UpdateCall)
PATHSGD_ENTRIES(direction, UpdateCall)
PATHSGD_ENTRIES(direction_square, UpdateCall)
PATHSGD_ENTRIES(apply, UpdateCall)
PATHSGD_ENTRIES(advance, UpdateCall)
