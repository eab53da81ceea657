// One pass over parameters. Where a fault was found, the gradients are those of garbage, and nothing is changed.
#include "common.cuh"

// What gradients are multiplied by.
__device__ __forceinline__ real clipping(int clips, double limit, const double* squares) {
  return real(clips ? fmin(limit / (sqrt(*squares) + 1e-6), 1.0) : 1.0);
}

extern "C" __global__ void sgd(const Fault* fault, const double* lr_now, const double* first_step, double momentum,
                               int nesterov, double weight_decay, int clips, double limit, const double* squares,
                               real* __restrict__ p, const real* __restrict__ g, real* __restrict__ velocity,
                               long long n) {
  if (fault->found) return;
  real lr = real(*lr_now), decay = real(weight_decay), keep = real(momentum), scale = clipping(clips, limit, squares);
  bool starts = *first_step != 0;
  NN_EACH(i, n) {
    real d = g[i] * scale + decay * p[i];
    if (velocity) {
      real v = starts ? d : keep * velocity[i] + d;
      velocity[i] = v;
      d = nesterov ? d + keep * v : v;
    }
    p[i] -= lr * d;
  }
}
NN_KERNEL(sgd)

// `step` is the learning rate over the first moment's correction, `root` 1 over the root of the second one's, and
// `shrink` what parameters are multiplied by.
extern "C" __global__ void adam(const Fault* fault, const double* step_now, const double* root_now,
                                const double* shrink_now, double beta1, double beta2, double epsilon, double l2,
                                int clips, double limit, const double* squares, real* __restrict__ p,
                                const real* __restrict__ g, real* __restrict__ m, real* __restrict__ v, long long n) {
  if (fault->found) return;
  real step = real(*step_now), root = real(*root_now), shrink = real(*shrink_now);
  real b1 = real(beta1), b2 = real(beta2), new1 = real(1 - beta1), new2 = real(1 - beta2);
  real eps = real(epsilon), pull = real(l2), scale = clipping(clips, limit, squares);
  NN_EACH(i, n) {
    real d = g[i] * scale + pull * p[i];
    real first_moment = b1 * m[i] + new1 * d, second_moment = b2 * v[i] + new2 * (d * d);
    m[i] = first_moment;
    v[i] = second_moment;
    p[i] = p[i] * shrink - step * (first_moment / (sqrt(second_moment) * root + eps));
  }
}
NN_KERNEL(adam)

extern "C" __global__ void lerp(const Fault* fault, double tau, const real* __restrict__ x, real* __restrict__ target,
                                long long n) {
  if (fault->found) return;
  NN_EACH(i, n) target[i] += real(tau) * (x[i] - target[i]);
}
NN_KERNEL(lerp)

extern "C" __global__ void copy_wide(const real* __restrict__ x, real* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = x[i];
}
NN_KERNEL(copy_wide)

extern "C" __global__ void clear(real* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = real(0);
}
NN_KERNEL(clear)

extern "C" __global__ void narrow(const real* __restrict__ x, elem* __restrict__ y, long long n) {
  NN_EACH(i, n) y[i] = x[i];
}
NN_KERNEL(narrow)

// sum += g, and g = 0.
extern "C" __global__ void collect(elem* __restrict__ g, real* __restrict__ sum, long long n) {
  NN_EACH(i, n) {
    sum[i] += real(g[i]);
    g[i] = real(0);
  }
}
NN_KERNEL(collect)
