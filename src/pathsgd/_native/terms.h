// The numbers of a matrix that are not zero, line by line, and sums over them:
//
//   to[:] = start[:] + sum over the terms of a line: value * from[place][:]
//
// Each line skips its own zeros, at the price of one read from the first-level cache for each multiply-add, which can
// just be sustained; blocks of several lines (blocks.h) read less but can only skip zeros that all of them share.
#pragma once
#include "blocks.h"

namespace pathsgd {

// Widest row of accumulators that a sum holds in registers; other widths are multiples of kNarrow.
#if PATHSGD_VECTOR_BYTES == 64
constexpr int kWide = 8;
#else
constexpr int kWide = 12;
#endif
constexpr int kNarrow = 4;
constexpr long kTileRows = 26 * 1024 / (kWide * PATHSGD_VECTOR_BYTES);  // rows that leave some room in a cache of 32 KB

template <class F>
struct Term {
  F value;
  int32_t place;
};

template <class F>
class Terms {
 public:
  // Room for all of (lines, depth). The depth is cut into pieces of at most kTileRows; places count from a piece's first.
  Terms(long lines, long depth)
      : lines_(lines), pieces_((depth + kTileRows - 1) / kTileRows), starts_(pieces_ * lines + 1),
        terms_(lines * depth + 1) {}

  // Element (i, k) is matrix[i * line_stride + k * stride]. Returns the number of terms.
  long list(const F* matrix, long lines, long depth, long line_stride, long stride) {
    lines_ = lines;
    long count = 0;
    int64_t* start = starts_.data();
    Term<F>* terms = terms_.data();
    for_pieces(0, depth, kTileRows, 1, [&](long first, int size) {
      for (long i = 0; i < lines; i++) {
        const F* line = matrix + i * line_stride + first * stride;
        *start++ = count;
        for (int k = 0; k < size; k++) {
          const F value = line[k * stride];
          terms[count] = {value, k};
          count += value != 0;  // without a branch, which would be guessed wrong half of the time
        }
      }
    });
    *start = count;
    return count;
  }
  const Term<F>* begin(long piece, long line) const { return terms_.data() + starts_.data()[piece * lines_ + line]; }
  const Term<F>* end(long piece, long line) const { return begin(piece, line + 1); }

 private:
  long lines_;
  const long pieces_;
  Buffer<int64_t> starts_;
  Buffer<Term<F>> terms_;
};

template <class F, int Vectors>
PATHSGD_NOINLINE void add_terms(F* to, const F* start, const Term<F>* term, const Term<F>* end, const F* from) {
  Vec<F> acc[Vectors];
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[j] = load(start + j * kLanes<F>);
  for (; term < end; term++) {
    const F* row = from + static_cast<long>(term->place) * (Vectors * kLanes<F>);
    const Vec<F> value = broadcast(term->value);
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[j] += value * load(row + j * kLanes<F>);
  }
  PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) store(to + j * kLanes<F>, acc[j]);
}

// Calls body(Constant<vectors>) for a multiple of kNarrow.
template <int Vectors = kNarrow, class Body>
PATHSGD_INLINE void for_width(int vectors, Body&& body) {
  if (vectors == Vectors) return body(Constant<Vectors>{});
  if constexpr (Vectors < kWide) for_width<Vectors + kNarrow>(vectors, body);
}

}  // namespace pathsgd
