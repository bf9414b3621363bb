// Which columns of some rows are not all zero. A ReLU leaves half of its units at zero or more, in a trained net most of
// them, often the same ones in all sequences: what is multiplied by those zeros need not be computed at all.
//
//   active_columns       their positions, in ascending order
//   RowBlocks            rows cut into blocks as tall as the register blocks, with the active columns of each
//   multiply_add_active  multiply_add (blocks.h) over those columns only; the order of the sums stays the same
//
// Skipping a zero leaves every result as it is unless it would have met an infinity or a NaN: whoever lists columns asks
// all_finite first, and lists all of them if it is false.
#pragma once
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "blocks.h"

namespace pathsgd {

// The set lanes of up to eight, in ascending order and then anything: kSetLanes.place[0b101] = {0, 2, ...}.
struct SetLanes {
  int place[256][8] = {};
  uint8_t count[256] = {};
  constexpr SetLanes() {
    for (int bits = 0; bits < 256; bits++)
      for (int lane = 0; lane < 8; lane++)
        if (bits >> lane & 1) place[bits][count[bits]++] = lane;
  }
};
constexpr SetLanes kSetLanes;

template <class F>
using Mask = decltype(Vec<F>{} != Vec<F>{});

// One bit for each lane that is set.
template <class F>
PATHSGD_INLINE unsigned bits_of(Mask<F> mask) {
#if PATHSGD_VECTOR_BYTES == 32 && defined(__AVX2__)
  if constexpr (sizeof(F) == 4) return static_cast<unsigned>(_mm256_movemask_ps((__m256)mask));
  else return static_cast<unsigned>(_mm256_movemask_pd((__m256d)mask));
#else
  unsigned bits = 0;
  PATHSGD_UNROLL for (int lane = 0; lane < kLanes<F>; lane++) bits |= (mask[lane] ? 1u : 0u) << lane;
  return bits;
#endif
}

// Finite x have x - x = 0; infinities and NaN do not.
template <class F>
bool all_finite(const F* values, long count) {
  Mask<F> bad = {};
  for (long i = 0; i < count; i += kLanes<F>) {
    const Vec<F> value = load_part(values + i, count - i);
    bad |= (value - value) != zero<F>();
  }
  return bits_of<F>(bad) == 0;
}

constexpr long kSpare = 8;  // places beyond the last that a list may overwrite

// Appends k + lane for every lane set in `bits` to a list of `active` places; returns its new length.
PATHSGD_INLINE long list_lanes(unsigned bits, int lanes, long k, int* places, long active) {
  typedef int Places __attribute__((vector_size(32), aligned(4), may_alias));
  for (int part = 0; part < lanes; part += 8, bits >>= 8) {
    const Places set = *reinterpret_cast<const Places*>(kSetLanes.place[bits & 255]);
    *reinterpret_cast<Places*>(places + active) = set + static_cast<int>(k + part);
    active += kSetLanes.count[bits & 255];
  }
  return active;
}

// Writes the positions to `places`; returns their number.
template <class F>
long active_columns(const F* rows, long stride, long count, long columns, int* places) {
  long active = 0, k = 0;
  for (; k + kLanes<F> <= columns; k += kLanes<F>) {
    Mask<F> any = {};
    _Pragma("GCC unroll 4") for (long r = 0; r < count; r++) any |= load(rows + r * stride + k) != zero<F>();
    active = list_lanes(bits_of<F>(any), kLanes<F>, k, places, active);
  }
  if (k < columns) {
    Mask<F> any = {};
    for (long r = 0; r < count; r++) any |= load_part(rows + r * stride + k, columns - k) != zero<F>();
    active = list_lanes(bits_of<F>(any), kLanes<F>, k, places, active);
  }
  return active;
}

inline long all_columns(long columns, int* places) {
  for (long k = 0; k < columns; k++) places[k] = static_cast<int>(k);
  return columns;
}

struct RowBlock {
  long first;
  int rows;
  const int* places;  // null: all columns count, there is too little to be skipped
  long active;
};

template <class F>
class RowBlocks {
 public:
  RowBlocks(long rows, long columns) : places_((rows + kMaxRows - 1) / kMaxRows * columns + kSpare) {}

  // Blocks of `count` rows; `rows` may be null for rows of zeros.
  const std::vector<RowBlock>& find(const F* rows, long stride, long count, long columns, bool skip_zeros) {
    blocks_.clear();
    const bool look = rows && skip_zeros && --pause_ < 0;
    bool found = false;
    int* places = places_.data();
    for_pieces(0, count, kMaxRows, 1, [&](long first, int height) {
      long active = rows ? columns : 0;
      if (look) active = active_columns(rows + first * stride, stride, height, columns, places);
      const bool worthwhile = 8 * active < 7 * columns;
      blocks_.push_back({first, height, worthwhile ? places : nullptr, active});
      places += active;
      found |= worthwhile;
    });
    if (look && !found) pause_ = kPause;
    return blocks_;
  }

 private:
  static constexpr int kPause = 16;  // times that nothing is looked for after nothing was found
  int pause_ = 0;
  Buffer<int> places_;
  std::vector<RowBlock> blocks_;
};

// multiply_add for the rows of a block, over its active columns or all `depth` of them.
template <class F, int Rows, int Vectors>
PATHSGD_INLINE void multiply_add_active(Vec<F> (&acc)[Rows][Vectors], const RowBlock& block, const F* a, long stride,
                                        const F* panel, long depth) {
  if (!block.places) return multiply_add(acc, a, stride, panel, depth);
  for (long p = 0; p < block.active; p++) {
    const long k = block.places[p];
    const F *from = panel + k * Vectors * kLanes<F>, *values = a + k;
    asm("" : "+r"(from), "+r"(values));  // else the compiler adds up each address anew
    Vec<F> row[Vectors];
    PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) row[j] = load(from + j * kLanes<F>);
    PATHSGD_UNROLL for (int i = 0; i < Rows; i++) {
      const Vec<F> value = broadcast(values[i * stride]);
      PATHSGD_UNROLL for (int j = 0; j < Vectors; j++) acc[i][j] += value * row[j];
    }
  }
}

}  // namespace pathsgd
