// Work shared out to threads through a function that the loader hands over (see threads.cpp), so that the kernels
// themselves depend on no thread library. Without that function, or for one thread, work is done where it is called.
#pragma once
#include <atomic>
#include <new>
#include <type_traits>

#include "simd/vector.h"

namespace pathsgd {

typedef void (*ThreadBody)(void* context, int thread, int threads);
typedef void (*ThreadRunner)(int threads, ThreadBody body, void* context);
extern ThreadRunner thread_runner;

constexpr int64_t kWorthAThread = 1 << 16;  // entries to pass over; sharing fewer costs more than it saves

// Calls body(thread, threads) on each of at most `wanted` threads. Fewer may arrive than were asked for.
template <class Body>
void on_threads(long wanted, Body&& body) {
  struct Work {
    std::remove_reference_t<Body>& body;
    std::atomic<bool> out_of_memory{false};
  } work{body};
  const ThreadBody call = [](void* context, int thread, int threads) {
    auto& shared = *static_cast<Work*>(context);
    const FlushDenormals guard;
    try {
      shared.body(thread, threads);
    } catch (const std::bad_alloc&) {  // must not leave a thread that is not ours: that would end the process
      shared.out_of_memory = true;
    }
  };
  if (wanted > 1 && thread_runner) thread_runner(static_cast<int>(wanted), call, &work);
  else call(&work, 0, 1);
  if (work.out_of_memory) throw std::bad_alloc();
}

}  // namespace pathsgd
