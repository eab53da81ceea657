// What becomes of the sums of a matrix product.
#pragma once
#include "unary.cuh"

enum Mode { STORE, ADD, PART };

// A call, for there are as many of it as a thread has outputs.
__device__ __noinline__ real activate(long long code, double a, double b, real x) { return apply({code, a, b}, x); }

// y = act(a·b + bias), y += a·b, or the part of a·b that is summed over one split of k, behind those of other splits.
struct Output {
  // Elements, or real parts.
  void* y;
  const elem* bias;
  Function act;
  long long cols;
  int mode;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    long long at = row * cols + column;
    elem* to = static_cast<elem*>(y);
    if (mode == ADD) to[at] += sum;
    else if (mode == PART) static_cast<real*>(y)[at] = sum;
    else {
      real x = bias ? sum + bias[column] : sum;
      to[at] = act.code == IDENTITY ? x : activate(act.code, act.a, act.b, x);
    }
  }
};

// Sizes of a product, as in `linear.rs`: strides of the left factor by row and k, of the right one by column and k.
struct Shape {
  long long rows, cols, depth, each, a_row, a_k, b_column, b_k;
};
