#include "gemm.cuh"

// As in `conv.rs`: heights before widths, and channels of one group.
struct Conv {
  long long batch, groups, ic, oc, input[2], output[2], kernel[2], stride[2], padding[2], dilation[2];

  __device__ __forceinline__ long long inputs() const { return input[0] * input[1]; }
  __device__ __forceinline__ long long outputs() const { return output[0] * output[1]; }
  __device__ __forceinline__ long long taps() const { return kernel[0] * kernel[1]; }
  // The image's row or column that a tap sees from an output, and whether it is in the image.
  __device__ __forceinline__ bool seen(int axis, long long out, long long tap, long long* in) const {
    *in = out * stride[axis] + tap * dilation[axis] - padding[axis];
    return *in >= 0 && *in < input[axis];
  }
  // The output that sees an image's row or column through a tap, if there is one.
  __device__ __forceinline__ bool seeing(int axis, long long in, long long tap, long long* out) const {
    long long at = in + padding[axis] - tap * dilation[axis];
    *out = at / stride[axis];
    return at >= 0 && at % stride[axis] == 0 && *out < output[axis];
  }
};

// x as the right factor of y: columns are outputs of the whole batch, and k goes through channels and taps.
struct Patches {
  static constexpr bool ALONG_K = false;
  struct Place {
    const real* image;
    int row, column;
  };
  const Conv& s;
  const real* x;
  long long group;
  __device__ __forceinline__ Place place(long long i) const {
    long long sample = i / s.outputs(), pixel = i % s.outputs();
    return {x + (sample * s.groups + group) * s.ic * s.inputs(), static_cast<int>(pixel / s.output[1]),
            static_cast<int>(pixel % s.output[1])};
  }
  __device__ __forceinline__ real get(const Place& p, long long k) const {
    long long channel = k / s.taps(), tap = k % s.taps(), row, column;
    bool inside = s.seen(0, p.row, tap / s.kernel[1], &row);
    inside = s.seen(1, p.column, tap % s.kernel[1], &column) && inside;
    return inside ? p.image[channel * s.inputs() + row * s.input[1] + column] : real(0);
  }
};

// dy as the right factor of dx: columns are cells of the whole batch's images, and k goes through channels and taps.
struct Spread {
  static constexpr bool ALONG_K = false;
  struct Place {
    const real* image;
    int row, column;
  };
  const Conv& s;
  const real* dy;
  long long group;
  __device__ __forceinline__ Place place(long long i) const {
    long long sample = i / s.inputs(), cell = i % s.inputs();
    return {dy + (sample * s.groups + group) * s.oc * s.outputs(), static_cast<int>(cell / s.input[1]),
            static_cast<int>(cell % s.input[1])};
  }
  __device__ __forceinline__ real get(const Place& p, long long k) const {
    long long channel = k / s.taps(), tap = k % s.taps(), row, column;
    bool inside = s.seeing(0, p.row, tap / s.kernel[1], &row);
    inside = s.seeing(1, p.column, tap % s.kernel[1], &column) && inside;
    return inside ? p.image[channel * s.outputs() + row * s.output[1] + column] : real(0);
  }
};

// The weights as the left factor of dx: rows are channels of x, and k goes through channels of y and taps.
struct Turned {
  static constexpr bool ALONG_K = true;
  using Place = const real*;
  const Conv& s;
  const real* w;
  __device__ __forceinline__ Place place(long long i) const { return w + i * s.taps(); }
  __device__ __forceinline__ real get(Place place, long long k) const {
    return place[k / s.taps() * s.ic * s.taps() + k % s.taps()];
  }
};

// dy as the left factor of dw: rows are channels of y, and k goes through outputs of the whole batch.
struct Gradients {
  static constexpr bool ALONG_K = true;
  using Place = const real*;
  const Conv& s;
  const real* dy;
  long long group;
  __device__ __forceinline__ Place place(long long i) const { return dy + (group * s.oc + i) * s.outputs(); }
  __device__ __forceinline__ real get(Place place, long long k) const {
    return place[k / s.outputs() * s.groups * s.oc * s.outputs() + k % s.outputs()];
  }
};

// x as the right factor of dw: columns are channels and taps, and k goes through outputs of the whole batch.
struct Seen {
  static constexpr bool ALONG_K = true;
  struct Place {
    const real* channel;
    int row, column;
  };
  const Conv& s;
  const real* x;
  long long group;
  __device__ __forceinline__ Place place(long long i) const {
    long long channel = i / s.taps(), tap = i % s.taps();
    return {x + (group * s.ic + channel) * s.inputs(), static_cast<int>(tap / s.kernel[1]),
            static_cast<int>(tap % s.kernel[1])};
  }
  __device__ __forceinline__ real get(const Place& p, long long k) const {
    long long sample = k / s.outputs(), pixel = k % s.outputs(), row, column;
    bool inside = s.seen(0, pixel / s.output[1], p.row, &row);
    inside = s.seen(1, pixel % s.output[1], p.column, &column) && inside;
    return inside ? p.channel[sample * s.groups * s.ic * s.inputs() + row * s.input[1] + column] : real(0);
  }
};

// An image's channels as rows of a product, and its pixels, of the whole batch, as columns.
struct Images {
  real* y;
  const real* bias;
  long long first_channel, channels, pixels;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    long long channel = first_channel + row;
    y[(column / pixels * channels + channel) * pixels + column % pixels] = bias ? sum + bias[channel] : sum;
  }
};

struct Matrix {
  real* y;
  long long cols;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    y[row * cols + column] = sum;
  }
};

template <class T> __device__ __forceinline__ void forward(const Conv& s, const real* x, const real* w, const real* b, real* y) {
  long long group = blockIdx.y, depth = s.ic * s.taps(), cols = s.batch * s.outputs();
  long long tiles = (cols + T::COLS - 1) / T::COLS;
  product<T>(Strided<true>{w + group * s.oc * depth, depth, 1}, Patches{s, x, group},
             Images{y, b, group * s.oc, s.groups * s.oc, s.outputs()}, s.oc, cols, 0, depth, blockIdx.x / tiles,
             blockIdx.x % tiles);
}

template <class T> __device__ __forceinline__ void backward(const Conv& s, const real* w, const real* dy, real* dx) {
  long long group = blockIdx.y, depth = s.oc * s.taps(), cols = s.batch * s.inputs();
  long long tiles = (cols + T::COLS - 1) / T::COLS;
  product<T>(Turned{s, w + group * s.oc * s.ic * s.taps()}, Spread{s, dy, group},
             Images{dx, nullptr, group * s.ic, s.groups * s.ic, s.inputs()}, s.ic, cols, 0, depth, blockIdx.x / tiles,
             blockIdx.x % tiles);
}

// parts[split, group, channel of y, channel of x and tap].
template <class T>
__device__ __forceinline__ void weights(const Conv& s, const real* x, const real* dy, real* parts, long long each) {
  long long group = blockIdx.y, split = blockIdx.z, cols = s.ic * s.taps(), depth = s.batch * s.outputs();
  long long tiles = (cols + T::COLS - 1) / T::COLS;
  product<T>(Gradients{s, dy, group}, Seen{s, x, group}, Matrix{parts + (split * s.groups + group) * s.oc * cols, cols},
             s.oc, cols, split * each, min(depth, (split + 1) * each), blockIdx.x / tiles, blockIdx.x % tiles);
}

#define NN_CONV(T, conv, conv_dx, conv_dw)                                                                         \
  extern "C" __global__ void __launch_bounds__(T::THREADS)                                                         \
      conv(Conv s, const real* __restrict__ x, const real* __restrict__ w, const real* __restrict__ b,             \
           real* __restrict__ y) {                                                                                 \
    forward<T>(s, x, w, b, y);                                                                                     \
  }                                                                                                                \
  NN_KERNEL(conv)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(T::THREADS)                                                         \
      conv_dx(Conv s, const real* __restrict__ w, const real* __restrict__ dy, real* __restrict__ dx) {            \
    backward<T>(s, w, dy, dx);                                                                                     \
  }                                                                                                                \
  NN_KERNEL(conv_dx)                                                                                               \
  extern "C" __global__ void __launch_bounds__(T::THREADS)                                                         \
      conv_dw(Conv s, const real* __restrict__ x, const real* __restrict__ dy, real* __restrict__ parts,           \
              long long each) {                                                                                    \
    weights<T>(s, x, dy, parts, each);                                                                             \
  }                                                                                                                \
  NN_KERNEL(conv_dw)
NN_CONV(Large, large, large_dx, large_dw)
NN_CONV(Small, small, small_dx, small_dw)

// A thread an output.
extern "C" __global__ void direct(Conv s, const real* __restrict__ x, const real* __restrict__ w,
                                  const real* __restrict__ b, real* __restrict__ y) {
  NN_EACH(i, s.batch * s.groups * s.oc * s.outputs()) {
    long long pixel = i % s.outputs(), channel = i / s.outputs() % (s.groups * s.oc);
    long long group = channel / s.oc, sample = i / s.outputs() / (s.groups * s.oc), row, column;
    const real* image = x + (sample * s.groups + group) * s.ic * s.inputs();
    const real* weight = w + channel * s.ic * s.taps();
    real all = real(0);
    for (long long c = 0; c < s.ic; c++)
      for (long long r = 0; r < s.kernel[0]; r++) {
        if (!s.seen(0, pixel / s.output[1], r, &row)) continue;
        real sum = real(0);
        for (long long k = 0; k < s.kernel[1]; k++)
          if (s.seen(1, pixel % s.output[1], k, &column))
            sum = fma(image[c * s.inputs() + row * s.input[1] + column], weight[c * s.taps() + r * s.kernel[1] + k], sum);
        all += sum;
      }
    y[i] = b ? all + b[channel] : all;
  }
}
NN_KERNEL(direct)

// A thread a cell of x.
extern "C" __global__ void direct_dx(Conv s, const real* __restrict__ w, const real* __restrict__ dy,
                                     real* __restrict__ dx) {
  NN_EACH(i, s.batch * s.groups * s.ic * s.inputs()) {
    long long cell = i % s.inputs(), channel = i / s.inputs() % (s.groups * s.ic);
    long long group = channel / s.ic, sample = i / s.inputs() / (s.groups * s.ic), row, column;
    const real* image = dy + (sample * s.groups + group) * s.oc * s.outputs();
    const real* weight = w + (group * s.oc * s.ic + channel % s.ic) * s.taps();
    real all = real(0);
    for (long long c = 0; c < s.oc; c++)
      for (long long r = 0; r < s.kernel[0]; r++) {
        if (!s.seeing(0, cell / s.input[1], r, &row)) continue;
        real sum = real(0);
        for (long long k = 0; k < s.kernel[1]; k++)
          if (s.seeing(1, cell % s.input[1], k, &column))
            sum = fma(image[c * s.outputs() + row * s.output[1] + column],
                      weight[c * s.ic * s.taps() + r * s.kernel[1] + k], sum);
        all += sum;
      }
    dx[i] = all;
  }
}
NN_KERNEL(direct_dx)

// A block a weight, or several one after the other.
extern "C" __global__ void direct_dw(Conv s, const real* __restrict__ x, const real* __restrict__ dy,
                                     real* __restrict__ dw) {
  for (long long i = blockIdx.x; i < s.groups * s.oc * s.ic * s.taps(); i += gridDim.x) {
    long long tap = i % s.taps(), c = i / s.taps() % s.ic, channel = i / s.taps() / s.ic, group = channel / s.oc;
    double sum = 0;
    for (long long k = threadIdx.x; k < s.batch * s.outputs(); k += blockDim.x) {
      long long sample = k / s.outputs(), pixel = k % s.outputs(), row, column;
      if (!s.seen(0, pixel / s.output[1], tap / s.kernel[1], &row)) continue;
      if (!s.seen(1, pixel % s.output[1], tap % s.kernel[1], &column)) continue;
      sum += double(x[((sample * s.groups + group) * s.ic + c) * s.inputs() + row * s.input[1] + column]) *
             dy[(sample * s.groups * s.oc + channel) * s.outputs() + pixel];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[i] += real(sum);
  }
}
NN_KERNEL(direct_dw)
