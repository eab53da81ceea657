// A stand-in for libcuda with one pretended device. A "cubin" is the path of a shared object that the stand-in for
// libnvrtc made; launching a kernel runs it here and now. Device memory is host memory, filled with NaN, between two
// pages that can't be touched.
//
// It has what cudarc's safe driver layer touches (cudarc panics at a symbol that is missing) and a few calls more.
// A call that a real driver refuses while a stream is captured is refused here too.
#include "libraries.h"
#include "runtime.h"

#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <dlfcn.h>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <sys/mman.h>
#include <vector>

#define API extern "C" NN_EMU_API

namespace {

enum Result : int {
  SUCCESS = 0,
  INVALID_VALUE = 1,
  OUT_OF_MEMORY = 2,
  NO_DEVICE = 100,
  INVALID_DEVICE = 101,
  INVALID_IMAGE = 200,
  INVALID_CONTEXT = 201,
  NOT_FOUND = 500,
  ILLEGAL_ADDRESS = 700,
  MISALIGNED_ADDRESS = 716,
  LAUNCH_FAILED = 719,
  NOT_SUPPORTED = 801,
  CAPTURE_UNSUPPORTED = 900,
  CAPTURE_INVALIDATED = 901,
  CAPTURE_UNMATCHED = 903,
};

const char* name_of(Result error) {
  switch (error) {
    case SUCCESS: return "CUDA_SUCCESS";
    case INVALID_VALUE: return "CUDA_ERROR_INVALID_VALUE";
    case OUT_OF_MEMORY: return "CUDA_ERROR_OUT_OF_MEMORY";
    case NO_DEVICE: return "CUDA_ERROR_NO_DEVICE";
    case INVALID_DEVICE: return "CUDA_ERROR_INVALID_DEVICE";
    case INVALID_IMAGE: return "CUDA_ERROR_INVALID_IMAGE";
    case INVALID_CONTEXT: return "CUDA_ERROR_INVALID_CONTEXT";
    case NOT_FOUND: return "CUDA_ERROR_NOT_FOUND";
    case ILLEGAL_ADDRESS: return "CUDA_ERROR_ILLEGAL_ADDRESS";
    case MISALIGNED_ADDRESS: return "CUDA_ERROR_MISALIGNED_ADDRESS";
    case LAUNCH_FAILED: return "CUDA_ERROR_LAUNCH_FAILED";
    case NOT_SUPPORTED: return "CUDA_ERROR_NOT_SUPPORTED";
    case CAPTURE_UNSUPPORTED: return "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
    case CAPTURE_INVALIDATED: return "CUDA_ERROR_STREAM_CAPTURE_INVALIDATED";
    case CAPTURE_UNMATCHED: return "CUDA_ERROR_STREAM_CAPTURE_UNMATCHED";
  }
  return "CUDA_ERROR_UNKNOWN";
}

using Address = unsigned long long;

// After a fault every call that works on the device gives the same error, as with a real driver.
std::atomic<Result> sticky{SUCCESS};

template <class... A> void report(const char* format, A... values) {
  std::string line = std::string("CUDA emulator: ") + format + "\n";
  fprintf(stderr, line.c_str(), values...);
}

constexpr size_t PAGE = 4096;
constexpr size_t ALIGNMENT = 16;
constexpr unsigned char POISON = 0xff;
constexpr size_t DEVICE_MEMORY = size_t(8) << 30;

size_t round_up(size_t n, size_t to) { return (n + to - 1) / to * to; }

struct Buffer {
  char* map;
  size_t map_bytes, bytes;
  // Between the last byte and the page that can't be touched, for the sake of alignment.
  size_t slack() const { return round_up(bytes, ALIGNMENT) - bytes; }
};

std::mutex memory_lock;
// Both by address. A buffer with slack can be overrun without a fault, so its slack is looked at after each launch.
std::map<Address, Buffer> buffers;
std::map<Address, Buffer> with_slack;
size_t allocated;

Result allocate(Address* address, size_t bytes) {
  if (sticky) return sticky;
  if (bytes == 0) return INVALID_VALUE;
  size_t body = round_up(bytes, ALIGNMENT), usable = round_up(body, PAGE);
  std::lock_guard<std::mutex> lock(memory_lock);
  if (allocated + bytes > DEVICE_MEMORY) return OUT_OF_MEMORY;
  void* memory = mmap(nullptr, usable + 2 * PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) return OUT_OF_MEMORY;
  char* start = static_cast<char*>(memory) + PAGE;
  mprotect(start, usable, PROT_READ | PROT_WRITE);
  memset(start, POISON, usable);
  *address = reinterpret_cast<Address>(start + usable - body);
  Buffer buffer = {static_cast<char*>(memory), usable + 2 * PAGE, bytes};
  buffers[*address] = buffer;
  if (buffer.slack()) with_slack[*address] = buffer;
  allocated += bytes;
  return SUCCESS;
}

Result release(Address address) {
  if (!address) return SUCCESS;
  std::lock_guard<std::mutex> lock(memory_lock);
  auto found = buffers.find(address);
  if (found == buffers.end()) return INVALID_VALUE;
  allocated -= found->second.bytes;
  munmap(found->second.map, found->second.map_bytes);
  with_slack.erase(address);
  buffers.erase(found);
  return SUCCESS;
}

bool inside_a_buffer(Address address, size_t bytes) {
  std::lock_guard<std::mutex> lock(memory_lock);
  auto after = buffers.upper_bound(address);
  if (after == buffers.begin()) return false;
  auto [start, buffer] = *std::prev(after);
  return address + bytes <= start + buffer.bytes;
}

// The size of a buffer that was written past its end, or 0.
size_t overrun_buffer() {
  std::lock_guard<std::mutex> lock(memory_lock);
  for (auto& [address, buffer] : with_slack) {
    auto slack = reinterpret_cast<const unsigned char*>(address + buffer.bytes);
    for (size_t i = 0; i < buffer.slack(); i++)
      if (slack[i] != POISON) return buffer.bytes;
  }
  return 0;
}

std::string describe(const void* pointer) {
  auto address = reinterpret_cast<Address>(pointer);
  char text[160];
  std::lock_guard<std::mutex> lock(memory_lock);
  for (auto& [start, buffer] : buffers) {
    auto map = reinterpret_cast<Address>(buffer.map);
    if (address < map || address >= map + buffer.map_bytes) continue;
    if (address < start)
      snprintf(text, sizeof text, "%p, %llu bytes before a buffer of %zu", pointer, start - address, buffer.bytes);
    else
      snprintf(text, sizeof text, "%p, byte %llu of a buffer of %zu", pointer, address - start, buffer.bytes);
    return text;
  }
  snprintf(text, sizeof text, "%p, in no buffer", pointer);
  return text;
}

using Node = std::function<Result()>;
using Graph = std::vector<Node>;

enum CaptureMode { GLOBAL = 0, THREAD_LOCAL = 1, RELAXED = 2 };

struct Stream {
  std::unique_ptr<Graph> capture;
  bool invalidated = false;
  CaptureMode mode = GLOBAL;
  unsigned nodes = 0;
};

Stream default_stream;
std::atomic<int> global_captures{0};
thread_local int own_captures = 0;
thread_local std::vector<Stream*> captured_here;

Stream* stream_of(void* handle) {
  // 0, 1 and 2 name the default, legacy and per-thread streams.
  return reinterpret_cast<uintptr_t>(handle) <= 2 ? &default_stream : static_cast<Stream*>(handle);
}

// A call that would wait for the device, or change its memory, ends a capture that is under way.
Result refuse_in_capture() {
  if (!global_captures && !own_captures) return SUCCESS;
  for (Stream* stream : captured_here) stream->invalidated = true;
  report("a call that is not allowed while a stream is captured");
  return CAPTURE_UNSUPPORTED;
}

Result submit(void* handle, Node node) {
  if (sticky) return sticky;
  Stream* stream = stream_of(handle);
  if (!stream->capture) return node();
  if (stream->invalidated) return CAPTURE_INVALIDATED;
  stream->capture->push_back(std::move(node));
  return SUCCESS;
}

Result replay(const Graph& graph) {
  for (const Node& node : graph)
    if (Result error = node()) return error;
  return SUCCESS;
}

template <class T> void* pointer(T address) { return reinterpret_cast<void*>(address); }

// Whether a copy or fill stays inside its buffer is asked when it runs, as a buffer may be freed before a replay.
Result check(const char* what, Address address, size_t bytes) {
  if (bytes == 0 || inside_a_buffer(address, bytes)) return SUCCESS;
  report("%s of %zu bytes at %s", what, bytes, describe(pointer(address)).c_str());
  return INVALID_VALUE;
}

Result copy_in(Address to, const void* from, size_t bytes) {
  if (Result error = check("copy to the device", to, bytes)) return error;
  memcpy(pointer(to), from, bytes);
  return SUCCESS;
}

Result copy_out(void* to, Address from, size_t bytes) {
  if (Result error = check("copy from the device", from, bytes)) return error;
  memcpy(to, pointer(from), bytes);
  return SUCCESS;
}

Result copy_within(Address to, Address from, size_t bytes) {
  if (Result error = check("copy on the device, to", to, bytes)) return error;
  if (Result error = check("copy on the device, from", from, bytes)) return error;
  memmove(pointer(to), pointer(from), bytes);
  return SUCCESS;
}

template <class T> Result fill(Address to, T value, size_t count) {
  if (Result error = check("fill", to, count * sizeof(T))) return error;
  for (size_t i = 0; i < count; i++) static_cast<T*>(pointer(to))[i] = value;
  return SUCCESS;
}

struct Function {
  std::string name;
  const nn_emu::Kernel* kernel;
  unsigned dynamic_limit = 48 * 1024;
};

struct Module {
  void* library;
  std::vector<std::unique_ptr<Function>> functions;
};

using nn_emu::Grid;

Result run(const Function& function, Grid grid, Grid size, unsigned dynamic_bytes, void** arguments) {
  nn_emu::Fault fault;
  Result result = SUCCESS;
  if (!nn_emu::run(*function.kernel, grid, size, dynamic_bytes, arguments, &fault)) {
    result = fault.address ? ILLEGAL_ADDRESS : fault.misaligned ? MISALIGNED_ADDRESS : LAUNCH_FAILED;
    if (fault.address) fault.message += " " + describe(fault.address);
  } else if (size_t bytes = overrun_buffer()) {
    result = ILLEGAL_ADDRESS;
    fault.message = "wrote past the end of a buffer of " + std::to_string(bytes) + " bytes";
  }
  if (result) {
    report("kernel %s: %s", function.name.c_str(), fault.message.c_str());
    sticky = result;
  }
  return result;
}

Result launch(Function* function, Grid grid, Grid size, unsigned dynamic_bytes, void* stream, void** arguments) {
  const char* name = function->name.c_str();
  if (dynamic_bytes > function->dynamic_limit) {
    report("kernel %s: %u bytes of dynamic shared memory, of %u", name, dynamic_bytes, function->dynamic_limit);
    return INVALID_VALUE;
  }
  uint64_t threads = uint64_t(size.x) * size.y * size.z;
  bool grid_fits = grid.x && grid.y && grid.z && grid.x <= 0x7fffffff && grid.y <= 65535 && grid.z <= 65535;
  if (!grid_fits || threads == 0 || threads > nn_emu::MAX_THREADS || size.z > 64) {
    report("kernel %s: grid (%u,%u,%u) of blocks (%u,%u,%u)", name, grid.x, grid.y, grid.z, size.x, size.y, size.z);
    return INVALID_VALUE;
  }
  if (sticky) return sticky;
  if (!stream_of(stream)->capture) return run(*function, grid, size, dynamic_bytes, arguments);
  const nn_emu::Kernel& kernel = *function->kernel;
  std::vector<std::vector<char>> values;
  for (unsigned i = 0; i < kernel.arguments; i++) {
    auto value = static_cast<const char*>(arguments[i]);
    values.emplace_back(value, value + kernel.argument_bytes[i]);
  }
  return submit(stream, [=]() mutable {
    std::vector<void*> pointers;
    for (auto& value : values) pointers.push_back(value.data());
    return run(*function, grid, size, dynamic_bytes, pointers.data());
  });
}

std::string own_folder() {
  Dl_info info;
  dladdr(reinterpret_cast<void*>(&own_folder), &info);
  std::string path = info.dli_fname;
  return path.substr(0, path.rfind('/'));
}

std::mutex calls_lock;
std::map<std::string, unsigned long long> calls;

timespec* event_of(void* handle) { return static_cast<timespec*>(handle); }

}  // namespace

namespace nn_emu {

int submit(void* stream, std::function<bool()> work) {
  return ::submit(stream, [work = std::move(work)] {
    if (!work()) sticky = ILLEGAL_ADDRESS;
    return sticky.load();
  });
}
bool reaches(const char* call, const void* start, size_t bytes) {
  if (inside_a_buffer(reinterpret_cast<Address>(start), bytes)) return true;
  report("%s: %zu bytes at %s", call, bytes, describe(start).c_str());
  return false;
}
void report_misuse(const char* call, const char* what) { report("%s: %s", call, what); }
void count(const char* call) {
  std::lock_guard<std::mutex> lock(calls_lock);
  calls[call]++;
}

}  // namespace nn_emu

// How often a function of a library was called.
API unsigned long long nn_emu_calls(const char* function) {
  std::lock_guard<std::mutex> lock(calls_lock);
  return calls[function];
}

// Asked by the loader, to see that the libcuda it got is this one.
API int nn_emu_present() { return 1; }

API Result cuInit(unsigned) { return SUCCESS; }
API Result cuDriverGetVersion(int* version) { return *version = 13000, SUCCESS; }
API Result cuDeviceGetCount(int* count) { return *count = 1, SUCCESS; }
API Result cuDeviceGet(int* device, int ordinal) { return *device = 0, ordinal == 0 ? SUCCESS : INVALID_DEVICE; }
API Result cuDeviceGetName(char* name, int bytes, int) {
  snprintf(name, static_cast<size_t>(bytes), "CPU emulator");
  return SUCCESS;
}
API Result cuDeviceGetUuid_v2(void* uuid, int) { return memset(uuid, 0, 16), SUCCESS; }
API Result cuDeviceGetUuid(void* uuid, int device) { return cuDeviceGetUuid_v2(uuid, device); }
API Result cuDeviceTotalMem_v2(size_t* bytes, int) { return *bytes = DEVICE_MEMORY, SUCCESS; }
API Result cuDeviceGetAttribute(int* value, int attribute, int) {
  switch (attribute) {
    case 1: *value = nn_emu::MAX_THREADS; break;
    case 2: case 3: *value = 1024; break;                                  // block x, y
    case 4: *value = 64; break;                                            // block z
    case 5: *value = 0x7fffffff; break;                                    // grid x
    case 6: case 7: *value = 65535; break;                                 // grid y, z
    case 8: *value = 48 * 1024; break;                                     // shared memory of a block
    case 10: *value = 32; break;                                           // warp size
    case 12: *value = 65536; break;                                        // registers of a block
    case 16: *value = 4; break;                                            // multiprocessors
    case 38: *value = 4 << 20; break;                                      // L2 cache
    case 39: *value = 2048; break;                                         // threads of a multiprocessor
    case 75: *value = 9; break;                                            // compute capability
    case 76: *value = 0; break;
    case 81: *value = 228 * 1024; break;                                   // shared memory of a multiprocessor
    case 97: *value = static_cast<int>(nn_emu::MAX_SHARED); break;         // the same, of a block that asks for it
    default: *value = 0;  // among them memory pools: cudarc then allocates with cuMemAlloc
  }
  return SUCCESS;
}

thread_local void* current_context;
API Result cuDevicePrimaryCtxRetain(void** context, int) { return *context = pointer(uintptr_t(1)), SUCCESS; }
API Result cuDevicePrimaryCtxRelease_v2(int) { return SUCCESS; }
API Result cuCtxSetCurrent(void* context) { return current_context = context, SUCCESS; }
API Result cuCtxGetCurrent(void** context) { return *context = current_context, SUCCESS; }
API Result cuCtxGetDevice(int* device) { return *device = 0, SUCCESS; }
API Result cuCtxSetFlags(unsigned) { return SUCCESS; }
API Result cuCtxSetLimit(int, size_t) { return SUCCESS; }
API Result cuCtxGetLimit(size_t* value, int) { return *value = 0, SUCCESS; }
API Result cuCtxSetCacheConfig(int) { return SUCCESS; }
API Result cuCtxGetCacheConfig(int* config) { return *config = 0, SUCCESS; }
API Result cuCtxGetStreamPriorityRange(int* least, int* greatest) { return *least = *greatest = 0, SUCCESS; }
API Result cuCtxSynchronize() {
  if (Result error = refuse_in_capture()) return error;
  return sticky;
}

API Result cuGetErrorName(Result error, const char** text) { return *text = name_of(error), SUCCESS; }
API Result cuGetErrorString(Result error, const char** text) { return *text = name_of(error), SUCCESS; }
API Result cuProfilerStart() { return SUCCESS; }
API Result cuProfilerStop() { return SUCCESS; }

API Result cuMemAlloc_v2(Address* address, size_t bytes) {
  if (Result error = refuse_in_capture()) return error;
  return allocate(address, bytes);
}
API Result cuMemFree_v2(Address address) {
  if (Result error = refuse_in_capture()) return error;
  return release(address);
}
API Result cuMemAllocAsync(Address* address, size_t bytes, void* stream) {
  return stream_of(stream)->capture ? NOT_SUPPORTED : allocate(address, bytes);
}
API Result cuMemFreeAsync(Address address, void* stream) {
  return stream_of(stream)->capture ? NOT_SUPPORTED : release(address);
}
API Result cuMemGetInfo_v2(size_t* free_bytes, size_t* total) {
  std::lock_guard<std::mutex> lock(memory_lock);
  return *free_bytes = DEVICE_MEMORY - allocated, *total = DEVICE_MEMORY, SUCCESS;
}
API Result cuMemHostAlloc(void** memory, size_t bytes, unsigned) {
  *memory = malloc(bytes ? bytes : 1);
  return *memory ? SUCCESS : OUT_OF_MEMORY;
}
API Result cuMemAllocHost_v2(void** memory, size_t bytes) { return cuMemHostAlloc(memory, bytes, 0); }
API Result cuMemFreeHost(void* memory) { return free(memory), SUCCESS; }

API Result cuMemcpyHtoDAsync_v2(Address to, const void* from, size_t bytes, void* stream) {
  return submit(stream, [=] { return copy_in(to, from, bytes); });
}
API Result cuMemcpyDtoHAsync_v2(void* to, Address from, size_t bytes, void* stream) {
  return submit(stream, [=] { return copy_out(to, from, bytes); });
}
API Result cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void* stream) {
  return submit(stream, [=] { return copy_within(to, from, bytes); });
}
API Result cuMemsetD8Async(Address to, unsigned char value, size_t count, void* stream) {
  return submit(stream, [=] { return fill(to, value, count); });
}
API Result cuMemsetD16Async(Address to, unsigned short value, size_t count, void* stream) {
  return submit(stream, [=] { return fill(to, value, count); });
}
API Result cuMemsetD32Async(Address to, unsigned value, size_t count, void* stream) {
  return submit(stream, [=] { return fill(to, value, count); });
}

template <class F> static Result at_once(F work) {
  if (Result error = refuse_in_capture()) return error;
  return sticky ? sticky.load() : work();
}
API Result cuMemcpyHtoD_v2(Address to, const void* from, size_t bytes) {
  return at_once([=] { return copy_in(to, from, bytes); });
}
API Result cuMemcpyDtoH_v2(void* to, Address from, size_t bytes) {
  return at_once([=] { return copy_out(to, from, bytes); });
}
API Result cuMemcpyDtoD_v2(Address to, Address from, size_t bytes) {
  return at_once([=] { return copy_within(to, from, bytes); });
}
API Result cuMemsetD8_v2(Address to, unsigned char value, size_t count) {
  return at_once([=] { return fill(to, value, count); });
}
API Result cuMemsetD32_v2(Address to, unsigned value, size_t count) {
  return at_once([=] { return fill(to, value, count); });
}

API Result cuStreamCreate(void** stream, unsigned) { return *stream = new Stream, SUCCESS; }
API Result cuStreamCreateWithPriority(void** stream, unsigned, int) { return *stream = new Stream, SUCCESS; }
API Result cuStreamDestroy_v2(void* stream) { return delete static_cast<Stream*>(stream), SUCCESS; }
API Result cuStreamSynchronize(void* handle) {
  Stream* stream = stream_of(handle);
  if (!stream->capture) return sticky;
  stream->invalidated = true;
  report("cuStreamSynchronize on a stream that is captured");
  return CAPTURE_UNSUPPORTED;
}
API Result cuStreamQuery(void*) { return sticky; }
API Result cuStreamWaitEvent(void*, void*, unsigned) { return SUCCESS; }
API Result cuLaunchHostFunc(void* stream, void (*function)(void*), void* data) {
  return submit(stream, [=] { return function(data), SUCCESS; });
}

API Result cuEventCreate(void** event, unsigned) { return *event = new timespec{}, SUCCESS; }
API Result cuEventDestroy_v2(void* event) { return delete event_of(event), SUCCESS; }
API Result cuEventRecord(void* event, void* stream) {
  return submit(stream, [=] { return clock_gettime(CLOCK_MONOTONIC, event_of(event)), SUCCESS; });
}
API Result cuEventSynchronize(void*) { return sticky; }
API Result cuEventQuery(void*) { return sticky; }
API Result cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  timespec *a = event_of(start), *b = event_of(end);
  double elapsed = double(b->tv_sec - a->tv_sec) * 1e3 + double(b->tv_nsec - a->tv_nsec) * 1e-6;
  return *milliseconds = static_cast<float>(elapsed), SUCCESS;
}
API Result cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  return cuEventElapsedTime_v2(milliseconds, start, end);
}

API Result cuStreamBeginCapture_v2(void* handle, int mode) {
  Stream* stream = stream_of(handle);
  if (stream == &default_stream || stream->capture) return CAPTURE_UNSUPPORTED;
  if (sticky) return sticky;
  stream->capture = std::make_unique<Graph>();
  stream->invalidated = false;
  stream->mode = static_cast<CaptureMode>(mode);
  captured_here.push_back(stream);
  if (mode == GLOBAL) global_captures++;
  if (mode != RELAXED) own_captures++;
  return SUCCESS;
}
API Result cuStreamEndCapture(void* handle, void** graph) {
  Stream* stream = stream_of(handle);
  *graph = nullptr;
  if (!stream->capture) return CAPTURE_UNMATCHED;
  for (size_t i = 0; i < captured_here.size(); i++)
    if (captured_here[i] == stream) captured_here.erase(captured_here.begin() + static_cast<ptrdiff_t>(i--));
  if (stream->mode == GLOBAL) global_captures--;
  if (stream->mode != RELAXED) own_captures--;
  std::unique_ptr<Graph> captured = std::move(stream->capture);
  if (stream->invalidated) return CAPTURE_INVALIDATED;
  *graph = captured.release();
  return SUCCESS;
}
API Result cuStreamIsCapturing(void* handle, int* status) {
  Stream* stream = stream_of(handle);
  return *status = !stream->capture ? 0 : stream->invalidated ? 2 : 1, SUCCESS;
}

API Result cuGraphInstantiateWithFlags(void** executable, void* graph, unsigned long long) {
  return *executable = new Graph(*static_cast<Graph*>(graph)), SUCCESS;
}
API Result cuGraphLaunch(void* executable, void* stream) {
  auto graph = static_cast<Graph*>(executable);
  if (!stream_of(stream)->capture) return sticky ? sticky.load() : replay(*graph);
  return submit(stream, [graph = *graph] { return replay(graph); });
}
API Result cuGraphUpload(void*, void*) { return SUCCESS; }
API Result cuGraphGetNodes(void* graph, void** nodes, size_t* count) {
  if (nodes) return NOT_SUPPORTED;
  return *count = static_cast<Graph*>(graph)->size(), SUCCESS;
}
API Result cuGraphExecUpdate_v2(void* executable, void* graph, void*) {
  return *static_cast<Graph*>(executable) = *static_cast<Graph*>(graph), SUCCESS;
}
API Result cuGraphDestroy(void* graph) { return delete static_cast<Graph*>(graph), SUCCESS; }
API Result cuGraphExecDestroy(void* executable) { return delete static_cast<Graph*>(executable), SUCCESS; }

API Result cuModuleLoadData(void** module, const void* image) {
  if (sticky) return sticky;
  // A kernel that another build of the emulator compiled may not fit this one.
  static const std::string scheme = "nn-cuda-emulator:", prefix = scheme + own_folder() + "/kernels/";
  auto text = static_cast<const char*>(image);
  if (strncmp(text, prefix.c_str(), prefix.size()) != 0) return INVALID_IMAGE;
  void* library = dlopen(text + scheme.size(), RTLD_NOW | RTLD_LOCAL);
  if (!library) return report("%s", dlerror()), INVALID_IMAGE;
  return *module = new Module{library, {}}, SUCCESS;
}
API Result cuModuleUnload(void* handle) {
  auto module = static_cast<Module*>(handle);
  dlclose(module->library);
  return delete module, SUCCESS;
}
API Result cuModuleGetFunction(void** function, void* handle, const char* name) {
  auto module = static_cast<Module*>(handle);
  auto kernel = static_cast<const nn_emu::Kernel*>(
      dlsym(module->library, (std::string("nn_emu_kernel_") + name).c_str()));
  if (!kernel) return report("no kernel %s in the module; is NN_KERNEL(%s) there?", name, name), NOT_FOUND;
  module->functions.push_back(std::make_unique<Function>(Function{name, kernel}));
  return *function = module->functions.back().get(), SUCCESS;
}
API Result cuModuleGetGlobal_v2(Address*, size_t*, void*, const char*) { return NOT_SUPPORTED; }

API Result cuFuncSetAttribute(void* function, int attribute, int value) {
  constexpr int MAX_DYNAMIC_SHARED = 8;
  if (attribute != MAX_DYNAMIC_SHARED) return SUCCESS;
  if (value < 0 || static_cast<size_t>(value) > nn_emu::MAX_SHARED) return INVALID_VALUE;
  return static_cast<Function*>(function)->dynamic_limit = static_cast<unsigned>(value), SUCCESS;
}
API Result cuFuncGetAttribute(int* value, int attribute, void* handle) {
  auto function = static_cast<Function*>(handle);
  switch (attribute) {
    case 0: *value = nn_emu::MAX_THREADS; break;
    case 1: *value = static_cast<int>(function->kernel->shared_end - function->kernel->shared); break;
    case 8: *value = static_cast<int>(function->dynamic_limit); break;
    default: *value = 0;
  }
  return SUCCESS;
}
API Result cuFuncSetCacheConfig(void*, int) { return SUCCESS; }
API Result cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, void*, int threads, size_t) {
  if (threads < 1) return INVALID_VALUE;
  return *blocks = 2048 / threads, SUCCESS;
}

API Result cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned dynamic_bytes, void* stream, void** arguments,
                          void** extra) {
  if (extra) return NOT_SUPPORTED;
  return launch(static_cast<Function*>(function), {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, dynamic_bytes,
                stream, arguments);
}

struct LaunchConfig {
  unsigned grid_x, grid_y, grid_z, block_x, block_y, block_z, dynamic_bytes;
  void* stream;
  void* attributes;
  unsigned attribute_count;
};
API Result cuLaunchKernelEx(const LaunchConfig* c, void* function, void** arguments, void** extra) {
  return cuLaunchKernel(function, c->grid_x, c->grid_y, c->grid_z, c->block_x, c->block_y, c->block_z, c->dynamic_bytes,
                        c->stream, arguments, extra);
}
