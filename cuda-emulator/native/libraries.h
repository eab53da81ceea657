// What stand-ins for NVIDIA's libraries ask of the one for the driver.
#pragma once
#include "kernel_abi.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <functional>

namespace nn_emu {

// Does work now or, on a stream that is captured, whenever the graph is launched. 0, or the driver's error.
NN_EMU_API int submit(void* stream, std::function<bool()> work);
// Whether so many bytes lie in one buffer of the device. If not, says of which call.
NN_EMU_API bool reaches(const char* call, const void* start, size_t bytes);
NN_EMU_API void report_misuse(const char* call, const char* what);
// Counts calls, for tests.
NN_EMU_API void count(const char* call);

// The nearest number of 11 significant bits, ties away from zero, as tensor cores get it.
inline float to_tf32(float x) {
  if (!std::isfinite(x)) return x;
  uint32_t bits;
  memcpy(&bits, &x, sizeof bits);
  bits = (bits + 0x1000) & ~uint32_t(0x1fff);
  memcpy(&x, &bits, sizeof bits);
  return x;
}

}  // namespace nn_emu
