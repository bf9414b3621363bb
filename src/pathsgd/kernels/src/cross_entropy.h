// Cross-entropy of a linear layer and its gradients, in one call:
//
//   l = h W^T + b      loss = sum_r weight_r (log sum_c e^l[r,c] - l[r, target_r])
//   d = weight_r (softmax(l) - onehot(target))      dh = d W      dW = d^T h      db = sum_r d
//
// weight_r is 0 for rows whose target is ignore_index, otherwise 1, or 1 over the number of such rows for the mean.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct CrossEntropyCall {
  int64_t rows, inputs, classes, threads;
  int64_t chunk;  // rows whose logits are in memory at a time
  int64_t ignore_index, mean;
  const F *h, *w, *bias;  // (rows, inputs), (classes, inputs), (classes) or null
  const int64_t* target;  // (rows)
  F *dh, *dw, *dbias;     // as h, w and bias; null: not wanted
  double loss;
};

}  // namespace pathsgd
