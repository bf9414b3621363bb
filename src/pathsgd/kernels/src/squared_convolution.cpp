// A convolution with a squared kernel: see squared_convolution.h for what is computed.
//
// Both ways are products of matrices, in blocks of accumulators. W is squared piece by piece into a buffer that stays in
// the first-level cache, and from there its numbers are broadcast: forth a piece has rows of W, back it has columns.
#include "squared_convolution.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "entry.h"
#include "simd/product.h"
#include "simd/squared.h"

namespace pathsgd {
namespace {

constexpr long kPieceColumns = 16 * kMaxRows;  // of W on the way back
constexpr long kPieceRows = 64;
template <class F>
constexpr long kLine = 64 / sizeof(F);  // of the cache

// C (+)= A panel for kMaxRows rows, of which `rows` are written: A(i, k) is a[i * row_step + k * depth_step]. fetch(k) has
// time to fetch something of the next piece of W, which comes from far.
template <int Vectors, class F, class Fetch>
PATHSGD_NOINLINE void block(const F* a, long row_step, long depth_step, const F* panel, long depth, F* to, long stride,
                            long rows, long left, bool adds, Fetch fetch) {
  Vec<F> acc[kMaxRows][Vectors];
  PATHSGD_UNROLL for (int i = 0; i < kMaxRows; i++)
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = zero<F>();
  for (long k = 0; k < depth; k++) {
    fetch(k);
    Vec<F> row[Vectors];
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(panel + (k * Vectors + j) * kLanes<F>);
    PATHSGD_UNROLL for (int i = 0; i < kMaxRows; i++) {
      const Vec<F> value = broadcast(a[i * row_step + k * depth_step]);
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
    }
  }
  PATHSGD_UNROLL for (int i = 0; i < kMaxRows; i++) {
    if (i >= rows) break;
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
      F* place = to + i * stride + j * kLanes<F>;
      const Vec<F> value = adds ? acc[i][j] + load_vector<Vectors>(to + i * stride, j, left) : acc[i][j];
      j == Vectors - 1 ? store_part(place, value, left - j * kLanes<F>) : store(place, value);
    }
  }
}

template <class F>
class Convolution {
 public:
  explicit Convolution(SquaredConvolutionCall<F>& call)
      : call_(call), depth_(call.inputs * call.kernel_height * call.kernel_width), places_(call.rows * call.columns) {}

  void run() {
    Buffer<F> seen(depth_ * places_);
    for_places([&](F* place, const F* image, long count, long step) {
      if (!image) std::fill_n(place, count, F(0));
      else if (step == 1) std::memcpy(place, image, count * sizeof(F));
      else
        for (long c = 0; c < count; c++) place[c] = image[c * step];
    }, seen.data(), call_.x);
    if (call_.y) forth(seen.data());
    if (call_.kappa)
      multiply_matrices<F>({call_.y_bar, places_, 1}, {seen.data(), 1, places_}, call_.kappa, depth_, call_.outputs,
                           depth_, places_, false, call_.threads);
    if (call_.x_bar) back(seen);
  }

 private:
  // body(place, image, count, step) for all stretches of c or d, (depth, places), that one row of the image holds `step`
  // numbers apart; image is null where they lie beyond its border.
  template <class Body, class Image>
  void for_places(Body&& body, F* place, Image* image) const {
    for (long i = 0; i < call_.inputs; i++)
      for (long ky = 0; ky < call_.kernel_height; ky++)
        for (long kx = 0; kx < call_.kernel_width; kx++) {
          const long right = kx * call_.dilation_x - call_.left, step = call_.stride_x, last = call_.width - 1 - right;
          const long end = last < 0 ? 0 : std::min<long>(call_.columns, last / step + 1);
          const long begin = std::min(right < 0 ? (step - 1 - right) / step : 0, end);
          for (long r = 0; r < call_.rows; r++, place += call_.columns) {
            const long y = r * call_.stride_y + ky * call_.dilation_y - call_.top;
            if (y < 0 || y >= call_.height) {
              body(place, static_cast<Image*>(nullptr), call_.columns, step);
              continue;
            }
            Image* row = image + (i * call_.height + y) * call_.width;
            if (begin > 0) body(place, static_cast<Image*>(nullptr), begin, step);
            if (end > begin) body(place + begin, row + begin * step + right, end - begin, step);
            if (end < call_.columns) body(place + end, static_cast<Image*>(nullptr), call_.columns - end, step);
          }
        }
  }

  long threads(long work, long most) const {
    return std::max<long>(1, std::min<long>({static_cast<long>(call_.threads), work * places_ / kWorthAThread, most}));
  }

  void forth(const F* seen) {
    const long wanted = threads(call_.outputs * depth_, call_.outputs);
    std::vector<Range<F>> ranges(wanted);
    on_threads(wanted, [&](long thread, long arrived) {
      const long first = call_.outputs * thread / arrived, last = call_.outputs * (thread + 1) / arrived;
      ranges[thread] = forth(seen, first, last);
    });
    for (const Range<F>& range : ranges) ranges[0].include(range);
    call_.largest = ranges[0].largest;
    call_.least = ranges[0].least;
  }

  Range<F> forth(const F* seen, long first, long last) const {
    constexpr long kColumns = 4 * kMaxVectors * kLanes<F>;
    Range<F> range;
    Buffer<F> squares(kMaxRows * kDepth);
    squares.clear();
    for (long n0 = 0; n0 < places_; n0 += kColumns)
      for (long k0 = 0; k0 < depth_; k0 += kDepth) {
        const long depth = std::min(kDepth, depth_ - k0), columns = std::min(kColumns, places_ - n0);
        const Packed<F> panels(seen + k0 * places_ + n0, depth, columns, places_, 1);
        for (long r = first; r < last; r += kMaxRows) {
          const long rows = std::min<long>(kMaxRows, last - r);
          for (long i = 0; i < rows; i++)
            range.include(squared(call_.w + (r + i) * depth_ + k0, squares.data() + i * kDepth, depth));
          // Rows that follow: eight turns for each line of all of them.
          const F* next = call_.w + std::min<long>(r + kMaxRows, last - kMaxRows) * depth_ + k0;
          const long stride = depth_, following = last >= first + kMaxRows ? kMaxRows : 0;
          const auto fetch = [=](long k) {
            const long line = (k >> 3) * kLine<F>;
            if ((k & 7) < following && line < depth) __builtin_prefetch(next + (k & 7) * stride + line, 0, 2);
          };
          for (const Panel& panel : panels.panels())
            for_vectors(panel.vectors, [&](auto vectors) {
              block<vectors>(squares.data(), kDepth, 1, panels.row(panel, 0), depth,
                             call_.y + r * places_ + n0 + panel.first_column, places_, rows,
                             columns - panel.first_column, k0 > 0, fetch);
            });
        }
      }
    return range;
  }

  // `room` is overwritten with d.
  void back(Buffer<F>& room) {
    F* d = room.data();
    const Packed<F> panels(call_.y_bar, call_.outputs, places_, places_, 1);
    const long pieces = (depth_ + kPieceColumns - 1) / kPieceColumns;
    on_threads(threads(call_.outputs * depth_, pieces), [&](long thread, long arrived) {
      Buffer<F> squares(kPieceRows * kPieceColumns);
      squares.clear();
      for (long piece = pieces * thread / arrived; piece < pieces * (thread + 1) / arrived; piece++)
        for (long o = 0; o < call_.outputs; o += kPieceRows)
          back(panels, piece * kPieceColumns, o, squares.data(), d);
    });
    std::fill_n(call_.x_bar, call_.inputs * call_.height * call_.width, F(0));
    for_places([](F* place, F* image, long count, long step) {
      if (!image) return;
      for (long c = 0; c < count; c++) image[c * step] += place[c];
    }, d, call_.x_bar);
  }

  // What rows [o, o + kPieceRows) of W add to rows [j, j + kPieceColumns) of d.
  void back(const Packed<F>& panels, long j, long o, F* squares, F* d) const {
    const long columns = std::min(kPieceColumns, depth_ - j), depth = std::min(kPieceRows, call_.outputs - o);
    for (long k = 0; k < depth; k++) {
      const F* __restrict w = call_.w + (o + k) * depth_ + j;
      F* __restrict to = squares + k * kPieceColumns;
      for (long c = 0; c < columns; c++) to[c] = w[c] * w[c];
    }
    for (const Panel& panel : panels.panels())
      for (long c = 0; c < columns; c += kMaxRows) {
        // A line of each row that follows.
        const long line = c / kMaxRows * kLine<F>, stride = depth_;
        const bool follows = line < columns && o + 2 * kPieceRows <= call_.outputs;
        const F* next = call_.w + (follows ? (o + kPieceRows) * depth_ + j + line : 0);
        const auto fetch = [=](long k) {
          if (follows) __builtin_prefetch(next + k * stride, 0, 2);
        };
        for_vectors(panel.vectors, [&](auto vectors) {
          block<vectors>(squares + c, 1, kPieceColumns, panels.row(panel, o), depth,
                         d + (j + c) * places_ + panel.first_column, places_, std::min<long>(kMaxRows, columns - c),
                         places_ - panel.first_column, o > 0, fetch);
        });
      }
  }

  SquaredConvolutionCall<F>& call_;
  const long depth_, places_;
};

template <class F>
void squared_convolution(SquaredConvolutionCall<F>& call) {
  Convolution<F>(call).run();
}

}  // namespace
}  // namespace pathsgd

PATHSGD_ENTRIES(squared_convolution, SquaredConvolutionCall)
