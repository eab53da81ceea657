// Products with a matrix [outputs, inputs] that is stored in fewer bits, as `packing.rs` says: 32 outputs side by side.
#include "gemm.cuh"

enum Packing { BF16, F16, Q8_0 };

// Half precision as a number.
__device__ __forceinline__ float from_f16(unsigned short bits) {
  unsigned sign = (bits & 0x8000u) << 16, rest = bits & 0x7fffu;
  // Of a subnormal number the digits are multiples of 2⁻²⁴.
  if (rest < 0x0400u) return __uint_as_float(sign | __float_as_uint(rest * 5.9604644775390625e-8f));
  if (rest >= 0x7c00u) return __uint_as_float(sign | 0x7f800000u | (rest & 0x03ffu) << 13);
  return __uint_as_float(sign | ((rest << 13) + (112u << 23)));
}

struct Weights {
  const unsigned char* bytes;
  long long inputs;
  int packing;

  __device__ __forceinline__ real weight(long long output, long long input) const {
    long long o = output % 32;
    const unsigned char* tile = bytes + output / 32 * (packing == Q8_0 ? inputs / 32 * (34 * 32) : inputs * 64);
    const unsigned short* halves = reinterpret_cast<const unsigned short*>(tile);
    if (packing == BF16) return real(nn::from_bf16(halves[input * 32 + o % 16 * 2 + o / 16]));
    if (packing == F16) return real(from_f16(halves[input * 32 + o]));
    const unsigned char* block = tile + input / 32 * (34 * 32);
    real scale = real(from_f16(reinterpret_cast<const unsigned short*>(block)[o]));
    return real(static_cast<signed char>(block[(2 + input % 32) * 32 + o])) * scale;
  }
};

// Its columns are outputs, of which neighbours lie side by side.
struct ByOutput {
  static constexpr bool ALONG_K = false;
  using Place = long long;
  Weights w;
  __device__ __forceinline__ Place place(long long i) const { return i; }
  __device__ __forceinline__ real get(Place output, long long k) const { return w.weight(output, k); }
};

// Its columns are inputs, and k goes through outputs.
struct ByInput {
  static constexpr bool ALONG_K = true;
  using Place = long long;
  Weights w;
  __device__ __forceinline__ Place place(long long i) const { return i; }
  __device__ __forceinline__ real get(Place input, long long k) const { return w.weight(k, input); }
};

struct Output {
  elem* y;
  const elem* bias;
  long long cols;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    y[row * cols + column] = bias ? sum + bias[column] : sum;
  }
};

template <class T, class B>
__device__ __forceinline__ void run(const elem* x, const B& b, const Output& out, long long rows, long long depth) {
  long long tiles = (out.cols + T::COLS - 1) / T::COLS;
  product<T>(Strided<true>{x, depth, 1}, b, out, rows, out.cols, 0, depth, blockIdx.x / tiles, blockIdx.x % tiles);
}

// y = x·Wᵀ + bias.
extern "C" __global__ void __launch_bounds__(Small::THREADS, Small::BLOCKS)
    packed(int packing, const elem* __restrict__ x, const unsigned char* __restrict__ w, const elem* __restrict__ bias,
           elem* __restrict__ y, long long rows, long long inputs, long long outputs) {
  run<Small>(x, ByOutput{{w, inputs, packing}}, Output{y, bias, outputs}, rows, inputs);
}
NN_KERNEL(packed)

// dx = dy·W.
extern "C" __global__ void __launch_bounds__(Small::THREADS, Small::BLOCKS)
    packed_vjp(int packing, const elem* __restrict__ dy, const unsigned char* __restrict__ w, elem* __restrict__ dx,
               long long rows, long long inputs, long long outputs) {
  run<Small>(dy, ByInput{{w, inputs, packing}}, Output{dx, nullptr, inputs}, rows, outputs);
}
NN_KERNEL(packed_vjp)
