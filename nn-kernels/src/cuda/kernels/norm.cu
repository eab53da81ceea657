// LayerNorm, RMSNorm and softmax: a block takes a row after the other.
#include "common.cuh"

#define NN_EACH_ROW(row, rows) for (long long row = blockIdx.x; row < (rows); row += gridDim.x)
#define NN_EACH_COLUMN(i, cols) for (long long i = threadIdx.x; i < (cols); i += blockDim.x)

// y = (x − centre)·scale·γ + β, where the centre is the mean, or 0. `stats` gets the mean, if there is one, and the
// scale.
extern "C" __global__ void normalise(int centred, double eps, const elem* __restrict__ x,
                                     const elem* __restrict__ gamma, const elem* __restrict__ beta,
                                     elem* __restrict__ y, real* __restrict__ stats, long long rows, long long cols) {
  NN_EACH_ROW(row, rows) {
    const elem* from = x + row * cols;
    double mean = 0;
    if (centred) {
      double sum = 0;
      NN_EACH_COLUMN(i, cols) sum += from[i];
      mean = block_sum(sum) / cols;
    }
    double square = 0;
    NN_EACH_COLUMN(i, cols) {
      double d = from[i] - mean;
      square += d * d;
    }
    double scale = 1 / sqrt(block_sum(square) / cols + eps);
    NN_EACH_COLUMN(i, cols) {
      real normal = real((from[i] - mean) * scale);
      if (gamma) normal *= gamma[i];
      if (beta) normal += beta[i];
      y[row * cols + i] = normal;
    }
    if (stats && threadIdx.x == 0) {
      if (centred) stats[2 * row] = real(mean);
      stats[centred ? 2 * row + 1 : row] = real(scale);
    }
  }
}
NN_KERNEL(normalise)

// dx = scale·(dy·γ − shift − (x − centre)·pull). `low`, where the centre is the mean, gets what the mean lacks
// because it was rounded.
extern "C" __global__ void normalise_vjp(int centred, const elem* __restrict__ x, const elem* __restrict__ gamma,
                                         const real* __restrict__ stats, const elem* __restrict__ dy,
                                         elem* __restrict__ dx, double* __restrict__ low, long long rows,
                                         long long cols) {
  NN_EACH_ROW(row, rows) {
    const elem *from = x + row * cols, *g = dy + row * cols;
    double high = centred ? stats[2 * row] : 0, scale = stats[centred ? 2 * row + 1 : row];
    double off = 0, sum = 0, product = 0;
    NN_EACH_COLUMN(i, cols) {
      double d = from[i] - high, weighted = gamma ? double(gamma[i]) * g[i] : double(g[i]);
      off += d;
      sum += weighted;
      product += d * weighted;
    }
    off = block_sum(off), sum = block_sum(sum), product = block_sum(product);
    double rest = centred ? off / cols : 0, shift = centred ? sum / cols : 0;
    double pull = scale * scale * (product - rest * sum) / cols;
    if (low && threadIdx.x == 0) low[row] = rest;
    if (dx)
      NN_EACH_COLUMN(i, cols) {
        double weighted = gamma ? double(gamma[i]) * g[i] : double(g[i]);
        dx[row * cols + i] = real(scale * (weighted - shift - (from[i] - high - rest) * pull));
      }
  }
}
NN_KERNEL(normalise_vjp)

__device__ __forceinline__ real row_max(const elem* x, long long cols) {
  real most = real(-nn::infinity());
  NN_EACH_COLUMN(i, cols) most = nn::larger(most, x[i]);
  return block_max(most);
}

__device__ __forceinline__ double sum_of_powers(const elem* x, real max, long long cols) {
  double sum = 0;
  NN_EACH_COLUMN(i, cols) sum += exp(x[i] - max);
  return block_sum(sum);
}

extern "C" __global__ void softmax(const elem* __restrict__ x, elem* __restrict__ y, long long rows, long long cols) {
  NN_EACH_ROW(row, rows) {
    const elem* from = x + row * cols;
    real most = row_max(from, cols);
    real scale = real(1 / sum_of_powers(from, most, cols));
    NN_EACH_COLUMN(i, cols) y[row * cols + i] = exp(from[i] - most) * scale;
  }
}
NN_KERNEL(softmax)

// dx = y·(dy − Σ y·dy).
extern "C" __global__ void softmax_vjp(const elem* __restrict__ y, const elem* __restrict__ dy, elem* __restrict__ dx,
                                       long long rows, long long cols) {
  NN_EACH_ROW(row, rows) {
    const elem *p = y + row * cols, *g = dy + row * cols;
    double dot = 0;
    NN_EACH_COLUMN(i, cols) dot += double(p[i]) * g[i];
    real mean = real(block_sum(dot));
    NN_EACH_COLUMN(i, cols) dx[row * cols + i] = p[i] * (g[i] - mean);
  }
}
NN_KERNEL(softmax_vjp)

extern "C" __global__ void log_softmax(const elem* __restrict__ x, elem* __restrict__ y, long long rows,
                                       long long cols) {
  NN_EACH_ROW(row, rows) {
    const elem* from = x + row * cols;
    real most = row_max(from, cols);
    double shift = most + log(sum_of_powers(from, most, cols));
    NN_EACH_COLUMN(i, cols) y[row * cols + i] = real(from[i] - shift);
  }
}
NN_KERNEL(log_softmax)

// dx = dy − eʸ·Σ dy.
extern "C" __global__ void log_softmax_vjp(const elem* __restrict__ y, const elem* __restrict__ dy,
                                           elem* __restrict__ dx, long long rows, long long cols) {
  NN_EACH_ROW(row, rows) {
    const elem *p = y + row * cols, *g = dy + row * cols;
    double sum = 0;
    NN_EACH_COLUMN(i, cols) sum += g[i];
    real all = real(block_sum(sum));
    NN_EACH_COLUMN(i, cols) dx[row * cols + i] = g[i] - exp(p[i]) * all;
  }
}
NN_KERNEL(log_softmax_vjp)
