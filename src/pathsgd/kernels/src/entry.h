// How an operation becomes a function of the C interface. There is one for each type of numbers,
//
//   int pathsgd_<operation>_<type>(Call<type>*)          or, for two types, pathsgd_<operation>_<type>_<type>
//
// which returns a Result: nothing is thrown across the interface.
#pragma once
#include <new>

#include "simd/vector.h"

#define PATHSGD_EXPORT extern "C" __attribute__((visibility("default")))

namespace pathsgd {

enum Result { kDone, kNoMemory, kNoSuchClass };  // whatever went wrong, no result has been written

struct NoSuchClass {};  // thrown where a target is not one of the classes

template <class Body>
int result_of(Body&& body) {
  try {
    body();
    return kDone;
  } catch (const std::bad_alloc&) {
    return kNoMemory;
  } catch (const NoSuchClass&) {
    return kNoSuchClass;
  }
}

}  // namespace pathsgd

#define PATHSGD_ENTRY(operation, Call, F)                                        \
  PATHSGD_EXPORT int pathsgd_##operation##_##F(pathsgd::Call<F>* call) {         \
    return pathsgd::result_of([call] { pathsgd::operation(*call); });            \
  }
#define PATHSGD_ENTRY_2(operation, Call, A, B)                                   \
  PATHSGD_EXPORT int pathsgd_##operation##_##A##_##B(pathsgd::Call<A, B>* call) { \
    return pathsgd::result_of([call] { pathsgd::operation(*call); });            \
  }
#define PATHSGD_ENTRIES(operation, Call) \
  PATHSGD_ENTRY(operation, Call, float)  \
  PATHSGD_ENTRY(operation, Call, double)
