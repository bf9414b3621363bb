// Sums over a stack of recurrent layers: see stack_sums.h for what is computed.
#include "stack_sums.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <vector>

#include "entry.h"
#include "linear_sweep.h"
#include "simd/product.h"
#include "squared_products.h"

namespace pathsgd {
namespace {

constexpr long kWorthFolding = 8;  // steps with the same states, from which on their terms are added up first

template <class F>
class Stack {
 public:
  explicit Stack(StackSumsCall<F>& call)
      : call_(call), n_(call.hidden), steps_(call.steps), directions_(call.directions), width_(n_ * directions_),
        size_(steps_ * n_), states_(call.layers * directions_ * size_), work_(size_), delta_(size_),
        above_(directions_ * size_), next_(directions_ * size_), recurrent_(n_ * n_), into_(n_ * width_), v_(width_),
        fade_(steps_), back_(steps_) {
    for (long t = 0; t < steps_; t++) fade_[t] = std::pow(call.decay, t);
    for (long t = 0; t < steps_; t++) back_[t] = fade_[steps_ - 1 - t];
  }

  void run() {
    call_.gain = 1;
    for (long layer = 0; layer < call_.layers; layer++) {
      double most = 1;
      for (long d = 0; d < directions_; d++) most = std::max(most, forth(layer, d));
      call_.gain *= most;
    }
    read();
    if (!(call_.gamma_sq > call_.lowest_gamma_sq && call_.gamma_sq < call_.highest_gamma_sq)) return;
    call_.growth = growth();
    call_.largest = 0;
    call_.least = *std::min_element(call_.out, call_.out + width_);
    enter();
    for (long layer = call_.layers - 1; layer >= 0; layer--) {
      for (long d = 0; d < directions_; d++) back(layer, d);
      above_.swap(next_);
    }
    divide();
  }

 private:
  StackCell<F>& cell(long layer, long d) const { return call_.cells[layer * directions_ + d]; }
  F* states(long layer, long d) { return states_.data() + (layer * directions_ + d) * size_; }

  static double square(F value) { return static_cast<double>(value) * value; }

  // W_rec^2 as a sweep takes it.
  const F* squared_recurrent(const StackCell<F>& c) {
    const F decay = static_cast<F>(call_.decay);
    F* __restrict to = recurrent_.data();
    for (long i = 0; i < n_ * n_; i++) to[i] = c.w_rec[i] * c.w_rec[i] * decay;
    return to;
  }

  // W_in^2 of a layer above the lowest; returns its sum.
  double square_input(const StackCell<F>& c) {
    F* __restrict to = into_.data();
    double sum = 0;
    for (long r = 0; r < n_; r++) {
      F part = 0;
      for (long i = r * width_; i < (r + 1) * width_; i++) to[i] = c.w_in[i] * c.w_in[i];
      for (long i = r * width_; i < (r + 1) * width_; i++) part += to[i];
      sum += part;
    }
    return sum;
  }

  void sweep(const StackCell<F>& c, const F* u, F* m, bool transposed, bool backwards) {
    linear_sweep<F>({steps_, 1, n_, transposed, backwards, squared_recurrent(c), u, nullptr, nullptr, m});
  }

  // The step from which on the states of a layer are the same, bit for bit, as where its memory fades; its last step if
  // they never stand still, or not for long enough to gain anything by it.
  long still(long layer) {
    if (directions_ > 1) return steps_ - 1;
    const F* h = states(layer, 0);
    long step = steps_ - 1;
    while (step > 0 && !std::memcmp(h + step * n_, h + (step - 1) * n_, n_ * sizeof(F))) step--;
    return steps_ - step > kWorthFolding ? step : steps_ - 1;
  }

  // to (H, H) = sum over `count` steps of delta_t h_t^T. From step `from` on all h_t are the same, and so one term is left
  // of theirs: the sum of their delta_t.
  void sum_of_products(const F* delta, const F* h, F* to, long count, long from) {
    const bool folds = from < count - 1;
    const long apart = folds ? from : count;
    if (apart == 0) std::fill_n(to, n_ * n_, F(0));
    else multiply_matrices<F>({delta, 1, n_}, {h, n_, 1}, to, n_, n_, n_, apart, false, call_.threads);
    if (!folds) return;
    std::vector<double> sums(n_, 0.0);
    for (long t = from; t < count; t++)
      for (long i = 0; i < n_; i++) sums[i] += delta[t * n_ + i];
    for (long i = 0; i < n_; i++) {
      const F left = static_cast<F>(sums[i]);
      const F* __restrict right = h + from * n_;
      F* __restrict row = to + i * n_;
      for (long j = 0; j < n_; j++) row[j] += left * right[j];
    }
  }

  // The states of one direction of a layer; returns the sum of W_in^2, 1 for the lowest layer.
  double forth(long layer, long d) {
    const StackCell<F>& c = cell(layer, d);
    std::vector<double> same(n_, 0.0);
    double sum = 1;
    if (layer == 0) {
      squared_products<F>({n_, call_.inputs, 1, c.w_in, call_.e, nullptr, same.data(), nullptr});
    } else {
      sum = square_input(c);
      const long moving = std::min(steps_, still(layer - 1) + 1);
      for (long from = 0; from < directions_; from++)
        multiply_matrices<F>({states(layer - 1, from), n_, 1}, {into_.data() + from * n_, 1, width_}, work_.data(), n_,
                             moving, n_, n_, from > 0, call_.threads);
      for (long t = moving; t < steps_; t++) std::copy_n(work_.data() + (moving - 1) * n_, n_, work_.data() + t * n_);
    }
    for (const F* bias : {c.b_in, c.b_rec})
      for (long i = 0; bias && i < n_; i++) same[i] += square(bias[i]);
    for (long t = 0; t < steps_; t++)
      for (long i = 0; i < n_; i++) {
        F& u = work_.data()[t * n_ + i];
        const double constant = fade_[t] * same[i];
        u = static_cast<F>(layer == 0 ? constant : u + constant);
      }
    sweep(c, work_.data(), states(layer, d), false, d == 1);
    return sum;
  }

  // What the output layer reads, and gamma^2.
  void read() {
    squared_products<F>({call_.outputs, width_, 1, call_.w_out, nullptr, nullptr, nullptr, v_.data()});
    double total = 0;
    for (long d = 0; d < directions_; d++) {
      const F* h = states(call_.layers - 1, d);
      const long at = call_.reads[d];
      for (long i = 0; i < n_; i++) {
        double sum = 0;
        if (at >= 0) sum = back_[at] * h[at * n_ + i];
        else
          for (long t = 0; t < steps_; t++) sum += back_[t] * h[t * n_ + i];
        call_.out[d * n_ + i] = static_cast<F>(sum);
        total += v_.data()[d * n_ + i] * sum;
      }
    }
    double bias = 0;
    for (long o = 0; call_.b_out && o < call_.outputs; o++) bias += square(call_.b_out[o]);
    call_.gamma_sq = total + (call_.reads[0] < 0 ? steps_ : 1) * fade_[steps_ - 1] * bias;
  }

  // Of what an output collects of the highest states, from the last step but one to the last; 0 where there is none.
  double growth() {
    if (steps_ == 1 || directions_ > 1) return 0;
    const F* h = states(call_.layers - 1, 0) + (steps_ - 2) * n_;
    double before = 0, last = 0;
    for (long i = 0; i < n_; i++) before += v_.data()[i] * h[i], last += v_.data()[i] * h[n_ + i];
    return before > 0 ? last / before : 0;
  }

  // What the output layer adds to the derivatives of the highest states.
  void enter() {
    above_.clear();
    for (long d = 0; d < directions_; d++)
      for (long t = 0; t < steps_; t++)
        for (long i = 0; i < n_ && (call_.reads[d] < 0 || call_.reads[d] == t); i++)
          above_.data()[d * size_ + t * n_ + i] = static_cast<F>(back_[t] * v_.data()[d * n_ + i]);
  }

  void back(long layer, long d) {
    StackCell<F>& c = cell(layer, d);
    const F* h = states(layer, d);
    F* delta = delta_.data();
    sweep(c, above_.data() + d * size_, delta, true, d == 0);
    const long later = d == 0 ? n_ : 0, earlier = n_ - later;
    if (steps_ == 1) std::fill_n(c.recurrent, n_ * n_, F(0));
    else sum_of_products(delta + later, h + earlier, c.recurrent, steps_ - 1, still(layer));
    sum_over_time(c, h, delta);
    if (steps_ > 1 && !c.is_unused) lower(c.recurrent, n_ * n_);
    if (layer == 0) return;
    square_input(c);
    for (long from = 0; from < directions_; from++) {
      const F* below = states(layer - 1, from);
      if (directions_ == 1) sum_of_products(delta, below, c.kappa_in, steps_, still(layer - 1));
      else
        multiply_matrices<F>({delta, 1, n_}, {below, n_, 1}, c.kappa_in + from * n_, width_, n_, n_, steps_, false,
                             call_.threads);
      multiply_matrices<F>({delta, n_, 1}, {into_.data() + from * n_, width_, 1}, next_.data() + from * size_, n_,
                           steps_, n_, n_, d > 0, call_.threads);
    }
    lower(c.kappa_in, n_ * width_);
  }

  void sum_over_time(StackCell<F>& c, const F* h, const F* delta) {
    std::vector<double> into(n_, 0.0);
    std::vector<F> tops(n_, F(0));
    std::fill_n(c.through, n_, 0.0);
    for (long t = 0; t < steps_; t++) {
      const F *__restrict state = h + t * n_, *__restrict derivative = delta + t * n_;
      const double fade = fade_[t];
      double *__restrict sums = into.data(), *__restrict through = c.through;
      F* __restrict top = tops.data();
      for (long i = 0; i < n_; i++) {
        sums[i] += fade * derivative[i];
        through[i] += static_cast<double>(state[i]) * derivative[i];
        const F larger = state[i] > derivative[i] ? state[i] : derivative[i];
        top[i] = larger > top[i] ? larger : top[i];
      }
    }
    for (long i = 0; i < n_; i++) {
      c.into[i] = static_cast<F>(into[i]);
      call_.largest = std::max(call_.largest, static_cast<double>(tops[i]));
      // Infinities times zero make NaN, which no comparison would find.
      if (!std::isfinite(c.through[i]) || !std::isfinite(into[i])) call_.largest = INFINITY;
    }
    lower(c.into, n_);
  }

  void lower(const F* values, long count) {
    constexpr long kSide = 32;  // one least value alone would wait for itself
    F least[kSide];
    std::fill_n(least, kSide, values[0]);
    for (long i = 0; i + kSide <= count; i += kSide)
      for (long j = 0; j < kSide; j++) least[j] = values[i + j] < least[j] ? values[i + j] : least[j];
    for (long i = count / kSide * kSide; i < count; i++) least[0] = values[i] < least[0] ? values[i] : least[0];
    call_.least = std::min(call_.least, static_cast<double>(*std::min_element(least, least + kSide)));
  }

  // Gamma^2 may leave the range of F where the quotients do not.
  void divide() {
    const double share = 1 / call_.gamma_sq, of_recurrent = share * call_.decay;
    scale(call_.out, width_, share);
    for (long k = 0; k < call_.layers * directions_; k++) {
      StackCell<F>& c = call_.cells[k];
      scale(c.into, n_, share);
      scale(c.through, n_, share);
      scale(c.recurrent, n_ * n_, of_recurrent);
      if (c.kappa_in) scale(c.kappa_in, n_ * width_, share);
    }
  }
  template <class V>
  static void scale(V* __restrict values, long count, double by) {
    for (long i = 0; i < count; i++) values[i] = static_cast<V>(values[i] * by);
  }

  StackSumsCall<F>& call_;
  const long n_, steps_, directions_, width_, size_;
  Buffer<F> states_, work_, delta_, above_, next_, recurrent_, into_;
  Buffer<double> v_;
  std::vector<double> fade_, back_;
};

template <class F>
void stack_sums(StackSumsCall<F>& call) {
  const FlushDenormals guard;
  Stack<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(stack_sums, StackSumsCall)
