// A stand-in for libcublasLt: products of single precision and of bfloat16, by what NVIDIA's documentation says of the calls.
//
// Attributes that are not set have the documented defaults; what is not known here is NOT_SUPPORTED. The heuristic
// names an algorithm that adds parts of sums in place first, where it may: two runs of that one differ.
#include "libraries.h"

#include <algorithm>
#include <atomic>
#include <vector>

#define API extern "C" NN_EMU_API

namespace {

enum Status : int { SUCCESS = 0, INVALID_VALUE = 7, EXECUTION_FAILED = 13, NOT_SUPPORTED = 15 };
enum { R_32F = 0, R_16BF = 14, COMPUTE_32F = 68, COMPUTE_32F_PEDANTIC = 69, COMPUTE_32F_FAST_TF32 = 77 };
enum { EPILOGUE_DEFAULT = 1, EPILOGUE_RELU = 2, EPILOGUE_BIAS = 4, EPILOGUE_RELU_BIAS = 6 };
enum { REDUCTION_NONE = 0, REDUCTION_INPLACE = 1, REDUCTION_COMPUTE_TYPE = 2 };

struct Product {
  int compute, scale;
  uint32_t transa = 0, transb = 0, transc = 0, pointer_mode = 0, epilogue = EPILOGUE_DEFAULT;
  const void* bias = nullptr;
};

size_t bytes_of(int type) { return type == R_16BF ? 2 : 4; }

// Number `i` of an array.
float load(const void* at, int type, size_t i) {
  if (type == R_32F) return static_cast<const float*>(at)[i];
  uint32_t bits = static_cast<uint32_t>(static_cast<const uint16_t*>(at)[i]) << 16;
  float value;
  return memcpy(&value, &bits, 4), value;
}

// The same, rounded to nearest, ties to even.
void store(void* at, int type, size_t i, float value) {
  if (type == R_32F) {
    static_cast<float*>(at)[i] = value;
    return;
  }
  uint32_t bits;
  memcpy(&bits, &value, 4);
  bits = std::isnan(value) ? bits | 0x400000u : bits + 0x7fffu + ((bits >> 16) & 1u);
  static_cast<uint16_t*>(at)[i] = static_cast<uint16_t>(bits >> 16);
}

struct Layout {
  int type;
  uint64_t rows, cols;
  int64_t stride;
  // What is read: the last column ends before the next would start.
  size_t bytes() const { return bytes_of(type) * (static_cast<size_t>(stride) * (cols - 1) + rows); }
};

struct Preference {
  uint64_t workspace = 0;
  uint32_t reductions = 7;
  uint32_t alignment[4] = {256, 256, 256, 256};
};

struct Algorithm {
  uint64_t problem, reduction, workspace, alignment[4], unused;
};
static_assert(sizeof(Algorithm) == 64, "as cublasLtMatmulAlgo_t");

struct Result {
  Algorithm algorithm;
  size_t workspace;
  Status state;
  float waves;
  int reserved[4];
};

constexpr uint64_t SPLITS = 3;

template <class T> Status take(T* to, const void* from, size_t bytes) {
  if (!from || bytes != sizeof(T)) return INVALID_VALUE;
  return memcpy(to, from, bytes), SUCCESS;
}

struct Sizes {
  uint64_t m, n, k;
};

// The sizes of a product, or what is wrong with it.
Status sizes(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d, Sizes* sizes) {
  if (p.scale != R_32F || p.transc || p.pointer_mode) return NOT_SUPPORTED;
  if (p.compute != COMPUTE_32F && p.compute != COMPUTE_32F_PEDANTIC && p.compute != COMPUTE_32F_FAST_TF32)
    return NOT_SUPPORTED;
  for (uint32_t transposed : {p.transa, p.transb})
    if (transposed > 1) return NOT_SUPPORTED;
  if (a.type == R_16BF && p.compute == COMPUTE_32F_FAST_TF32) return NOT_SUPPORTED;
  bool known = p.epilogue == EPILOGUE_DEFAULT || p.epilogue == EPILOGUE_RELU || p.epilogue == EPILOGUE_BIAS ||
               p.epilogue == EPILOGUE_RELU_BIAS;
  if (!known) return NOT_SUPPORTED;
  if ((p.epilogue & EPILOGUE_BIAS) && !p.bias) return INVALID_VALUE;
  for (const Layout* layout : {&a, &b, &c, &d}) {
    if (layout->type != a.type || (a.type != R_32F && a.type != R_16BF)) return NOT_SUPPORTED;
    if (!layout->rows || !layout->cols || layout->stride < static_cast<int64_t>(layout->rows)) return INVALID_VALUE;
  }
  sizes->m = p.transa ? a.cols : a.rows;
  sizes->k = p.transa ? a.rows : a.cols;
  sizes->n = p.transb ? b.rows : b.cols;
  bool fit = (p.transb ? b.cols : b.rows) == sizes->k && d.rows == sizes->m && d.cols == sizes->n;
  return fit && c.rows == d.rows && c.cols == d.cols ? SUCCESS : INVALID_VALUE;
}

uint64_t problem(const Product& p, const Layout& a, const Layout& b, const Layout& c, const Layout& d) {
  uint64_t state = 0xcbf29ce484222325;
  auto add = [&](uint64_t value) { state = (state ^ value) * 0x100000001b3; };
  for (uint64_t value : {uint64_t(p.compute), uint64_t(p.transa), uint64_t(p.transb), uint64_t(p.epilogue)}) add(value);
  for (const Layout* layout : {&a, &b, &c, &d}) add(layout->type), add(layout->rows), add(layout->cols), add(layout->stride);
  return state | 1;
}

template <class T> T* as(void* handle) { return static_cast<T*>(handle); }

}  // namespace

// Asked by the loader, to see that the library it got is this one.
API int nn_emu_stand_in() { return 1; }

API Status cublasLtCreate(void** handle) { return *handle = new int, SUCCESS; }
API Status cublasLtDestroy(void* handle) { return delete as<int>(handle), SUCCESS; }
API size_t cublasLtGetVersion() { return 130000; }

API Status cublasLtMatmulDescCreate(void** product, int compute, int scale) {
  return *product = new Product{compute, scale}, SUCCESS;
}
API Status cublasLtMatmulDescDestroy(void* product) { return delete as<Product>(product), SUCCESS; }
API Status cublasLtMatmulDescSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  auto product = as<Product>(handle);
  switch (attribute) {
    case 2: return take(&product->pointer_mode, value, bytes);
    case 3: return take(&product->transa, value, bytes);
    case 4: return take(&product->transb, value, bytes);
    case 5: return take(&product->transc, value, bytes);
    case 7: return take(&product->epilogue, value, bytes);
    case 8: return take(&product->bias, value, bytes);
  }
  return NOT_SUPPORTED;
}

API Status cublasLtMatrixLayoutCreate(void** layout, int type, uint64_t rows, uint64_t cols, int64_t stride) {
  return *layout = new Layout{type, rows, cols, stride}, SUCCESS;
}
API Status cublasLtMatrixLayoutDestroy(void* layout) { return delete as<Layout>(layout), SUCCESS; }
API Status cublasLtMatrixLayoutSetAttribute(void*, int, const void*, size_t) { return NOT_SUPPORTED; }

API Status cublasLtMatmulPreferenceCreate(void** preference) { return *preference = new Preference, SUCCESS; }
API Status cublasLtMatmulPreferenceDestroy(void* preference) { return delete as<Preference>(preference), SUCCESS; }
API Status cublasLtMatmulPreferenceSetAttribute(void* handle, int attribute, const void* value, size_t bytes) {
  auto preference = as<Preference>(handle);
  switch (attribute) {
    case 1: return take(&preference->workspace, value, bytes);
    case 3: return take(&preference->reductions, value, bytes);
    case 5: case 6: case 7: case 8: return take(&preference->alignment[attribute - 5], value, bytes);
  }
  return NOT_SUPPORTED;
}

API Status cublasLtMatmulAlgoGetHeuristic(void*, void* product, void* a, void* b, void* c, void* d, void* handle,
                                          int asked, Result* results, int* count) {
  nn_emu::count("cublasLtMatmulAlgoGetHeuristic");
  auto &p = *as<Product>(product);
  auto &la = *as<Layout>(a), &lb = *as<Layout>(b), &lc = *as<Layout>(c), &ld = *as<Layout>(d);
  auto& preference = *as<Preference>(handle);
  *count = 0;
  Sizes s;
  if (Status error = sizes(p, la, lb, lc, ld, &s)) return error;
  auto offer = [&](uint64_t reduction, uint64_t workspace) {
    if (*count == asked || workspace > preference.workspace || (reduction & ~uint64_t(preference.reductions))) return;
    Algorithm algorithm = {problem(p, la, lb, lc, ld), reduction, workspace, {}, 0};
    std::copy_n(preference.alignment, 4, algorithm.alignment);
    results[(*count)++] = {algorithm, workspace, SUCCESS, 1, {}};
  };
  if (s.k >= SPLITS) {
    offer(REDUCTION_INPLACE, 0);
    offer(REDUCTION_COMPUTE_TYPE, SPLITS * s.m * s.n * sizeof(float));
  }
  offer(REDUCTION_NONE, 0);
  return *count ? SUCCESS : NOT_SUPPORTED;
}
API Status cublasLtMatmulAlgoConfigGetAttribute(const Algorithm* algorithm, int attribute, void* value, size_t bytes,
                                                size_t* written) {
  if (attribute != 3) return NOT_SUPPORTED;
  if (bytes != sizeof(uint32_t)) return INVALID_VALUE;
  uint32_t reduction = static_cast<uint32_t>(algorithm->reduction);
  memcpy(value, &reduction, bytes);
  return *written = bytes, SUCCESS;
}

API Status cublasLtMatmul(void*, void* product, const float* alpha, const void* a, void* a_layout, const void* b,
                          void* b_layout, const float* beta, const void* c, void* c_layout, void* d, void* d_layout,
                          const Algorithm* chosen, void* workspace, size_t workspace_bytes, void* stream) {
  constexpr const char* CALL = "cublasLtMatmul";
  nn_emu::count(CALL);
  auto misuse = [&](const char* what) { return nn_emu::report_misuse(CALL, what), INVALID_VALUE; };
  Product p = *as<Product>(product);
  Layout la = *as<Layout>(a_layout), lb = *as<Layout>(b_layout), lc = *as<Layout>(c_layout), ld = *as<Layout>(d_layout);
  Sizes s;
  if (Status error = sizes(p, la, lb, lc, ld, &s)) return misuse("the operands do not fit"), error;
  if (!chosen) return misuse("no algorithm: asking the heuristic here would be asking in every call");
  Algorithm algorithm = *chosen;
  if (algorithm.problem != problem(p, la, lb, lc, ld)) return misuse("the algorithm is of another problem");
  if (algorithm.workspace > workspace_bytes) return misuse("the workspace is too small");
  const void* addresses[] = {a, b, c, d};
  for (int i = 0; i < 4; i++)
    if (reinterpret_cast<uintptr_t>(addresses[i]) % algorithm.alignment[i]) return misuse("an address is not aligned");
  auto work = [=, alpha = *alpha, beta = *beta] {
    size_t room = algorithm.workspace;
    bool there = nn_emu::reaches(CALL, a, la.bytes()) && nn_emu::reaches(CALL, b, lb.bytes()) &&
                 nn_emu::reaches(CALL, d, ld.bytes()) && (beta == 0 || nn_emu::reaches(CALL, c, lc.bytes())) &&
                 (!room || nn_emu::reaches(CALL, workspace, room)) &&
                 (!(p.epilogue & EPILOGUE_BIAS) || nn_emu::reaches(CALL, p.bias, bytes_of(ld.type) * s.m));
    if (!there) return false;
    static std::atomic<unsigned> calls{0};
    bool backwards = algorithm.reduction == REDUCTION_INPLACE && calls++ % 3 == 0;
    uint64_t splits = algorithm.reduction == REDUCTION_NONE ? 1 : SPLITS;
    auto rounded = [&](float x) { return p.compute == COMPUTE_32F_FAST_TF32 ? nn_emu::to_tf32(x) : x; };
    std::vector<float> left(s.m * s.k), right(s.k * s.n);
    for (uint64_t i = 0; i < s.m; i++)
      for (uint64_t t = 0; t < s.k; t++)
        left[i * s.k + t] = rounded(load(a, la.type, p.transa ? i * la.stride + t : t * la.stride + i));
    for (uint64_t j = 0; j < s.n; j++)
      for (uint64_t t = 0; t < s.k; t++)
        right[j * s.k + t] = rounded(load(b, lb.type, p.transb ? t * lb.stride + j : j * lb.stride + t));
    auto part = [&](uint64_t i, uint64_t j, uint64_t split) {
      // Eight sums side by side, which the compiler makes vectors of.
      float sums[8] = {}, sum = 0;
      uint64_t t = s.k * split / splits, end = s.k * (split + 1) / splits;
      const float *x = &left[i * s.k], *y = &right[j * s.k];
      for (; t + 8 <= end; t += 8)
        for (int lane = 0; lane < 8; lane++) sums[lane] += x[t + lane] * y[t + lane];
      for (; t < end; t++) sum += x[t] * y[t];
      for (float lane : sums) sum += lane;
      return sum;
    };
    auto parts = static_cast<float*>(workspace);
    if (room)
      for (uint64_t split = 0; split < splits; split++)
        for (uint64_t j = 0; j < s.n; j++)
          for (uint64_t i = 0; i < s.m; i++) parts[(split * s.n + j) * s.m + i] = part(i, j, split);
    for (uint64_t j = 0; j < s.n; j++) {
      for (uint64_t i = 0; i < s.m; i++) {
        float sum = 0;
        for (uint64_t split = 0; split < splits; split++) {
          uint64_t at = backwards ? splits - 1 - split : split;
          sum += room ? parts[(at * s.n + j) * s.m + i] : part(i, j, at);
        }
        sum *= alpha;
        // What C holds is not looked at where it does not count.
        if (beta != 0) sum += beta * load(c, lc.type, j * lc.stride + i);
        if (p.epilogue & EPILOGUE_BIAS) sum += load(p.bias, ld.type, i);
        if (p.epilogue & EPILOGUE_RELU) sum = std::fmax(sum, 0.0f);
        store(d, ld.type, j * ld.stride + i, sum);
      }
    }
    return true;
  };
  return nn_emu::submit(stream, work) ? EXECUTION_FAILED : SUCCESS;
}
