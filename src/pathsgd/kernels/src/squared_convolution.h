// One image through a convolution whose kernel is squared elementwise, and back.
//
//   y[o, s] = sum_j W[o, j]^2 c[j, s]                j = (input, place in the kernel), s = place in the result
//   d[j, s] = sum_o W[o, j]^2 y-bar[o, s]            x-bar[p] = the sum of all d[j, s] whose c[j, s] is x[p]
//   kappa[o, j] = sum_s y-bar[o, s] c[j, s]
//
// c[j, s] is what place j of the kernel sees of x at place s, 0 beyond the border. W is read once on each way and its
// square is never written to memory: of small images a large kernel's numbers are what there is most of.
#pragma once
#include <cstdint>

namespace pathsgd {

template <class F>
struct SquaredConvolutionCall {
  int64_t inputs, outputs, height, width, rows, columns;  // of the image, and of the result
  int64_t kernel_height, kernel_width, stride_y, stride_x, top, left, dilation_y, dilation_x;  // top, left: padding
  int64_t threads;
  const F* w;      // (outputs, inputs, kernel_height, kernel_width)
  const F* x;      // (inputs, height, width)
  F* y;            // (outputs, rows, columns), or null: not wanted
  const F* y_bar;  // (outputs, rows, columns), or null if neither of the next two is wanted
  F* x_bar;        // (inputs, height, width), or null
  F* kappa;        // (outputs, inputs, kernel_height, kernel_width), or null
  double largest, least;  // results, with y: the range of W^2, the least without the squares of zeros
};

}  // namespace pathsgd
