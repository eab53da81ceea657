// Random numbers as functions of a key and a counter: the same on every device.
#include "common.cuh"

using u64 = unsigned long long;

struct Words {
  unsigned w[4];
};

// Philox4x32-10.
__device__ __forceinline__ Words philox(unsigned block, unsigned place, u64 step, u64 key) {
  unsigned a = block, b = place, c = static_cast<unsigned>(step), d = static_cast<unsigned>(step >> 32);
  unsigned k0 = static_cast<unsigned>(key), k1 = static_cast<unsigned>(key >> 32);
  for (int round = 0; round < 10; round++) {
    u64 p = 0xD2511F53ull * a, q = 0xCD9E8D57ull * c;
    a = static_cast<unsigned>(q >> 32) ^ b ^ k0;
    b = static_cast<unsigned>(q);
    c = static_cast<unsigned>(p >> 32) ^ d ^ k1;
    d = static_cast<unsigned>(p);
    k0 += 0x9E3779B9u;
    k1 += 0xBB67AE85u;
  }
  return {{a, b, c, d}};
}

// The finaliser of SplitMix64.
__device__ __forceinline__ u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
  z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
  return z ^ (z >> 31);
}

// An element is kept where its word is at least `limit`.
extern "C" __global__ void dropout(const u64* step, u64 key, unsigned place, u64 limit, double scale,
                                   const elem* __restrict__ x, elem* __restrict__ y, long long n) {
  real factor = real(scale);
  NN_EACH(block, (n + 3) / 4) {
    Words words = philox(static_cast<unsigned>(block), place, *step, key);
    for (int j = 0; j < 4; j++) {
      long long i = 4 * block + j;
      if (i < n) y[i] = words.w[j] >= limit ? x[i] * factor : real(0);
    }
  }
}
NN_KERNEL(dropout)

extern "C" __global__ void hash_dropout(const u64* key, u64 limit, double scale, const elem* __restrict__ x,
                                        elem* __restrict__ y, long long n) {
  real factor = real(scale);
  NN_EACH(i, n) {
    u64 word = mix(*key + (static_cast<u64>(i) + 1) * 0x9E3779B97F4A7C15ull) >> 32;
    y[i] = word >= limit ? x[i] * factor : real(0);
  }
}
NN_KERNEL(hash_dropout)

// A fraction of 53 bits.
__device__ __forceinline__ double fraction(unsigned low, unsigned high) {
  return static_cast<double>((low | static_cast<u64>(high) << 32) >> 11) * (1.0 / 9007199254740992.0);
}

extern "C" __global__ void normal(const u64* step, u64 key, unsigned place, elem* __restrict__ y, long long n) {
  NN_EACH(block, (n + 1) / 2) {
    Words words = philox(static_cast<unsigned>(block), place, *step, key);
    double radius = sqrt(-2.0 * log(1.0 - fraction(words.w[0], words.w[1])));
    double sine, cosine;
    sincos(6.283185307179586 * fraction(words.w[2], words.w[3]), &sine, &cosine);
    y[2 * block] = real(radius * cosine);
    if (2 * block + 1 < n) y[2 * block + 1] = real(radius * sine);
  }
}
NN_KERNEL(normal)

// tanh u, 1 − tanh² u and the logarithm of that, each right to the last places however large u is.
struct Squashed {
  double value, slope, log_slope;
};
__device__ __forceinline__ Squashed squash(double u) {
  double e = exp(-2.0 * fabs(u));
  return {tanh(u), 4.0 * e / ((1.0 + e) * (1.0 + e)), 2.0 * (0.6931471805599453 - fabs(u) - log1p(e))};
}

extern "C" __global__ void gaussian(int squashes, const elem* __restrict__ mean, const elem* __restrict__ log_std,
                                    const elem* __restrict__ noise, elem* __restrict__ sample, long long n) {
  NN_EACH(i, n) {
    double u = mean[i] + exp(double(log_std[i])) * (noise ? double(noise[i]) : 0.0);
    sample[i] = real(squashes ? tanh(u) : u);
  }
}
NN_KERNEL(gaussian)

extern "C" __global__ void gaussian_log_prob(const elem* __restrict__ mean, const elem* __restrict__ log_std,
                                             const elem* __restrict__ noise, elem* __restrict__ log_prob,
                                             long long rows, long long cols) {
  constexpr double LOG_ROOT_TAU = 0.9189385332046728;
  NN_EACH(row, rows) {
    double sum = 0;
    for (long long i = row * cols; i < (row + 1) * cols; i++) {
      double s = log_std[i], z = noise ? double(noise[i]) : 0.0;
      sum -= 0.5 * z * z + s + LOG_ROOT_TAU + squash(mean[i] + exp(s) * z).log_slope;
    }
    log_prob[row] = real(sum);
  }
}
NN_KERNEL(gaussian_log_prob)

extern "C" __global__ void gaussian_vjp(int squashes, const elem* __restrict__ mean, const elem* __restrict__ log_std,
                                        const elem* __restrict__ noise, const elem* __restrict__ dsample,
                                        const elem* __restrict__ dlog_prob, elem* __restrict__ dmean,
                                        elem* __restrict__ dlog_std, long long n, long long cols) {
  NN_EACH(i, n) {
    double spread = exp(double(log_std[i])) * (noise ? double(noise[i]) : 0.0), du = dsample[i], direct = 0;
    if (squashes) {
      Squashed s = squash(mean[i] + spread);
      direct = -double(dlog_prob[i / cols]);
      // −log(1 − tanh² u) grows by 2·tanh u.
      du = du * s.slope - direct * 2.0 * s.value;
    }
    if (dmean) dmean[i] = real(du);
    if (dlog_std) dlog_std[i] = real(du * spread + direct);
  }
}
NN_KERNEL(gaussian_vjp)
