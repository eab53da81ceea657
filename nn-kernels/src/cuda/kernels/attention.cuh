// What attention is computed of, and which tile of it a block has.
#pragma once
#include "device.cuh"

namespace nn {

// Where rows lie, in elements: `Strides` of `attention.rs`.
struct Steps {
  long long batch, token, head;
};

// Where a sequence goes on, forward kernels are given the number of keys apart, and `k_len` says nothing.
struct Shape {
  long long batch, q_len, k_len, heads, kv_heads, head_dim, causal;
  Steps q, k, v, y;
  double scale;

  // Whether query i sees key j, but for the mask.
  __device__ __forceinline__ bool sees(long long i, long long j) const { return !causal || j <= i + k_len - q_len; }

  // Where a query is in `[batch, heads, q_len]`.
  __device__ __forceinline__ long long row(long long sample, long long head, long long query) const {
    return (sample * heads + head) * q_len + query;
  }
};

// A tile of `size` queries of one head, and a slice of `width` of its values. The last queries, which see the most
// keys, come first, so that the short tiles fill what is left at the end.
struct QueryTile {
  long long slice, batch, head, kv_head, first;
  // No query of the tile sees a key from here on.
  long long seen;

  __device__ __forceinline__ QueryTile(const Shape& s, int size, int width) {
    long long slices = (s.head_dim + width - 1) / width, tiles = (s.q_len + size - 1) / size, unit = blockIdx.x;
    slice = unit % slices, unit /= slices;
    head = unit % s.heads, unit /= s.heads;
    batch = unit % s.batch, unit /= s.batch;
    kv_head = head / (s.heads / s.kv_heads);
    first = (tiles - 1 - unit) * size;
    long long end = first + size < s.q_len ? first + size : s.q_len;
    seen = s.causal ? end + s.k_len - s.q_len : s.k_len;
  }
};

// A tile of `size` keys of one head, and a slice of `width` of its values. The first keys, which most queries see, come
// first.
struct KeyTile {
  long long slice, batch, kv_head, first;
  // No query before this one sees a key of the tile.
  long long from;

  __device__ __forceinline__ KeyTile(const Shape& s, int size, int width) {
    long long slices = (s.head_dim + width - 1) / width, unit = blockIdx.x;
    slice = unit % slices, unit /= slices;
    kv_head = unit % s.kv_heads, unit /= s.kv_heads;
    batch = unit % s.batch, unit /= s.batch;
    first = unit * size;
    from = s.causal && first > s.k_len - s.q_len ? first - (s.k_len - s.q_len) : 0;
  }
};

// delta[batch, head, query] = y·dy, a warp each.
template <class E, class T>
__device__ __forceinline__ void sum_products(const Shape& s, const E* __restrict__ y, const E* __restrict__ dy,
                                             T* __restrict__ delta) {
  long long warps = static_cast<long long>(gridDim.x) * warps_in_block();
  for (long long i = blockIdx.x * warps_in_block() + warp(); i < s.batch * s.heads * s.q_len; i += warps) {
    long long query = i % s.q_len, head = i / s.q_len % s.heads, batch = i / s.q_len / s.heads;
    long long at = batch * s.y.batch + head * s.y.head + query * s.y.token;
    T sum = T(0);
    for (long long v = lane(); v < s.head_dim; v += 32) sum += T(y[at + v]) * T(dy[at + v]);
    sum = warp_sum(sum);
    if (lane() == 0) delta[i] = sum;
  }
}

}  // namespace nn
