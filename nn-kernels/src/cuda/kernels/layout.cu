#include "common.cuh"

extern "C" __global__ void copy_block(const elem* __restrict__ x, long long x_offset, long long x_stride,
                                      elem* __restrict__ y, long long y_offset, long long y_stride, long long rows,
                                      long long cols) {
  NN_EACH(i, rows * cols) {
    long long row = i / cols, column = i % cols;
    y[row * y_stride + y_offset + column] = x[row * x_stride + x_offset + column];
  }
}
NN_KERNEL(copy_block)

// From and to places that change from call to call.
extern "C" __global__ void copy_moving_block(const elem* __restrict__ x, const long long* __restrict__ x_offset,
                                             long long x_stride, elem* __restrict__ y,
                                             const long long* __restrict__ y_offset, long long y_stride,
                                             long long rows, long long cols) {
  long long from = *x_offset, to = *y_offset;
  NN_EACH(i, rows * cols) {
    long long row = i / cols, column = i % cols;
    y[row * y_stride + to + column] = x[row * x_stride + from + column];
  }
}
NN_KERNEL(copy_moving_block)

extern "C" __global__ void broadcast_rows(const elem* __restrict__ x, elem* __restrict__ y, long long rows,
                                          long long cols) {
  NN_EACH(i, rows * cols) y[i] = x[i % cols];
}
NN_KERNEL(broadcast_rows)

// The result's axes: how long each is, and how far its neighbours are apart in the input. Only the last `rank` are
// used.
struct Axes {
  long long len[6], stride[6];
};

// With places in a sample of type I.
template <class I>
__device__ __forceinline__ void permute_by(const Axes& axes, int rank, const elem* x, elem* y, long long samples,
                                           long long sample) {
  NN_EACH(i, samples * sample) {
    const elem* from = x + i / sample * sample;
    I rest = static_cast<I>(i % sample);
    long long at = 0;
    for (int k = 5; k >= 6 - rank; k--) {
      I len = static_cast<I>(axes.len[k]), next = rest / len;
      at += (rest - next * len) * axes.stride[k];
      rest = next;
    }
    y[i] = from[at];
  }
}

extern "C" __global__ void permute(Axes axes, int rank, const elem* __restrict__ x, elem* __restrict__ y,
                                   long long samples, long long sample) {
  // Divisions of 32 bits are several times as fast.
  if (sample <= 0xffffffffll) permute_by<unsigned>(axes, rank, x, y, samples, sample);
  else permute_by<unsigned long long>(axes, rank, x, y, samples, sample);
}
NN_KERNEL(permute)

// The sine and the cosine of position·theta^(−2j/dim).
struct Turn {
  double sine, cosine;
};
__device__ __forceinline__ Turn turn(double theta, long long position, long long j, long long dim) {
  Turn t;
  sincos(position * pow(theta, -2.0 * j / dim), &t.sine, &t.cosine);
  return t;
}

// Without a position the first token's is 0.
extern "C" __global__ void sinusoids(double theta, const long long* __restrict__ position, elem* __restrict__ y, long long rows,
                                     long long dim) {
  long long first_position = position ? *position : 0;
  NN_EACH(i, rows * (dim / 2)) {
    long long row = i / (dim / 2), j = i % (dim / 2);
    Turn t = turn(theta, first_position + row, j, dim);
    y[row * dim + 2 * j] = real(t.sine);
    y[row * dim + 2 * j + 1] = real(t.cosine);
  }
}
NN_KERNEL(sinusoids)

// A thread takes a pair, or a value that stays, in all heads of a token: an angle is computed once for all of them.
// Without a position the first token's is 0.
extern "C" __global__ void rope(double theta, int inverse, int interleaved, const elem* __restrict__ x,
                                elem* __restrict__ y, long long rows, long long seq,
                                const long long* __restrict__ position, long long heads, long long dim,
                                long long rotary) {
  long long offset = position ? *position : 0;
  long long pairs = rotary / 2, slots = dim - pairs;
  NN_EACH(i, rows * slots) {
    long long row = i / slots, slot = i % slots, token = row * heads * dim;
    if (slot >= pairs) {
      for (long long head = 0; head < heads; head++) {
        long long at = token + head * dim + slot + pairs;
        y[at] = x[at];
      }
      continue;
    }
    Turn t = turn(theta, offset + row % seq, slot, rotary);
    real cosine = real(t.cosine), sine = real(inverse ? -t.sine : t.sine);
    for (long long head = 0; head < heads; head++) {
      long long at = token + head * dim + (interleaved ? 2 * slot : slot), other = at + (interleaved ? 1 : pairs);
      real a = x[at], b = x[other];
      y[at] = a * cosine - b * sine;
      y[other] = b * cosine + a * sine;
    }
  }
}
NN_KERNEL(rope)
