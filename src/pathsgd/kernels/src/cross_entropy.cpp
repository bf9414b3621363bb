// Cross-entropy of a linear layer and its gradients: see cross_entropy.h for what is computed.
//
// Classes are cut into panels, rows into chunks. A first pass over the panels makes a chunk's logits and their
// exponentials, a second one makes d of them and all that follows. Panels are shared out to threads, so each entry of dW
// and db is summed by one thread; each thread sums a dh of its own, and these are added in order. Inside a panel the
// classes of one row follow those of the row before; of W and dW it is the classes of one unit.
//
// Both products with h skip its zeros, about half of a ReLU's states, unless they would meet an infinity or a NaN.
#include "cross_entropy.h"

#include <optional>

#include "entry.h"
#include "simd/active.h"
#include "simd/dense.h"
#include "simd/outer.h"
#include "simd/softmax.h"
#include "simd/terms.h"
#include "simd/transpose.h"
#include "threads.h"

namespace pathsgd {
namespace {

template <class F>
class CrossEntropy {
 public:
  explicit CrossEntropy(const CrossEntropyCall<F>& call)
      : call_(call), inputs_(call.inputs), chunk_(longest_chunk(call)), panels_((call.classes + kWidth - 1) / kWidth),
        threads_(std::max<long>(1, std::min<long>(call.threads, panels_ / 2))), w_stride_(spread_stride<F>(inputs_)),
        of_panel_(panels_of<F>(kWidth, 1)), of_inputs_(panels_of<F>(inputs_, 1)),
        logits_(panels_ * (chunk_ + 1) * kWidth), weights_(chunk_), target_logits_(chunk_), softmax_(chunk_, panels_),
        of_rows_(chunk_, inputs_), of_units_(inputs_, call.dw ? chunk_ : 0), spaces_(threads_) {
    for (auto& space : spaces_) space.emplace(inputs_, w_stride_, call.dh ? chunk_ : 0);
    long counted = 0;
    for (long r = 0; r < call.rows; r++) counted += call.target[r] != call.ignore_index;
    weight_ = call.mean ? 1.0 / static_cast<double>(counted) : 1.0;
  }

  double run() {
    double loss = 0;
    for_pieces(0, call_.rows, chunk_, 1, [&](long first, int count) {
      begin(first, count);
      on_panels(1, [&](long p, long, Space& space) { forward(p, space.panel[0].data()); });
      softmax_.finish(weights_.data(), count);
      loss += chunk_loss();
      if (!call_.dh && !call_.dw && !call_.dbias) return;
      // A row whose total is not finite has a d of NaN, which its zeros in h must meet.
      skips_in_dw_ = true;
      for (long r = 0; r < count; r++) skips_in_dw_ &= softmax_.total(r) - softmax_.total(r) == 0;
      for (auto& space : spaces_) space->dh.clear();
      on_panels(kTogether, [&](long p, long end, Space& space) { backward(p, end, space); });
      if (call_.dh) sum_dh();
    });
    return weight_ * loss;
  }

 private:
  static constexpr long kWidth = kPairVectors * kLanes<F>;  // classes of a panel
  static constexpr long kTogether = 2;  // panels that dh is summed over at once, so that its sums are moved less often

  struct Space {  // what a thread needs for itself; a panel has room for a unit to spare
    Buffer<F> panel[kTogether], w, dh;
    Space(long inputs, long w_stride, long rows)
        : panel{Buffer<F>((inputs + 1) * kWidth), Buffer<F>((inputs + 1) * kWidth)}, w(kTogether * kWidth * w_stride),
          dh(rows * w_stride) {
      w.clear();
    }
  };

  static long longest_chunk(const CrossEntropyCall<F>& call) {
    const long pieces = (call.rows + call.chunk - 1) / call.chunk;
    return (call.rows + pieces - 1) / pieces;
  }
  long first_class(long p) const { return p * kWidth; }
  long classes_of(long p) const { return std::min(kWidth, call_.classes - first_class(p)); }
  F* logits(long p) { return logits_.data() + p * (chunk_ + 1) * kWidth; }  // and of a row to spare

  void begin(long first, long count) {
    first_ = first;
    count_ = count;
    h_ = call_.h + first * inputs_;
    target_ = call_.target + first;
    for (long r = 0; r < count; r++)
      weights_.data()[r] = target_[r] == call_.ignore_index ? F(0) : static_cast<F>(weight_);
    of_rows_.list(h_, count, inputs_, inputs_, 1, false);
    if (call_.dw) of_units_.list(h_, inputs_, count, 1, inputs_, true);
  }

  // Calls body(first panel, end, space), some panels `together`.
  template <class Body>
  void on_panels(long together, Body&& body) {
    on_threads(threads_, [&](long thread, long arrived) {
      const long begin = panels_ * thread / arrived, end = panels_ * (thread + 1) / arrived;
      for (long p = begin; p < end; p += together) body(p, std::min(end, p + together), *spaces_[thread]);
    });
  }

  // The exponentials of a panel's logits; `w`: room for its part of W.
  void forward(long p, F* w) {
    const long first = first_class(p), count = classes_of(p);
    F start[kWidth], *to = logits(p);
    // Classes that do not exist have weights of zero and a bias of minus infinity, so that their exponential is zero.
    std::fill_n(start, kWidth, -std::numeric_limits<F>::infinity());
    for (long c = 0; c < count; c++) start[c] = call_.bias ? call_.bias[first + c] : F(0);
    if (count < kWidth) std::fill_n(w, inputs_ * kWidth, F(0));
    transpose(call_.w + first * inputs_, inputs_, count, inputs_, w, kWidth, false);
    if (all_finite(w, inputs_ * kWidth)) add_logits(to, start, w);
    else DenseProduct<F>{to, kWidth, start, 0, h_, inputs_, 1, w, kWidth, inputs_, inputs_, 0}.run(count_, of_panel_);
    for (long r = 0; r < count_; r++) {
      const long target = target_[r] - first;
      if (target >= 0 && target < count) target_logits_.data()[r] = to[r * kWidth + target];
      exponentials<F, kPairVectors>(to + r * kWidth, softmax_.top(p, r), softmax_.sum(p, r));
    }
  }

  void add_logits(F* to, const F* start, const F* w) {
    long piece = 0;
    for_pieces(0, inputs_, kPairDepth, kMaxRows, [&](long unit, int) {
      of_rows_.for_pairs(piece, [&](const LinePair<F>& pair) {
        F *a = to + pair.a * kWidth, *b = to + pair.b * kWidth;
        add_terms<F>(pair, a, b, piece ? a : start, piece ? b : start, w + unit * kWidth);
      });
      piece++;
    });
  }

  double chunk_loss() const {
    double loss = 0;
    for (long r = 0; r < count_; r++)
      if (target_[r] != call_.ignore_index)
        loss += std::log(static_cast<double>(softmax_.total(r))) +
                (static_cast<double>(softmax_.top(r)) - target_logits_.data()[r]);
    return loss;
  }

  // What the d of panels [begin, end) add to dW, db and the thread's dh.
  void backward(long begin, long end, Space& space) {
    const long first_of_all = first_class(begin), classes = first_class(end - 1) + classes_of(end - 1) - first_of_all;
    F sums[kTogether][kWidth] = {}, *w = space.w.data();
    for (long i = 0; call_.dw && i < end - begin; i++) space.panel[i].clear();
    for (long c = 0; call_.dh && c < classes; c++)
      std::memcpy(w + c * w_stride_, call_.w + (first_of_all + c) * inputs_, inputs_ * sizeof(F));
    long piece = 0;
    for_pieces(0, count_, kPairDepth, kMaxRows, [&](long row, int rows) {
      for (long p = begin; p < end; p++) {
        F* d = logits(p) + row * kWidth;
        make_d(p, row, rows, d, sums[p - begin]);
        if (call_.dw) add_dw(d, piece, row, rows, space.panel[p - begin].data());
      }
      F* dh = space.dh.data() + row * w_stride_;
      if (call_.dh)
        DenseProduct<F>{dh, w_stride_, dh, w_stride_, logits(begin) + row * kWidth, kWidth, 1, w, w_stride_, classes,
                        kWidth, (chunk_ + 1) * kWidth}.run(rows, of_inputs_);
      piece++;
    });
    for (long p = begin; p < end; p++) {
      const long first = first_class(p), count = classes_of(p);
      if (call_.dw)
        transpose(space.panel[p - begin].data(), kWidth, inputs_, count, call_.dw + first * inputs_, inputs_, first_ > 0);
      for (long c = 0; call_.dbias && c < count; c++)
        call_.dbias[first + c] = sums[p - begin][c] + (first_ > 0 ? call_.dbias[first + c] : F(0));
    }
  }

  // d in place of the exponentials, for some rows of a panel, and their sums over rows.
  void make_d(long p, long first, long rows, F* d, F* sums) {
    Vec<F> acc[kPairVectors];
    PATHSGD_UNROLL for (int j = 0; j < kPairVectors; j++) acc[j] = load(sums + j * kLanes<F>);
    for (long r = 0; r < rows; r++) {
      F* row = d + r * kWidth;
      const Vec<F> factor = broadcast(softmax_.factor(p, first + r));
      PATHSGD_UNROLL for (int j = 0; j < kPairVectors; j++) {
        const Vec<F> value = load(row + j * kLanes<F>) * factor;
        store(row + j * kLanes<F>, value);
        acc[j] += value;
      }
    }
    PATHSGD_UNROLL for (int j = 0; j < kPairVectors; j++) store(sums + j * kLanes<F>, acc[j]);
    for (long r = 0; r < rows; r++) {
      const long target = target_[first + r] - first_class(p);
      if (target < 0 || target >= classes_of(p)) continue;
      d[r * kWidth + target] -= weights_.data()[first + r];
      sums[target] -= weights_.data()[first + r];
    }
  }

  void add_dw(const F* d, long piece, long row, long rows, F* dw) {
    if (!skips_in_dw_) {
      const F* h = h_ + row * inputs_;
      return DenseProduct<F>{dw, kWidth, dw, kWidth, h, 1, inputs_, d, kWidth, rows, rows, 0}.run(inputs_, of_panel_);
    }
    of_units_.for_pairs(piece, [&](const LinePair<F>& pair) {
      F *a = dw + pair.a * kWidth, *b = dw + pair.b * kWidth;
      add_terms<F>(pair, a, b, a, b, d);
    });
  }

  void sum_dh() {
    for (long r = 0; r < count_; r++) {
      F* to = call_.dh + (first_ + r) * inputs_;
      std::memcpy(to, spaces_[0]->dh.data() + r * w_stride_, inputs_ * sizeof(F));
      for (size_t thread = 1; thread < spaces_.size(); thread++)
        for (long i = 0; i < inputs_; i++) to[i] += spaces_[thread]->dh.data()[r * w_stride_ + i];
    }
  }

  const CrossEntropyCall<F>& call_;
  const long inputs_, chunk_, panels_, threads_;
  const long w_stride_;  // of rows of W and dh in a thread's space
  const std::vector<Panel> of_panel_, of_inputs_;
  Buffer<F> logits_, weights_, target_logits_;
  Softmax<F> softmax_;
  PairTerms<F> of_rows_, of_units_;
  std::vector<std::optional<Space>> spaces_;
  double weight_;
  // The chunk at hand:
  long first_ = 0, count_ = 0;
  const F* h_ = nullptr;
  const int64_t* target_ = nullptr;
  bool skips_in_dw_ = true;
};

template <class F>
void cross_entropy(CrossEntropyCall<F>& call) {
  for (long r = 0; r < call.rows; r++)
    if (call.target[r] != call.ignore_index && (call.target[r] < 0 || call.target[r] >= call.classes))
      throw NoSuchClass();
  call.loss = CrossEntropy<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(cross_entropy, CrossEntropyCall)
