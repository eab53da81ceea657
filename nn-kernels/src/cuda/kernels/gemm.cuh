// A tiled matrix product in full precision. Factors are read through loaders, so that a factor may lie transposed,
// packed in fewer bits, or as the patches of an image.
//
// A loader has a `Place`, what it knows of a row of the left factor or a column of the right one; `place(i)` makes
// it, and `get(place, k)` is the factor's value there. `ALONG_K` says that neighbours in k are neighbours in memory, so
// that neighbouring threads read them.
//
// Each output is summed in the order of k, in runs of `RUN` terms: neither the form of the tiles nor the number of rows
// changes a bit of it.
#pragma once
#include "unary.cuh"

// Value (i, k) of a matrix at i·outer + k·inner.
template <bool ALONG_K_> struct Strided {
  static constexpr bool ALONG_K = ALONG_K_;
  using Place = const elem*;
  const elem* at;
  long long outer, inner;
  __device__ __forceinline__ Place place(long long i) const { return at + i * outer; }
  __device__ __forceinline__ real get(Place place, long long k) const { return place[k * inner]; }
};

// The shape of a block's tile of outputs, of its steps in k, and of a thread's part of the tile.
template <int ROWS_, int COLS_, int DEPTH_, int TALL_, int WIDE_> struct Tiles {
  static constexpr int ROWS = ROWS_, COLS = COLS_, DEPTH = DEPTH_, TALL = TALL_, WIDE = WIDE_;
  static constexpr int ACROSS = COLS / WIDE, THREADS = ROWS / TALL * ACROSS;
  // Two blocks on a multiprocessor hide each other's waiting. In double precision they would not fit the registers.
  static constexpr int BLOCKS = sizeof(real) == 4 ? 2 : 1;
};
// The numbers of threads, rows and columns are those of `linear.rs`.
using Large = Tiles<64, 64, 16, 4, 4>;
using Small = Tiles<16, 64, 32, 1, 4>;
// Terms that are summed before they are added to what was summed before.
constexpr int RUN = 256;

// One factor's part of a tile on its way from memory through registers to shared memory.
template <class T, int WIDTH, class Loader> struct Stage {
  static constexpr int EACH = WIDTH * T::DEPTH / T::THREADS, ROW = WIDTH + 4;
  typename Loader::Place places[EACH];
  bool inside[EACH];
  real values[EACH];

  static __device__ __forceinline__ int width_of(int e) { return Loader::ALONG_K ? e / T::DEPTH : e % WIDTH; }
  static __device__ __forceinline__ int depth_of(int e) { return Loader::ALONG_K ? e % T::DEPTH : e / WIDTH; }

  __device__ __forceinline__ void start(const Loader& loader, long long first, long long extent) {
#pragma unroll
    for (int q = 0; q < EACH; q++) {
      long long i = first + width_of(threadIdx.x + q * T::THREADS);
      inside[q] = i < extent;
      places[q] = loader.place(inside[q] ? i : 0);
    }
  }
  __device__ __forceinline__ void read(const Loader& loader, long long k, long long end) {
#pragma unroll
    for (int q = 0; q < EACH; q++) {
      long long at = k + depth_of(threadIdx.x + q * T::THREADS);
      values[q] = inside[q] && at < end ? loader.get(places[q], at) : real(0);
    }
  }
  __device__ __forceinline__ void write(real* shared) const {
#pragma unroll
    for (int q = 0; q < EACH; q++) {
      int e = threadIdx.x + q * T::THREADS;
      shared[depth_of(e) * ROW + width_of(e)] = values[q];
    }
  }
};

// Hands each output of tile (`tile_row`, `tile_column`), summed over k from `from` to `to`, to `out(row, column, sum)`.
template <class T, class A, class B, class Out>
__device__ __forceinline__ void product(const A& a, const B& b, const Out& out, long long rows, long long cols,
                                        long long from, long long to, long long tile_row, long long tile_column) {
  constexpr int A_ROW = T::ROWS + 4, B_ROW = T::COLS + 4;
  struct alignas(16) Shared {
    real a[T::DEPTH * A_ROW], b[T::DEPTH * B_ROW];
  };
  __shared__ Shared shared;
  real *a_tile = shared.a, *b_tile = shared.b;
  const int down = threadIdx.x / T::ACROSS * T::TALL, across = threadIdx.x % T::ACROSS * T::WIDE;
  long long first_row = tile_row * T::ROWS, first_column = tile_column * T::COLS;

  Stage<T, T::ROWS, A> a_stage;
  Stage<T, T::COLS, B> b_stage;
  a_stage.start(a, first_row, rows);
  b_stage.start(b, first_column, cols);
  real all[T::TALL][T::WIDE] = {}, run[T::TALL][T::WIDE] = {};
  a_stage.read(a, from, to);
  b_stage.read(b, from, to);
  for (long long k = from; k < to; k += T::DEPTH) {
    a_stage.write(a_tile);
    b_stage.write(b_tile);
    __syncthreads();
    // The next part comes from memory while this one is multiplied.
    a_stage.read(a, k + T::DEPTH, to);
    b_stage.read(b, k + T::DEPTH, to);
#pragma unroll 8
    for (int d = 0; d < T::DEPTH; d++) {
      real u[T::TALL], v[T::WIDE];
#pragma unroll
      for (int i = 0; i < T::TALL; i++) u[i] = a_tile[d * A_ROW + down + i];
#pragma unroll
      for (int j = 0; j < T::WIDE; j++) v[j] = b_tile[d * B_ROW + across + j];
#pragma unroll
      for (int i = 0; i < T::TALL; i++)
#pragma unroll
        for (int j = 0; j < T::WIDE; j++) run[i][j] = fma(u[i], v[j], run[i][j]);
    }
    if ((k - from) % RUN == RUN - T::DEPTH || k + T::DEPTH >= to) {
#pragma unroll
      for (int i = 0; i < T::TALL; i++)
#pragma unroll
        for (int j = 0; j < T::WIDE; j++) {
          all[i][j] += run[i][j];
          run[i][j] = real(0);
        }
    }
    __syncthreads();
  }
#pragma unroll
  for (int i = 0; i < T::TALL; i++)
#pragma unroll
    for (int j = 0; j < T::WIDE; j++) {
      long long row = first_row + down + i, column = first_column + across + j;
      if (row < rows && column < cols) out(row, column, all[i][j]);
    }
}
