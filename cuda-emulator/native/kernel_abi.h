// What a compiled kernel and the runtime in the stand-in libcuda know of each other.
#pragma once
#include <stddef.h>

#define NN_EMU_API __attribute__((visibility("default")))

// The runtime writes these before a thread runs or goes on. To a kernel they are constants.
#ifndef NN_EMU_RUNTIME
struct uint3 { unsigned x, y, z; };
struct dim3 { unsigned x, y, z; };
extern "C" {
extern const uint3 threadIdx;
extern const uint3 blockIdx;
extern const dim3 blockDim;
extern const dim3 gridDim;
}
#endif

namespace nn_emu {

struct Kernel {
  void (*call)(void** arguments);
  unsigned arguments;
  const size_t* argument_bytes;
  unsigned char* shared;
  unsigned char* shared_end;
};

enum class Shuffle { Index, Up, Down, Xor };

// A place in the source, "file:line". Equal text means the same place.
using Place = const char*;

}  // namespace nn_emu

// Copies are announced by `cp_async` and done by the wait, so that a kernel that forgets to wait reads poison.
extern "C" {
void nn_emu_sync_block(nn_emu::Place);
void nn_emu_sync_warp(unsigned mask, nn_emu::Place);
void nn_emu_shuffle(nn_emu::Shuffle, unsigned mask, void* value, size_t bytes, int operand, int width, nn_emu::Place);
unsigned nn_emu_ballot(unsigned mask, bool predicate, nn_emu::Place);
void nn_emu_mma_m16n8k8_tf32(float* d, const unsigned* a, const unsigned* b);
void nn_emu_mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b);
void nn_emu_cp_async(void* shared, const void* global, int bytes, int bytes_read);
void nn_emu_cp_async_commit();
void nn_emu_cp_async_wait(int groups_left);
unsigned char* nn_emu_dynamic_shared();
[[noreturn]] void nn_emu_trap(nn_emu::Place);
}
