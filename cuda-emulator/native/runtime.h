// What the driver asks of the runtime.
#pragma once
#define NN_EMU_RUNTIME
#include "kernel_abi.h"
#include <string>

namespace nn_emu {

struct Grid { unsigned x, y, z; };

// Where a kernel stopped. `address` is set for a memory fault and null otherwise.
struct Fault {
  std::string message;
  const void* address = nullptr;
  bool misaligned = false;
};

// Runs every block of a grid; true if all went well. `dynamic_bytes` is at most `MAX_SHARED`.
bool run(const Kernel&, Grid grid, Grid block, size_t dynamic_bytes, void** arguments, Fault*);

constexpr size_t MAX_SHARED = 227 * 1024;
constexpr unsigned MAX_THREADS = 1024;

}  // namespace nn_emu
