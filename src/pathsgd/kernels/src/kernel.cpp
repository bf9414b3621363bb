// What the loader asks a kernel before it uses it.
#include "entry.h"
#include "threads.h"

namespace pathsgd {
ThreadRunner thread_runner = nullptr;
}

// Raised whenever a structure or function of the C interface changes.
PATHSGD_EXPORT int pathsgd_interface_version() { return 18; }

PATHSGD_EXPORT void pathsgd_set_thread_runner(pathsgd::ThreadRunner runner) { pathsgd::thread_runner = runner; }

// 0: nothing beyond the generic build, 1: AVX2 and FMA, 2: AVX-512 as well. Asks the processor and the system.
PATHSGD_EXPORT int pathsgd_processor_level() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma")) return 0;
  const bool wide = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") &&
                    __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl");
  return wide ? 2 : 1;
#else
  return 0;
#endif
}