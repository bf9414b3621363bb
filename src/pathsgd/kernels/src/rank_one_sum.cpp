// kappa2's sum by powers that approach rank one: see rank_one_sum.h for what is computed.
#include "rank_one_sum.h"

#include <cmath>
#include <limits>
#include <memory>

#include "entry.h"
#include "simd/product.h"

namespace pathsgd {
namespace {

constexpr long kRounds = 5, kIterations = 3;

// Smallest and largest of many values, a column each, so that no comparison waits for another.
class Range {
 public:
  explicit Range(long columns) : columns_(columns), low_(columns), high_(columns) {
    std::fill_n(low_.data(), columns, INFINITY);
    std::fill_n(high_.data(), columns, -INFINITY);
  }
  template <class Value>
  void add(Value&& value) {
    double *__restrict low = low_.data(), *__restrict high = high_.data();
    for (long j = 0; j < columns_; j++) {
      const double x = value(j);
      low[j] = x < low[j] ? x : low[j];
      high[j] = x > high[j] ? x : high[j];
    }
  }
  double low() const { return *std::min_element(low_.data(), low_.data() + columns_); }
  double high() const { return *std::max_element(high_.data(), high_.data() + columns_); }

 private:
  const long columns_;
  Buffer<double> low_, high_;
};

template <class F>
class RankOneSum {
 public:
  explicit RankOneSum(RankOneSumCall<F>& call)
      : call_(call), n_(call.hidden), right_(n_), left_(n_), head_(n_ * n_), lagged_(n_ * n_) {}

  RankOne run() {
    if (!find_vectors() || !find_powers()) return kNoGap;
    start_head();
    call_.adjoint && power_ < call_.steps / 4 ? few_rows() : all_rows();
    if (!add_tail()) return kTooSmall;
    write();
    return kCertified;
  }

 private:
  // l, v and w by power iteration, from where the sequences have been led by A.
  bool find_vectors() {
    const FlushDenormals guard;
    const F *last = call_.before + (call_.steps - 1) * n_, *first = call_.delta;
    const bool led = std::all_of(first, first + n_, [](F x) { return x > 0; });
    std::copy_n(last, n_, right_.data());
    if (led) std::copy_n(first, n_, left_.data());
    else std::fill_n(left_.data(), n_, 1.0);
    Buffer<double> ahead(n_), back(n_);
    for (long round = 0; round < kRounds; round++) {
      for (long i = 0; i < kIterations; i++) {
        apply(ahead.data(), back.data());
        right_.swap(ahead);
        left_.swap(back);
      }
      if (!normalize(right_.data()) || !normalize(left_.data())) return false;
      apply(ahead.data(), back.data());
      Range quotients(n_);
      quotients.add([&](long i) { return ahead.data()[i] / right_.data()[i]; });
      quotients.add([&](long i) { return back.data()[i] / left_.data()[i]; });
      root_ = quotients.low();
      if (!(root_ > 0) || !std::isfinite(quotients.high())) return false;
      if (quotients.high() - root_ <= call_.tolerance / call_.steps * root_) {
        double product = 0;
        for (long i = 0; i < n_; i++) product += left_.data()[i] * right_.data()[i];
        for (long i = 0; i < n_; i++) left_.data()[i] /= product;
        return true;
      }
    }
    return false;
  }

  // ahead = A right, back = left A, in one pass over A.
  void apply(double* __restrict ahead, double* __restrict back) const {
    std::fill_n(back, n_, 0.0);
    const double* __restrict x = right_.data();
    for (long i = 0; i < n_; i++) {
      const double *__restrict row = call_.a + i * n_, factor = left_.data()[i];
      Vec<double> sum = zero<double>();
      long j = 0;
      for (; j + kLanes<double> <= n_; j += kLanes<double>) {
        const Vec<double> part = load(row + j);
        sum += part * load(x + j);
        store(back + j, load(back + j) + broadcast(factor) * part);
      }
      double total = 0;
      for (; j < n_; j++) total += row[j] * x[j], back[j] += factor * row[j];
      for (int lane = 0; lane < kLanes<double>; lane++) total += sum[lane];
      ahead[i] = total;
    }
  }

  // Whether all entries are positive and finite: with a NaN or an infinity in A they are not.
  bool normalize(double* x) const {
    double sum = 0;
    for (long i = 0; i < n_; i++) sum += x[i];
    if (!std::isfinite(sum) || !std::all_of(x, x + n_, [](double value) { return value > 0; })) return false;
    for (long i = 0; i < n_; i++) x[i] /= sum;
    return true;
  }

  // B^1 .. B^(m-1), where B^m is certified.
  bool find_powers() {
    const double inverse = 1 / root_;
    keep_power();
    for (long i = 0; i < n_ * n_; i++) power(1)[i] = static_cast<F>(call_.a[i] * inverse);
    double previous = INFINITY;
    for (power_ = 2; power_ <= call_.most; power_++) {
      keep_power();
      multiply_matrices<F>({power(power_ - 1), n_, 1}, {power(1), n_, 1}, power(power_), n_, n_, n_, n_, false,
                           call_.threads);
      const double error = distance(power(power_));
      if (error <= call_.tolerance) return true;
      // Hardly any gap: the exact route is cheaper than waiting.
      if (power_ >= 4 && !(error < 0.9 * previous)) return false;
      previous = error;
    }
    return false;
  }
  void keep_power() { powers_.push_back(std::make_unique<Buffer<F>>(n_ * n_)); }
  F* power(long exponent) { return powers_[exponent - 1]->data(); }

  // Largest relative distance of an entry from v w^T.
  double distance(const F* power) const {
    Buffer<double> inverse(n_);
    for (long j = 0; j < n_; j++) inverse.data()[j] = 1 / left_.data()[j];
    Range quotients(n_);
    for (long i = 0; i < n_; i++) {
      const double factor = 1 / right_.data()[i];
      const F* row = power + i * n_;
      quotients.add([&](long j) { return row[j] * (factor * inverse.data()[j]); });
    }
    return std::max(1 - quotients.low(), quotients.high() - 1);
  }

  // Sums are those of S^T: rows belong to h, columns to delta. n = 0 has a diagonal only.
  void start_head() {
    const FlushDenormals guard;
    Buffer<F> diagonal(n_);
    diagonal.clear();
    F* __restrict sums = diagonal.data();
    for (long s = 0; s + 1 < call_.steps; s++) {
      const F *__restrict h = call_.before + s * n_, *__restrict delta = call_.delta + (s + 1) * n_;
      for (long i = 0; i < n_; i++) sums[i] += h[i] * delta[i];
    }
    head_.clear();
    for (long i = 0; i < n_; i++) head_.data()[i * n_ + i] = sums[i];
  }

  // lagged = sum over `rows` rows of h delta^T.
  void multiply_rows(const F* h, const F* delta, long rows) {
    multiply_matrices<F>({h, 1, n_}, {delta, n_, 1}, lagged_.data(), n_, n_, n_, rows, false, call_.threads);
  }

  void add_term(long exponent) {
    const FlushDenormals guard;
    const F factor = static_cast<F>(std::pow(root_, exponent));
    const F *__restrict weights = power(exponent), *__restrict lagged = lagged_.data();
    F* __restrict head = head_.data();
    for (long i = 0; i < n_ * n_; i++) head[i] += factor * weights[i] * lagged[i];
  }

  // l^n N_n, and at last sum_{n>=m} l^n N_n in `lagged`, of all steps.
  void all_rows() {
    for (long k = 1; k < power_; k++) {
      multiply_rows(call_.before, call_.delta + (k + 1) * n_, call_.steps - k - 1);
      add_term(k);
    }
    const long rows = call_.steps - power_ - 1;
    Buffer<F> sums(rows * n_);
    Buffer<double> prefix(n_);
    prefix.clear();
    for (long s = 0; s < rows; s++) {
      fade(prefix.data(), call_.before + s * n_, prefix.data());
      copy(prefix.data(), std::pow(root_, power_), sums.data() + s * n_);
    }
    multiply_rows(sums.data(), call_.delta + (power_ + 1) * n_, rows);
  }

  // The same where delta_t = l^(T-m-t) delta_{T-m} for t <= T-m: m + 1 rows instead of T.
  void few_rows() {
    const long m = power_, steps = call_.steps, few = m + 1, first = steps - 2 * m - 1;
    Buffer<F> rows(few * n_);
    Buffer<double> prefixes(few * n_), sum(n_);  // p_j for j = first - 1 .. first + m - 1
    std::fill_n(prefixes.data(), n_, 0.0);
    sum.clear();
    for (long s = 0; s < first; s++) {
      fade(prefixes.data(), call_.before + s * n_, prefixes.data());
      fade(sum.data(), prefixes.data(), sum.data());
    }
    for (long k = 1; k < few; k++)
      fade(prefixes.data() + (k - 1) * n_, call_.before + (first - 1 + k) * n_, prefixes.data() + k * n_);
    const F* delta = call_.delta + (steps - m - 1) * n_;
    for (long k = 1; k < m; k++) {
      copy(prefixes.data() + (m - k) * n_, 1, rows.data());
      std::copy_n(call_.before + (steps - m - 1 - k) * n_, m * n_, rows.data() + n_);
      multiply_rows(rows.data(), delta, few);
      add_term(k);
    }
    std::copy_n(sum.data(), n_, prefixes.data());
    for (long k = 0; k < few; k++) copy(prefixes.data() + k * n_, std::pow(root_, m), rows.data() + k * n_);
    multiply_rows(rows.data(), delta, few);
  }

  // to = l before + own; in double, because an error in l would grow with every step.
  template <class Own>
  void fade(const double* before, const Own* own, double* to) const {
    for (long i = 0; i < n_; i++) to[i] = root_ * before[i] + own[i];
  }
  void copy(const double* from, double factor, F* to) const {
    for (long i = 0; i < n_; i++) to[i] = static_cast<F>(factor * from[i]);
  }

  // The last term, unless what is too small for F, times at most T h delta, could matter beside it.
  bool add_tail() {
    const FlushDenormals guard;
    const long steps = call_.steps;
    Range tail(n_), h(n_), delta(n_);
    for (long i = 0; i < n_; i++) {
      F *__restrict head = head_.data() + i * n_, *__restrict lagged = lagged_.data() + i * n_;
      const double factor = right_.data()[i], *__restrict left = left_.data();
      for (long j = 0; j < n_; j++) lagged[j] = static_cast<F>(factor * left[j] * lagged[j]);
      for (long j = 0; j < n_; j++) head[j] += lagged[j];
      tail.add([&](long j) { return static_cast<double>(lagged[j]); });
    }
    if (sizeof(F) == sizeof(double)) return true;
    for (long s = 0; s < steps; s++) {
      h.add([&](long j) { return static_cast<double>(call_.before[s * n_ + j]); });
      delta.add([&](long j) { return static_cast<double>(call_.delta[s * n_ + j]); });
    }
    const double lost = std::numeric_limits<F>::min() * steps * n_ * steps * h.high() * delta.high();
    return tail.low() > 1e9 * lost;
  }

  void write() {
    transpose(head_.data(), n_, n_, n_, lagged_.data(), n_, false);
    std::copy_n(lagged_.data(), n_ * n_, call_.total);
  }

  RankOneSumCall<F>& call_;
  const long n_;
  Buffer<double> right_, left_;
  Buffer<F> head_, lagged_;
  std::vector<std::unique_ptr<Buffer<F>>> powers_;
  double root_ = 0;
  long power_ = 1;  // m, at last
};

template <class F>
void rank_one_sum(RankOneSumCall<F>& call) {
  call.result = RankOneSum<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(rank_one_sum, RankOneSumCall)
