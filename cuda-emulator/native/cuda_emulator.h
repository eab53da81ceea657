// CUDA C++ for a host compiler: what NVRTC knows without a header, as plain C++ over the runtime of the stand-in
// libcuda. It includes no standard header: those are most of the time that a small kernel takes to compile, and NVRTC
// has none of them either, so a kernel that leans on one fails here too. Nothing in it is called by one capital letter,
// as constants that are defined with `-D` are.
#pragma once
#include "kernel_abi.h"

#define __global__
#define __device__
#define __host__
#define __constant__ static
#define __forceinline__ inline
#define __noinline__ __attribute__((noinline))
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
// Nothing else in a kernel's file is a variable without a value, so these are all that is in .bss, which the runtime
// poisons before a block starts. (A section of their own can't hold variables of templates beside others.)
#define __shared__ static

#define NN_EMU_TEXT_(x) #x
#define NN_EMU_TEXT(x) NN_EMU_TEXT_(x)
#define NN_EMU_PLACE __FILE__ ":" NN_EMU_TEXT(__LINE__)

#define __syncthreads() nn_emu_sync_block(NN_EMU_PLACE)
#define __syncwarp(...) nn_emu::sync_warp(NN_EMU_PLACE __VA_OPT__(, ) __VA_ARGS__)
#define __shfl_sync(...) nn_emu::shuffle(nn_emu::Shuffle::Index, NN_EMU_PLACE, __VA_ARGS__)
#define __shfl_up_sync(...) nn_emu::shuffle(nn_emu::Shuffle::Up, NN_EMU_PLACE, __VA_ARGS__)
#define __shfl_down_sync(...) nn_emu::shuffle(nn_emu::Shuffle::Down, NN_EMU_PLACE, __VA_ARGS__)
#define __shfl_xor_sync(...) nn_emu::shuffle(nn_emu::Shuffle::Xor, NN_EMU_PLACE, __VA_ARGS__)
#define __ballot_sync(mask, predicate) nn_emu_ballot(mask, predicate, NN_EMU_PLACE)
#define __any_sync(mask, predicate) (nn_emu_ballot(mask, predicate, NN_EMU_PLACE) != 0)
#define __all_sync(mask, predicate) (nn_emu_ballot(mask, !(predicate), NN_EMU_PLACE) == 0)
#define __trap() nn_emu_trap(NN_EMU_PLACE)

struct float2 { float x, y; } __attribute__((aligned(8)));
struct float3 { float x, y, z; };
struct float4 { float x, y, z, w; } __attribute__((aligned(16)));
struct double2 { double x, y; } __attribute__((aligned(16)));
struct int2 { int x, y; } __attribute__((aligned(8)));
struct int4 { int x, y, z, w; } __attribute__((aligned(16)));
struct uint2 { unsigned x, y; } __attribute__((aligned(8)));
struct uint4 { unsigned x, y, z, w; } __attribute__((aligned(16)));
struct ushort2 { unsigned short x, y; } __attribute__((aligned(4)));
struct ushort4 { unsigned short x, y, z, w; } __attribute__((aligned(8)));
inline float2 make_float2(float x, float y) { return {x, y}; }
inline float3 make_float3(float x, float y, float z) { return {x, y, z}; }
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
inline double2 make_double2(double x, double y) { return {x, y}; }
inline int2 make_int2(int x, int y) { return {x, y}; }
inline int4 make_int4(int x, int y, int z, int w) { return {x, y, z, w}; }
inline uint2 make_uint2(unsigned x, unsigned y) { return {x, y}; }
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }
inline ushort2 make_ushort2(unsigned short x, unsigned short y) { return {x, y}; }
inline ushort4 make_ushort4(unsigned short x, unsigned short y, unsigned short z, unsigned short w) {
  return {x, y, z, w};
}

#define NN_EMU_MATH_1(name)                \
  extern "C" double name(double) noexcept; \
  extern "C" float name##f(float) noexcept; \
  inline float name(float x) { return name##f(x); }
#define NN_EMU_MATH_2(name)                       \
  extern "C" double name(double, double) noexcept; \
  extern "C" float name##f(float, float) noexcept; \
  inline float name(float x, float y) { return name##f(x, y); }
NN_EMU_MATH_1(acos)
NN_EMU_MATH_1(acosh)
NN_EMU_MATH_1(asin)
NN_EMU_MATH_1(asinh)
NN_EMU_MATH_1(atan)
NN_EMU_MATH_1(atanh)
NN_EMU_MATH_1(cbrt)
NN_EMU_MATH_1(ceil)
NN_EMU_MATH_1(cos)
NN_EMU_MATH_1(cosh)
NN_EMU_MATH_1(erf)
NN_EMU_MATH_1(erfc)
NN_EMU_MATH_1(exp)
NN_EMU_MATH_1(exp10)
NN_EMU_MATH_1(exp2)
NN_EMU_MATH_1(expm1)
NN_EMU_MATH_1(fabs)
NN_EMU_MATH_1(floor)
NN_EMU_MATH_1(lgamma)
NN_EMU_MATH_1(log)
NN_EMU_MATH_1(log10)
NN_EMU_MATH_1(log1p)
NN_EMU_MATH_1(log2)
NN_EMU_MATH_1(nearbyint)
NN_EMU_MATH_1(rint)
NN_EMU_MATH_1(round)
NN_EMU_MATH_1(sin)
NN_EMU_MATH_1(sinh)
NN_EMU_MATH_1(sqrt)
NN_EMU_MATH_1(tan)
NN_EMU_MATH_1(tanh)
NN_EMU_MATH_1(tgamma)
NN_EMU_MATH_1(trunc)
NN_EMU_MATH_2(atan2)
NN_EMU_MATH_2(copysign)
NN_EMU_MATH_2(fdim)
NN_EMU_MATH_2(fmax)
NN_EMU_MATH_2(fmin)
NN_EMU_MATH_2(fmod)
NN_EMU_MATH_2(hypot)
NN_EMU_MATH_2(nextafter)
NN_EMU_MATH_2(pow)
NN_EMU_MATH_2(remainder)
#undef NN_EMU_MATH_1
#undef NN_EMU_MATH_2

extern "C" double fma(double, double, double) noexcept;
extern "C" float fmaf(float, float, float) noexcept;
extern "C" double ldexp(double, int) noexcept;
extern "C" float ldexpf(float, int) noexcept;
extern "C" void sincos(double, double*, double*) noexcept;
extern "C" void sincosf(float, float*, float*) noexcept;
extern "C" int abs(int) noexcept;
extern "C" long labs(long) noexcept;
extern "C" long long llabs(long long) noexcept;
extern "C" int printf(const char*, ...);

inline float fma(float x, float y, float z) { return fmaf(x, y, z); }
inline float ldexp(float x, int n) { return ldexpf(x, n); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float rsqrtf(float x) { return static_cast<float>(1.0 / sqrt(static_cast<double>(x))); }
inline float rsqrt(float x) { return rsqrtf(x); }
inline double sinpi(double x) { return sin(3.14159265358979323846 * x); }
inline double cospi(double x) { return cos(3.14159265358979323846 * x); }
inline float sinpif(float x) { return static_cast<float>(sinpi(static_cast<double>(x))); }
inline float cospif(float x) { return static_cast<float>(cospi(static_cast<double>(x))); }
inline void sincospif(float x, float* s, float* c) { *s = sinpif(x), *c = cospif(x); }
inline float __expf(float x) { return expf(x); }
inline float __logf(float x) { return logf(x); }
inline float __log2f(float x) { return log2f(x); }
inline float __sinf(float x) { return sinf(x); }
inline float __cosf(float x) { return cosf(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __fdividef(float x, float y) { return x / y; }
inline float __frcp_rn(float x) { return 1.0f / x; }
inline float __fsqrt_rn(float x) { return sqrtf(x); }
inline float __fadd_rn(float x, float y) { return x + y; }
inline float __fsub_rn(float x, float y) { return x - y; }
inline float __fmul_rn(float x, float y) { return x * y; }
inline float __fdiv_rn(float x, float y) { return x / y; }
inline float __fmaf_rn(float x, float y, float z) { return fmaf(x, y, z); }
inline double __dadd_rn(double x, double y) { return x + y; }
inline double __dsub_rn(double x, double y) { return x - y; }
inline double __dmul_rn(double x, double y) { return x * y; }
inline double __ddiv_rn(double x, double y) { return x / y; }
inline double __fma_rn(double x, double y, double z) { return fma(x, y, z); }
inline float __saturatef(float x) { return x > 0 ? (x < 1 ? x : 1) : 0; }

#define NN_EMU_CLASSIFY(name)                                    \
  inline bool name(float x) { return __builtin_##name(x) != 0; } \
  inline bool name(double x) { return __builtin_##name(x) != 0; }
NN_EMU_CLASSIFY(isnan)
NN_EMU_CLASSIFY(isinf)
NN_EMU_CLASSIFY(isfinite)
NN_EMU_CLASSIFY(signbit)
#undef NN_EMU_CLASSIFY

#define NN_EMU_ORDERED(Value)                          \
  inline Value max(Value a, Value b) { return a > b ? a : b; } \
  inline Value min(Value a, Value b) { return a < b ? a : b; }
NN_EMU_ORDERED(int)
NN_EMU_ORDERED(unsigned)
NN_EMU_ORDERED(long)
NN_EMU_ORDERED(unsigned long)
NN_EMU_ORDERED(long long)
NN_EMU_ORDERED(unsigned long long)
#undef NN_EMU_ORDERED
inline float max(float a, float b) { return fmaxf(a, b); }
inline float min(float a, float b) { return fminf(a, b); }
inline double max(double a, double b) { return fmax(a, b); }
inline double min(double a, double b) { return fmin(a, b); }
inline long abs(long x) { return labs(x); }
inline long long abs(long long x) { return llabs(x); }
inline float abs(float x) { return fabsf(x); }
inline double abs(double x) { return fabs(x); }

namespace nn_emu {

template <class To, class From> inline To bits(From from) {
  static_assert(sizeof(To) == sizeof(From), "the same number of bits");
  To to;
  __builtin_memcpy(&to, &from, sizeof to);
  return to;
}

// Keeps an argument out of template deduction, so that `atomicAdd(&counter, 1)` works on an unsigned counter.
template <class Value> struct Same { using Type = Value; };

inline void sync_warp(Place place, unsigned mask = 0xffffffffu) { nn_emu_sync_warp(mask, place); }

template <class Value>
inline Value shuffle(Shuffle kind, Place place, unsigned mask, Value value, int operand, int width = 32) {
  static_assert(sizeof(Value) == 4 || sizeof(Value) == 8, "a shuffle moves 4 or 8 bytes");
  nn_emu_shuffle(kind, mask, &value, sizeof value, operand, width, place);
  return value;
}

template <class... Args> struct Arguments {
  static constexpr size_t bytes[sizeof...(Args) + 1] = {sizeof(Args)..., 0};
};
template <int... Index> struct Indices {};
template <class... Args, int... Index>
inline void call(void (*kernel)(Args...), void** arguments, Indices<Index...>) {
  kernel(*static_cast<Args*>(arguments[Index])...);
}
template <class... Args> inline void call(void (*kernel)(Args...), void** arguments) {
  call(kernel, arguments, Indices<__integer_pack(sizeof...(Args))...>{});
}

}  // namespace nn_emu

inline unsigned __float_as_uint(float x) { return nn_emu::bits<unsigned>(x); }
inline int __float_as_int(float x) { return nn_emu::bits<int>(x); }
inline float __uint_as_float(unsigned x) { return nn_emu::bits<float>(x); }
inline float __int_as_float(int x) { return nn_emu::bits<float>(x); }
inline long long __double_as_longlong(double x) { return nn_emu::bits<long long>(x); }
inline double __longlong_as_double(long long x) { return nn_emu::bits<double>(x); }
inline int __float2int_rn(float x) { return static_cast<int>(rintf(x)); }
inline int __float2int_rz(float x) { return static_cast<int>(x); }
inline float __int2float_rn(int x) { return static_cast<float>(x); }
inline float __uint2float_rn(unsigned x) { return static_cast<float>(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(static_cast<unsigned>(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll(static_cast<unsigned long long>(x)) : 64; }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline unsigned __umulhi(unsigned x, unsigned y) {
  return static_cast<unsigned>((static_cast<unsigned long long>(x) * y) >> 32);
}
inline int __mulhi(int x, int y) { return static_cast<int>((static_cast<long long>(x) * y) >> 32); }
inline unsigned long long __umul64hi(unsigned long long x, unsigned long long y) {
  return static_cast<unsigned long long>((static_cast<unsigned __int128>(x) * y) >> 64);
}
template <class Value> inline Value __ldg(const Value* p) { return *p; }

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}

// One OS thread runs every thread of a kernel, so a plain read-modify-write is atomic.
#define NN_EMU_ATOMIC(name, update)                                                \
  template <class Value> inline Value name(Value* p, typename nn_emu::Same<Value>::Type value) {   \
    Value old = *p;                                                                    \
    *p = update;                                                                   \
    return old;                                                                    \
  }
NN_EMU_ATOMIC(atomicAdd, old + value)
NN_EMU_ATOMIC(atomicSub, old - value)
NN_EMU_ATOMIC(atomicExch, value)
NN_EMU_ATOMIC(atomicMax, old > value ? old : value)
NN_EMU_ATOMIC(atomicMin, old < value ? old : value)
NN_EMU_ATOMIC(atomicAnd, old & value)
NN_EMU_ATOMIC(atomicOr, old | value)
NN_EMU_ATOMIC(atomicXor, old ^ value)
NN_EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
NN_EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
#undef NN_EMU_ATOMIC
template <class Value>
inline Value atomicCAS(Value* p, typename nn_emu::Same<Value>::Type compare, typename nn_emu::Same<Value>::Type value) {
  Value old = *p;
  if (old == compare) *p = value;
  return old;
}

// The linker's names for the ends of .bss.
extern "C" {
extern unsigned char __bss_start[] __attribute__((visibility("hidden")));
extern unsigned char _end[] __attribute__((visibility("hidden")));
}

namespace nn_emu {
template <class... Args> constexpr Kernel describe(void (*)(Args...), void (*call)(void**)) {
  return {call, sizeof...(Args), Arguments<Args...>::bytes, __bss_start, _end};
}
}  // namespace nn_emu

#define NN_EMU_KERNEL(name)                                                                \
  extern "C" {                                                                             \
  NN_EMU_API nn_emu::Kernel nn_emu_kernel_##name =                                         \
      nn_emu::describe(&name, [](void** arguments) { nn_emu::call(&name, arguments); });   \
  }
