// Work shared out to threads through a function that the loader hands over (see threads.cpp), so that the kernels
// themselves depend on no thread library. Without that function, or for one thread, work is done where it is called.
#pragma once
#include <type_traits>

#include "simd.h"

namespace pathsgd {

typedef void (*ThreadBody)(void* context, int thread, int threads);
typedef void (*ThreadRunner)(int threads, ThreadBody body, void* context);
extern ThreadRunner thread_runner;

// Calls body(thread, threads) on each of at most `wanted` threads. Fewer may arrive than were asked for.
template <class Body>
void on_threads(long wanted, Body&& body) {
  const ThreadBody call = [](void* context, int thread, int threads) {
    const FlushDenormals guard;
    (*static_cast<std::remove_reference_t<Body>*>(context))(thread, threads);
  };
  if (wanted > 1 && thread_runner) return thread_runner(static_cast<int>(wanted), call, &body);
  call(&body, 0, 1);
}

}  // namespace pathsgd
