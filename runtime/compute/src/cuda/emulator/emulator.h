// Runs kernels on the CPU, block after block, for tests on machines without a GPU. The threads of a block are fibers: each runs until its
// next barrier or shuffle, so that a barrier missed by some threads is detected, and so is a shuffle in divergent code. Races between
// blocks and timing cannot be tested.
#define WATERLINE_EMULATOR 1
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>

#define __device__
#define __global__
#define __host__
#define __shared__ static
#define __forceinline__ inline
#define __noinline__
#define __launch_bounds__(...)
#define __restrict__
#define __align__(n) __attribute__((aligned(n)))

struct Dim {
  unsigned x, y, z;
};
static Dim threadIdx, blockIdx, blockDim, gridDim;

struct half {
  _Float16 value;
  half() = default;
  half(float x) : value((_Float16)x) {}
  operator float() const { return (float)value; }
};
struct float2 {
  float x, y;
};
struct __align__(16) float4 {
  float x, y, z, w;
};
struct __align__(16) uint4 {
  unsigned x, y, z, w;
};
struct uint2 {
  unsigned x, y;
};
struct __align__(16) int4 {
  int x, y, z, w;
};
inline float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
template <class T>
T __ldg(const T* p) {
  return *p;
}
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline unsigned max(unsigned a, unsigned b) { return a > b ? a : b; }
inline float __uint_as_float(unsigned x) {
  float f;
  memcpy(&f, &x, 4);
  return f;
}
inline unsigned __float_as_uint(float f) {
  unsigned x;
  memcpy(&x, &f, 4);
  return x;
}
// One rounding each, not fused by any compiler.
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdividef(float a, float b) { return a / b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline double __dmul_rn(double a, double b) { return a * b; }
inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
inline long long clock64() { return 0; }
inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __dp4a(int a, int b, int c) {
  for (int i = 0; i < 4; i++) c += (int)(signed char)(a >> 8 * i) * (int)(signed char)(b >> 8 * i);
  return c;
}
template <class T>
T atomicMax(T* p, T x) {
  T before = *p;
  if (x > before) *p = x;
  return before;
}
template <class T>
T atomicOr(T* p, T x) {
  T before = *p;
  *p |= x;
  return before;
}
template <class T>
T atomicAdd(T* p, T x) {
  T old = *p;
  *p += x;
  return old;
}

template <class T>
T atomicCAS(T* p, T expected, T x) {
  T old = *p;
  if (old == expected) *p = x;
  return old;
}

namespace emulator {
enum State { RUNNING, AT_WARP, AT_SHUFFLE, AT_PART, AT_BLOCK, WAITING, DONE };
struct Fiber {
  void* stack_pointer;
  State state;
};
constexpr size_t stack_bytes = 64 << 10;
constexpr unsigned most_threads = 1024;
static Fiber fibers[most_threads];
static char* stacks;
static void* scheduler;
static unsigned current;
// Threads of a barrier of a part of the block: the first ones.
static unsigned part;
// Threads of the block's barrier: all threads, unless some run on their own.
static unsigned members;
// Whether any thread has made progress since this was last cleared.
static bool moved;
static pthread_mutex_t one_grid = PTHREAD_MUTEX_INITIALIZER;
static void (*body)(const void*);
static const void* body_data;
// Values that each thread shows to its warp, in two buffers that alternate: between two writes to one buffer there is a shuffle, at which
// the whole warp has read the first value.
static uint64_t shown[2][most_threads];
static unsigned char buffer_of[most_threads];
alignas(128) static unsigned char shared[256 << 10];

// Saves the registers that the calling convention preserves, leaves one stack and continues on the other.
__attribute__((naked, noinline)) static void switch_stack(void** from, void* to) {
  asm("push %rbp; push %rbx; push %r12; push %r13; push %r14; push %r15;"
      "mov %rsp, (%rdi); mov %rsi, %rsp;"
      "pop %r15; pop %r14; pop %r13; pop %r12; pop %rbx; pop %rbp; ret");
}

// Stops the current thread. The next thread of its warp runs, or after the last one the scheduler.
static void yield(State state) {
  unsigned self = current, next = self + 1;
  fibers[self].state = state;
  moved |= state != WAITING;
  if (next % 32 && fibers[next].state == RUNNING) {
    current = threadIdx.x = next;
    switch_stack(&fibers[self].stack_pointer, fibers[next].stack_pointer);
  } else {
    switch_stack(&fibers[self].stack_pointer, scheduler);
  }
}

static void entry() {
  body(body_data);
  yield(DONE);
}

static void resume(unsigned thread) {
  current = threadIdx.x = thread;
  switch_stack(&scheduler, fibers[thread].stack_pointer);
}

static void fail(const char* what) {
  fprintf(stderr, "emulator: %s in block %u,%u\n", what, blockIdx.x, blockIdx.y);
  abort();
}

// Whether all threads of first..last that have not ended have reached `state`.
static bool all_at(unsigned first, unsigned last, State state) {
  bool any = false;
  for (unsigned i = first; i < last; i++) {
    if (fibers[i].state != state && fibers[i].state != DONE) return false;
    any |= fibers[i].state == state;
  }
  return any;
}

// Returns the common state of all threads of a warp that have not ended; RUNNING if their states differ.
static State state_of_warp(unsigned first, unsigned last) {
  State all = DONE;
  for (unsigned i = first; i < last; i++) {
    State state = fibers[i].state;
    if (state == DONE || state == all) continue;
    if (all != DONE) return RUNNING;
    all = state;
  }
  return all;
}

static void release(unsigned first, unsigned last, State state) {
  for (unsigned i = first; i < last; i++)
    if (fibers[i].state == state) fibers[i].state = RUNNING;
}

static void run_block(unsigned threads) {
  if (!stacks) stacks = (char*)malloc(stack_bytes * most_threads);
  for (unsigned i = 0; i < threads; i++) {
    void** top = (void**)(stacks + stack_bytes * (i + 1) - 16);
    *--top = nullptr;
    *--top = (void*)entry;
    top -= 6;
    fibers[i] = {top, RUNNING};
    buffer_of[i] = 0;
  }
  part = 0;
  members = threads;
  const unsigned warps = (threads + 31) / 32;
  // Two warps that access the same memory without a barrier between them do so in the other order.
  static const bool reversed = getenv("WATERLINE_WARPS_REVERSED") != nullptr;
  for (;;) {
    moved = false;
    // The awaited event may have happened.
    release(0, threads, WAITING);
    for (unsigned number = 0; number < warps; number++) {
      unsigned warp = (reversed ? warps - 1 - number : number) * 32;
      unsigned last = warp + 32 < threads ? warp + 32 : threads;
      State state;
      for (;;) {
        for (unsigned i = warp; i < last; i++)
          if (fibers[i].state == RUNNING) resume(i);
        state = state_of_warp(warp, last);
        if (state != AT_WARP && state != AT_SHUFFLE) break;
        release(warp, last, state);
      }
      if (state == RUNNING) fail("threads of a warp wait at different places");
    }
    if (part && all_at(0, part, AT_PART)) {
      release(0, part, AT_PART);
    } else if (all_at(0, members, AT_BLOCK)) {
      for (unsigned i = 0; i < members; i++)
        if (fibers[i].state == DONE) fail("a thread has left before a barrier");
      release(0, members, AT_BLOCK);
    } else if (!moved) {
      break;
    }
  }
  for (unsigned i = 0; i < threads; i++)
    if (fibers[i].state != DONE) fail("threads wait for ever");
}

static void run_grid(const unsigned* grid, unsigned threads, unsigned shared_bytes) {
  if (shared_bytes > sizeof(shared)) fail("too much shared memory");
  if (threads > most_threads || threads % 32) fail("bad number of threads");
  threadIdx = {0, 0, 0};
  gridDim = {grid[0], grid[1], grid[2]};
  blockDim = {threads, 1, 1};
  for (unsigned z = 0; z < grid[2]; z++)
    for (unsigned y = 0; y < grid[1]; y++)
      for (unsigned x = 0; x < grid[0]; x++) {
        blockIdx = {x, y, z};
        // Fills shared memory with signalling values, so that reads of uninitialised memory are noticed.
        memset(shared, 0xff, shared_bytes);
        run_block(threads);
      }
}

// Runs `kernel` as every thread of a grid. The static variables here and the kernels' shared memory serve one grid at a time.
template <class Kernel>
static void run(const unsigned* grid, unsigned threads, unsigned shared_bytes, const Kernel& kernel) {
  pthread_mutex_lock(&one_grid);
  body = [](const void* kernel) { (*(const Kernel*)kernel)(); };
  body_data = &kernel;
  run_grid(grid, threads, shared_bytes);
  pthread_mutex_unlock(&one_grid);
}

// A barrier of the first `threads` threads, which continue without the rest.
static void partial_barrier(unsigned threads) {
  part = threads;
  yield(AT_PART);
}

// Shows a value to the warp, and returns the values of the warp's threads.
template <class T>
const uint64_t* show(T value) {
  static_assert(sizeof(T) <= 8, "shuffles move at most 8 bytes");
  unsigned self = current;
  uint64_t* values = shown[buffer_of[self] ^= 1];
  memcpy(&values[self], &value, sizeof(T));
  yield(AT_SHUFFLE);
  return values + self / 32 * 32;
}

template <class T>
T exchange(T value, unsigned from) {
  T result;
  memcpy(&result, &show(value)[from % 32], sizeof(T));
  return result;
}
}  // namespace emulator

inline void __syncthreads() { emulator::yield(emulator::AT_BLOCK); }
inline void __syncwarp(unsigned = 0xffffffff) { emulator::yield(emulator::AT_WARP); }
inline void __threadfence() {}
template <class T>
T __shfl_xor_sync(unsigned, T value, int mask, int = 32) {
  return emulator::exchange(value, (emulator::current % 32) ^ mask);
}
template <class T>
T __shfl_sync(unsigned, T value, int lane, int = 32) {
  return emulator::exchange(value, lane);
}
template <class T>
T __shfl_down_sync(unsigned, T value, int distance, int = 32) {
  unsigned lane = emulator::current % 32, from = lane + distance;
  return emulator::exchange(value, from < 32 ? from : lane);
}
template <class T>
T __shfl_up_sync(unsigned, T value, int distance, int = 32) {
  int lane = emulator::current % 32, from = lane - distance;
  return emulator::exchange(value, from >= 0 ? from : lane);
}
inline unsigned __ballot_sync(unsigned, int vote) {
  const uint64_t* votes = emulator::show<uint64_t>(vote != 0);
  unsigned bits = 0;
  for (int lane = 0; lane < 32; lane++) bits |= (unsigned)(votes[lane] != 0) << lane;
  return bits;
}
inline int __any_sync(unsigned mask, int vote) { return __ballot_sync(mask, vote) != 0; }
