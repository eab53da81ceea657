#include "common.cuh"

// Σ over a block's share of the values, one number a block.
extern "C" __global__ void squares(const real* __restrict__ x, double* __restrict__ parts, long long n) {
  double sum = 0;
  NN_EACH(i, n) sum += double(x[i]) * x[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
NN_KERNEL(squares)

// The same for (x − t)², and dx = slope·(x − t).
extern "C" __global__ void mse(double slope, const elem* __restrict__ x, const real* __restrict__ t,
                               elem* __restrict__ dx, double* __restrict__ parts, long long n) {
  double sum = 0;
  NN_EACH(i, n) {
    double d = double(x[i]) - t[i];
    sum += d * d;
    if (dx) dx[i] = real(slope * d);
  }
  sum = block_sum(sum);
  if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
NN_KERNEL(mse)

// value = factor·`scale`·Σ parts, by one block.
extern "C" __global__ void sum_parts(const double* __restrict__ parts, long long n, double factor,
                                     const double* __restrict__ scale, double* __restrict__ value) {
  double sum = 0;
  NN_EACH(i, n) sum += parts[i];
  sum = block_sum(sum);
  if (threadIdx.x == 0) *value = factor * (scale ? *scale : 1) * sum;
}
NN_KERNEL(sum_parts)

// scale = 1 over the number of targets that count, by one block.
extern "C" __global__ void count_targets(const unsigned* __restrict__ target, long long n, int ignores,
                                         unsigned ignored, double* __restrict__ scale) {
  double count = 0;
  NN_EACH(i, n) count += ignores && target[i] == ignored ? 0 : 1;
  count = block_sum(count);
  if (threadIdx.x == 0) *scale = 1 / count;
}
NN_KERNEL(count_targets)

// A block takes a row after the other: the row's loss into `parts`, and its gradient
// scale·(p − (1 − smoothing)·onehot − smoothing / classes).
extern "C" __global__ void cross_entropy(const elem* __restrict__ x, const unsigned* __restrict__ targets,
                                         elem* __restrict__ dx, double* __restrict__ parts,
                                         const double* __restrict__ scale_of_all, long long all, long long classes,
                                         double smoothing, int ignores, unsigned ignored, long long rows,
                                         long long counted) {
  double scale = scale_of_all ? *scale_of_all : 1, share = smoothing / classes;
  for (long long row = blockIdx.x; row < all; row += gridDim.x) {
    const elem* from = x + row * classes;
    elem* to = dx ? dx + row * classes : nullptr;
    unsigned target = row % rows < counted ? targets[row / rows * counted + row % rows] : 0;
    bool counts = row % rows < counted && !(ignores && target == ignored);
    if (!counts || target >= classes) {
      real value = counts ? real(nn::infinity()) - real(nn::infinity()) : real(0);
      if (to)
        for (long long i = threadIdx.x; i < classes; i += blockDim.x) to[i] = value;
      if (threadIdx.x == 0) parts[row] = value;
      continue;
    }
    real most = real(-nn::infinity());
    for (long long i = threadIdx.x; i < classes; i += blockDim.x) most = nn::larger(most, from[i]);
    most = block_max(most);
    double sum = 0, values = 0;
    for (long long i = threadIdx.x; i < classes; i += blockDim.x) {
      sum += exp(from[i] - most);
      values += from[i];
    }
    sum = block_sum(sum);
    double log_sum = most + log(sum), loss = (1 - smoothing) * (log_sum - from[target]);
    if (share != 0) loss += share * (classes * log_sum - block_sum(values));
    if (to) {
      real factor = real(scale / sum), shift = real(scale * share);
      for (long long i = threadIdx.x; i < classes; i += blockDim.x) {
        double p = exp(from[i] - most);
        to[i] = i == target ? real(scale * (p / sum - share - (1 - smoothing))) : real(p) * factor - shift;
      }
    }
    if (threadIdx.x == 0) parts[row] = loss;
  }
}
NN_KERNEL(cross_entropy)
