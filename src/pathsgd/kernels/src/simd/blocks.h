// Register-blocked products: a block is `Rows` rows by `Vectors` vectors of accumulators that live in registers.
//
//   Packed        a (K, N) matrix cut into panels of at most kMaxVectors vectors; inside a panel row k follows row
//                 k-1 directly, columns beyond N are zero. Packed once per call, read T times.
//   multiply_add  acc[i][:] += sum_k a[i*stride + k] * panel[k][:]
//   for_block     picks the compiled (Rows, Vectors) for run-time numbers
#pragma once
#include <algorithm>
#include <cstdlib>
#include <new>
#include <type_traits>
#include <vector>

#include "vector.h"
#include "transpose.h"

namespace pathsgd {

// 32 registers with AVX-512, 16 otherwise: enough accumulators to hide the latency of a multiply-add, room left for
// one row of the panel and one broadcast value.
#if PATHSGD_VECTOR_BYTES == 64
constexpr int kMaxVectors = 4, kMaxRows = 6;
#else
constexpr int kMaxVectors = 3, kMaxRows = 4;
#endif
constexpr long kDepth = 256;  // rows of a panel used at a time: 24 KB of float32 at three vectors of eight, within L1

// Memory aligned for any vector, not cleared.
template <class F>
class Buffer {
 public:
  explicit Buffer(size_t count) : count_(count), data_(static_cast<F*>(std::aligned_alloc(64, bytes(count)))) {
    if (!data_) throw std::bad_alloc();
  }
  ~Buffer() { std::free(data_); }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  void swap(Buffer& other) { std::swap(data_, other.data_); }  // of equal size
  void clear() { std::fill_n(data_, count_, F(0)); }
  F* data() { return data_; }
  const F* data() const { return data_; }

 private:
  static size_t bytes(size_t count) { return (count * sizeof(F) + 64 + 63) / 64 * 64; }
  const size_t count_;
  F* data_;
};

template <class F>
long padded(long columns) {
  return (columns + kLanes<F> - 1) / kLanes<F> * kLanes<F>;
}

struct Panel {
  long first_column;
  int vectors;
  size_t offset;  // of its first element in the packed memory
};

// Columns in panels as equal as they can be: 13 vectors become 3+3+3+2+2, never 3+3+3+3+1.
template <class F>
std::vector<Panel> panels_of(long columns, long depth, int most = kMaxVectors) {
  const long vectors = padded<F>(columns) / kLanes<F>, count = (vectors + most - 1) / most;
  std::vector<Panel> panels;
  long first = 0;
  for (long p = 0; p < count; p++) {
    const int width = static_cast<int>(vectors / count + (p < vectors % count));
    panels.push_back({first * kLanes<F>, width, static_cast<size_t>(first * kLanes<F> * depth)});
    first += width;
  }
  return panels;
}

template <class F>
class Packed {
 public:
  // Element (k, n) is source[k * k_stride + n * n_stride].
  Packed(const F* source, long depth, long columns, long k_stride, long n_stride, int most_vectors = kMaxVectors)
      : panels_(panels_of<F>(columns, depth, most_vectors)), memory_(static_cast<size_t>(padded<F>(columns) * depth)) {
    for (const Panel& panel : panels_) pack(panel, source, depth, columns, k_stride, n_stride);
  }
  const std::vector<Panel>& panels() const { return panels_; }
  const F* row(const Panel& panel, long k) const {
    return memory_.data() + panel.offset + k * panel.vectors * kLanes<F>;
  }
  // A matrix too large for the second-level cache is read anew at every step. While rows [r, r+count) of `total` pass by
  // slice k0 of panel p, their share of the next panel's slice is fetched.
  void fetch_ahead(size_t p, long k0, long depth, long r, long count, long total) const {
    if (p + 1 == panels_.size()) return;
    const long size = depth * panels_[p + 1].vectors * kLanes<F>, line = 64 / sizeof(F);
    const F* slice = row(panels_[p + 1], k0);
    for (long i = size * r / total / line * line; i < size * (r + count) / total; i += line)
      __builtin_prefetch(slice + i, 0, 2);
  }

 private:
  void pack(const Panel& panel, const F* source, long depth, long columns, long k_stride, long n_stride) {
    const long width = panel.vectors * kLanes<F>, filled = std::min(width, columns - panel.first_column);
    F* to = memory_.data() + panel.offset;
    const F* from = source + panel.first_column * n_stride;
    for (long k = 0; k < depth && filled < width; k++) std::fill(to + k * width + filled, to + (k + 1) * width, F(0));
    if (n_stride == 1) {
      for (long k = 0; k < depth; k++) std::memcpy(to + k * width, from + k * k_stride, filled * sizeof(F));
    } else if (k_stride == 1) {
      transpose(from, n_stride, filled, depth, to, width, false);
    } else {
      for (long k = 0; k < depth; k++)
        for (long n = 0; n < filled; n++) to[k * width + n] = from[k * k_stride + n * n_stride];
    }
  }
  std::vector<Panel> panels_;
  Buffer<F> memory_;
};

template <class F, int Rows, int Vectors>
PATHSGD_INLINE void multiply_add(Vec<F> (&acc)[Rows][Vectors], const F* a, long stride, const F* panel, long depth) {
  for (long k = 0; k < depth; k++) {
    Vec<F> row[Vectors];
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(panel + (k * Vectors + j) * kLanes<F>);
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++) {
      const Vec<F> value = broadcast(a[i * stride + k]);
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
    }
  }
}

// A block of accumulators to and from rows in memory that end `left` columns after the block begins. Panels are whole
// vectors, so only a block's last vector can be cut short.
template <int Vectors, class F>
PATHSGD_INLINE Vec<F> load_vector(const F* row, int j, long left) {
  return j == Vectors - 1 ? load_part(row + j * kLanes<F>, left - j * kLanes<F>) : load(row + j * kLanes<F>);
}
template <class F, int Rows, int Vectors>
PATHSGD_INLINE void load_block(Vec<F> (&acc)[Rows][Vectors], const F* from, long stride, long left) {
  PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] = load_vector<Vectors>(from + i * stride, j, left);
}
template <class F, int Rows, int Vectors>
PATHSGD_INLINE void add_block(Vec<F> (&acc)[Rows][Vectors], const F* from, long stride, long left) {
  PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += load_vector<Vectors>(from + i * stride, j, left);
}
template <class F, int Rows, int Vectors>
PATHSGD_INLINE void store_block(const Vec<F> (&acc)[Rows][Vectors], F* to, long stride, long left) {
  PATHSGD_UNROLL for (int i = 0; i < Rows; i++)
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) {
      F* place = to + i * stride + j * kLanes<F>;
      j == Vectors - 1 ? store_part(place, acc[i][j], left - j * kLanes<F>) : store(place, acc[i][j]);
    }
}

template <int Number>
using Constant = std::integral_constant<int, Number>;

template <int Vectors, int Rows = 1, class Body>
PATHSGD_INLINE void for_rows(int rows, Body&& body) {
  if (rows == Rows) return body(Constant<Rows>{}, Constant<Vectors>{});
  if constexpr (Rows < kMaxRows) for_rows<Vectors, Rows + 1>(rows, body);
}

// Calls body(Constant<vectors>).
template <int Vectors = 1, int Most = kMaxVectors, class Body>
PATHSGD_INLINE void for_vectors(int vectors, Body&& body) {
  if (vectors == Vectors) return body(Constant<Vectors>{});
  if constexpr (Vectors < Most) for_vectors<Vectors + 1, Most>(vectors, body);
}

// Calls body(Constant<rows>, Constant<vectors>).
template <class Body>
PATHSGD_INLINE void for_block(int rows, int vectors, Body&& body) {
  for_vectors(vectors, [&](auto constant) { for_rows<constant>(rows, body); });
}

// Cuts [first, last) into nearly equal pieces of at most `most`, all but the last multiples of `unit`, and calls
// body(begin, count) on each.
template <class Body>
PATHSGD_INLINE void for_pieces(long first, long last, long most, long unit, Body&& body) {
  const long units = (last - first + unit - 1) / unit, pieces = (last - first + most - 1) / most;
  for (long p = 0; p < pieces; p++) {
    const long begin = first + units * p / pieces * unit, end = std::min(last, first + units * (p + 1) / pieces * unit);
    body(begin, static_cast<int>(end - begin));
  }
}

}  // namespace pathsgd
