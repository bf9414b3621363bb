// Vectors of the widest kind this translation unit is compiled for, written with the compiler's vector
// extensions so that one source serves AVX-512, AVX2 and any other machine.
//
//   F        float or double
//   Vec<F>   kLanes<F> elements, loaded and stored without alignment demands
//   "part"   only the first `count` lanes exist in memory (the ragged end of a row)
#pragma once
#include <cstdint>
#include <cstring>
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#ifndef PATHSGD_VECTOR_BYTES  // a test build may ask for wider vectors than the machine has
#if defined(__AVX512F__)
#define PATHSGD_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define PATHSGD_VECTOR_BYTES 32
#else
#define PATHSGD_VECTOR_BYTES 16
#endif
#endif

#define PATHSGD_INLINE inline __attribute__((always_inline))
#define PATHSGD_NOINLINE __attribute__((noinline))
#define PATHSGD_UNROLL _Pragma("GCC unroll 16")

namespace pathsgd {

template <class F>
struct VecOf {
  typedef F type __attribute__((vector_size(PATHSGD_VECTOR_BYTES), aligned(alignof(F)), may_alias));
};
template <class F>
using Vec = typename VecOf<F>::type;
template <class F>
constexpr int kLanes = PATHSGD_VECTOR_BYTES / sizeof(F);

template <class F>
PATHSGD_INLINE Vec<F> zero() {
  return Vec<F>{};
}
template <class F>
PATHSGD_INLINE Vec<F> broadcast(F value) {
  return value - Vec<F>{};
}
template <class F>
PATHSGD_INLINE Vec<F> load(const F* from) {
  return *reinterpret_cast<const Vec<F>*>(from);
}
template <class F>
PATHSGD_INLINE void store(F* to, Vec<F> value) {
  *reinterpret_cast<Vec<F>*>(to) = value;
}

// A vector that is used twice and must not be read twice: compilers like to make it part of both instructions, and reads
// are what there are too few of.
template <class F>
PATHSGD_INLINE Vec<F> held(Vec<F> value) {
#if PATHSGD_VECTOR_BYTES == 64 && defined(__AVX512F__)
  asm("" : "+v"(value));
#elif PATHSGD_VECTOR_BYTES == 32 && defined(__AVX2__)
  asm("" : "+x"(value));
#endif
  return value;
}

// Copies fewer than 16 elements by powers of two: constant sizes become single moves, a variable memcpy a call.
template <class F>
PATHSGD_INLINE void copy_few(F* to, const F* from, long count) {
  if (kLanes<F> > 8 && (count & 8)) { std::memcpy(to, from, 8 * sizeof(F)); to += 8; from += 8; }
  if (kLanes<F> > 4 && (count & 4)) { std::memcpy(to, from, 4 * sizeof(F)); to += 4; from += 4; }
  if (kLanes<F> > 2 && (count & 2)) { std::memcpy(to, from, 2 * sizeof(F)); to += 2; from += 2; }
  if (count & 1) *to = *from;
}
template <class F>
PATHSGD_INLINE Vec<F> load_part(const F* from, long count) {
  if (count >= kLanes<F>) return load(from);
  F lanes[kLanes<F>] = {};
  if (count > 0) copy_few(lanes, from, count);
  return load(lanes);
}
template <class F>
PATHSGD_INLINE void store_part(F* to, Vec<F> value, long count) {
  if (count >= kLanes<F>) return store(to, value);
  F lanes[kLanes<F>];
  store(lanes, value);
  if (count > 0) copy_few(to, lanes, count);
}

// Both keep NaN, as torch's relu and its derivative do: only values known to be at or below zero are cut.
template <class F>
PATHSGD_INLINE Vec<F> relu(Vec<F> value) {
  return value < zero<F>() ? zero<F>() : value;
}
template <class F>
PATHSGD_INLINE Vec<F> where_active(Vec<F> activation, Vec<F> gradient) {
  return activation <= zero<F>() ? zero<F>() : gradient;
}

// Denormal numbers cost a hundred cycles each. They are flushed to zero while a guard lives, in its thread only; threads that
// are created meanwhile would flush them for ever, so none lives around on_threads.
class FlushDenormals {
 public:
#if defined(__SSE__)
  FlushDenormals() : before_(_mm_getcsr()) { _mm_setcsr(before_ | 0x8040u); }
  ~FlushDenormals() { _mm_setcsr(before_); }

 private:
  unsigned before_;
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(before_));
    asm volatile("msr fpcr, %0" ::"r"(before_ | (uint64_t{1} << 24)));
  }
  ~FlushDenormals() { asm volatile("msr fpcr, %0" ::"r"(before_)); }

 private:
  uint64_t before_;
#else
  FlushDenormals() {}
  ~FlushDenormals() {}
#endif
  FlushDenormals(const FlushDenormals&) = delete;
};

}  // namespace pathsgd
