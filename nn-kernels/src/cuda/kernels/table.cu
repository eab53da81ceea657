#include "common.cuh"

extern "C" __global__ void gather(Fault* fault, unsigned place, const elem* __restrict__ table,
                                  const unsigned* __restrict__ ids, elem* __restrict__ y, long long n, long long rows,
                                  long long cols) {
  NN_EACH(i, n * cols) {
    long long column = i % cols;
    unsigned id = ids[i / cols];
    bool inside = id < rows;
    y[i] = inside ? table[id * cols + column] : real(0);
    if (!inside && column == 0 && atomicCAS(&fault->found, 0u, 1u) == 0) {
      fault->place = place;
      fault->id = id;
      fault->rows = rows;
    }
  }
}
NN_KERNEL(gather)

constexpr unsigned NONE = 0xffffffffu;

// For each id where the same one comes next, and in `head` whether it comes for the first time: a warp looks forward
// and back from one of them, 32 at a time.
extern "C" __global__ void links(const unsigned* __restrict__ ids, unsigned* __restrict__ next,
                                 unsigned* __restrict__ head, long long n) {
  const long long lane = nn::lane(), warps = stride() / 32;
  for (long long i = first() / 32; i < n; i += warps) {
    unsigned id = ids[i], follower = NONE;
    for (long long j = i + 1; j < n && follower == NONE; j += 32) {
      unsigned same = __ballot_sync(nn::FULL_WARP, j + lane < n && ids[j + lane] == id);
      if (same) follower = static_cast<unsigned>(j + __ffs(same) - 1);
    }
    bool is_first = true;
    for (long long j = i - 1; j >= 0 && is_first; j -= 32)
      is_first = !__any_sync(nn::FULL_WARP, j - lane >= 0 && ids[j - lane] == id);
    if (lane == 0) {
      next[i] = follower;
      head[i] = is_first;
    }
  }
}
NN_KERNEL(links)

// dtable[id] += the rows of dy that belong to it, in their order, by whoever has the id's first place.
extern "C" __global__ void scatter_add(const unsigned* __restrict__ ids, const unsigned* __restrict__ next,
                                       const unsigned* __restrict__ head, const elem* __restrict__ dy,
                                       elem* __restrict__ dtable, long long n, long long rows, long long cols) {
  NN_EACH(i, n * cols) {
    long long place = i / cols, column = i % cols;
    unsigned id = ids[place];
    if (!head[place] || id >= rows) continue;
    real sum = dtable[id * cols + column];
    for (unsigned j = static_cast<unsigned>(place); j != NONE; j = next[j]) sum += dy[j * cols + column];
    dtable[id * cols + column] = sum;
  }
}
NN_KERNEL(scatter_add)
