// A stand-in for libcudnn: convolutions of single precision with channels first, by what NVIDIA's documentation says
// of the calls.
//
// What is not known here is NOT_SUPPORTED. The heuristics name algorithms in the order in which a GPU may: first such
// that take too much memory, round to half precision or add in any order, as documented for each of them.
#include "libraries.h"

#include <algorithm>
#include <atomic>
#include <vector>

#define API extern "C" NN_EMU_API

namespace {

enum Status : int { SUCCESS = 0, BAD_PARAM = 2000, NOT_SUPPORTED = 3000, EXECUTION_FAILED = 5000 };
enum { FLOAT = 0, NCHW = 0, CONVOLUTION = 0, CROSS_CORRELATION = 1 };
enum { DEFAULT_MATH = 0, TENSOR_OP_MATH = 1, ALLOW_CONVERSION = 2, FMA_MATH = 3 };
enum { ANY_ORDER = 0, DETERMINISTIC = 1 };

struct Handle {
  void* stream = nullptr;
};

struct Tensor {
  bool set = false;
  int64_t n = 0, c = 0, h = 0, w = 0;
  size_t bytes() const { return sizeof(float) * static_cast<size_t>(n * c * h * w); }
};

struct Convolution {
  bool set = false;
  int64_t padding[2], stride[2], dilation[2];
  int64_t groups = 1;
  int math = DEFAULT_MATH;
  bool turned = false;
};

// Algorithms by their numbers, as each of the three kinds has them.
enum Kind { FORWARD, DATA, FILTER };

struct Perf {
  int algorithm;
  Status status;
  float time;
  size_t memory;
  int determinism, math, reserved[3];
};

constexpr size_t TOO_MUCH = size_t(1) << 40;
constexpr size_t SOME = 4096;

// In place of a size: no algorithm of this number is known here.
constexpr size_t UNKNOWN = ~size_t(0);

size_t workspace(Kind kind, int algorithm) {
  switch (kind) {
    case FORWARD: return algorithm == 4 ? TOO_MUCH : algorithm == 1 ? SOME : algorithm == 0 ? 0 : UNKNOWN;
    case DATA: return algorithm == 2 ? TOO_MUCH : algorithm == 1 ? SOME : algorithm == 0 ? 0 : UNKNOWN;
    case FILTER:
      if (algorithm == 0 || algorithm == 3) return 0;
      return algorithm == 2 ? TOO_MUCH : algorithm == 1 ? SOME : UNKNOWN;
  }
  return UNKNOWN;
}

// As documented: of the algorithms known here, these two add in any order.
bool deterministic(Kind kind, int algorithm) {
  return kind == FORWARD || (algorithm != 0 && !(kind == FILTER && algorithm == 3));
}

template <class T> T* as(void* handle) { return static_cast<T*>(handle); }

Status check(const Tensor& x, const Tensor& w, const Convolution& conv, const Tensor& y) {
  if (!x.set || !w.set || !conv.set || !y.set) return BAD_PARAM;
  if (conv.turned) return NOT_SUPPORTED;
  if (x.c % conv.groups || w.n % conv.groups || x.c / conv.groups != w.c || y.c != w.n || y.n != x.n) return BAD_PARAM;
  const int64_t in[] = {x.h, x.w}, kernel[] = {w.h, w.w}, out[] = {y.h, y.w};
  for (int axis = 0; axis < 2; axis++) {
    int64_t reach = conv.dilation[axis] * (kernel[axis] - 1) + 1, padded = in[axis] + 2 * conv.padding[axis];
    if (padded < reach || out[axis] != (padded - reach) / conv.stride[axis] + 1) return BAD_PARAM;
  }
  return SUCCESS;
}

Status heuristic(const char* call, Kind kind, const Tensor& x, const Tensor& w, const Convolution& conv,
                 const Tensor& y, int asked, int* count, Perf* results) {
  nn_emu::count(call);
  *count = 0;
  if (Status error = check(x, w, conv, y)) return error;
  auto offer = [&](int algorithm, int math) {
    if (*count < asked)
      results[(*count)++] = {algorithm, SUCCESS, -1, workspace(kind, algorithm),
                             deterministic(kind, algorithm) ? DETERMINISTIC : ANY_ORDER, math, {}};
  };
  std::vector<int> order = kind == FORWARD ? std::vector<int>{4, 1, 0}
                           : kind == DATA  ? std::vector<int>{2, 0, 1}
                                           : std::vector<int>{2, 3, 0, 1};
  if (conv.math != FMA_MATH) {
    offer(1, ALLOW_CONVERSION);
    for (int algorithm : order) offer(algorithm, TENSOR_OP_MATH);
  }
  for (int algorithm : order) offer(algorithm, FMA_MATH);
  return SUCCESS;
}

Status needed(Kind kind, const Tensor& x, const Tensor& w, const Convolution& conv, const Tensor& y, int algorithm,
              size_t* bytes) {
  if (Status error = check(x, w, conv, y)) return error;
  *bytes = workspace(kind, algorithm);
  return *bytes == UNKNOWN ? NOT_SUPPORTED : SUCCESS;
}

// Calls `each(xi, wi, yi)` for all products that there are, in an order that leaves the terms of each sum in order.
template <class F>
void each_product(const Tensor& x, const Tensor& w, const Convolution& conv, const Tensor& y, F each) {
  int64_t outputs = w.n / conv.groups;
  for (int64_t n = 0; n < y.n; n++)
    for (int64_t k = 0; k < y.c; k++)
      for (int64_t c = 0; c < w.c; c++)
        for (int64_t r = 0; r < w.h; r++)
          for (int64_t s = 0; s < w.w; s++) {
            int64_t channel = k / outputs * w.c + c, wi = ((k * w.c + c) * w.h + r) * w.w + s;
            for (int64_t i = 0; i < y.h; i++) {
              int64_t row = i * conv.stride[0] - conv.padding[0] + r * conv.dilation[0];
              if (row < 0 || row >= x.h) continue;
              for (int64_t j = 0; j < y.w; j++) {
                int64_t column = j * conv.stride[1] - conv.padding[1] + s * conv.dilation[1];
                if (column < 0 || column >= x.w) continue;
                each(((n * x.c + channel) * x.h + row) * x.w + column, wi, ((n * y.c + k) * y.h + i) * y.w + j);
              }
            }
          }
}

Status run(const char* call, Kind kind, Handle* handle, float alpha, const Tensor& x, float* xs, const Tensor& w,
           float* ws, const Convolution& conv, int algorithm, void* room, size_t room_bytes, float beta,
           const Tensor& y, float* ys) {
  nn_emu::count(call);
  auto misuse = [&](const char* what, Status status) { return nn_emu::report_misuse(call, what), status; };
  if (Status error = check(x, w, conv, y)) return misuse("the operands do not fit", error);
  size_t bytes = workspace(kind, algorithm);
  if (bytes == UNKNOWN) return misuse("no such algorithm", NOT_SUPPORTED);
  if (bytes > room_bytes) return misuse("the workspace is too small", BAD_PARAM);
  auto work = [=] {
    bool there = nn_emu::reaches(call, xs, x.bytes()) && nn_emu::reaches(call, ws, w.bytes()) &&
                 nn_emu::reaches(call, ys, y.bytes()) && (!bytes || nn_emu::reaches(call, room, bytes));
    if (!there) return false;
    if (bytes) memset(room, 0xff, bytes);
    // Factors are rounded, which nobody sees in those that the caller has.
    auto copy = [&](const Tensor& shape, const float* from) {
      std::vector<float> values(from, from + shape.bytes() / sizeof(float));
      if (conv.math != FMA_MATH)
        for (float& value : values) value = nn_emu::to_tf32(value);
      return values;
    };
    const Tensor& result = kind == FORWARD ? y : kind == DATA ? x : w;
    std::vector<float> sums(result.bytes() / sizeof(float));
    std::vector<float> a = kind == DATA ? copy(w, ws) : copy(x, xs), b = kind == FORWARD ? copy(w, ws) : copy(y, ys);
    switch (kind) {
      case FORWARD:
        each_product(x, w, conv, y, [&](int64_t xi, int64_t wi, int64_t yi) { sums[yi] += a[xi] * b[wi]; });
        break;
      case DATA:
        each_product(x, w, conv, y, [&](int64_t xi, int64_t wi, int64_t yi) { sums[xi] += a[wi] * b[yi]; });
        break;
      case FILTER:
        each_product(x, w, conv, y, [&](int64_t xi, int64_t wi, int64_t yi) { sums[wi] += a[xi] * b[yi]; });
    }
    static std::atomic<unsigned> calls{0};
    float off = !deterministic(kind, algorithm) && calls++ % 3 == 0 ? 1 + 0x1p-20f : 1;
    float* to = kind == FORWARD ? ys : kind == DATA ? xs : ws;
    for (size_t i = 0; i < sums.size(); i++) {
      float sum = alpha * sums[i] * off;
      // What the result holds is not looked at where it does not count.
      to[i] = beta != 0 ? sum + beta * to[i] : sum;
    }
    return true;
  };
  return nn_emu::submit(handle->stream, work) ? EXECUTION_FAILED : SUCCESS;
}

}  // namespace

// Asked by the loader, to see that the library it got is this one.
API int nn_emu_stand_in() { return 1; }

API Status cudnnCreate(void** handle) { return *handle = new Handle, SUCCESS; }
API Status cudnnDestroy(void* handle) { return delete as<Handle>(handle), SUCCESS; }
API Status cudnnSetStream(void* handle, void* stream) { return as<Handle>(handle)->stream = stream, SUCCESS; }
API size_t cudnnGetVersion() { return 92100; }

API Status cudnnCreateTensorDescriptor(void** tensor) { return *tensor = new Tensor, SUCCESS; }
API Status cudnnDestroyTensorDescriptor(void* tensor) { return delete as<Tensor>(tensor), SUCCESS; }
static Status set(void* tensor, int format, int type, int n, int c, int h, int w) {
  if (format != NCHW || type != FLOAT) return NOT_SUPPORTED;
  if (n < 1 || c < 1 || h < 1 || w < 1) return BAD_PARAM;
  return *as<Tensor>(tensor) = {true, n, c, h, w}, SUCCESS;
}
API Status cudnnSetTensor4dDescriptor(void* tensor, int format, int type, int n, int c, int h, int w) {
  return set(tensor, format, type, n, c, h, w);
}
API Status cudnnCreateFilterDescriptor(void** filter) { return *filter = new Tensor, SUCCESS; }
API Status cudnnDestroyFilterDescriptor(void* filter) { return delete as<Tensor>(filter), SUCCESS; }
API Status cudnnSetFilter4dDescriptor(void* filter, int type, int format, int k, int c, int h, int w) {
  return set(filter, format, type, k, c, h, w);
}

API Status cudnnCreateConvolutionDescriptor(void** conv) { return *conv = new Convolution{}, SUCCESS; }
API Status cudnnDestroyConvolutionDescriptor(void* conv) { return delete as<Convolution>(conv), SUCCESS; }
API Status cudnnSetConvolution2dDescriptor(void* handle, int pad_h, int pad_w, int stride_h, int stride_w,
                                           int dilation_h, int dilation_w, int mode, int type) {
  if (type != FLOAT) return NOT_SUPPORTED;
  if (pad_h < 0 || pad_w < 0 || stride_h < 1 || stride_w < 1 || dilation_h < 1 || dilation_w < 1) return BAD_PARAM;
  auto conv = as<Convolution>(handle);
  conv->set = true;
  conv->padding[0] = pad_h, conv->padding[1] = pad_w;
  conv->stride[0] = stride_h, conv->stride[1] = stride_w;
  conv->dilation[0] = dilation_h, conv->dilation[1] = dilation_w;
  return conv->turned = mode != CROSS_CORRELATION, SUCCESS;
}
API Status cudnnSetConvolutionGroupCount(void* conv, int groups) {
  if (groups < 1) return BAD_PARAM;
  return as<Convolution>(conv)->groups = groups, SUCCESS;
}
API Status cudnnSetConvolutionMathType(void* conv, int math) {
  if (math < DEFAULT_MATH || math > FMA_MATH) return BAD_PARAM;
  return as<Convolution>(conv)->math = math, SUCCESS;
}

API Status cudnnGetConvolutionForwardAlgorithm_v7(void*, void* x, void* w, void* conv, void* y, int asked, int* count,
                                                  Perf* results) {
  return heuristic("cudnnGetConvolutionForwardAlgorithm_v7", FORWARD, *as<Tensor>(x), *as<Tensor>(w),
                   *as<Convolution>(conv), *as<Tensor>(y), asked, count, results);
}
API Status cudnnGetConvolutionBackwardDataAlgorithm_v7(void*, void* w, void* y, void* conv, void* x, int asked,
                                                       int* count, Perf* results) {
  return heuristic("cudnnGetConvolutionBackwardDataAlgorithm_v7", DATA, *as<Tensor>(x), *as<Tensor>(w),
                   *as<Convolution>(conv), *as<Tensor>(y), asked, count, results);
}
API Status cudnnGetConvolutionBackwardFilterAlgorithm_v7(void*, void* x, void* y, void* conv, void* w, int asked,
                                                         int* count, Perf* results) {
  return heuristic("cudnnGetConvolutionBackwardFilterAlgorithm_v7", FILTER, *as<Tensor>(x), *as<Tensor>(w),
                   *as<Convolution>(conv), *as<Tensor>(y), asked, count, results);
}

API Status cudnnGetConvolutionForwardWorkspaceSize(void*, void* x, void* w, void* conv, void* y, int algorithm,
                                                   size_t* bytes) {
  return needed(FORWARD, *as<Tensor>(x), *as<Tensor>(w), *as<Convolution>(conv), *as<Tensor>(y), algorithm, bytes);
}
API Status cudnnGetConvolutionBackwardDataWorkspaceSize(void*, void* w, void* y, void* conv, void* x, int algorithm,
                                                        size_t* bytes) {
  return needed(DATA, *as<Tensor>(x), *as<Tensor>(w), *as<Convolution>(conv), *as<Tensor>(y), algorithm, bytes);
}
API Status cudnnGetConvolutionBackwardFilterWorkspaceSize(void*, void* x, void* y, void* conv, void* w, int algorithm,
                                                          size_t* bytes) {
  return needed(FILTER, *as<Tensor>(x), *as<Tensor>(w), *as<Convolution>(conv), *as<Tensor>(y), algorithm, bytes);
}

API Status cudnnConvolutionForward(void* handle, const float* alpha, void* x, float* xs, void* w, float* ws, void* conv,
                                   int algorithm, void* room, size_t bytes, const float* beta, void* y, float* ys) {
  return run("cudnnConvolutionForward", FORWARD, as<Handle>(handle), *alpha, *as<Tensor>(x), xs, *as<Tensor>(w), ws,
             *as<Convolution>(conv), algorithm, room, bytes, *beta, *as<Tensor>(y), ys);
}
API Status cudnnConvolutionBackwardData(void* handle, const float* alpha, void* w, float* ws, void* y, float* ys,
                                        void* conv, int algorithm, void* room, size_t bytes, const float* beta, void* x,
                                        float* xs) {
  return run("cudnnConvolutionBackwardData", DATA, as<Handle>(handle), *alpha, *as<Tensor>(x), xs, *as<Tensor>(w), ws,
             *as<Convolution>(conv), algorithm, room, bytes, *beta, *as<Tensor>(y), ys);
}
API Status cudnnConvolutionBackwardFilter(void* handle, const float* alpha, void* x, float* xs, void* y, float* ys,
                                          void* conv, int algorithm, void* room, size_t bytes, const float* beta,
                                          void* w, float* ws) {
  return run("cudnnConvolutionBackwardFilter", FILTER, as<Handle>(handle), *alpha, *as<Tensor>(x), xs, *as<Tensor>(w),
             ws, *as<Convolution>(conv), algorithm, room, bytes, *beta, *as<Tensor>(y), ys);
}
