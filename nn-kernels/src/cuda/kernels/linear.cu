#include "gemm.cuh"
#include "linear.cuh"

template <class T, bool A_ALONG, bool B_ALONG>
__device__ __forceinline__ void run(const Shape& s, const elem* a, const elem* b, Output out) {
  long long tiles = (s.cols + T::COLS - 1) / T::COLS, split = blockIdx.y;
  if (out.mode == PART) out.y = static_cast<real*>(out.y) + split * s.rows * s.cols;
  product<T>(Strided<A_ALONG>{a, s.a_row, s.a_k}, Strided<B_ALONG>{b, s.b_column, s.b_k}, out, s.rows, s.cols,
             split * s.each, min(s.depth, (split + 1) * s.each), blockIdx.x / tiles, blockIdx.x % tiles);
}

// One kernel for each order in which factors lie: with both in one, its registers would be those of the worst.
#define NN_PRODUCT(name, T, A_ALONG, B_ALONG)                                                                       \
  extern "C" __global__ void __launch_bounds__(T::THREADS, T::BLOCKS)                                              \
      name(Shape s, Function act, int mode, const elem* __restrict__ a, const elem* __restrict__ b,                 \
           const elem* __restrict__ bias, void* y) {                                                   \
    run<T, A_ALONG, B_ALONG>(s, a, b, Output{y, bias, act, s.cols, mode});                                          \
  }                                                                                                                 \
  NN_KERNEL(name)
NN_PRODUCT(large_kn, Large, true, false)
NN_PRODUCT(large_kk, Large, true, true)
NN_PRODUCT(large_mn, Large, false, false)
NN_PRODUCT(small_kn, Small, true, false)
NN_PRODUCT(small_kk, Small, true, true)
NN_PRODUCT(small_mn, Small, false, false)
