// `attention.cu` on tensor cores, for heads of HEAD values: factors are rounded to TF32, or to bfloat16 where the
// operands are, and sums are of float.
//
// A block of four warps has a tile of rows in shared memory, as many 16s of rows for each warp as the registers hold,
// and goes through tiles of columns, of which the next is copied while one is used. Whoever copied a float rounds it
// once it is there.
#include "attention.cuh"

#ifndef HEAD
#define HEAD 64
#endif

namespace {

using nn::Shape;
#ifdef NN_BF16
using elem = nn::bfloat16;
#else
using elem = float;
#endif
using Word = nn::Word<elem>;

constexpr int THREADS = 128, WARPS = THREADS / 32;
// Numbers that are copied at once.
constexpr int CHUNK = 16 / sizeof(elem);
// Steps of 8 in a head, and how far rows are apart in shared memory: the 8×4 words that a warp reads of rows or of
// columns lie in different banks.
constexpr int STEPS = HEAD / 8, PITCH = HEAD + CHUNK;

constexpr float LOG2_E = 1.4426950408889634f, LN_2 = 0.6931471805599453f;

// In units of 16 rows of a warp and 8 columns.
template <int R, int C> struct Tile {
  static constexpr int ROWS = 16 * R * WARPS, COLS = 8 * C;
};
using Forward = Tile<HEAD <= 64 ? 2 : 1, 4>;
using Queries = Tile<HEAD <= 32 ? 2 : 1, 4>;
using Keys = Tile<1, HEAD <= 64 ? 4 : Word::TERMS>;

// What a tile of COLS columns is made of: two rows for each, and two numbers.
template <int COLS> struct Stage {
  elem first[COLS * PITCH], second[COLS * PITCH];
  float x[COLS], y[COLS];
};

__device__ __forceinline__ int row_in_tile() { return nn::lane() / 4; }
__device__ __forceinline__ int pair_in_tile() { return nn::lane() % 4; }

// Some tokens of a head. Where `open` is 0, if there is one, nobody sees the token.
struct Tokens {
  const elem* data;
  long long step;
  int count;
  const elem* open;
};

__device__ __forceinline__ Tokens tokens(const elem* x, const nn::Steps& at, long long batch, long long head,
                                         long long from, long long len, const elem* open = nullptr) {
  int count = static_cast<int>(len - from);
  return {x + batch * at.batch + head * at.head + from * at.token, at.token, count, open ? open + from : nullptr};
}

__device__ __forceinline__ bool is_open(const Tokens& x, int i) {
  return i < x.count && (!x.open || float(x.open[i]) != 0.0f);
}

// Starts to copy N tokens; 0 for what there is not. `wide`: all of them start at multiples of 16 bytes.
template <int N> __device__ __forceinline__ void start_copy(elem* to, const Tokens& x, bool wide) {
#pragma unroll 4
  for (int i = threadIdx.x; i < N * HEAD / CHUNK; i += THREADS) {
    int row = i / (HEAD / CHUNK), value = i % (HEAD / CHUNK) * CHUNK;
    bool there = is_open(x, row);
    const elem* from = there ? x.data + row * x.step + value : x.data;
    elem* at = to + row * PITCH + value;
    if (wide) {
      nn::cp_async16(at, from, there ? 16 : 0);
    } else {
      for (int j = 0; j < CHUNK; j++) {
        if constexpr (sizeof(elem) == 4) nn::cp_async4(at + j, there ? from + j : from, there ? 4 : 0);
        else at[j] = there ? float(from[j]) : 0.0f;
      }
    }
  }
}

// Starts to copy one number for each of N tokens.
template <int N> __device__ __forceinline__ void start_copy(float* to, const float* from, int count) {
  int i = threadIdx.x;
  if (i < N) nn::cp_async4(to + i, i < count ? from + i : from, i < count ? 4 : 0);
}
template <int N> __device__ __forceinline__ void start_copy(float* to, const nn::bfloat16* from, int count) {
  int i = threadIdx.x;
  if (i < N) to[i] = i < count ? float(from[i]) : 0.0f;
}

// Rounds what this thread copied.
template <int N> __device__ __forceinline__ void round_copied(elem* to) {
  if constexpr (sizeof(elem) < 4) return;
#pragma unroll 4
  for (int i = threadIdx.x; i < N * HEAD / 4; i += THREADS) {
    float4* four = reinterpret_cast<float4*>(to + i / (HEAD / 4) * PITCH + i % (HEAD / 4) * 4);
    float4 x = *four;
    *four = make_float4(__uint_as_float(nn::to_tf32(x.x)), __uint_as_float(nn::to_tf32(x.y)),
                        __uint_as_float(nn::to_tf32(x.z)), __uint_as_float(nn::to_tf32(x.w)));
  }
}

// Whose score with whom counts, in a tile of queries by keys or, where KEYS, of keys by queries: a query sees the keys
// up to its own number and `reach` more.
template <bool KEYS> struct Sight {
  int reach;

  __device__ __forceinline__ Sight(const Shape& s, long long query, long long key) {
    long long most = query + s.k_len - s.q_len - key;
    reach = s.causal ? static_cast<int>(most) : 1 << 30;
  }
  __device__ __forceinline__ bool operator()(int row, int col) const {
    return KEYS ? row <= col + reach : col <= row + reach;
  }
  // Whether all scores of some rows by some columns count.
  __device__ __forceinline__ bool all(int row, int rows, int col, int cols) const {
    return KEYS ? row + rows - 1 <= col + reach : col + cols - 1 <= row + reach;
  }
};

// products = rows·colsᵀ, of a warp's rows.
template <int R, int C>
__device__ __forceinline__ void multiply(const elem* rows, const elem* cols, float (&products)[R][C][4]) {
  const int g = row_in_tile(), t = pair_in_tile();
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int c = 0; c < C; c++)
      for (int i = 0; i < 4; i++) products[r][c][i] = 0.0f;
#pragma unroll 2
  for (int step = 0; step < STEPS / Word::TERMS; step++) {
    unsigned a[R][4];
#pragma unroll
    for (int r = 0; r < R; r++) {
      const elem* from = rows + (16 * r + g) * PITCH + (8 * step + t) * Word::TERMS;
      a[r][0] = nn::load_word(from);
      a[r][1] = nn::load_word(from + 8 * PITCH);
      a[r][2] = nn::load_word(from + 4 * Word::TERMS);
      a[r][3] = nn::load_word(from + 8 * PITCH + 4 * Word::TERMS);
    }
#pragma unroll
    for (int c = 0; c < C; c++) {
      const elem* from = cols + (8 * c + g) * PITCH + (8 * step + t) * Word::TERMS;
      unsigned b[2] = {nn::load_word(from), nn::load_word(from + 4 * Word::TERMS)};
#pragma unroll
      for (int r = 0; r < R; r++) nn::multiply_add<elem>(products[r][c], a[r], b);
    }
  }
}

// Tokens that are multiplied at once, and how many 8s of them there are.
constexpr int EIGHTS = Word::TERMS, TOGETHER = 8 * EIGHTS;

// Whether so many tokens hold nothing but finite numbers.
__device__ __forceinline__ bool are_finite(const elem* cols) {
  bool finite = true;
  for (int i = nn::lane(); i < TOGETHER * HEAD; i += 32)
    finite = finite && isfinite(float(cols[i / HEAD * PITCH + i % HEAD]));
  return __all_sync(nn::FULL_WARP, finite);
}

// Weights, which are of the layout of a product, as a left factor.
__device__ __forceinline__ void as_factor(const float (*weights)[4], unsigned (&a)[4]) {
  if constexpr (Word::TERMS == 1) {
    // It has columns 2t and 2t + 1 where t and t + 4 are expected, and so the right one gets the same order.
    for (int i = 0; i < 4; i++) a[i] = nn::to_tf32(weights[0][i % 2 * 2 + i / 2]);
  } else {
    for (int i = 0; i < 4; i++) a[i] = nn::to_bf16x2(weights[i / 2][i % 2 * 2], weights[i / 2][i % 2 * 2 + 1]);
  }
}

// sums += weights·cols, for a warp's rows from `row` of the tile on.
// What a token holds must not reach rows that do not see it, not even as 0·NaN.
template <int R, int C, bool KEYS>
__device__ __forceinline__ void add_weighted(const float (&weights)[R][C][4], const elem* cols,
                                             const Sight<KEYS>& sight, int row, float (&sums)[R][STEPS][4]) {
  const int g = row_in_tile(), t = pair_in_tile();
#pragma unroll
  for (int c = 0; c < C; c += EIGHTS) {
    const elem* tokens = cols + 8 * c * PITCH;
    unsigned a[R][4];
#pragma unroll
    for (int r = 0; r < R; r++) as_factor(&weights[r][c], a[r]);
    // The tokens of a word, and of the one that follows: of TF32 there is one in each, 2t and 2t + 1.
    const elem* first_word = tokens + 2 * t * PITCH;
    constexpr int NEXT = Word::TERMS == 1 ? 1 : 8;
    if (!sight.all(row, 16 * R, 8 * c, TOGETHER) && !are_finite(tokens)) {
      // Row by row, with nothing but what it sees: for a row these are the same bits.
#pragma unroll
      for (int r = 0; r < R; r++)
#pragma unroll 1
        for (int one = 0; one < 16; one++) {
          bool seen[2][2];
          for (int i = 0; i < 4; i++)
            seen[i / 2][i % 2] = sight(row + 16 * r + one, 8 * c + 2 * t + i / 2 * NEXT + i % 2);
#pragma unroll
          for (int step = 0; step < STEPS; step++) {
            const elem* from = first_word + 8 * step + g;
            unsigned b[2];
            for (int i = 0; i < 2; i++)
              b[i] = Word::load_seen(from + i * NEXT * PITCH, PITCH, seen[i][0], seen[i][1]);
            float all[4];
            for (int i = 0; i < 4; i++) all[i] = sums[r][step][i];
            nn::multiply_add<elem>(all, a[r], b);
            for (int i = 0; i < 4; i++) sums[r][step][i] = one == g + 8 * (i / 2) ? all[i] : sums[r][step][i];
          }
        }
      continue;
    }
#pragma unroll
    for (int step = 0; step < STEPS; step++) {
      const elem* from = first_word + 8 * step + g;
      unsigned b[2] = {Word::load(from, PITCH), Word::load(from + NEXT * PITCH, PITCH)};
#pragma unroll
      for (int r = 0; r < R; r++) nn::multiply_add<elem>(sums[r][step], a[r], b);
    }
  }
}

// Writes half of the rows of 16: `half` 0 the upper 8, 1 the lower.
__device__ __forceinline__ void write(elem* to, const float (&sums)[STEPS][4], int half, float factor) {
#pragma unroll
  for (int step = 0; step < STEPS; step++)
    for (int i = 0; i < 2; i++) to[8 * step + 2 * pair_in_tile() + i] = sums[step][2 * half + i] * factor;
}

// The sum or the maximum of what the 4 lanes of a row have.
__device__ __forceinline__ float row_sum(float x) {
  x += __shfl_xor_sync(nn::FULL_WARP, x, 1);
  return x + __shfl_xor_sync(nn::FULL_WARP, x, 2);
}
__device__ __forceinline__ float row_max(float x) {
  x = nn::larger(x, __shfl_xor_sync(nn::FULL_WARP, x, 1));
  return nn::larger(x, __shfl_xor_sync(nn::FULL_WARP, x, 2));
}

}  // namespace

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_tensor(Shape s, const elem* __restrict__ q, const elem* __restrict__ k, const elem* __restrict__ v,
                 const elem* __restrict__ mask, elem* __restrict__ y, float* __restrict__ lse, int wide,
                 const long long* __restrict__ keys_so_far) {
  if (keys_so_far) s.k_len = *keys_so_far;
  constexpr int ROWS = Forward::ROWS, COLS = Forward::COLS, R = ROWS / 16 / WARPS, C = COLS / 8;
  NN_DYNAMIC_SHARED(elem, rows);
  Stage<COLS>* stages = reinterpret_cast<Stage<COLS>*>(rows + ROWS * PITCH);
  const nn::QueryTile at(s, ROWS, HEAD);
  const elem* open = mask ? mask + at.batch * s.k_len : nullptr;
  const int row = static_cast<int>(nn::warp()) * 16 * R, g = row_in_tile(), t = pair_in_tile();
  const float factor = static_cast<float>(s.scale) * LOG2_E;
  float sums[R][STEPS][4] = {}, most[R][2], total[R][2];
#pragma unroll
  for (int r = 0; r < R; r++)
    for (int half = 0; half < 2; half++) most[r][half] = -nn::infinity(), total[r][half] = 0.0f;

  auto start = [&](Stage<COLS>& to, long long first) {
    start_copy<COLS>(to.first, tokens(k, s.k, at.batch, at.kv_head, first, s.k_len, open), wide);
    start_copy<COLS>(to.second, tokens(v, s.v, at.batch, at.kv_head, first, s.k_len, open), wide);
    if (open) start_copy<COLS>(to.x, open + first, static_cast<int>(s.k_len - first));
    nn::cp_async_commit();
  };
  if (at.seen > 0) {
    start_copy<ROWS>(rows, tokens(q, s.q, at.batch, at.head, at.first, s.q_len), wide);
    start(stages[0], 0);
  }
  for (long long first = 0; first < at.seen; first += COLS) {
    Stage<COLS>& stage = stages[first / COLS % 2];
    nn::cp_async_wait<0>();
    if (first == 0) round_copied<ROWS>(rows);
    round_copied<COLS>(stage.first);
    round_copied<COLS>(stage.second);
    __syncthreads();
    // All have left the other stage.
    if (first + COLS < at.seen) start(stages[(first / COLS + 1) % 2], first + COLS);

    float scores[R][C][4];
    multiply(rows + row * PITCH, stage.first, scores);
    const Sight<false> sight(s, at.first, first);
    const bool whole = !open && first + COLS <= s.k_len && sight.all(row, 16 * R, 0, COLS);
    const int count = static_cast<int>(s.k_len - first);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int half = 0; half < 2; half++) {
        float tile_most = most[r][half];
#pragma unroll
        for (int c = 0; c < C; c++)
          for (int i = 0; i < 2; i++) {
            float& score = scores[r][c][2 * half + i];
            score *= factor;
            if (!whole) {
              int col = 8 * c + 2 * t + i;
              bool seen = col < count && (!open || stage.x[col] != 0.0f) && sight(row + 16 * r + 8 * half + g, col);
              score = seen ? score : -nn::infinity();
            }
            tile_most = nn::larger(tile_most, score);
          }
        tile_most = row_max(tile_most);
        // They are both −∞ as long as nothing was seen.
        float carry = tile_most == most[r][half] ? 1.0f : exp2f(most[r][half] - tile_most), sum = 0.0f;
        most[r][half] = tile_most;
#pragma unroll
        for (int c = 0; c < C; c++)
          for (int i = 0; i < 2; i++) {
            float& score = scores[r][c][2 * half + i];
            score = !whole && score == -nn::infinity() ? 0.0f : exp2f(score - tile_most);
            sum += score;
          }
        total[r][half] = total[r][half] * carry + row_sum(sum);
#pragma unroll
        for (int step = 0; step < STEPS; step++)
          for (int i = 0; i < 2; i++) sums[r][step][2 * half + i] *= carry;
      }
    add_weighted(scores, stage.second, sight, row, sums);
  }

#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      long long query = at.first + row + 16 * r + 8 * half + g;
      if (query >= s.q_len) continue;
      bool none = total[r][half] == 0.0f;
      elem* to = y + at.batch * s.y.batch + at.head * s.y.head + query * s.y.token;
      write(to, sums[r], half, none ? 0.0f : 1.0f / total[r][half]);
      if (lse && t == 0) {
        float log_sum = most[r][half] * LN_2 + logf(total[r][half]);
        lse[s.row(at.batch, at.head, query)] = none ? nn::infinity() : log_sum;
      }
    }
}
NN_KERNEL(attention_tensor)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_tensor_delta(Shape s, const elem* __restrict__ y, const elem* __restrict__ dy,
                       float* __restrict__ delta) {
  nn::sum_products(s, y, dy, delta);
}
NN_KERNEL(attention_tensor_delta)

extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_tensor_dq(Shape s, const elem* __restrict__ q, const elem* __restrict__ k, const elem* __restrict__ v,
                    const elem* __restrict__ mask, const float* __restrict__ lse, const elem* __restrict__ dy,
                    const float* __restrict__ delta, elem* __restrict__ dq, int wide) {
  constexpr int ROWS = Queries::ROWS, COLS = Queries::COLS, R = ROWS / 16 / WARPS, C = COLS / 8;
  NN_DYNAMIC_SHARED(elem, rows);
  elem* pulls = rows + ROWS * PITCH;
  Stage<COLS>* stages = reinterpret_cast<Stage<COLS>*>(pulls + ROWS * PITCH);
  const nn::QueryTile at(s, ROWS, HEAD);
  const elem* open = mask ? mask + at.batch * s.k_len : nullptr;
  const int row = static_cast<int>(nn::warp()) * 16 * R, g = row_in_tile(), t = pair_in_tile();
  const float scale = static_cast<float>(s.scale), factor = scale * LOG2_E;
  float sums[R][STEPS][4] = {}, log_total[R][2], mean[R][2];
#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      long long query = at.first + row + 16 * r + 8 * half + g;
      bool there = query < s.q_len;
      log_total[r][half] = there ? lse[s.row(at.batch, at.head, query)] * LOG2_E : 0.0f;
      mean[r][half] = there ? delta[s.row(at.batch, at.head, query)] : 0.0f;
    }

  auto start = [&](Stage<COLS>& to, long long first) {
    start_copy<COLS>(to.first, tokens(k, s.k, at.batch, at.kv_head, first, s.k_len, open), wide);
    start_copy<COLS>(to.second, tokens(v, s.v, at.batch, at.kv_head, first, s.k_len, open), wide);
    if (open) start_copy<COLS>(to.x, open + first, static_cast<int>(s.k_len - first));
    nn::cp_async_commit();
  };
  if (at.seen > 0) {
    start_copy<ROWS>(rows, tokens(q, s.q, at.batch, at.head, at.first, s.q_len), wide);
    start_copy<ROWS>(pulls, tokens(dy, s.y, at.batch, at.head, at.first, s.q_len), wide);
    start(stages[0], 0);
  }
  for (long long first = 0; first < at.seen; first += COLS) {
    Stage<COLS>& stage = stages[first / COLS % 2];
    nn::cp_async_wait<0>();
    if (first == 0) round_copied<ROWS>(rows), round_copied<ROWS>(pulls);
    round_copied<COLS>(stage.first);
    round_copied<COLS>(stage.second);
    __syncthreads();
    // All have left the other stage.
    if (first + COLS < at.seen) start(stages[(first / COLS + 1) % 2], first + COLS);

    float weights[R][C][4], slopes[R][C][4];
    multiply(rows + row * PITCH, stage.first, weights);
    multiply(pulls + row * PITCH, stage.second, slopes);
    const Sight<false> sight(s, at.first, first);
    const int count = static_cast<int>(s.k_len - first);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int col = 8 * c + 2 * t + i % 2, half = i / 2;
          bool seen = col < count && (!open || stage.x[col] != 0.0f) && sight(row + 16 * r + 8 * half + g, col);
          float weight = exp2f(weights[r][c][i] * factor - log_total[r][half]);
          slopes[r][c][i] = seen ? scale * weight * (slopes[r][c][i] - mean[r][half]) : 0.0f;
        }
    add_weighted(slopes, stage.first, sight, row, sums);
  }

#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      long long query = at.first + row + 16 * r + 8 * half + g;
      if (query < s.q_len)
        write(dq + at.batch * s.q.batch + at.head * s.q.head + query * s.q.token, sums[r], half, 1.0f);
    }
}
NN_KERNEL(attention_tensor_dq)

// The order in which queries are added up is that of `attention_dkv`.
extern "C" __global__ void __launch_bounds__(THREADS, 1)
attention_tensor_dkv(Shape s, const elem* __restrict__ q, const elem* __restrict__ k, const elem* __restrict__ v,
                     const elem* __restrict__ mask, const float* __restrict__ lse, const elem* __restrict__ dy,
                     const float* __restrict__ delta, elem* __restrict__ dk, elem* __restrict__ dv, int wide) {
  constexpr int ROWS = Keys::ROWS, COLS = Keys::COLS, R = ROWS / 16 / WARPS, C = COLS / 8;
  NN_DYNAMIC_SHARED(elem, rows);
  elem* values = rows + ROWS * PITCH;
  Stage<COLS>* stages = reinterpret_cast<Stage<COLS>*>(values + ROWS * PITCH);
  const nn::KeyTile at(s, ROWS, HEAD);
  const elem* open = mask ? mask + at.batch * s.k_len : nullptr;
  const int row = static_cast<int>(nn::warp()) * 16 * R, g = row_in_tile(), t = pair_in_tile();
  const float scale = static_cast<float>(s.scale), factor = scale * LOG2_E;
  float key_sums[R][STEPS][4] = {}, value_sums[R][STEPS][4] = {};

  // Tiles of all heads are counted on, head by head.
  const int group = static_cast<int>(s.heads / s.kv_heads), from = static_cast<int>(at.from) / COLS;
  const int tiles = max((static_cast<int>(s.q_len) + COLS - 1) / COLS - from, 0);
  auto start = [&](Stage<COLS>& to, int tile) {
    int first = (from + tile % tiles) * COLS;
    long long head = at.kv_head * group + tile / tiles;
    start_copy<COLS>(to.first, tokens(q, s.q, at.batch, head, first, s.q_len), wide);
    start_copy<COLS>(to.second, tokens(dy, s.y, at.batch, head, first, s.q_len), wide);
    int count = static_cast<int>(s.q_len) - first;
    start_copy<COLS>(to.x, lse + s.row(at.batch, head, first), count);
    start_copy<COLS>(to.y, delta + s.row(at.batch, head, first), count);
    nn::cp_async_commit();
  };
  if (tiles > 0) {
    start_copy<ROWS>(rows, tokens(k, s.k, at.batch, at.kv_head, at.first, s.k_len, open), wide);
    start_copy<ROWS>(values, tokens(v, s.v, at.batch, at.kv_head, at.first, s.k_len, open), wide);
    start(stages[0], 0);
  }
  for (int tile = 0; tile < tiles * group; tile++) {
    Stage<COLS>& stage = stages[tile % 2];
    nn::cp_async_wait<0>();
    if (tile == 0) round_copied<ROWS>(rows), round_copied<ROWS>(values);
    round_copied<COLS>(stage.first);
    round_copied<COLS>(stage.second);
    __syncthreads();
    // All have left the other stage.
    if (tile + 1 < tiles * group) start(stages[(tile + 1) % 2], tile + 1);

    const int first = (from + tile % tiles) * COLS;
    const Sight<true> sight(s, first, at.first);
    const int count = static_cast<int>(s.q_len) - first;
    float weights[R][C][4];
    multiply(rows + row * PITCH, stage.first, weights);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int col = 8 * c + 2 * t + i % 2;
          bool seen = col < count && sight(row + 16 * r + 8 * (i / 2) + g, col);
          weights[r][c][i] = seen ? exp2f(weights[r][c][i] * factor - stage.x[col] * LOG2_E) : 0.0f;
        }
    add_weighted(weights, stage.second, sight, row, value_sums);
    float slopes[R][C][4];
    multiply(values + row * PITCH, stage.second, slopes);
#pragma unroll
    for (int r = 0; r < R; r++)
#pragma unroll
      for (int c = 0; c < C; c++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int col = 8 * c + 2 * t + i % 2;
          bool seen = col < count && sight(row + 16 * r + 8 * (i / 2) + g, col);
          slopes[r][c][i] = seen ? scale * weights[r][c][i] * (slopes[r][c][i] - stage.y[col]) : 0.0f;
        }
    add_weighted(slopes, stage.first, sight, row, key_sums);
  }

#pragma unroll
  for (int r = 0; r < R; r++)
#pragma unroll
    for (int half = 0; half < 2; half++) {
      long long key = at.first + row + 16 * r + 8 * half + g;
      if (key >= s.k_len) continue;
      // What queries hold must not reach a key that nobody sees, not even as 0·NaN.
      if (open && float(open[key]) == 0.0f)
#pragma unroll
        for (int step = 0; step < STEPS; step++)
          for (int i = 2 * half; i < 2 * half + 2; i++) key_sums[r][step][i] = value_sums[r][step][i] = 0.0f;
      if (dk) write(dk + at.batch * s.k.batch + at.kv_head * s.k.head + key * s.k.token, key_sums[r], half, 1.0f);
      if (dv) write(dv + at.batch * s.v.batch + at.kv_head * s.v.head + key * s.v.token, value_sums[r], half, 1.0f);
    }
}
NN_KERNEL(attention_tensor_dkv)
