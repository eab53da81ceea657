// What kernels share. All inline PTX is here, each piece beside the plain C++ that says what it means, so the same
// kernel compiles under NVRTC (which is given no CUDA header) and under g++ with the CPU emulator.
//
// Nothing here is called by one capital letter: those are for the constants that a kernel is compiled with.
#pragma once

#ifdef __CUDACC_RTC__
#define NN_ON_DEVICE 1
#define NN_KERNEL(name)
#define NN_DYNAMIC_SHARED(T, name)                          \
  extern __shared__ __align__(16) unsigned char nn_dynamic_shared[]; \
  T* name = reinterpret_cast<T*>(nn_dynamic_shared)
#else
#define NN_ON_DEVICE 0
#include "cuda_emulator.h"
// After the definition of `extern "C" __global__ void name(...)`, so that the host can find it by its name.
#define NN_KERNEL(name) NN_EMU_KERNEL(name)
#define NN_DYNAMIC_SHARED(T, name) T* name = reinterpret_cast<T*>(nn_emu_dynamic_shared())
#endif

namespace nn {

constexpr unsigned FULL_WARP = 0xffffffffu;

__device__ __forceinline__ float infinity() { return __int_as_float(0x7f800000); }

// bfloat16 is the upper half of a float. Kernels keep it as bits and compute in float.
using bf16 = unsigned short;

__device__ __forceinline__ float from_bf16(bf16 x) { return __uint_as_float(static_cast<unsigned>(x) << 16); }

// Round to nearest, ties to even; a NaN stays a NaN.
__device__ __forceinline__ bf16 to_bf16(float x) {
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<bf16>((bits >> 16) | 0x40u);
  return static_cast<bf16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

// A bfloat16 in memory, which is read as a float, and rounded where one is assigned.
struct bfloat16 {
  bf16 bits;
  bfloat16() = default;
  __device__ __forceinline__ explicit bfloat16(float x) : bits(to_bf16(x)) {}
  __device__ __forceinline__ operator float() const { return from_bf16(bits); }
  __device__ __forceinline__ bfloat16& operator=(float x) {
    bits = to_bf16(x);
    return *this;
  }
  __device__ __forceinline__ bfloat16& operator+=(float x) { return *this = from_bf16(bits) + x; }
};

// Two floats, rounded as `to_bf16` does, in a register, the first in the low half.
__device__ __forceinline__ unsigned to_bf16x2(float low, float high) {
#if NN_ON_DEVICE
  unsigned both;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(both) : "f"(high), "f"(low));
  return both;
#else
  return static_cast<unsigned>(to_bf16(low)) | static_cast<unsigned>(to_bf16(high)) << 16;
#endif
}

// Two bfloat16 in a register, the first in the low half, as `mma_m16n8k16_bf16` takes them.
__device__ __forceinline__ unsigned pack_bf16(bf16 low, bf16 high) {
  return static_cast<unsigned>(low) | static_cast<unsigned>(high) << 16;
}

// Round to nearest, ties away from zero.
__device__ __forceinline__ unsigned to_tf32(float x) {
#if NN_ON_DEVICE
  unsigned bits;
  asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(bits) : "f"(x));
  return bits;
#else
  unsigned bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + 0x1000u) & 0xffffe000u;
#endif
}

// d[16x8] += a[16x8] b[8x8]. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, t) (g+8, t) (g, t+4) (g+8, t+4)      b: (t, g) (t+4, g)
//   d: (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
__device__ __forceinline__ void mma_m16n8k8_tf32(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if NN_ON_DEVICE
  asm volatile(
      "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  nn_emu_mma_m16n8k8_tf32(d, a, b);
#endif
}

// d[16x8] += a[16x16] b[16x8], two neighbours in k to a register. With g = lane / 4 and t = lane % 4 a lane holds
//   a: (g, 2t..) (g+8, 2t..) (g, 2t+8..) (g+8, 2t+8..)      b: (2t.., g) (2t+8.., g)
//   d: (g, 2t) (g, 2t+1) (g+8, 2t) (g+8, 2t+1)
__device__ __forceinline__ void mma_m16n8k16_bf16(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
#if NN_ON_DEVICE
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#else
  nn_emu_mma_m16n8k16_bf16(d, a, b);
#endif
}

// What a register of a factor holds on tensor cores: a float that was rounded to TF32, or two neighbours in k of bfloat16.
template <class Elem> struct Word;
template <> struct Word<float> {
  static constexpr int TERMS = 1;
  // Terms that lie `apart` from one another.
  static __device__ __forceinline__ unsigned load(const float* at, int) { return __float_as_uint(*at); }
  // The same, where only those that are seen count.
  static __device__ __forceinline__ unsigned load_seen(const float* at, int, bool first, bool) {
    return first ? __float_as_uint(*at) : 0;
  }
};
template <> struct Word<bfloat16> {
  static constexpr int TERMS = 2;
  static __device__ __forceinline__ unsigned load(const bfloat16* at, int apart) {
    return pack_bf16(at[0].bits, at[apart].bits);
  }
  static __device__ __forceinline__ unsigned load_seen(const bfloat16* at, int apart, bool first, bool second) {
    return pack_bf16(first ? at[0].bits : 0, second ? at[apart].bits : 0);
  }
};

// The same of terms that lie side by side, at a multiple of 4 bytes.
__device__ __forceinline__ unsigned load_word(const float* at) { return __float_as_uint(*at); }
__device__ __forceinline__ unsigned load_word(const bfloat16* at) { return *reinterpret_cast<const unsigned*>(at); }

// d[16x8] += a[16xk] b[kx8], with the k of the factors' type: 8 of TF32, 16 of bfloat16. The words of a and b lie alike.
template <class Elem>
__device__ __forceinline__ void multiply_add(float (&d)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
  if constexpr (Word<Elem>::TERMS == 1) mma_m16n8k8_tf32(d, a, b);
  else mma_m16n8k16_bf16(d, a, b);
}

// Copies 4 bytes from global to shared memory while the thread goes on. Only the first `bytes` are read, the rest
// becomes zero: `cp_async4(to, from, inside ? 4 : 0)` needs a valid address only where it is inside.
__device__ __forceinline__ void cp_async4(void* shared, const void* global, int bytes = 4) {
#if NN_ON_DEVICE
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
#else
  nn_emu_cp_async(shared, global, 4, bytes);
#endif
}

// The same for 16 bytes; both addresses are multiples of 16.
__device__ __forceinline__ void cp_async16(void* shared, const void* global, int bytes = 16) {
#if NN_ON_DEVICE
  unsigned to = static_cast<unsigned>(__cvta_generic_to_shared(shared));
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(global), "r"(bytes) : "memory");
#else
  nn_emu_cp_async(shared, global, 16, bytes);
#endif
}

// Closes a group of copies.
__device__ __forceinline__ void cp_async_commit() {
#if NN_ON_DEVICE
  asm volatile("cp.async.commit_group;" ::: "memory");
#else
  nn_emu_cp_async_commit();
#endif
}

// Waits until at most the last `Groups` groups of this thread are still under way. What other threads copied is seen
// only after a `__syncthreads` that follows.
template <int Groups> __device__ __forceinline__ void cp_async_wait() {
#if NN_ON_DEVICE
  asm volatile("cp.async.wait_group %0;" ::"n"(Groups) : "memory");
#else
  nn_emu_cp_async_wait(Groups);
#endif
}

// The larger of two. A NaN loses against a number, as in `fmaxf`.
__device__ __forceinline__ float larger(float a, float b) { return fmaxf(a, b); }
__device__ __forceinline__ double larger(double a, double b) { return fmax(a, b); }

// Reductions over the 32 lanes of a warp, for float and double. Every lane gets the same bits.
template <class Float> __device__ __forceinline__ Float warp_sum(Float value) {
  for (int offset = 16; offset > 0; offset /= 2) value += __shfl_xor_sync(FULL_WARP, value, offset);
  return value;
}
template <class Float> __device__ __forceinline__ Float warp_max(Float value) {
  for (int offset = 16; offset > 0; offset /= 2) value = larger(value, __shfl_xor_sync(FULL_WARP, value, offset));
  return value;
}

__device__ __forceinline__ unsigned thread_in_block() {
  return threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
}
__device__ __forceinline__ unsigned lane() { return thread_in_block() % 32; }
__device__ __forceinline__ unsigned warp() { return thread_in_block() / 32; }
__device__ __forceinline__ unsigned warps_in_block() { return blockDim.x * blockDim.y * blockDim.z / 32; }

// One value of each warp, handed to every warp: lane i gets that of warp i, lanes without a warp get `neutral`.
template <class Float> __device__ __forceinline__ Float gather_warps(Float value, Float neutral) {
  __shared__ Float of_warp[32];
  __syncthreads();  // an earlier call may still be reading
  if (lane() == 0) of_warp[warp()] = value;
  __syncthreads();
  return lane() < warps_in_block() ? of_warp[lane()] : neutral;
}

// Reductions over a block of whole warps, for float and double. All of its threads call them and all get the same
// bits; the order depends on the number of warps alone.
template <class Float> __device__ __forceinline__ Float block_sum(Float value) {
  return warp_sum(gather_warps(warp_sum(value), Float(0)));
}
template <class Float> __device__ __forceinline__ Float block_max(Float value) {
  return warp_max(gather_warps(warp_max(value), Float(-infinity())));
}

}  // namespace nn
