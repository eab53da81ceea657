#include "common.cuh"

// As in `pool.rs`: heights before widths.
struct Pool {
  long long planes, input[2], output[2], kernel[2], stride[2], padding[2];
};

// The part of window i along an axis that lies in the image.
struct Range {
  long long from, to;
};
__device__ __forceinline__ Range window(const Pool& s, int axis, long long i) {
  long long from = i * s.stride[axis] - s.padding[axis], to = min(from + s.kernel[axis], s.input[axis]);
  return {min(max(from, 0ll), max(to, 0ll)), max(to, 0ll)};
}

// The outputs along an axis whose windows reach cell i.
__device__ __forceinline__ Range reached(const Pool& s, int axis, long long i) {
  long long at = i + s.padding[axis], first = at - s.kernel[axis] + 1;
  // A stride of 0 is one of a single output, or of outputs that all see the same.
  if (s.stride[axis] == 0) return {0, first <= 0 ? s.output[axis] : 0};
  long long from = first <= 0 ? 0 : (first + s.stride[axis] - 1) / s.stride[axis];
  return {from, min(at / s.stride[axis] + 1, s.output[axis])};
}

extern "C" __global__ void max_pool(Pool s, const elem* __restrict__ x, elem* __restrict__ y,
                                    unsigned* __restrict__ argmax) {
  long long outputs = s.output[0] * s.output[1], w = s.input[1];
  NN_EACH(i, s.planes * outputs) {
    const elem* plane = x + i / outputs * s.input[0] * w;
    Range rows = window(s, 0, i % outputs / s.output[1]), cols = window(s, 1, i % s.output[1]);
    real best = real(-nn::infinity());
    long long at = rows.from * w + cols.from;
    for (long long r = rows.from; r < rows.to; r++)
      for (long long c = cols.from; c < cols.to; c++) {
        real v = plane[r * w + c];
        // A NaN wins too, and nothing wins against it.
        if (v > best || (isnan(v) && !isnan(best))) {
          best = v;
          at = r * w + c;
        }
      }
    y[i] = best;
    if (argmax) argmax[i] = static_cast<unsigned>(at);
  }
}
NN_KERNEL(max_pool)

// Each cell gathers from the windows that it is the maximum of, in their order.
extern "C" __global__ void max_pool_vjp(Pool s, const unsigned* __restrict__ argmax, const elem* __restrict__ dy,
                                        elem* __restrict__ dx) {
  long long inputs = s.input[0] * s.input[1], outputs = s.output[0] * s.output[1];
  NN_EACH(i, s.planes * inputs) {
    long long cell = i % inputs, plane = i / inputs * outputs;
    Range rows = reached(s, 0, cell / s.input[1]), cols = reached(s, 1, cell % s.input[1]);
    real sum = real(0);
    for (long long r = rows.from; r < rows.to; r++)
      for (long long c = cols.from; c < cols.to; c++) {
        long long o = plane + r * s.output[1] + c;
        if (argmax[o] == cell) sum += dy[o];
      }
    dx[i] = sum;
  }
}
NN_KERNEL(max_pool_vjp)

extern "C" __global__ void avg_pool(Pool s, double share, const elem* __restrict__ x, elem* __restrict__ y) {
  long long outputs = s.output[0] * s.output[1], w = s.input[1];
  NN_EACH(i, s.planes * outputs) {
    const elem* plane = x + i / outputs * s.input[0] * w;
    Range rows = window(s, 0, i % outputs / s.output[1]), cols = window(s, 1, i % s.output[1]);
    double sum = 0;
    for (long long r = rows.from; r < rows.to; r++)
      for (long long c = cols.from; c < cols.to; c++) sum += plane[r * w + c];
    y[i] = real(sum * share);
  }
}
NN_KERNEL(avg_pool)

extern "C" __global__ void avg_pool_vjp(Pool s, double share, const elem* __restrict__ dy, elem* __restrict__ dx) {
  long long inputs = s.input[0] * s.input[1], outputs = s.output[0] * s.output[1];
  NN_EACH(i, s.planes * inputs) {
    long long cell = i % inputs, plane = i / inputs * outputs;
    Range rows = reached(s, 0, cell / s.input[1]), cols = reached(s, 1, cell % s.input[1]);
    real sum = real(0);
    for (long long r = rows.from; r < rows.to; r++)
      for (long long c = cols.from; c < cols.to; c++) sum += dy[plane + r * s.output[1] + c] * real(share);
    dx[i] = sum;
  }
}
NN_KERNEL(avg_pool_vjp)
