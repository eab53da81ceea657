// Elementwise functions of one value: the codes are those of `unary.rs`, the formulas those of the CPU.
#pragma once
#include "common.cuh"

enum Unary {
  IDENTITY, RELU, TANH, SIGMOID, SILU, GELU, GELU_TANH, MISH, ELU, AFFINE, DIVIDE, RECIPROCAL
};

// A function with its constants, as it is handed to kernels.
struct Function {
  long long code;
  double a, b;
};

__device__ __forceinline__ real sigmoid(real x) { return real(1) / (real(1) + exp(-x)); }

// t = tanh(log(1 + eˣ)) and 1 − t². With w = eˣ(eˣ + 2), t is w / (w + 2). Beyond 20, t is 1 in double precision.
struct Mish {
  real t, dt;
};
__device__ __forceinline__ Mish mish_tanh(real x) {
  if (x > real(20)) return {real(1), real(0)};
  real e = exp(x), w = e * (e + real(2)), r = real(1) / (w + real(2));
  return {w * r, real(4) * (w + real(1)) * r * r};
}

// 2·√(2/π)·(x + 0.044715·x³): ½·(1 + tanh u) is the sigmoid of 2u.
__device__ __forceinline__ real gelu_tanh_inner(real x) {
  constexpr double ROOT = 2 * 0.7978845608028654;
  return x * (real(ROOT) + real(ROOT * 0.044715) * (x * x));
}

// Φ(x), right to the last places far below 0 too.
__device__ __forceinline__ real normal_cdf(real x) { return real(0.5) * erfc(-x * real(0.7071067811865476)); }

// f(x).
__device__ __forceinline__ real apply(const Function& f, real x) {
  switch (f.code) {
    case RELU: return x <= real(0) ? real(0) : x;
    case TANH: return tanh(x);
    case SIGMOID: return sigmoid(x);
    case SILU: return x * sigmoid(x);
    case GELU: return x * normal_cdf(x);
    case GELU_TANH: return x * sigmoid(gelu_tanh_inner(x));
    case MISH: return x * mish_tanh(x).t;
    case ELU: return x > real(0) ? x : expm1(x);
    case AFFINE: return real(f.a) * x + real(f.b);
    case DIVIDE: return x / real(f.a);
    case RECIPROCAL: return real(f.a) / x;
    default: return x;
  }
}

// f′·dy, given x or y = f(x), whichever the derivative is a function of.
__device__ __forceinline__ real pull(const Function& f, real known, real dy) {
  const real one = real(1), x = known, y = known;
  switch (f.code) {
    case RELU: return (y > real(0) ? one : y <= real(0) ? real(0) : y) * dy;
    case TANH: return (one - y * y) * dy;
    case SIGMOID: return y * (one - y) * dy;
    case SILU: {
      real s = sigmoid(x);
      return s * (one + x * (one - s)) * dy;
    }
    case GELU: return (normal_cdf(x) + x * real(0.3989422804014327) * exp(real(-0.5) * x * x)) * dy;
    case GELU_TANH: {
      constexpr double ROOT = 2 * 0.7978845608028654;
      real s = sigmoid(gelu_tanh_inner(x));
      real inner = real(ROOT) + real(3 * ROOT * 0.044715) * (x * x);
      // s·(1 − s) is 0 far out, where x·inner may be infinite: their product must be 0, not NaN.
      real tail = s * (one - s);
      return (s + (tail > real(0) ? x * tail * inner : x * tail)) * dy;
    }
    case MISH: {
      Mish m = mish_tanh(x);
      return (m.t + x * m.dt * sigmoid(x)) * dy;
    }
    case ELU: return (x > real(0) ? one : exp(x)) * dy;
    case AFFINE: return real(f.a) * dy;
    case DIVIDE: return dy / real(f.a);
    case RECIPROCAL: return -real(f.a) / (x * x) * dy;
    default: return dy;
  }
}
