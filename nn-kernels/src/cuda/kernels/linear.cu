#include "gemm.cuh"

enum Mode { STORE, ADD, PART };

// A call, for there are as many of it as a thread has outputs.
__device__ __noinline__ real activate(long long code, double a, double b, real x) { return apply({code, a, b}, x); }

// y = act(a·b + bias), y += a·b, or the part of a·b that is summed over one split of k, behind those of other splits.
struct Output {
  real* y;
  const real* bias;
  Function act;
  long long cols;
  int mode;
  __device__ __forceinline__ void operator()(long long row, long long column, real sum) const {
    real* to = y + row * cols + column;
    if (mode == ADD) *to += sum;
    else if (mode == PART) *to = sum;
    else {
      real x = bias ? sum + bias[column] : sum;
      *to = act.code == IDENTITY ? x : activate(act.code, act.a, act.b, x);
    }
  }
};

// Sizes of a product, as in `linear.rs`: strides of the left factor by row and k, of the right one by column and k.
struct Shape {
  long long rows, cols, depth, each, a_row, a_k, b_column, b_k;
};

template <class T, bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void run(const Shape& s, const real* a, const real* b, Output out) {
  long long tiles = (s.cols + T::COLS - 1) / T::COLS, split = blockIdx.y;
  if (out.mode == PART) out.y += split * s.rows * s.cols;
  product<T>(Strided<A_ALONG>{a, s.a_row, s.a_k}, Strided<B_ALONG>{b, s.b_column, s.b_k}, out, s.rows, s.cols,
             split * s.each, min(s.depth, (split + 1) * s.each), blockIdx.x / tiles, blockIdx.x % tiles);
}

// One kernel for each order in which factors lie: with both in one, its registers would be those of the worst.
#define NN_PRODUCT(name, T, A_ALONG, B_ALONG)                                                                       \
  extern "C" __global__ void __launch_bounds__(T::THREADS)                                                          \
      name(Shape s, Function act, int mode, const real* __restrict__ a, const real* __restrict__ b,                 \
           const real* __restrict__ bias, real* __restrict__ y) {                                                   \
    run<T, A_ALONG, B_ALONG>(s, a, b, Output{y, bias, act, s.cols, mode});                                          \
  }                                                                                                                 \
  NN_KERNEL(name)
NN_PRODUCT(large_kn, Large, true, false)
NN_PRODUCT(large_kk, Large, true, true)
NN_PRODUCT(large_mn, Large, false, false)
NN_PRODUCT(small_kn, Small, true, false)
NN_PRODUCT(small_kk, Small, true, true)
NN_PRODUCT(small_mn, Small, false, false)
