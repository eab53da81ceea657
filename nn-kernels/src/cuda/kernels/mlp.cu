// Small dense layers, each of which takes what the one before it gives, in one launch. A block has the weights of all of
// them in shared memory, and takes tiles of rows through all layers: between two layers a tile lies in shared memory,
// where the next layer reads it, and is written to memory for others.
//
// Sums are those of `gemm.cuh`, in the same order: the bits are those of the layers' own launches.
#include "gemm.cuh"
#include "linear.cuh"

// Of `mlp.rs`: layers of a launch, threads, and rows of a tile.
constexpr int LAYERS = 8, THREADS = 256, ROWS = 16;
// Rows of a thread, which all take a weight that it has read.
constexpr int TALL = 4;
// A column's values in these rows, which are read at once.
struct alignas(16) Rows {
  real of[TALL];
};
// From a column of a tile to the next. With one more than there are, threads side by side write to different banks.
constexpr int COLUMN = ROWS / TALL + 1;

// y = act(x·W + bias), of which value (k, column) is at column·w_column + k·w_k.
struct Layer {
  const elem *w, *bias;
  elem* y;
  long long w_column, w_k, inputs, outputs;
  Function act;
};
struct Layers {
  Layer of[LAYERS];
};

// How a layer's parameters lie in shared memory: inputs × outputs, each input's side by side, then biases. A weight
// that comes with each output's side by side is turned round, for which rows have an odd length.
struct Lying {
  int inputs, outputs, row, bias, end;
  __device__ __forceinline__ explicit Lying(const Layer& layer)
      : inputs(layer.inputs), outputs(layer.outputs), row(layer.w_k == 1 ? outputs | 1 : outputs),
        bias(inputs * row), end(bias + outputs) {}
};

// Brings a layer's parameters. None depend on another layer, so those of several layers are under way at once.
__device__ __forceinline__ void fetch(const Layer& layer, const Lying& lying, real* to) {
  const int inputs = lying.inputs, outputs = lying.outputs;
  const bool along_k = layer.w_k == 1;
#pragma unroll 4
  for (int e = threadIdx.x; e < inputs * outputs; e += THREADS) {
    int k = along_k ? e % inputs : e / outputs, column = along_k ? e / inputs : e % outputs;
    to[k * lying.row + column] = layer.w[column * layer.w_column + k * layer.w_k];
  }
  if (layer.bias)
    for (int e = threadIdx.x; e < outputs; e += THREADS) to[lying.bias + e] = layer.bias[e];
}

// One layer of a tile of `rows` rows, `first` being the first one's number. The rows up to the next multiple of `TALL`
// are computed, too.
__device__ __forceinline__ void apply_layer(const Layer& layer, const Lying& lying, const real* params,
                                            const Rows* from, Rows* to, long long first, int rows) {
  const int outputs = lying.outputs;
  for (int i = threadIdx.x; i < (rows + TALL - 1) / TALL * outputs; i += THREADS) {
    const int column = i % outputs, down = i / outputs;
    real all[TALL] = {};
    for (int k = 0; k < lying.inputs;) {
      const int end = min(lying.inputs, k + RUN);
      real run[TALL] = {};
#pragma unroll 4
      for (; k < end; k++) {
        const Rows x = from[k * COLUMN + down];
        const real weight = params[k * lying.row + column];
#pragma unroll
        for (int j = 0; j < TALL; j++) run[j] = fma(x.of[j], weight, run[j]);
      }
#pragma unroll
      for (int j = 0; j < TALL; j++) all[j] += run[j];
    }
    Rows y;
#pragma unroll
    for (int j = 0; j < TALL; j++) {
      y.of[j] = layer.bias ? all[j] + params[lying.bias + column] : all[j];
      if (layer.act.code != IDENTITY) y.of[j] = activate(layer.act.code, layer.act.a, layer.act.b, y.of[j]);
      // As the next layer would read it from memory.
      y.of[j] = real(elem(y.of[j]));
      const int row = down * TALL + j;
      if (row < rows) layer.y[(first + row) * outputs + column] = y.of[j];
    }
    to[column * COLUMN + down] = y;
  }
}

// Outputs may lie where x lay or an earlier output, if each row has its place there. `widest` is the most columns that
// x or an output has.
extern "C" __global__ void __launch_bounds__(THREADS)
    mlp(Layers layers, int count, const elem* x, long long rows, long long widest) {
  NN_DYNAMIC_SHARED(Rows, from);
  Rows* to = from + widest * COLUMN;
  real* const all_params = reinterpret_cast<real*>(to + widest * COLUMN);
  real* params = all_params;
  for (int l = 0; l < count; l++) {
    Lying lying(layers.of[l]);
    fetch(layers.of[l], lying, params);
    params += lying.end;
  }
  for (long long first = blockIdx.x * ROWS; first < rows; first += gridDim.x * ROWS) {
    const int here = min(static_cast<long long>(ROWS), rows - first), inputs = layers.of[0].inputs;
    for (int e = threadIdx.x; e < (here + TALL - 1) / TALL * TALL * inputs; e += THREADS) {
      int row = e / inputs, k = e % inputs;
      from[k * COLUMN + row / TALL].of[row % TALL] = row < here ? x[(first + row) * inputs + k] : real(0);
    }
    __syncthreads();
    params = all_params;
    for (int l = 0; l < count; l++) {
      Lying lying(layers.of[l]);
      apply_layer(layers.of[l], lying, params, from, to, first, here);
      params += lying.end;
      Rows* read = from;
      from = to;
      to = read;
      __syncthreads();
    }
  }
}
NN_KERNEL(mlp)
