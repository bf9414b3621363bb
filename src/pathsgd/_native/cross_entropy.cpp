// Cross-entropy of a linear layer and its gradients: see cross_entropy.h for what is computed.
//
// Classes are cut into panels, rows into chunks. A first pass over the panels makes a chunk's logits and their
// exponentials, a second one makes d of them and all that follows. Panels are shared out to threads, so each entry of dW
// and db is summed by one thread; each thread sums a dh of its own, and these are added in order.
//
// Both products with h skip its zeros, about half of a ReLU's states, unless they would meet an infinity or a NaN.
#include "cross_entropy.h"

#include <optional>

#include "active.h"
#include "outer.h"
#include "softmax.h"
#include "terms.h"
#include "threads.h"
#include "transpose.h"

namespace pathsgd {
namespace {

// to[i][:] = start[i][:] + sum_k a(i, k) b[k][:], where a(i, k) = a[i * a_row + k * a_depth].
template <class F, int Rows, int Vectors>
PATHSGD_NOINLINE void add_product(F* to, long to_stride, const F* start, long start_stride, const F* a, long a_row,
                                  long a_depth, const F* b, long b_stride, long depth) {
  Vec<F> acc[Rows][Vectors];
  PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = load(start + i * start_stride + j * kLanes<F>);
  for (long k = 0; k < depth; k++, a += a_depth, b += b_stride) {
    Vec<F> row[Vectors];
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(b + j * kLanes<F>);
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++) {
      const Vec<F> value = broadcast(a[i * a_row]);
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
    }
  }
  PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) store(to + i * to_stride + j * kLanes<F>, acc[i][j]);
}

template <class F>
struct Rows {
  F* data;
  long stride;
  Rows at(long row, long column) const { return {data + row * stride + column, stride}; }
};

// to += A b for `rows` rows and `columns` columns, whole vectors of them.
template <class F>
void add_dense(Rows<F> to, Rows<const F> start, long rows, long columns, const F* a, long a_row, long a_depth,
               Rows<const F> b, long depth) {
  for (const Panel& panel : panels_of<F>(columns, 1))
    for_pieces(0, rows, kMaxRows, 1, [&](long r, int count) {
      for_block(count, panel.vectors, [&](auto height, auto vectors) {
        const long c = panel.first_column;
        add_product<F, height, vectors>(to.at(r, c).data, to.stride, start.at(r, c).data, start.stride, a + r * a_row,
                                        a_row, a_depth, b.at(0, c).data, b.stride, depth);
      });
    });
}

struct Classes {
  long first, count;  // `count` of them exist; the panel is filled up to whole vectors
  int vectors;
};

template <class F>
class CrossEntropy {
 public:
  explicit CrossEntropy(const CrossEntropyCall<F>& call)
      : call_(call), inputs_(call.inputs), chunk_(longest_chunk()), panels_(cut(call.classes)),
        threads_(std::max<long>(1, std::min<long>(call.threads, panels_.size()))),
        wants_gradient_(call.dh || call.dw || call.dbias), w_stride_(spread_stride<F>(inputs_)),
        logits_(chunk_ * kWidth * panels_.size()), weights_(chunk_), target_logits_(chunk_),
        softmax_(chunk_, panels_.size()), of_rows_(chunk_, inputs_), of_units_(inputs_, call.dw ? chunk_ : 0),
        spaces_(threads_) {
    for (auto& space : spaces_) space.emplace(inputs_ * kWidth, kWidth * w_stride_, call.dh ? chunk_ * w_stride_ : 0);
    long counted = 0;
    for (long r = 0; r < call.rows; r++) counted += call.target[r] != call.ignore_index;
    weight_ = call.mean ? 1.0 / counted : 1.0;
  }

  double run() {
    double loss = 0;
    for_pieces(0, call_.rows, chunk_, 1, [&](long first, int count) {
      first_ = first;
      count_ = count;
      h_ = call_.h + first * inputs_;
      target_ = call_.target + first;
      for (long r = 0; r < count; r++)
        weights_.data()[r] = target_[r] == call_.ignore_index ? F(0) : static_cast<F>(weight_);
      const long terms = of_rows_.list(h_, count, inputs_, inputs_, 1);
      sparse_ = 8 * terms < 7 * count * inputs_;
      if (sparse_ && call_.dw) of_units_.list(h_, inputs_, count, 1, inputs_);
      on_panels([&](long p, Space& space) { forward(p, space); });
      softmax_.finish(weights_.data(), count);
      loss += chunk_loss();
      if (!wants_gradient_) return;
      for (auto& space : spaces_) space->dh.clear();
      // A row whose total is not finite has a d of NaN, which its zeros in h must meet.
      bool finite = true;
      for (long r = 0; r < count; r++) finite &= softmax_.total(r) - softmax_.total(r) == 0;
      skips_in_dw_ = sparse_ && finite;
      on_panels([&](long p, Space& space) { backward(p, space); });
      if (call_.dh) sum_dh();
    });
    return weight_ * loss;
  }

 private:
  static constexpr long kWidth = kWide * kLanes<F>;  // of a panel

  struct Space {  // what a thread needs for itself
    Buffer<F> turned, w, dh;
    Space(long of_panel, long of_w, long of_dh) : turned(of_panel), w(of_w), dh(of_dh) { w.clear(); }
  };

  static std::vector<Classes> cut(long classes) {
    std::vector<Classes> panels;
    for (long first = 0; first < classes; first += kWidth) {
      const long count = std::min(kWidth, classes - first), unit = kNarrow * kLanes<F>;
      panels.push_back({first, count, static_cast<int>((count + unit - 1) / unit) * kNarrow});
    }
    return panels;
  }
  long longest_chunk() const {
    const long pieces = (call_.rows + call_.chunk - 1) / call_.chunk;
    return (call_.rows + pieces - 1) / pieces;
  }
  F* tile(long p) { return logits_.data() + p * chunk_ * kWidth; }

  template <class Body>
  void on_panels(Body&& body) {
    on_threads(threads_, [&](long thread, long arrived) {
      const long panels = static_cast<long>(panels_.size());
      for (long p = panels * thread / arrived; p < panels * (thread + 1) / arrived; p++) body(p, *spaces_[thread]);
    });
  }

  // The exponentials of a panel's logits.
  void forward(long p, Space& space) {
    const Classes& classes = panels_[p];
    const F* w = call_.w + classes.first * inputs_;
    for_width(classes.vectors, [&](auto vectors) {
      constexpr long width = vectors * kLanes<F>;
      F *panel = space.turned.data(), *to = tile(p), start[width];
      // Classes that do not exist have weights of zero and a bias of minus infinity, so that their exponential is zero.
      for (long c = 0; c < width; c++)
        start[c] = c >= classes.count ? -std::numeric_limits<F>::infinity()
                                      : call_.bias ? call_.bias[classes.first + c] : F(0);
      if (classes.count < width) std::fill_n(panel, inputs_ * width, F(0));
      transpose(w, inputs_, classes.count, inputs_, panel, width, false);
      if (sparse_ && all_finite(panel, inputs_ * width)) {
        const F* from = start;
        long piece = 0, stride = 0;
        for_pieces(0, inputs_, kTileRows, 1, [&](long first, int) {
          for (long r = 0; r < count_; r++)
            add_terms<F, vectors>(to + r * width, from + r * stride, of_rows_.begin(piece, r), of_rows_.end(piece, r),
                                  panel + first * width);
          from = to;
          stride = width;
          piece++;
        });
      } else {
        add_dense<F>({to, width}, {start, 0}, count_, width, h_, inputs_, 1, {panel, width}, inputs_);
      }
      for (long r = 0; r < count_; r++) {
        const long target = target_[r] - classes.first;
        if (target >= 0 && target < classes.count) target_logits_.data()[r] = to[r * width + target];
        exponentials<F, vectors>(to + r * width, softmax_.top(p, r), softmax_.sum(p, r));
      }
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

  // What a panel's d adds to dW, db and the thread's dh.
  void backward(long p, Space& space) {
    const Classes& classes = panels_[p];
    for_width(classes.vectors, [&](auto vectors) {
      constexpr long width = vectors * kLanes<F>;
      F *dw = space.turned.data(), db[width] = {};
      if (call_.dw) std::fill_n(dw, inputs_ * width, F(0));
      if (call_.dh)
        for (long c = 0; c < classes.count; c++)
          std::memcpy(space.w.data() + c * w_stride_, call_.w + (classes.first + c) * inputs_, inputs_ * sizeof(F));
      long piece = 0;
      for_pieces(0, count_, kTileRows, 1, [&](long first, int rows) {
        F* d = tile(p) + first * width;
        make_d<vectors>(p, first, rows, d, db);
        if (call_.dw && skips_in_dw_) {
          for (long k = 0; k < inputs_; k++)
            add_terms<F, vectors>(dw + k * width, dw + k * width, of_units_.begin(piece, k), of_units_.end(piece, k), d);
        } else if (call_.dw) {
          add_dense<F>({dw, width}, {dw, width}, inputs_, width, h_ + first * inputs_, 1, inputs_, {d, width}, rows);
        }
        if (call_.dh) {
          const Rows<F> dh = Rows<F>{space.dh.data(), w_stride_}.at(first, 0);
          add_dense<F>(dh, {dh.data, dh.stride}, rows, padded<F>(inputs_), d, width, 1, {space.w.data(), w_stride_},
                       classes.count);
        }
        piece++;
      });
      if (call_.dw)
        transpose(dw, width, inputs_, classes.count, call_.dw + classes.first * inputs_, inputs_, first_ > 0);
      for (long c = 0; call_.dbias && c < classes.count; c++)
        call_.dbias[classes.first + c] = db[c] + (first_ > 0 ? call_.dbias[classes.first + c] : F(0));
    });
  }

  // d in place of the exponentials, for some rows, and their sums over rows.
  template <int Vectors>
  void make_d(long p, long first, long rows, F* d, F* sums) {
    constexpr long width = Vectors * kLanes<F>;
    const Classes& classes = panels_[p];
    Vec<F> acc[Vectors];
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[j] = load(sums + j * kLanes<F>);
    for (long r = 0; r < rows; r++) {
      F* row = d + r * width;
      const Vec<F> factor = broadcast(softmax_.factor(p, first + r));
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
        const Vec<F> value = load(row + j * kLanes<F>) * factor;
        store(row + j * kLanes<F>, value);
        acc[j] += value;
      }
    }
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) store(sums + j * kLanes<F>, acc[j]);
    for (long r = 0; r < rows; r++) {
      const long target = target_[first + r] - classes.first;
      if (target < 0 || target >= classes.count) continue;
      d[r * width + target] -= weights_.data()[first + r];
      sums[target] -= weights_.data()[first + r];
    }
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
  const long inputs_, chunk_;
  const std::vector<Classes> panels_;
  const long threads_;
  const bool wants_gradient_;
  const long w_stride_;  // of rows of W and dh in a thread's space
  Buffer<F> logits_;     // (panels, chunk, width)
  Buffer<F> weights_, target_logits_;
  Softmax<F> softmax_;
  Terms<F> of_rows_, of_units_;
  std::vector<std::optional<Space>> spaces_;
  double weight_;
  // The chunk at hand:
  long first_, count_;
  const F* h_;
  const int64_t* target_;
  bool sparse_, skips_in_dw_;
};

template <class F>
int cross_entropy(CrossEntropyCall<F>& call) {
  for (long r = 0; r < call.rows; r++)
    if (call.target[r] != call.ignore_index && (call.target[r] < 0 || call.target[r] >= call.classes))
      return kNoSuchClass;
  try {
    const FlushDenormals guard;
    call.loss = CrossEntropy<F>(call).run();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  }
}

}  // namespace
}  // namespace pathsgd

PATHSGD_EXPORT int pathsgd_cross_entropy_float(pathsgd::CrossEntropyCall<float>* call) {
  return pathsgd::cross_entropy(*call);
}
PATHSGD_EXPORT int pathsgd_cross_entropy_double(pathsgd::CrossEntropyCall<double>* call) {
  return pathsgd::cross_entropy(*call);
}
