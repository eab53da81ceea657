#include "gemm.cuh"

// As in `conv.rs`: heights before widths, and channels of one group.
struct Shape {
  long long batch, groups, ic, oc, input[2], output[2], kernel[2], stride[2], padding[2], dilation[2];
};

// The same in 32 bits, for what is divided by: `conv.rs` sees that a sum's terms and a product's columns fit, and the
// values of one image.
struct Conv {
  int groups, ic, oc, input[2], output[2], kernel[2], stride[2], padding[2], dilation[2], inputs, outputs, taps;

  __device__ __forceinline__ explicit Conv(const Shape& s) {
    groups = s.groups, ic = s.ic, oc = s.oc;
    for (int axis = 0; axis < 2; axis++) {
      input[axis] = s.input[axis], output[axis] = s.output[axis], kernel[axis] = s.kernel[axis];
      stride[axis] = s.stride[axis], padding[axis] = s.padding[axis], dilation[axis] = s.dilation[axis];
    }
    inputs = input[0] * input[1], outputs = output[0] * output[1], taps = kernel[0] * kernel[1];
  }
  // The first value of an image's group of channels.
  __device__ __forceinline__ const elem* of_x(const elem* x, int sample, int group) const {
    return x + (static_cast<long long>(sample) * groups + group) * ic * inputs;
  }
  __device__ __forceinline__ const elem* of_y(const elem* y, int sample, int group) const {
    return y + (static_cast<long long>(sample) * groups + group) * oc * outputs;
  }
  // The image's row or column that a tap sees from an output, and whether it is in the image.
  __device__ __forceinline__ bool seen(int axis, int out, int tap, int* in) const {
    *in = out * stride[axis] + tap * dilation[axis] - padding[axis];
    return *in >= 0 && *in < input[axis];
  }
  // The output that sees an image's row or column through a tap, if there is one.
  __device__ __forceinline__ bool seeing(int axis, int in, int tap, int* out) const {
    int at = in + padding[axis] - tap * dilation[axis];
    *out = at / stride[axis];
    return at >= 0 && *out * stride[axis] == at && *out < output[axis];
  }
};

// Where a column of a product is in an image, or a tap in a kernel.
struct Spot {
  const elem* from;
  int row, column;
};

// x as the right factor of y: columns are outputs of the whole batch, and k goes through channels and taps.
struct Patches {
  static constexpr bool ALONG_K = false;
  using Place = Spot;
  const Conv& s;
  const elem* x;
  int group;
  __device__ __forceinline__ Place place(long long i) const {
    int sample = static_cast<int>(i) / s.outputs, pixel = static_cast<int>(i) % s.outputs;
    return {s.of_x(x, sample, group), pixel / s.output[1], pixel % s.output[1]};
  }
  __device__ __forceinline__ real get(const Place& p, long long k) const {
    int channel = static_cast<int>(k) / s.taps, tap = static_cast<int>(k) % s.taps, row, column;
    bool inside = s.seen(0, p.row, tap / s.kernel[1], &row);
    inside = s.seen(1, p.column, tap % s.kernel[1], &column) && inside;
    return inside ? p.from[channel * s.inputs + row * s.input[1] + column] : real(0);
  }
};

// dy as the right factor of dx: columns are cells of the whole batch's images, and k goes through channels and taps.
struct Spread {
  static constexpr bool ALONG_K = false;
  using Place = Spot;
  const Conv& s;
  const elem* dy;
  int group;
  __device__ __forceinline__ Place place(long long i) const {
    int sample = static_cast<int>(i) / s.inputs, cell = static_cast<int>(i) % s.inputs;
    return {s.of_y(dy, sample, group), cell / s.input[1], cell % s.input[1]};
  }
  __device__ __forceinline__ real get(const Place& p, long long k) const {
    int channel = static_cast<int>(k) / s.taps, tap = static_cast<int>(k) % s.taps, row, column;
    bool inside = s.seeing(0, p.row, tap / s.kernel[1], &row);
    inside = s.seeing(1, p.column, tap % s.kernel[1], &column) && inside;
    return inside ? p.from[channel * s.outputs + row * s.output[1] + column] : real(0);
  }
};

// The weights as the left factor of dx: rows are channels of x, and k goes through channels of y and taps.
struct Turned {
  static constexpr bool ALONG_K = true;
  using Place = const elem*;
  const Conv& s;
  const elem* w;
  __device__ __forceinline__ Place place(long long i) const { return w + i * s.taps; }
  __device__ __forceinline__ real get(Place place, long long k) const {
    int channel = static_cast<int>(k) / s.taps, tap = static_cast<int>(k) % s.taps;
    return place[static_cast<long long>(channel) * s.ic * s.taps + tap];
  }
};

// dy as the left factor of dw: rows are channels of y, and k goes through outputs of the whole batch.
struct Gradients {
  static constexpr bool ALONG_K = true;
  using Place = const elem*;
  const Conv& s;
  const elem* dy;
  int group;
  __device__ __forceinline__ Place place(long long i) const { return s.of_y(dy, 0, group) + i * s.outputs; }
  __device__ __forceinline__ real get(Place place, long long k) const {
    int sample = static_cast<int>(k) / s.outputs, pixel = static_cast<int>(k) % s.outputs;
    return s.of_y(place, sample, 0)[pixel];
  }
};

// x as the right factor of dw: columns are channels and taps, and k goes through outputs of the whole batch.
struct Seen {
  static constexpr bool ALONG_K = true;
  using Place = Spot;
  const Conv& s;
  const elem* x;
  int group;
  __device__ __forceinline__ Place place(long long i) const {
    int channel = static_cast<int>(i) / s.taps, tap = static_cast<int>(i) % s.taps;
    return {s.of_x(x, 0, group) + channel * s.inputs, tap / s.kernel[1], tap % s.kernel[1]};
  }
  __device__ __forceinline__ real get(const Place& p, long long k) const {
    int sample = static_cast<int>(k) / s.outputs, pixel = static_cast<int>(k) % s.outputs, row, column;
    bool inside = s.seen(0, pixel / s.output[1], p.row, &row);
    inside = s.seen(1, pixel % s.output[1], p.column, &column) && inside;
    return inside ? s.of_x(p.from, sample, 0)[row * s.input[1] + column] : real(0);
  }
};

// An image's channels as rows of a product, and its pixels, of the whole batch, as columns.
struct Images {
  elem* y;
  const elem* bias;
  int first_channel, channels, pixels;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    int channel = first_channel + static_cast<int>(row), sample = static_cast<int>(column) / pixels;
    elem* image = y + (static_cast<long long>(sample) * channels + channel) * pixels;
    image[static_cast<int>(column) % pixels] = bias ? sum + bias[channel] : sum;
  }
};

struct Matrix {
  real* y;
  long long cols;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    y[row * cols + column] = sum;
  }
};

template <class T>
__device__ __forceinline__ void forward(const Shape& shape, const elem* x, const elem* w, const elem* b, elem* y) {
  const Conv s(shape);
  int group = blockIdx.y, depth = s.ic * s.taps;
  long long cols = shape.batch * s.outputs, tiles = (cols + T::COLS - 1) / T::COLS;
  product<T>(Strided<true>{w + static_cast<long long>(group) * s.oc * depth, depth, 1}, Patches{s, x, group},
             Images{y, b, group * s.oc, s.groups * s.oc, s.outputs}, s.oc, cols, 0, depth, blockIdx.x / tiles,
             blockIdx.x % tiles);
}

template <class T>
__device__ __forceinline__ void backward(const Shape& shape, const elem* w, const elem* dy, elem* dx) {
  const Conv s(shape);
  int group = blockIdx.y, depth = s.oc * s.taps;
  long long cols = shape.batch * s.inputs, tiles = (cols + T::COLS - 1) / T::COLS;
  product<T>(Turned{s, w + static_cast<long long>(group) * depth * s.ic}, Spread{s, dy, group},
             Images{dx, nullptr, group * s.ic, s.groups * s.ic, s.inputs}, s.ic, cols, 0, depth, blockIdx.x / tiles,
             blockIdx.x % tiles);
}

// parts[split, group, channel of y, channel of x and tap].
template <class T>
__device__ __forceinline__ void weights(const Shape& shape, const elem* x, const elem* dy, real* parts,
                                        long long each) {
  const Conv s(shape);
  int group = blockIdx.y;
  long long split = blockIdx.z, cols = s.ic * s.taps, depth = shape.batch * s.outputs;
  long long tiles = (cols + T::COLS - 1) / T::COLS;
  product<T>(Gradients{s, dy, group}, Seen{s, x, group}, Matrix{parts + (split * s.groups + group) * s.oc * cols, cols},
             s.oc, cols, split * each, min(depth, (split + 1) * each), blockIdx.x / tiles, blockIdx.x % tiles);
}

#define NN_CONV(T, conv, conv_dx, conv_dw)                                                                         \
  extern "C" __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)                                              \
      conv(Shape s, const elem* __restrict__ x, const elem* __restrict__ w, const elem* __restrict__ b,             \
           elem* __restrict__ y) {                                                                                 \
    forward<T>(s, x, w, b, y);                                                                                     \
  }                                                                                                                \
  NN_KERNEL(conv)                                                                                                  \
  extern "C" __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)                                              \
      conv_dx(Shape s, const elem* __restrict__ w, const elem* __restrict__ dy, elem* __restrict__ dx) {            \
    backward<T>(s, w, dy, dx);                                                                                     \
  }                                                                                                                \
  NN_KERNEL(conv_dx)                                                                                               \
  extern "C" __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)                                              \
      conv_dw(Shape s, const elem* __restrict__ x, const elem* __restrict__ dy, real* __restrict__ parts,           \
              long long each) {                                                                                    \
    weights<T>(s, x, dy, parts, each);                                                                             \
  }                                                                                                                \
  NN_KERNEL(conv_dw)
NN_CONV(Large, large, large_dx, large_dw)
NN_CONV(Small, small, small_dx, small_dw)

// y += b of its channel; a block has one channel of one image.
extern "C" __global__ void add_bias(const elem* __restrict__ b, elem* __restrict__ y, long long images,
                                    long long channels, long long area) {
  for (long long image = blockIdx.x; image < images; image += gridDim.x) {
    real bias = b[image % channels];
    for (long long i = threadIdx.x; i < area; i += blockDim.x) y[image * area + i] += bias;
  }
}
NN_KERNEL(add_bias)

// A thread an output.
extern "C" __global__ void direct(Shape shape, const elem* __restrict__ x, const elem* __restrict__ w,
                                  const elem* __restrict__ b, elem* __restrict__ y) {
  const Conv s(shape);
  NN_EACH(i, shape.batch * s.groups * s.oc * s.outputs) {
    long long image = i / s.outputs;
    int pixel = i % s.outputs, channel = image % (s.groups * s.oc), sample = image / (s.groups * s.oc), row, column;
    const elem* from = s.of_x(x, sample, channel / s.oc);
    const elem* weight = w + static_cast<long long>(channel) * s.ic * s.taps;
    real all = real(0);
    for (int c = 0; c < s.ic; c++)
      for (int r = 0; r < s.kernel[0]; r++) {
        if (!s.seen(0, pixel / s.output[1], r, &row)) continue;
        real sum = real(0);
        for (int k = 0; k < s.kernel[1]; k++)
          if (s.seen(1, pixel % s.output[1], k, &column))
            sum = fma(real(from[c * s.inputs + row * s.input[1] + column]),
                      real(weight[c * s.taps + r * s.kernel[1] + k]), sum);
        all += sum;
      }
    y[i] = b ? all + b[channel] : all;
  }
}
NN_KERNEL(direct)

// A thread a cell of x.
extern "C" __global__ void direct_dx(Shape shape, const elem* __restrict__ w, const elem* __restrict__ dy,
                                     elem* __restrict__ dx) {
  const Conv s(shape);
  NN_EACH(i, shape.batch * s.groups * s.ic * s.inputs) {
    long long image = i / s.inputs;
    int cell = i % s.inputs, channel = image % (s.groups * s.ic), sample = image / (s.groups * s.ic), row, column;
    int group = channel / s.ic;
    const elem* from = s.of_y(dy, sample, group);
    const elem* weight = w + (static_cast<long long>(group) * s.oc * s.ic + channel % s.ic) * s.taps;
    real all = real(0);
    for (int c = 0; c < s.oc; c++)
      for (int r = 0; r < s.kernel[0]; r++) {
        if (!s.seeing(0, cell / s.input[1], r, &row)) continue;
        real sum = real(0);
        for (int k = 0; k < s.kernel[1]; k++)
          if (s.seeing(1, cell % s.input[1], k, &column))
            sum = fma(real(from[c * s.outputs + row * s.output[1] + column]),
                      real(weight[static_cast<long long>(c) * s.ic * s.taps + r * s.kernel[1] + k]), sum);
        all += sum;
      }
    dx[i] = all;
  }
}
NN_KERNEL(direct_dx)

// A block a weight, or several one after the other.
extern "C" __global__ void direct_dw(Shape shape, const elem* __restrict__ x, const elem* __restrict__ dy,
                                     elem* __restrict__ dw) {
  const Conv s(shape);
  for (long long i = blockIdx.x; i < shape.groups * s.oc * s.ic * s.taps; i += gridDim.x) {
    int tap = i % s.taps, c = i / s.taps % s.ic, channel = i / s.taps / s.ic, group = channel / s.oc;
    double sum = 0;
    for (long long k = threadIdx.x; k < shape.batch * s.outputs; k += blockDim.x) {
      int sample = k / s.outputs, pixel = k % s.outputs, row, column;
      if (!s.seen(0, pixel / s.output[1], tap / s.kernel[1], &row)) continue;
      if (!s.seen(1, pixel % s.output[1], tap % s.kernel[1], &column)) continue;
      sum += double(s.of_x(x, sample, group)[c * s.inputs + row * s.input[1] + column]) *
             s.of_y(dy, sample, group)[(channel % s.oc) * s.outputs + pixel];
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) dw[i] += real(sum);
  }
}
NN_KERNEL(direct_dw)
