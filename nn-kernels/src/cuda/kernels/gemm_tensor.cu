// The matrix product of `linear.cu` on tensor cores: factors are rounded to TF32, unless they are bfloat16, and sums are
// of float.
//
// A block of eight warps has a tile of 128×128 outputs, a warp 64×32 of them. Steps of 64 bytes of terms are copied to
// shared memory, two of them ahead of the one that is multiplied. Whoever copied a float rounds it once it is there.
// Each output is summed in the order of its terms.
#ifndef NN_BF16
#undef ELEM
#undef REAL
#define ELEM float
#define REAL float
#endif
#include "linear.cuh"

namespace {

using Word = nn::Word<elem>;

constexpr int THREADS = 256, TILE = 128, DEPTH = 64 / sizeof(elem), STAGES = 3;
// Numbers that are copied at once.
constexpr int CHUNK = 16 / sizeof(elem);
// 16s of rows and 8s of columns of a warp.
constexpr int TALL = 4, WIDE = 4;

// One factor's part of a step. ALONG: the terms of a row, or of a column, lie side by side. What a warp reads of rows
// that are so far apart lies in different banks.
template <bool ALONG> struct Part {
  static constexpr int PITCH = ALONG ? DEPTH + CHUNK : TILE + 8, SIZE = (ALONG ? TILE : DEPTH) * PITCH;

  // Where term k of row or column i is.
  static __device__ __forceinline__ int at(int i, int k) { return ALONG ? i * PITCH + k : k * PITCH + i; }

  // Its terms from k on, as tensor cores take them.
  static __device__ __forceinline__ unsigned word(const elem* part, int i, int k) {
    return ALONG ? nn::load_word(part + at(i, k)) : Word::load(part + at(i, k), PITCH);
  }
};

// Copies one factor's parts step by step; a thread chunks of numbers that lie side by side.
template <bool ALONG> struct Copier {
  static constexpr int EACH = TILE * DEPTH / CHUNK / THREADS;
  using Part = ::Part<ALONG>;
  // The next of the thread's first chunk, and how far its other chunks are apart.
  const elem* from;
  long long apart, step;
  // How many numbers there are from the tile's first on: of rows or columns.
  int count;
  bool wide;

  static __device__ __forceinline__ int row(int e) {
    int chunk = threadIdx.x + e * THREADS;
    return ALONG ? chunk / (DEPTH / CHUNK) : chunk % (TILE / CHUNK) * CHUNK;
  }
  static __device__ __forceinline__ int term(int e) {
    int chunk = threadIdx.x + e * THREADS;
    return ALONG ? chunk % (DEPTH / CHUNK) * CHUNK : chunk / (TILE / CHUNK);
  }

  __device__ __forceinline__ Copier(const elem* x, long long outer, long long inner, long long first, long long extent,
                                    long long k)
      : from(x + (first + row(0)) * outer + (k + term(0)) * inner),
        apart(ALONG ? THREADS / (DEPTH / CHUNK) * outer : THREADS / (TILE / CHUNK) * inner),
        step(ALONG ? DEPTH : DEPTH * inner),
        count(static_cast<int>(min(extent - first, static_cast<long long>(TILE)))) {
    // Where a row or column, or the next term of all, starts at multiples of 16 bytes.
    wide = reinterpret_cast<unsigned long long>(x) % 16 == 0 && (ALONG ? outer : inner) % CHUNK == 0;
  }

  // Starts to copy the next step, of which so many terms are left. `base` is an address that may be read.
  __device__ __forceinline__ void start(elem* to, int terms, const elem* base) {
#pragma unroll
    for (int e = 0; e < EACH; e++) {
      int there = ALONG ? (row(e) < count ? terms - term(e) : 0) : (term(e) < terms ? count - row(e) : 0);
      elem* at = to + Part::at(row(e), term(e));
      there = max(0, min(there, CHUNK));
      if (wide) {
        nn::cp_async16(at, there ? from + e * apart : base, sizeof(elem) * there);
      } else {
#pragma unroll 1
        for (int j = 0; j < CHUNK; j++) {
          const elem* one = j < there ? from + e * apart + j : base;
          if constexpr (sizeof(elem) == 4) nn::cp_async4(at + j, one, j < there ? 4 : 0);
          else at[j] = j < there ? real(*one) : real(0);
        }
      }
    }
    from += step;
  }

  // Rounds what this thread copied.
  static __device__ __forceinline__ void round(elem* part) {
    if constexpr (sizeof(elem) < 4) return;
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
__device__ __forceinline__ void run(const Shape& s, const elem* a, const elem* b, const Output& out) {
  using A = Copier<A_ALONG>;
  using B = Copier<B_ALONG>;
  constexpr int STAGE = A::Part::SIZE + B::Part::SIZE;
  NN_DYNAMIC_SHARED(elem, stages);
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
      elem* stage = stages + step % STAGES * STAGE;
      a_copier.start(stage, depth - step * DEPTH, a);
      b_copier.start(stage + A::Part::SIZE, depth - step * DEPTH, b);
    }
    // An empty group too, so that those under way can be counted.
    nn::cp_async_commit();
  };
  float sums[TALL][WIDE][4] = {};
  for (int step = 0; step < STAGES - 1; step++) start(step);
  for (int step = 0; step < steps; step++) {
    elem* a_part = stages + step % STAGES * STAGE;
    elem* b_part = a_part + A::Part::SIZE;
    nn::cp_async_wait<STAGES - 2>();
    A::round(a_part);
    B::round(b_part);
    __syncthreads();
    // All have left the stage before this one, which is the next to be filled.
    start(step + STAGES - 1);
#pragma unroll
    for (int k = 0; k < DEPTH; k += 8 * Word::TERMS) {
      unsigned x[TALL][4];
#pragma unroll
      for (int i = 0; i < TALL; i++)
#pragma unroll
        for (int j = 0; j < 4; j++)
          x[i][j] = A::Part::word(a_part, down + 16 * i + g + j % 2 * 8, k + (t + j / 2 * 4) * Word::TERMS);
#pragma unroll
      for (int j = 0; j < WIDE; j++) {
        unsigned y[2];
        for (int i = 0; i < 2; i++)
          y[i] = B::Part::word(b_part, right + 8 * j + g, k + (t + i * 4) * Word::TERMS);
#pragma unroll
        for (int i = 0; i < TALL; i++) nn::multiply_add<elem>(sums[i][j], x[i], y);
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
      name(Shape s, Function act, int mode, const elem* __restrict__ a, const elem* __restrict__ b,                 \
           const elem* __restrict__ bias, void* y) {                                                                \
    if (mode == PART) y = static_cast<real*>(y) + blockIdx.y * s.rows * s.cols;                                     \
    run<A_ALONG, B_ALONG>(s, a, b, Output{y, bias, act, s.cols, mode});                                             \
  }                                                                                                                 \
  NN_KERNEL(name)
NN_TENSOR_PRODUCT(tensor_kn, true, false)
NN_TENSOR_PRODUCT(tensor_kk, true, true)
NN_TENSOR_PRODUCT(tensor_mn, false, false)
