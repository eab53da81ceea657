// What the files of kernels share. Sizes are 64 bits wide throughout.
#pragma once
#include "device.cuh"

using nn::block_max;
using nn::block_sum;
using nn::warp_sum;

// What lies in memory, and what is computed with, which is at least a float. Master weights, statistics and sums that
// are still to be added up are `real` in memory too.
using elem = ELEM;
using real = REAL;

// The first index out of range that a kernel came upon, as the host reads it.
struct Fault {
  unsigned found, place, id, unused;
  unsigned long long rows;
};

// A thread takes every `stride`-th element from its own on, so that any grid does for any number of them.
__device__ __forceinline__ long long first() {
  return static_cast<long long>(blockIdx.x) * blockDim.x + threadIdx.x;
}
__device__ __forceinline__ long long stride() { return static_cast<long long>(gridDim.x) * blockDim.x; }

#define NN_EACH(i, n) for (long long i = first(); i < (n); i += stride())
