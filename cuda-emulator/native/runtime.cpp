// Runs a kernel on one OS thread. Every CUDA thread that has to wait is a fiber with a stack of its own; threads that
// never wait run one after another on a single stack. Blocks run one after another.
//
// A thread runs until it must wait, so a missing barrier shows as a wrong result; `NN_EMU_ORDER=rev` or `rand:SEED`
// runs the threads of a block in another order, which shows the barriers that the usual order hides; `rev` takes the
// blocks from last to first, too. Shared memory is NaN when a block starts. Dynamic shared memory ends at a page that
// can't be touched, and so does every stack.
#include "runtime.h"

#include <algorithm>
#include <csetjmp>
#include <csignal>
#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <numeric>
#include <pthread.h>
#include <sys/mman.h>
#include <utility>
#include <vector>

#if !defined(__x86_64__)
#error "the switch between fibers is written for x86-64"
#endif

using nn_emu::Grid;
using nn_emu::MAX_SHARED;
using nn_emu::MAX_THREADS;
using nn_emu::Place;

extern "C" {
NN_EMU_API Grid threadIdx, blockIdx, blockDim, gridDim;
}

namespace {

constexpr size_t PAGE = 4096;
constexpr size_t STACK = 64 * 1024;
constexpr unsigned WARP = 32;

enum class Waits { No, Block, Warp };

struct Copy {
  void* to;
  const void* from;
  int bytes, bytes_read, group;
};

// In one line of the cache.
struct alignas(64) Thread {
  Grid index;
  Waits waits;
  // Null before the thread has run and after it has left.
  void* stack_pointer;
  char* stack;
  Place place;
  // For a warp operation under way: what this lane brings, and which lanes take part.
  void* request;
  unsigned mask;
  int copy_group;
};
static_assert(sizeof(Thread) == 64);

struct Warp {
  unsigned present, arrived;
};

struct Block {
  const nn_emu::Kernel* kernel;
  void** arguments;
  unsigned char* dynamic;
  size_t dynamic_bytes;
  unsigned threads, left, at_barrier;
  Place barrier;
  Thread* current;
  void* scheduler;
  // Bit p: the thread at position p of the order can run.
  uint64_t ready[MAX_THREADS / 64];
  uint16_t order[MAX_THREADS], position[MAX_THREADS];
  Thread thread[MAX_THREADS];
  std::vector<Copy> copies[MAX_THREADS];
  Warp warp[MAX_THREADS / WARP];
  std::vector<char*> stacks, free_stacks;
  nn_emu::Fault fault;
};

// Never destroyed: a process may end while a kernel runs.
Block& block = *new Block();

unsigned linear(const Thread* t) { return static_cast<unsigned>(t - block.thread); }

__attribute__((naked, noinline)) void switch_stack(void** /*save*/, void* /*load*/) {
  asm("pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
      "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
      "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

// Leaves the kernel for good. The stacks of its threads are taken back by the next launch.
[[noreturn]] void stop() {
  void* abandoned;
  switch_stack(&abandoned, block.scheduler);
  abort();
}

__attribute__((format(printf, 1, 2))) void blame(const char* format, ...) {
  char text[512];
  const Grid &t = block.current->index, &b = blockIdx;
  int used = snprintf(text, sizeof text, "thread (%u,%u,%u) of block (%u,%u,%u): ", t.x, t.y, t.z, b.x, b.y, b.z);
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text + used, sizeof text - static_cast<size_t>(used), format, arguments);
  va_end(arguments);
  block.fault.message = text;
}

#define FAIL(...) (blame(__VA_ARGS__), stop())

bool same(Place a, Place b) { return a == b || strcmp(a, b) == 0; }

void make_ready(const Thread* t) {
  unsigned p = block.position[linear(t)];
  block.ready[p / 64] |= 1ull << p % 64;
}

void make_all_ready() {
  unsigned words = block.threads / 64;
  memset(block.ready, 0xff, words * 8);
  if (block.threads % 64) block.ready[words] = (1ull << block.threads % 64) - 1;
}

// The next thread in the order that can run, from a position on and around; null if there is none.
Thread* next(unsigned from) {
  unsigned words = (block.threads + 63) / 64, word = from / 64, offset = from % 64;
  if (word == words) word = offset = 0;
  uint64_t bits = block.ready[word] & ~0ull << offset;
  for (unsigned i = 0; !bits; i++) {
    // The first word is looked at twice, as it may have bits before the offset.
    if (i == words) return nullptr;
    word = word + 1 == words ? 0 : word + 1;
    bits = block.ready[word];
  }
  unsigned p = word * 64 + static_cast<unsigned>(__builtin_ctzll(bits));
  block.ready[word] &= ~(bits & -bits);
  return &block.thread[block.order[p]];
}

unsigned after(const Thread* t) { return block.position[linear(t)] + 1u; }

void resume_as(Thread* t) {
  block.current = t;
  t->waits = Waits::No;
  threadIdx = t->index;
}

[[noreturn]] void deadlock() {
  unsigned barrier = 0, warp = 0;
  Place at_barrier = "", at_warp = "";
  for (unsigned i = 0; i < block.threads; i++) {
    const Thread& t = block.thread[i];
    if (t.waits == Waits::Block) barrier++, at_barrier = t.place;
    if (t.waits == Waits::Warp) warp++, at_warp = t.place;
  }
  FAIL("deadlock: of %u threads %u wait at a __syncthreads %s, %u at a warp operation %s, %u have left", block.threads,
       barrier, at_barrier, warp, at_warp, block.left);
}

void finish_copies(Thread* t, int groups_left) {
  std::vector<Copy>& copies = block.copies[linear(t)];
  size_t kept = 0;
  for (const Copy& c : copies) {
    if (c.group >= t->copy_group - groups_left) {
      copies[kept++] = c;
      continue;
    }
    memcpy(c.to, c.from, static_cast<size_t>(c.bytes_read));
    memset(static_cast<char*>(c.to) + c.bytes_read, 0, static_cast<size_t>(c.bytes - c.bytes_read));
  }
  copies.resize(kept);
}

void leave(Thread* t) {
  t->copy_group++;
  finish_copies(t, 0);
  t->copy_group = 0;
  t->stack_pointer = nullptr;
  block.left++;
  block.warp[linear(t) / WARP].present &= ~(1u << linear(t) % WARP);
  if (block.at_barrier) FAIL("left the kernel while %u threads wait at %s", block.at_barrier, block.barrier);
}

[[noreturn]] void fiber() {
  char* own = block.current->stack;
  for (;;) {
    block.current->stack = own;
    block.kernel->call(block.arguments);
    leave(block.current);
    Thread* t = next(after(block.current));
    if (!t && block.left < block.threads) deadlock();
    if (t && !t->stack_pointer) {
      resume_as(t);
      continue;
    }
    // Nobody takes the stack before this fiber is off it: there is only one OS thread.
    block.free_stacks.push_back(own);
    if (!t) stop();
    resume_as(t);
    void* abandoned;
    switch_stack(&abandoned, t->stack_pointer);
  }
}

char* new_stack() {
  void* memory = mmap(nullptr, STACK + PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) abort();
  char* bottom = static_cast<char*>(memory) + PAGE;
  mprotect(bottom, STACK, PROT_READ | PROT_WRITE);
  // Stacks start at different offsets in their pages, or the same variable of every thread would fall into one set of
  // the first-level cache.
  char* top = bottom + STACK - block.stacks.size() % 32 * 128;
  block.stacks.push_back(top);
  return top;
}

// The page below a stack.
const void* guard_of(const char* top) {
  uintptr_t page = reinterpret_cast<uintptr_t>(top - STACK) & ~(PAGE - 1);
  return reinterpret_cast<const void*>(reinterpret_cast<uintptr_t>(top) % PAGE ? page : page - PAGE);
}

// Makes a stack on which `fiber` starts when it is switched to.
void* start_on_stack(Thread* t) {
  if (block.free_stacks.empty()) {
    t->stack = new_stack();
  } else {
    t->stack = block.free_stacks.back();
    block.free_stacks.pop_back();
  }
  // The address of `fiber` and six saved registers; the gap gives `fiber` the alignment of a called function.
  void** sp = reinterpret_cast<void**>(t->stack - 8) - 7;
  memset(sp, 0, 6 * sizeof *sp);
  sp[6] = reinterpret_cast<void*>(&fiber);
  return sp;
}

// Lets others run, from a position in the order on, until the current thread is ready again.
void wait(unsigned from) {
  Thread* self = block.current;
  Thread* t = next(from);
  if (!t) deadlock();
  if (t == self) {
    t->waits = Waits::No;
    return;
  }
  resume_as(t);
  switch_stack(&self->stack_pointer, t->stack_pointer ? t->stack_pointer : start_on_stack(t));
}

using WarpOperation = void (*)(Thread* lanes, unsigned mask);

// The last lane to arrive does the work for all, on what the lanes left on their stacks.
void together(unsigned mask, Place place, void* request, WarpOperation operation) {
  Thread* self = block.current;
  unsigned own = linear(self) % WARP;
  Warp& warp = block.warp[linear(self) / WARP];
  if (!(mask >> own & 1)) FAIL("the mask %#x at %s leaves out the lane that calls, %u", mask, place, own);
  if (mask & ~warp.present)
    FAIL("the warp operation at %s waits for lanes %#x, which have left or are not there", place, mask & ~warp.present);
  self->mask = mask;
  self->place = place;
  self->request = request;
  warp.arrived |= 1u << own;
  if (mask & ~warp.arrived) {
    self->waits = Waits::Warp;
    return wait(after(self));
  }
  Thread* lanes = self - own;
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    const Thread& lane = lanes[__builtin_ctz(rest)];
    if (lane.mask != mask) FAIL("masks %#x and %#x at the warp operation at %s", mask, lane.mask, place);
    if (!same(lane.place, place)) FAIL("a warp operation at %s while other lanes wait at %s", place, lane.place);
  }
  warp.arrived &= ~mask;
  if (operation) operation(lanes, mask);
  for (unsigned rest = mask; rest; rest &= rest - 1) make_ready(&lanes[__builtin_ctz(rest)]);
  // The same warp goes on, as its stacks are in the cache. Its first thread in the order is at one of its ends.
  wait(std::min(block.position[linear(lanes)], block.position[linear(lanes) + WARP - 1]));
}

struct ShuffleRequest {
  nn_emu::Shuffle kind;
  int operand, width;
  size_t bytes;
  void* value;
};

// A copy whose size the compiler knows is a single move.
void move(void* to, const void* from, size_t bytes) {
  if (bytes == 4) memcpy(to, from, 4);
  else memcpy(to, from, 8);
}

unsigned shuffle_source(const ShuffleRequest& r, unsigned lane) {
  unsigned width = static_cast<unsigned>(r.width), operand = static_cast<unsigned>(r.operand);
  unsigned first = lane & ~(width - 1), end = first + width;
  switch (r.kind) {
    case nn_emu::Shuffle::Index: return first + (operand & (width - 1));
    case nn_emu::Shuffle::Up: return lane >= first + operand ? lane - operand : lane;
    case nn_emu::Shuffle::Down: return lane + operand < end ? lane + operand : lane;
    case nn_emu::Shuffle::Xor: return (lane ^ operand) < end ? lane ^ operand : lane;
  }
  return lane;
}

void shuffle(Thread* lanes, unsigned mask) {
  uint64_t before[WARP];
  // A lane outside the mask gives whatever it has; here that is a NaN.
  memset(before, 0xff, sizeof before);
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    int i = __builtin_ctz(rest);
    auto* r = static_cast<ShuffleRequest*>(lanes[i].request);
    move(&before[i], r->value, r->bytes);
  }
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    unsigned i = static_cast<unsigned>(__builtin_ctz(rest));
    auto* r = static_cast<ShuffleRequest*>(lanes[i].request);
    move(r->value, &before[shuffle_source(*r, i)], r->bytes);
  }
}

struct BallotRequest {
  bool predicate;
  unsigned votes;
};

void ballot(Thread* lanes, unsigned mask) {
  unsigned votes = 0;
  for (unsigned rest = mask; rest; rest &= rest - 1) {
    int i = __builtin_ctz(rest);
    if (static_cast<BallotRequest*>(lanes[i].request)->predicate) votes |= 1u << i;
  }
  for (unsigned rest = mask; rest; rest &= rest - 1)
    static_cast<BallotRequest*>(lanes[__builtin_ctz(rest)].request)->votes = votes;
}

struct Fragments {
  float* d;
  const unsigned *a, *b;
};

float float_of(unsigned bits) {
  float x;
  memcpy(&x, &bits, sizeof x);
  return x;
}

float tf32(unsigned bits) { return float_of(bits & 0xffffe000u); }

// d += a b, summed over k in ascending order.
template <int K> void multiply(Thread* lanes, const float (&a)[16][K], const float (&b)[K][8]) {
  float d[16][8];
  auto cell = [&](unsigned lane, unsigned i) -> float& { return d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2]; };
  auto held = [&](unsigned lane) { return static_cast<Fragments*>(lanes[lane].request)->d; };
  for (unsigned lane = 0; lane < WARP; lane++)
    for (unsigned i = 0; i < 4; i++) cell(lane, i) = held(lane)[i];
  for (int row = 0; row < 16; row++)
    for (int k = 0; k < K; k++)
      for (int column = 0; column < 8; column++) d[row][column] += a[row][k] * b[k][column];
  for (unsigned lane = 0; lane < WARP; lane++)
    for (unsigned i = 0; i < 4; i++) held(lane)[i] = cell(lane, i);
}

// The layouts are those of the PTX ISA, "Matrix fragments for mma.m16n8k8" and "mma.m16n8k16".
void mma_tf32(Thread* lanes, unsigned) {
  float a[16][8], b[8][8];
  for (unsigned lane = 0; lane < WARP; lane++) {
    auto* f = static_cast<Fragments*>(lanes[lane].request);
    unsigned g = lane / 4, t = lane % 4;
    for (unsigned i = 0; i < 4; i++) a[g + i % 2 * 8][t + i / 2 * 4] = tf32(f->a[i]);
    for (unsigned i = 0; i < 2; i++) b[t + i * 4][g] = tf32(f->b[i]);
  }
  multiply(lanes, a, b);
}

void mma_bf16(Thread* lanes, unsigned) {
  float a[16][16], b[16][8];
  for (unsigned lane = 0; lane < WARP; lane++) {
    auto* f = static_cast<Fragments*>(lanes[lane].request);
    unsigned g = lane / 4, t = lane % 4;
    for (unsigned half = 0; half < 2; half++) {
      unsigned shift = half ? 0 : 16;
      auto upper = [&](unsigned pair) { return float_of(pair << shift & 0xffff0000u); };
      for (unsigned i = 0; i < 4; i++) a[g + i % 2 * 8][2 * t + i / 2 * 8 + half] = upper(f->a[i]);
      for (unsigned i = 0; i < 2; i++) b[2 * t + i * 8 + half][g] = upper(f->b[i]);
    }
  }
  multiply(lanes, a, b);
}

sigjmp_buf after_signal;
volatile sig_atomic_t in_kernel;
pthread_t kernel_thread;
volatile int caught;
void* volatile caught_address;
constexpr int SIGNALS[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP};
struct sigaction before_us[NSIG];

void on_signal(int signal, siginfo_t* info, void*) {
  if (in_kernel && pthread_equal(kernel_thread, pthread_self())) {
    caught = signal;
    caught_address = info->si_addr;
    siglongjmp(after_signal, 1);
  }
  // Not ours: the instruction runs again, under the handler that was there before.
  sigaction(signal, &before_us[signal], nullptr);
}

// A fault can come from a stack that has no room left, so the handler needs one of its own.
struct SignalStack {
  std::vector<char> memory;
  SignalStack() {
    stack_t now;
    if (sigaltstack(nullptr, &now) == 0 && !(now.ss_flags & SS_DISABLE)) return;
    memory.resize(64 * 1024);
    stack_t mine = {};
    mine.ss_sp = memory.data();
    mine.ss_size = memory.size();
    sigaltstack(&mine, nullptr);
  }
  ~SignalStack() {
    if (memory.empty()) return;
    stack_t none = {};
    none.ss_flags = SS_DISABLE;
    sigaltstack(&none, nullptr);
  }
};

void catch_signals() {
  static std::once_flag once;
  std::call_once(once, [] {
    struct sigaction action = {};
    action.sa_sigaction = on_signal;
    // Not blocked in the handler, which leaves by a jump that restores no mask.
    action.sa_flags = SA_SIGINFO | SA_ONSTACK | SA_NODEFER;
    for (int signal : SIGNALS) sigaction(signal, &action, &before_us[signal]);
  });
  thread_local SignalStack stack;
  (void)stack;
}

unsigned char* dynamic_memory() {
  static unsigned char* end = [] {
    size_t bytes = (MAX_SHARED + PAGE - 1) / PAGE * PAGE;
    void* memory = mmap(nullptr, bytes + PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) abort();
    mprotect(static_cast<char*>(memory) + bytes, PAGE, PROT_NONE);
    return static_cast<unsigned char*>(memory) + bytes;
  }();
  return end;
}

struct Order {
  bool reverse = false;
  uint64_t seed = 0;
  Order() {
    const char* text = getenv("NN_EMU_ORDER");
    if (!text || !strcmp(text, "fwd")) return;
    if (!strcmp(text, "rev")) {
      reverse = true;
    } else if (!strncmp(text, "rand:", 5)) {
      seed = strtoull(text + 5, nullptr, 10) * 2 + 1;
    } else {
      fprintf(stderr, "CUDA emulator: NN_EMU_ORDER is fwd, rev or rand:SEED, not %s\n", text);
      abort();
    }
  }
};

void arrange(const Order& order) {
  std::iota(block.order, block.order + block.threads, static_cast<uint16_t>(0));
  static uint64_t random;
  if (!random) random = order.seed;
  for (unsigned i = block.threads - 1; i > 0 && order.seed; i--) {
    random = random * 6364136223846793005ull + 1442695040888963407ull;
    std::swap(block.order[i], block.order[(random >> 33) % (i + 1)]);
  }
  if (order.reverse)
    for (unsigned i = 0; i < block.threads / 2; i++) std::swap(block.order[i], block.order[block.threads - 1 - i]);
  for (unsigned i = 0; i < block.threads; i++) block.position[block.order[i]] = static_cast<uint16_t>(i);
}

void prepare(Grid size) {
  block.threads = size.x * size.y * size.z;
  for (unsigned i = 0; i < block.threads; i++)
    block.thread[i].index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
}

// Also after a kernel that stopped half-way.
void forget_threads() {
  for (Thread& t : block.thread) {
    t.stack_pointer = nullptr;
    t.waits = Waits::No;
    t.copy_group = 0;
  }
  for (auto& copies : block.copies) copies.clear();
  block.free_stacks = block.stacks;
}

void run_block() {
  const nn_emu::Kernel& kernel = *block.kernel;
  memset(kernel.shared, 0xff, static_cast<size_t>(kernel.shared_end - kernel.shared));
  if (block.dynamic_bytes) memset(block.dynamic, 0xff, block.dynamic_bytes);
  block.left = block.at_barrier = 0;
  for (unsigned i = 0; i * WARP < block.threads; i++) {
    unsigned lanes = block.threads - i * WARP;
    block.warp[i] = {lanes >= WARP ? ~0u : (1u << lanes) - 1, 0};
  }
  make_all_ready();
  Thread* first = next(0);
  resume_as(first);
  switch_stack(&block.scheduler, start_on_stack(first));
}

bool run_grid(Grid grid) {
  static const Order order;
  static Grid arranged = {0, 0, 0};
  if (memcmp(&arranged, &blockDim, sizeof arranged) != 0) {
    prepare(blockDim);
    arrange(order);
    arranged = blockDim;
  }
  for (unsigned z = 0; z < grid.z; z++)
    for (unsigned y = 0; y < grid.y; y++)
      for (unsigned x = 0; x < grid.x; x++) {
        blockIdx = order.reverse ? Grid{grid.x - 1 - x, grid.y - 1 - y, grid.z - 1 - z} : Grid{x, y, z};
        if (order.seed) arrange(order);
        run_block();
        if (!block.fault.message.empty()) return false;
      }
  return true;
}

const char* name_of(int signal) {
  switch (signal) {
    case SIGFPE: return "division by zero";
    case SIGILL:
    case SIGTRAP: return "trap";
    default: return "illegal address";
  }
}

}  // namespace

bool nn_emu::run(const Kernel& kernel, Grid grid, Grid size, size_t dynamic_bytes, void** arguments, Fault* fault) {
  static std::mutex one_at_a_time;
  std::lock_guard<std::mutex> lock(one_at_a_time);
  catch_signals();
  gridDim = grid;
  blockDim = size;
  block.kernel = &kernel;
  block.arguments = arguments;
  block.dynamic_bytes = (dynamic_bytes + 15) / 16 * 16;
  block.dynamic = dynamic_memory() - block.dynamic_bytes;
  kernel_thread = pthread_self();
  bool ran;
  if (sigsetjmp(after_signal, 0) == 0) {
    in_kernel = 1;
    ran = run_grid(grid);
  } else {
    ran = false;
    bool memory = caught == SIGSEGV || caught == SIGBUS;
    auto address = static_cast<const char*>(caught_address);
    auto in_page = [=](const void* page) { return address >= page && address < static_cast<const char*>(page) + PAGE; };
    if (memory && in_page(dynamic_memory())) {
      blame("address past the end of dynamic shared memory");
    } else if (memory && in_page(guard_of(block.current->stack))) {
      blame("stack overflow");
    } else {
      blame("%s", name_of(caught));
      if (memory) block.fault.address = address;
    }
  }
  in_kernel = 0;
  if (!ran) {
    forget_threads();
    *fault = std::exchange(block.fault, {});
  }
  return ran;
}

extern "C" {

NN_EMU_API void nn_emu_sync_block(Place place) {
  if (block.left) FAIL("waits at %s, which %u threads left the kernel without reaching", place, block.left);
  if (block.at_barrier && !same(place, block.barrier))
    FAIL("__syncthreads at %s while %u threads wait at %s", place, block.at_barrier, block.barrier);
  block.barrier = place;
  if (++block.at_barrier == block.threads) {
    block.at_barrier = 0;
    make_all_ready();
  } else {
    block.current->waits = Waits::Block;
    block.current->place = place;
  }
  wait(after(block.current));
}

NN_EMU_API void nn_emu_sync_warp(unsigned mask, Place place) { together(mask, place, nullptr, nullptr); }

NN_EMU_API void nn_emu_shuffle(nn_emu::Shuffle kind, unsigned mask, void* value, size_t bytes, int operand, int width,
                               Place place) {
  if (width < 1 || width > 32 || (width & (width - 1))) FAIL("shuffle of width %d at %s", width, place);
  ShuffleRequest request = {kind, operand, width, bytes, value};
  together(mask, place, &request, shuffle);
}

NN_EMU_API unsigned nn_emu_ballot(unsigned mask, bool predicate, Place place) {
  BallotRequest request = {predicate, 0};
  together(mask, place, &request, ballot);
  return request.votes;
}

NN_EMU_API void nn_emu_mma_m16n8k8_tf32(float* d, const unsigned* a, const unsigned* b) {
  Fragments fragments = {d, a, b};
  together(~0u, "mma.m16n8k8", &fragments, mma_tf32);
}

NN_EMU_API void nn_emu_mma_m16n8k16_bf16(float* d, const unsigned* a, const unsigned* b) {
  Fragments fragments = {d, a, b};
  together(~0u, "mma.m16n8k16", &fragments, mma_bf16);
}

NN_EMU_API void nn_emu_cp_async(void* shared, const void* global, int bytes, int bytes_read) {
  auto to = static_cast<unsigned char*>(shared);
  auto within = [&](const unsigned char* start, const unsigned char* end) { return to >= start && to + bytes <= end; };
  if (!within(block.kernel->shared, block.kernel->shared_end) &&
      !within(block.dynamic, block.dynamic + block.dynamic_bytes))
    FAIL("cp.async to %p, which is not shared memory", shared);
  if (bytes_read < 0 || bytes_read > bytes) FAIL("cp.async of %d bytes reads %d", bytes, bytes_read);
  uintptr_t source = bytes_read ? reinterpret_cast<uintptr_t>(global) : 0;
  if ((reinterpret_cast<uintptr_t>(shared) | source) % static_cast<uintptr_t>(bytes))
    FAIL("cp.async of %d bytes from %p to %p, which is not aligned", bytes, global, shared);
  // Here, so that a bad address is reported where it was given and not at the wait.
  if (bytes_read) {
    auto from = static_cast<const volatile char*>(global);
    (void)from[0];
    (void)from[bytes_read - 1];
  }
  block.copies[linear(block.current)].push_back({shared, global, bytes, bytes_read, block.current->copy_group});
}

NN_EMU_API void nn_emu_cp_async_commit() { block.current->copy_group++; }

NN_EMU_API void nn_emu_cp_async_wait(int groups_left) { finish_copies(block.current, groups_left); }

NN_EMU_API unsigned char* nn_emu_dynamic_shared() { return block.dynamic; }

NN_EMU_API void nn_emu_trap(Place place) { FAIL("__trap at %s", place); }

// What `-fsanitize` calls when a check fails, in place of libubsan: the first field of its data is where.
struct Location {
  const char* file;
  unsigned line, column;
};

NN_EMU_API void __ubsan_handle_out_of_bounds_abort(Location* at, size_t index) {
  FAIL("%s:%u:%u: index %zd is outside of its array", at->file, at->line, at->column, static_cast<ssize_t>(index));
}
struct Access {
  Location at;
  const void* type;
  unsigned char alignment_bits, kind;
};
NN_EMU_API void __ubsan_handle_type_mismatch_v1_abort(Access* access, uintptr_t address) {
  const Location& at = access->at;
  block.fault.misaligned = (address & ((uintptr_t(1) << access->alignment_bits) - 1)) != 0;
  const char* what = block.fault.misaligned ? "is not aligned for its type" : "is outside of the array it belongs to";
  FAIL("%s:%u:%u: address %#zx %s", at.file, at.line, at.column, address, what);
}
NN_EMU_API void __ubsan_handle_shift_out_of_bounds_abort(Location* at, size_t, size_t) {
  FAIL("%s:%u:%u: shift by too many bits", at->file, at->line, at->column);
}
NN_EMU_API void __ubsan_handle_divrem_overflow_abort(Location* at, size_t, size_t) {
  FAIL("%s:%u:%u: division by zero", at->file, at->line, at->column);
}
NN_EMU_API void __ubsan_handle_add_overflow_abort(Location* at, size_t, size_t) {
  FAIL("%s:%u:%u: signed overflow", at->file, at->line, at->column);
}
NN_EMU_API void __ubsan_handle_sub_overflow_abort(Location* at, size_t, size_t) {
  FAIL("%s:%u:%u: signed overflow", at->file, at->line, at->column);
}
NN_EMU_API void __ubsan_handle_mul_overflow_abort(Location* at, size_t, size_t) {
  FAIL("%s:%u:%u: signed overflow", at->file, at->line, at->column);
}
NN_EMU_API void __ubsan_handle_negate_overflow_abort(Location* at, size_t) {
  FAIL("%s:%u:%u: signed overflow", at->file, at->line, at->column);
}

}  // extern "C"
