// The only piece with OpenMP in it, in a library of its own. It is compiled with OpenMP but not linked against a
// runtime: its symbols resolve to the one torch has already loaded, so that a process never holds two thread pools.
#include "threads.h"

#include "entry.h"

extern "C" int omp_get_thread_num();
extern "C" int omp_get_num_threads();

PATHSGD_EXPORT void pathsgd_run_threads(int threads, pathsgd::ThreadBody body, void* context) {
#pragma omp parallel num_threads(threads)
  body(context, omp_get_thread_num(), omp_get_num_threads());
}
