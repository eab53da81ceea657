// Sums over rows or over channels' values, in two steps of a fixed order: first parts of them, in double precision,
// then the parts.
#include "common.cuh"

enum Term { PLAIN, SQUARE, GRADIENT, LAYER_NORM, RMS_NORM };

struct Pair {
  double first, second;
};

// The terms of the two sums. `m` is the mean of the column or the channel, and `row` the row that a value is in.
__device__ __forceinline__ void add_term(Pair* sum, int term, const elem* a, const elem* b, const real* stats,
                                         const double* m, long long row, long long column, long long at) {
  switch (term) {
    case PLAIN: sum->first += a[at]; break;
    case SQUARE: {
      double d = a[at] - m[column];
      sum->first += d * d;
      break;
    }
    case GRADIENT:
      sum->first += b[at];
      sum->second += (a[at] - m[column]) * b[at];
      break;
    case LAYER_NORM: {
      double d = double(a[at]) - stats[2 * row] - m[row];
      sum->first += b[at];
      sum->second += d * stats[2 * row + 1] * b[at];
      break;
    }
    case RMS_NORM:
      sum->first += b[at];
      sum->second += double(a[at]) * stats[row] * b[at];
      break;
  }
}

// parts[split, which, column]; a block has 32 columns and 8 rows at a time, of the `each` rows of its split.
extern "C" __global__ void column_sums(int term, const elem* __restrict__ a, const elem* __restrict__ b,
                                       const real* __restrict__ stats, const double* __restrict__ m,
                                       double* __restrict__ parts, long long rows, long long cols, long long each) {
  __shared__ double of_warp[2][8][32];
  const unsigned lane = nn::lane(), warp = nn::warp();
  long long column = static_cast<long long>(blockIdx.x) * 32 + lane, split = blockIdx.y;
  long long end = min(rows, (split + 1) * each);
  Pair sum = {0, 0};
  if (column < cols)
    for (long long row = split * each + warp; row < end; row += 8)
      add_term(&sum, term, a, b, stats, m, row, column, row * cols + column);
  of_warp[0][warp][lane] = sum.first;
  of_warp[1][warp][lane] = sum.second;
  __syncthreads();
  if (warp < 2 && column < cols) {
    double total = 0;
    for (int i = 0; i < 8; i++) total += of_warp[warp][i][lane];
    parts[(split * 2 + warp) * cols + column] = total;
  }
}
NN_KERNEL(column_sums)

// parts[split, which, channel]; a block has one channel, and the `each` values of its split.
extern "C" __global__ void channel_sums(int term, const elem* __restrict__ a, const elem* __restrict__ b,
                                        const double* __restrict__ m, double* __restrict__ parts, long long batch,
                                        long long channels, long long area, long long each) {
  long long channel = blockIdx.x, split = blockIdx.y;
  long long end = min(batch * area, (split + 1) * each);
  Pair sum = {0, 0};
  for (long long i = split * each + threadIdx.x; i < end; i += blockDim.x) {
    long long at = (i / area * channels + channel) * area + i % area;
    add_term(&sum, term, a, b, nullptr, m, 0, channel, at);
  }
  sum = {block_sum(sum.first), block_sum(sum.second)};
  if (threadIdx.x == 0) {
    parts[(split * 2 + 0) * channels + channel] = sum.first;
    parts[(split * 2 + 1) * channels + channel] = sum.second;
  }
}
NN_KERNEL(channel_sums)

__device__ __forceinline__ double total(const double* parts, long long splits, long long n, int which, long long i) {
  double sum = 0;
  for (long long split = 0; split < splits; split++) sum += parts[(split * 2 + which) * n + i];
  return sum;
}

// y += the first or the second sum.
extern "C" __global__ void add_sums(const double* __restrict__ parts, long long splits, long long n, int which,
                                    elem* __restrict__ y) {
  NN_EACH(i, n) y[i] += real(total(parts, splits, n, which, i));
}
NN_KERNEL(add_sums)

extern "C" __global__ void means(const double* __restrict__ parts, long long splits, long long n, double count,
                                 double* __restrict__ m) {
  NN_EACH(i, n) m[i] = total(parts, splits, n, 0, i) / count;
}
NN_KERNEL(means)

// What `combine` computes out = p·a + q·(b − m) + r with, each of `channels` numbers, one after the other.
struct Coefficients {
  double *m, *p, *q, *r;
};
__device__ __forceinline__ Coefficients coefficients(double* all, long long channels) {
  return {all, all + channels, all + 2 * channels, all + 3 * channels};
}

// From the sums of squares: the statistics, the running ones, and coefficients.
extern "C" __global__ void batch_norm_train(const double* __restrict__ parts, long long splits, long long channels,
                                            double count, double eps, double momentum,
                                            const elem* __restrict__ gamma, const elem* __restrict__ beta,
                                            real* __restrict__ stats, real* __restrict__ means,
                                            real* __restrict__ variances, double* all) {
  Coefficients to = coefficients(all, channels);
  NN_EACH(c, channels) {
    double variance = total(parts, splits, channels, 0, c) / count, rstd = 1 / sqrt(variance + eps);
    stats[2 * c] = real(to.m[c]);
    stats[2 * c + 1] = real(rstd);
    to.p[c] = 0;
    to.q[c] = gamma[c] * rstd;
    to.r[c] = beta[c];
    if (means) {
      double unbiased = variance * (count / fmax(count - 1, 1.0));
      means[c] = real((1 - momentum) * means[c] + momentum * to.m[c]);
      variances[c] = real((1 - momentum) * variances[c] + momentum * unbiased);
    }
  }
}
NN_KERNEL(batch_norm_train)

extern "C" __global__ void batch_norm_infer(long long channels, double eps, const elem* __restrict__ gamma,
                                            const elem* __restrict__ beta, const real* __restrict__ means,
                                            const real* __restrict__ variances, double* all) {
  Coefficients to = coefficients(all, channels);
  NN_EACH(c, channels) {
    to.m[c] = means[c];
    to.p[c] = 0;
    to.q[c] = gamma[c] / sqrt(variances[c] + eps);
    to.r[c] = beta[c];
  }
}
NN_KERNEL(batch_norm_infer)

// The mean of constant statistics, before sums are made with it.
extern "C" __global__ void given_means(long long channels, const real* __restrict__ stats, double* __restrict__ m) {
  NN_EACH(c, channels) m[c] = stats[2 * c];
}
NN_KERNEL(given_means)

extern "C" __global__ void batch_norm_vjp(const double* __restrict__ parts, long long splits, long long channels,
                                          double count, int constant, const elem* __restrict__ gamma,
                                          const real* __restrict__ stats, elem* __restrict__ dgamma,
                                          elem* __restrict__ dbeta, double* all) {
  Coefficients to = coefficients(all, channels);
  NN_EACH(c, channels) {
    double g = total(parts, splits, channels, 0, c), product = total(parts, splits, channels, 1, c);
    double rstd = stats[2 * c + 1], scale = gamma[c] * rstd;
    to.p[c] = scale;
    to.q[c] = constant ? 0 : -scale * rstd * rstd * product / count;
    to.r[c] = constant ? 0 : -scale * g / count;
    if (dgamma) dgamma[c] += real(product * rstd);
    if (dbeta) dbeta[c] += real(g);
  }
}
NN_KERNEL(batch_norm_vjp)

extern "C" __global__ void combine(double* all, const elem* a, const elem* b, elem* __restrict__ out, long long batch,
                                   long long channels, long long area) {
  Coefficients from = coefficients(all, channels);
  NN_EACH(i, batch * channels * area) {
    long long c = i / area % channels;
    out[i] = real(from.p[c] * a[i] + from.q[c] * (b[i] - from.m[c]) + from.r[c]);
  }
}
NN_KERNEL(combine)

extern "C" __global__ void batch_norm_stats(long long channels, double eps, const real* __restrict__ means,
                                            const real* __restrict__ variances, real* __restrict__ stats) {
  NN_EACH(c, channels) {
    stats[2 * c] = means[c];
    stats[2 * c + 1] = real(1 / sqrt(variances[c] + eps));
  }
}
NN_KERNEL(batch_norm_stats)

// y += Σ parts of a matrix product, split after split.
extern "C" __global__ void add_parts(const real* __restrict__ parts, long long splits, elem* __restrict__ y,
                                     long long n) {
  NN_EACH(i, n) {
    real sum = parts[i];
    for (long long split = 1; split < splits; split++) sum += parts[split * n + i];
    y[i] += sum;
  }
}
NN_KERNEL(add_parts)
