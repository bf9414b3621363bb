// w = 1/sqrt(K) of many parameters: min(largest, sqrt(scale) a_i b_j / sqrt(kappa_ij)), and 0 where kappa is 0.
//
// A parameter is a (rows, columns) matrix; a_i and b_j are products of what its nodes say (`out_side`, `into_side`):
//
//   a_i = out_side[row_out[i]] into_side[row_into[i]]      b_j = the same of column_out, column_into at j / repeat
//
// kappa has an entry for each weight (kMatrix), or is the product r_i c_j of two vectors (kOuter), either of which may
// be missing. Then so is w, and its two factors are written: as large as one another, so that both fit.
//
// Where a job has a log_size, w is multiplied by one number so that the mean of log w is that: the mean of w in double,
// before what is written leaves the range of F (above it is the largest number of F, below it 0).
#pragma once
#include <cstdint>

namespace pathsgd {

enum Form : int64_t { kMatrix = 0, kOuter = 1 };

template <class F>
struct WhitenJob {
  int64_t rows, columns, repeat, form;
  int64_t is_double;  // whether kappa is; else float
  const void *kappa, *column_kappa;  // matrix: (rows, columns); outer: r (rows) and c (columns), or null for ones
  const double* out_side;            // instead of that for all parameters, or null
  const int64_t *row_out, *row_into, *column_out, *column_into;  // node numbers, or null: factor 1
  F* to;          // matrix: (rows, columns); outer: (rows), or null if it would be constant
  F* to_columns;  // outer: (columns), or null if it would be constant
  double least;     // result: the least factor above zero, as a share of the largest; 0 where a product of two leaves F
  double log_size;  // NaN for none
  int64_t is_sized;  // result: whether it has that size; not so where some w is 0 or not finite
};

template <class F>
struct WhitenCall {
  int64_t count, threads;
  const double *out_side, *into_side;  // of every node, or null for ones
  double scale;
  WhitenJob<F>* jobs;
};

// What every node says to the edges that enter it and to those that leave it, from the path flow through it:
//
//   bounded = max(flow, least)      into = bounded^exponent      out = into * sqrt(flow / bounded), into where flow is 0
template <class F>
struct FlowSidesCall {
  int64_t count;
  const F *flow, *least;  // (count)
  F *out, *into;          // (count)
  double exponent;
};

}  // namespace pathsgd
