// The matrix product of `linear.cu` on tensor cores: factors are rounded to TF32, and sums are of float.
//
// A block of eight warps has a tile of 128×128 outputs, a warp 64×32 of them. Steps of 16 terms are copied to shared
// memory, two of them ahead of the one that is multiplied. Whoever copied a number rounds it once it is there. Each
// output is summed in the order of its terms.
#undef REAL
#define REAL float
#include "linear.cuh"

namespace {

constexpr int THREADS = 256, TILE = 128, DEPTH = 16, STAGES = 3;
// 16s of rows and 8s of columns of a warp.
constexpr int TALL = 4, WIDE = 4;

// One factor's part of a step. ALONG: the terms of a row, or of a column, lie side by side. What a warp reads of rows
// that are so far apart lies in different banks.
template <bool ALONG> struct Part {
  static constexpr int PITCH = ALONG ? DEPTH + 4 : TILE + 8, SIZE = (ALONG ? TILE : DEPTH) * PITCH;

  // Where term k of row or column i is.
  static __device__ __forceinline__ int at(int i, int k) { return ALONG ? i * PITCH + k : k * PITCH + i; }
};

// Copies one factor's parts step by step; a thread fours of numbers that lie side by side.
template <bool ALONG> struct Copier {
  static constexpr int EACH = TILE * DEPTH / 4 / THREADS;
  using Part = ::Part<ALONG>;
  // The next of the thread's first four, and how far its other fours are apart.
  const float* from;
  long long apart, step;
  // How many numbers there are from the tile's first on: of rows or columns.
  int count;
  bool wide;

  static __device__ __forceinline__ int row(int e) {
    int four = threadIdx.x + e * THREADS;
    return ALONG ? four / (DEPTH / 4) : four % (TILE / 4) * 4;
  }
  static __device__ __forceinline__ int term(int e) {
    int four = threadIdx.x + e * THREADS;
    return ALONG ? four % (DEPTH / 4) * 4 : four / (TILE / 4);
  }

  __device__ __forceinline__ Copier(const float* x, long long outer, long long inner, long long first, long long extent,
                                    long long k)
      : from(x + (first + row(0)) * outer + (k + term(0)) * inner),
        apart(ALONG ? THREADS / (DEPTH / 4) * outer : THREADS / (TILE / 4) * inner),
        step(ALONG ? DEPTH : DEPTH * inner),
        count(static_cast<int>(min(extent - first, static_cast<long long>(TILE)))) {
    // Where a row or column, or the next term of all, starts at multiples of 16 bytes.
    wide = reinterpret_cast<unsigned long long>(x) % 16 == 0 && (ALONG ? outer : inner) % 4 == 0;
  }

  // Starts to copy the next step, of which so many terms are left. `base` is an address that may be read.
  __device__ __forceinline__ void start(float* to, int terms, const float* base) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int there = ALONG ? (row(e) < count ? terms - term(e) : 0) : (term(e) < terms ? count - row(e) : 0);
      float* at = to + Part::at(row(e), term(e));
      there = max(0, min(there, 4));
      if (wide) {
        nn::cp_async16(at, there ? from + e * apart : base, 4 * there);
      } else {
        for (int j = 0; j < 4; j++) nn::cp_async4(at + j, j < there ? from + e * apart + j : base, j < there ? 4 : 0);
      }
    }
    from += step;
  }

  // Rounds what this thread copied.
  static __device__ __forceinline__ void round(float* part) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      float4* four = reinterpret_cast<float4*>(part + Part::at(row(e), term(e)));
      float4 x = *four;
      *four = make_float4(__uint_as_float(nn::to_tf32(x.x)), __uint_as_float(nn::to_tf32(x.y)),
                          __uint_as_float(nn::to_tf32(x.z)), __uint_as_float(nn::to_tf32(x.w)));
    }
  }
};

template <bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void run(const Shape& s, const float* a, const float* b, const Output& out) {
  using A = Copier<A_ALONG>;
  using B = Copier<B_ALONG>;
  constexpr int STAGE = A::Part::SIZE + B::Part::SIZE;
  NN_DYNAMIC_SHARED(float, stages);
  const long long across = (s.cols + TILE - 1) / TILE;
  const long long first_row = blockIdx.x / across * TILE, first_column = blockIdx.x % across * TILE;
  const long long from = blockIdx.y * s.each;
  const int depth = static_cast<int>(min(s.depth - from, s.each)), steps = (depth + DEPTH - 1) / DEPTH;
  const int g = nn::lane() / 4, t = nn::lane() % 4;
  const int down = nn::warp() / 4 * 16 * TALL, right = nn::warp() % 4 * 8 * WIDE;

  A a_copier(a, s.a_row, s.a_k, first_row, s.rows, from);
  B b_copier(b, s.b_column, s.b_k, first_column, s.cols, from);
  auto start = [&](int step) {
    if (step < steps) {
      float* stage = stages + step % STAGES * STAGE;
      a_copier.start(stage, depth - step * DEPTH, a);
      b_copier.start(stage + A::Part::SIZE, depth - step * DEPTH, b);
    }
    // An empty group too, so that those under way can be counted.
    nn::cp_async_commit();
  };
  float sums[TALL][WIDE][4] = {};
  for (int step = 0; step < STAGES - 1; step++) start(step);
  for (int step = 0; step < steps; step++) {
    float* a_part = stages + step % STAGES * STAGE;
    float* b_part = a_part + A::Part::SIZE;
    nn::cp_async_wait<STAGES - 2>();
    A::round(a_part);
    B::round(b_part);
    __syncthreads();
    // All have left the stage before this one, which is the next to be filled.
    start(step + STAGES - 1);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8) {
      unsigned x[TALL][4];
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          x[i][j] = __float_as_uint(a_part[A::Part::at(down + 16 * i + g + j % 2 * 8, k + t + j / 2 * 4)]);
#pragma unroll
      for (int j = 0; j < WIDE; j++) {
        unsigned y[2];
        for (int i = 0; i < 2; i++) y[i] = __float_as_uint(b_part[B::Part::at(right + 8 * j + g, k + t + i * 4)]);
#pragma unroll
        for (int i = 0; i < TALL; i++) nn::mma_m16n8k8_tf32(sums[i][j], x[i], y);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < TALL; i++)
#pragma unroll
    for (int j = 0; j < WIDE; j++)
#pragma unroll
      for (int e = 0; e < 4; e++) {
        long long row = first_row + down + 16 * i + g + e / 2 * 8;
        long long column = first_column + right + 8 * j + 2 * t + e % 2;
        if (row < s.rows && column < s.cols) out(row, column, sums[i][j][e]);
      }
}

}  // namespace

#define NN_TENSOR_PRODUCT(name, A_ALONG, B_ALONG)                                                                   \
  extern "C" __global__ void __launch_bounds__(THREADS, 2)                                                          \
      name(Shape s, Function act, int mode, const float* __restrict__ a, const float* __restrict__ b,               \
           const float* __restrict__ bias, float* __restrict__ y) {                                                 \
    long long split = mode == PART ? blockIdx.y : 0;                                                                \
    run<A_ALONG, B_ALONG>(s, a, b, Output{y + split * s.rows * s.cols, bias, act, s.cols, mode});                   \
  }                                                                                                                 \
  NN_KERNEL(name)
NN_TENSOR_PRODUCT(tensor_kn, true, false)
NN_TENSOR_PRODUCT(tensor_kk, true, true)
NN_TENSOR_PRODUCT(tensor_mn, false, false)
