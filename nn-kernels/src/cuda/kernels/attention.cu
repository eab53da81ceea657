// Softmax attention without a matrix of all scores: a block holds a tile of them in shared memory at a time.
//
// Three kernels are of one shape. A block has a tile of ROW_TILE rows (queries, or keys where these get gradients) and
// goes through the others in tiles of COL_TILE columns that start at multiples of it. So what a row gets does not
// depend on which rows share its tile. Threads are 16×16; a thread has ROWS rows and, of these, every 16th column.
//
// Heads wider than HEAD are dealt with in slices of HEAD values, each in a block of its own, which computes all scores
// again.
#include "attention.cuh"

#ifndef HEAD
#define HEAD 64
#endif

namespace {

using nn::Shape;
using elem = ELEM;
using real = REAL;

constexpr int THREADS = 256;
// Rows and columns of a thread. A double takes two registers.
constexpr int ROWS = sizeof(real) == 4 ? 4 : 2, COLS = 4;
constexpr int ROW_TILE = 16 * ROWS, COL_TILE = 16 * COLS;
// Values of a head that are multiplied between two barriers.
constexpr int STEP = 16;
// Rows that are added up between two barriers, and values of each that a thread has.
constexpr int PART = HEAD <= 32 ? COL_TILE : 2048 / HEAD, VALUES = HEAD / 16;

constexpr double LOG2_E = 1.4426950408889634, LN_2 = 0.6931471805599453;

// Room for tiles. The rows are an odd number of elements apart: columns of them lie in different banks.
struct Room {
  real a[ROW_TILE][STEP + 1], b[COL_TILE][STEP + 1];
  real weights[ROW_TILE][COL_TILE + 1];
  real part[PART][HEAD];
};

__device__ __forceinline__ int row_thread() { return threadIdx.x / 16; }
__device__ __forceinline__ int col_thread() { return threadIdx.x % 16; }
__device__ __forceinline__ int row_of(int r) { return row_thread() * ROWS + r; }
__device__ __forceinline__ int col_of(int c) { return col_thread() + 16 * c; }

// The sum or the maximum of what the 16 threads of a row have. Every one gets the same bits.
__device__ __forceinline__ real row_sum(real x) {
  for (int offset = 8; offset > 0; offset /= 2) x += __shfl_xor_sync(nn::FULL_WARP, x, offset);
  return x;
}
__device__ __forceinline__ real row_max(real x) {
  for (int offset = 8; offset > 0; offset /= 2) x = nn::larger(x, __shfl_xor_sync(nn::FULL_WARP, x, offset));
  return x;
}

// Some tokens of a head. `open`, if there is one, is 0 where nobody sees the token.
struct Tokens {
  const elem* data;
  long long step, count;
  const elem* open;
};

__device__ __forceinline__ Tokens tokens(const elem* x, const nn::Steps& at, long long batch, long long head,
                                         long long from, long long len, const elem* open = nullptr) {
  return {x + batch * at.batch + head * at.head + from * at.token, at.token, len - from, open ? open + from : nullptr};
}

__device__ __forceinline__ bool is_open(const Tokens& x, int i) {
  return i < x.count && (!x.open || real(x.open[i]) != real(0));
}

// Values [from, from + STEP) of the first N tokens; 0 for what there is not.
template <int N> __device__ __forceinline__ void stage(real (&to)[N][STEP + 1], const Tokens& x, int from, int width) {
  for (int i = threadIdx.x; i < N * STEP; i += THREADS) {
    int row = i / STEP, value = from + i % STEP;
    to[row][i % STEP] = row < x.count && value < width ? x.data[row * x.step + value] : real(0);
  }
}

// products = a·bᵀ.
__device__ __forceinline__ void multiply(Room& room, const Tokens& a, const Tokens& b, int width,
                                         real (&products)[ROWS][COLS]) {
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COLS; c++) products[r][c] = real(0);
  for (int from = 0; from < width; from += STEP) {
    __syncthreads();
    stage(room.a, a, from, width);
    stage(room.b, b, from, width);
    __syncthreads();
#pragma unroll
    for (int v = 0; v < STEP; v++) {
      real x[ROWS], y[COLS];
      for (int r = 0; r < ROWS; r++) x[r] = room.a[row_of(r)][v];
      for (int c = 0; c < COLS; c++) y[c] = room.b[col_of(c)][v];
      for (int r = 0; r < ROWS; r++)
        for (int c = 0; c < COLS; c++) products[r][c] += x[r] * y[c];
    }
  }
}

// sums += weights·b, of the values from `slice` on. Where only some rows of a tile see a token, `sees` tells which do:
// what the token holds must not reach the others, not even as 0·NaN.
template <class Sees>
__device__ __forceinline__ void add_weighted(Room& room, const Tokens& b, int slice, int width, bool all, Sees sees,
                                             real (&sums)[ROWS][VALUES]) {
  for (int from = 0; from < COL_TILE; from += PART) {
    __syncthreads();
    for (int i = threadIdx.x; i < PART * HEAD; i += THREADS) {
      int row = from + i / HEAD, value = slice + i % HEAD;
      bool there = value < width && is_open(b, row);
      room.part[i / HEAD][i % HEAD] = there ? b.data[row * b.step + value] : real(0);
    }
    __syncthreads();
#pragma unroll 4
    for (int c = 0; c < PART; c++) {
      real x[VALUES];
      for (int v = 0; v < VALUES; v++) x[v] = room.part[c][col_of(v)];
#pragma unroll
      for (int r = 0; r < ROWS; r++) {
        real weight = room.weights[row_of(r)][from + c];
        if (all || sees(row_of(r), from + c))
#pragma unroll
          for (int v = 0; v < VALUES; v++) sums[r][v] += weight * x[v];
      }
    }
  }
}

__device__ __forceinline__ void keep_weights(Room& room, const real (&weights)[ROWS][COLS]) {
  // Earlier ones may still be read.
  __syncthreads();
  for (int r = 0; r < ROWS; r++)
    for (int c = 0; c < COLS; c++) room.weights[row_of(r)][col_of(c)] = weights[r][c];
}

__device__ __forceinline__ void write(elem* to, long long step, long long count, int slice, int width, int r,
                                      const real (&values)[VALUES], real factor) {
  if (row_of(r) >= count) return;
#pragma unroll
  for (int v = 0; v < VALUES; v++) {
    int value = slice + col_of(v);
    if (value < width) to[row_of(r) * step + value] = values[v] * factor;
  }
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention(Shape s, const elem* __restrict__ q, const elem* __restrict__ k, const elem* __restrict__ v,
          const elem* __restrict__ mask, elem* __restrict__ y, real* __restrict__ lse,
          const long long* __restrict__ keys_so_far) {
  if (keys_so_far) s.k_len = *keys_so_far;
  __shared__ Room room;
  nn::QueryTile at(s, ROW_TILE, HEAD);
  const int width = static_cast<int>(s.head_dim), slice = static_cast<int>(at.slice) * HEAD;
  const elem* open = mask ? mask + at.batch * s.k_len : nullptr;
  const Tokens queries = tokens(q, s.q, at.batch, at.head, at.first, s.q_len);
  const real factor = real(s.scale * LOG2_E);
  real sums[ROWS][VALUES] = {}, most[ROWS], total[ROWS];
  for (int r = 0; r < ROWS; r++) most[r] = real(-nn::infinity()), total[r] = real(0);

  for (long long first = 0; first < at.seen; first += COL_TILE) {
    const Tokens keys = tokens(k, s.k, at.batch, at.kv_head, first, s.k_len, open);
    real scores[ROWS][COLS];
    multiply(room, queries, keys, width, scores);
    auto sees = [&](int row, int col) { return s.sees(at.first + row, first + col); };
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
      real tile_most = most[r];
      for (int c = 0; c < COLS; c++) {
        bool seen = is_open(keys, col_of(c)) && sees(row_of(r), col_of(c));
        scores[r][c] = seen ? scores[r][c] * factor : real(-nn::infinity());
        tile_most = nn::larger(tile_most, scores[r][c]);
      }
      tile_most = row_max(tile_most);
      // They are both −∞ as long as nothing was seen.
      real carry = tile_most == most[r] ? real(1) : exp2(most[r] - tile_most), sum = real(0);
      most[r] = tile_most;
      for (int c = 0; c < COLS; c++) {
        scores[r][c] = scores[r][c] == real(-nn::infinity()) ? real(0) : exp2(scores[r][c] - tile_most);
        sum += scores[r][c];
      }
      total[r] = total[r] * carry + row_sum(sum);
      for (int v = 0; v < VALUES; v++) sums[r][v] *= carry;
    }
    keep_weights(room, scores);
    bool all = s.sees(at.first, first + COL_TILE - 1);
    add_weighted(room, tokens(v, s.v, at.batch, at.kv_head, first, s.k_len, open), slice, width, all, sees, sums);
  }

  elem* to = y + at.batch * s.y.batch + at.head * s.y.head + at.first * s.y.token;
#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    bool none = total[r] == real(0);
    write(to, s.y.token, s.q_len - at.first, slice, width, r, sums[r], none ? real(0) : real(1) / total[r]);
    if (lse && slice == 0 && col_thread() == 0 && at.first + row_of(r) < s.q_len) {
      real log_sum = most[r] * real(LN_2) + log(total[r]);
      lse[s.row(at.batch, at.head, at.first + row_of(r))] = none ? real(nn::infinity()) : log_sum;
    }
  }
}
NN_KERNEL(attention)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_delta(Shape s, const elem* __restrict__ y, const elem* __restrict__ dy, real* __restrict__ delta) {
  nn::sum_products(s, y, dy, delta);
}
NN_KERNEL(attention_delta)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_dq(Shape s, const elem* __restrict__ q, const elem* __restrict__ k, const elem* __restrict__ v,
             const elem* __restrict__ mask, const real* __restrict__ lse, const elem* __restrict__ dy,
             const real* __restrict__ delta, elem* __restrict__ dq) {
  __shared__ Room room;
  nn::QueryTile at(s, ROW_TILE, HEAD);
  const int width = static_cast<int>(s.head_dim), slice = static_cast<int>(at.slice) * HEAD;
  const elem* open = mask ? mask + at.batch * s.k_len : nullptr;
  const Tokens queries = tokens(q, s.q, at.batch, at.head, at.first, s.q_len);
  const Tokens pulls = tokens(dy, s.y, at.batch, at.head, at.first, s.q_len);
  const real factor = real(s.scale * LOG2_E), scale = real(s.scale);
  real sums[ROWS][VALUES] = {}, log_total[ROWS], mean[ROWS];
  for (int r = 0; r < ROWS; r++) {
    bool there = row_of(r) < queries.count;
    long long row = s.row(at.batch, at.head, at.first + row_of(r));
    log_total[r] = there ? lse[row] * real(LOG2_E) : real(0);
    mean[r] = there ? delta[row] : real(0);
  }

  for (long long first = 0; first < at.seen; first += COL_TILE) {
    const Tokens keys = tokens(k, s.k, at.batch, at.kv_head, first, s.k_len, open);
    real weights[ROWS][COLS], slopes[ROWS][COLS];
    multiply(room, queries, keys, width, weights);
    multiply(room, pulls, tokens(v, s.v, at.batch, at.kv_head, first, s.k_len), width, slopes);
    auto sees = [&](int row, int col) { return s.sees(at.first + row, first + col); };
    for (int r = 0; r < ROWS; r++)
      for (int c = 0; c < COLS; c++) {
        bool seen = is_open(keys, col_of(c)) && sees(row_of(r), col_of(c));
        real weight = exp2(weights[r][c] * factor - log_total[r]);
        slopes[r][c] = seen ? scale * weight * (slopes[r][c] - mean[r]) : real(0);
      }
    keep_weights(room, slopes);
    add_weighted(room, keys, slice, width, s.sees(at.first, first + COL_TILE - 1), sees, sums);
  }

  elem* to = dq + at.batch * s.q.batch + at.head * s.q.head + at.first * s.q.token;
#pragma unroll
  for (int r = 0; r < ROWS; r++) write(to, s.q.token, queries.count, slice, width, r, sums[r], real(1));
}
NN_KERNEL(attention_dq)

#if HEAD <= 128  // or the sums of two gradients would not fit the registers
// The queries of all heads that read a head of keys and values are added up in one order: head by head, then tile by
// tile.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_dkv(Shape s, const elem* __restrict__ q, const elem* __restrict__ k, const elem* __restrict__ v,
              const elem* __restrict__ mask, const real* __restrict__ lse, const elem* __restrict__ dy,
              const real* __restrict__ delta, elem* __restrict__ dk, elem* __restrict__ dv) {
  __shared__ Room room;
  nn::KeyTile at(s, ROW_TILE, HEAD);
  const int width = static_cast<int>(s.head_dim), slice = static_cast<int>(at.slice) * HEAD;
  const elem* open = mask ? mask + at.batch * s.k_len : nullptr;
  const Tokens keys = tokens(k, s.k, at.batch, at.kv_head, at.first, s.k_len, open);
  const Tokens values = tokens(v, s.v, at.batch, at.kv_head, at.first, s.k_len);
  const real factor = real(s.scale * LOG2_E), scale = real(s.scale);
  real key_sums[ROWS][VALUES] = {}, value_sums[ROWS][VALUES] = {};
  bool has_readers[ROWS];
  for (int r = 0; r < ROWS; r++) has_readers[r] = is_open(keys, row_of(r));

  const long long group = s.heads / s.kv_heads;
  for (long long head = at.kv_head * group; head < (at.kv_head + 1) * group; head++) {
    for (long long first = at.from / COL_TILE * COL_TILE; first < s.q_len; first += COL_TILE) {
      const Tokens queries = tokens(q, s.q, at.batch, head, first, s.q_len);
      const Tokens pulls = tokens(dy, s.y, at.batch, head, first, s.q_len);
      real weights[ROWS][COLS];
      multiply(room, keys, queries, width, weights);
      auto sees = [&](int row, int col) { return s.sees(first + col, at.first + row); };
      bool all = s.sees(first, at.first + ROW_TILE - 1);
      for (int c = 0; c < COLS; c++) {
        bool there = col_of(c) < queries.count;
        real log_total = there ? lse[s.row(at.batch, head, first + col_of(c))] * real(LOG2_E) : real(0);
        for (int r = 0; r < ROWS; r++) {
          bool seen = there && has_readers[r] && sees(row_of(r), col_of(c));
          weights[r][c] = seen ? exp2(weights[r][c] * factor - log_total) : real(0);
        }
      }
      if (dv) {
        keep_weights(room, weights);
        add_weighted(room, pulls, slice, width, all, sees, value_sums);
      }
      if (!dk) continue;
      real slopes[ROWS][COLS];
      multiply(room, values, pulls, width, slopes);
      for (int c = 0; c < COLS; c++) {
        bool there = col_of(c) < queries.count;
        real mean = there ? delta[s.row(at.batch, head, first + col_of(c))] : real(0);
        for (int r = 0; r < ROWS; r++) {
          bool seen = there && has_readers[r] && sees(row_of(r), col_of(c));
          slopes[r][c] = seen ? scale * weights[r][c] * (slopes[r][c] - mean) : real(0);
        }
      }
      keep_weights(room, slopes);
      add_weighted(room, queries, slice, width, all, sees, key_sums);
    }
  }

#pragma unroll
  for (int r = 0; r < ROWS; r++) {
    // What queries hold must not reach a key that nobody sees, not even as 0·NaN.
#pragma unroll
    for (int v = 0; v < VALUES; v++) {
      key_sums[r][v] = has_readers[r] ? key_sums[r][v] : real(0);
      value_sums[r][v] = has_readers[r] ? value_sums[r][v] : real(0);
    }
    if (dk) {
      elem* to = dk + at.batch * s.k.batch + at.kv_head * s.k.head + at.first * s.k.token;
      write(to, s.k.token, keys.count, slice, width, r, key_sums[r], real(1));
    }
    if (dv) {
      elem* to = dv + at.batch * s.v.batch + at.kv_head * s.v.head + at.first * s.v.token;
      write(to, s.v.token, keys.count, slice, width, r, value_sums[r], real(1));
    }
  }
}
NN_KERNEL(attention_dkv)
#endif
