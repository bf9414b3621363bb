// One step of a path optimiser over a list of parameters, each in one pass over memory.
//
//   u = w .* grad                       the whitened gradient, w = 1/sqrt(K)
//   moments   momentum   m <- mu m + f u
//             adam       x = f u (times w as well in the paper's form);  m <- m + (1 - b1)(x - m);  v <- b2 v + (1 - b2) x^2
//   d         gradient   u          momentum  m          nesterov  f u + mu m          adam  m / (sqrt(v) + eps)
//   apply     p <- keep * p + alpha * d .* w      (without w in the paper's form of adam)
//   advance   moments and apply in one pass, where nobody asks about d between them
//
// A parameter is a (rows, columns) matrix. Its w may be constant along either dimension: a stride of 0 there, and
// nothing is ever expanded. Column strides are 0 or 1. Where w is an outer product, it is constant along columns (stride
// 0) and multiplied by what `column_whitenings` has for each of them.
#pragma once
#include <cstdint>

namespace pathsgd {

enum Direction : int64_t { kGradient = 0, kMomentum = 1, kNesterov = 2, kAdam = 3 };

template <class F>
struct UpdateCall {
  int64_t count, threads;
  const int64_t *rows, *columns, *row_strides, *column_strides;  // of each parameter, and of its w
  F* const* parameters;
  const F* const* gradients;
  const F* const* whitenings;
  const F* const* column_whitenings;  // null, or for each parameter (columns) or null
  F* const* first;   // moments, or null where the rule has none
  F* const* second;
  int64_t direction, whitens;  // whitens: d is multiplied by w (not in the paper's form of adam)
  double factor, momentum, beta1, beta2, eps, keep, alpha;
  double* sums;  // (count): square_sums writes sum u^2 of each parameter here, direction_square sum d^2 of `part`
  int64_t part;  // direction writes d of this parameter, dense,
  F* to;         // here
};

}  // namespace pathsgd
