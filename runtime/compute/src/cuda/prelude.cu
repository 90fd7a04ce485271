// Common to all kernels. Kernels are `__device__` function templates whose template arguments are the model's dimensions; the host wraps
// each instance in a global function, or calls it as an op of the decode kernel. All threads reach every barrier and shuffle.
// `Rows` is in schedule/call.rs.

typedef unsigned char u8;
typedef unsigned short u16;
typedef unsigned int u32;
typedef unsigned long long u64;
typedef signed char i8;

// The columns of token t.
__device__ inline float* Rows::token(int t) const { return first + (long long)t * stride; }

constexpr float infinity = __builtin_bit_cast(float, 0x7f800000u);

#ifndef WATERLINE_EMULATOR
// A 16-bit float. A machine with only the NVRTC library has no CUDA headers.
struct half {
  u16 bits;
  half() = default;
  __device__ half(float x) { asm("cvt.rn.f16.f32 %0, %1;" : "=h"(bits) : "f"(x)); }
  __device__ operator float() const {
    float x;
    asm("cvt.f32.f16 %0, %1;" : "=f"(x) : "h"(bits));
    return x;
  }
};

#endif

// The block's dynamic shared memory.
template <class T>
__device__ T* shared_memory() {
#if defined(WATERLINE_DECODE)
  return reinterpret_cast<T*>(cta_shared_memory() + workspace_at);
#elif defined(WATERLINE_EMULATOR)
  return reinterpret_cast<T*>(emulator::shared);
#else
  extern __shared__ __align__(128) u8 dynamic_shared_memory[];
  return reinterpret_cast<T*>(dynamic_shared_memory);
#endif
}

// Loads sixteen bytes that are read once, without allocating a line in L1. In the decode kernel weights are in shared memory.
__device__ inline uint4 load_once(const void* from) {
#if defined(WATERLINE_EMULATOR) || defined(WATERLINE_DECODE)
  return *reinterpret_cast<const uint4*>(from);
#else
  uint4 words;
  asm("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
      : "l"(from));
  return words;
#endif
}

// Starts copying 4 or 16 aligned bytes from global into shared memory.
template <int bytes>
__device__ inline void copy_async(void* to, const void* from) {
#ifdef WATERLINE_EMULATOR
  memcpy(to, from, bytes);
#else
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from), "n"(bytes)
               : "memory");
#endif
}

// Like `copy_async`, for 16 bytes that are read once: bypasses L1, whose lines would limit the copies in flight.
__device__ inline void copy_async_once(void* to, const void* from) {
#ifdef WATERLINE_EMULATOR
  memcpy(to, from, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"((u32)__cvta_generic_to_shared(to)), "l"(from) : "memory");
#endif
}

// Ends a group of copies that this thread started.
__device__ inline void commit_copies() {
#ifndef WATERLINE_EMULATOR
  asm volatile("cp.async.commit_group;" ::: "memory");
#endif
}

// Waits until all but the last `groups` groups of this thread's copies have arrived; other threads see them after a barrier.
template <int groups>
__device__ inline void wait_for_copies() {
#ifndef WATERLINE_EMULATOR
  asm volatile("cp.async.wait_group %0;" ::"n"(groups) : "memory");
#endif
}

// The 16-bit float with these bits.
__device__ inline float half_bits(u16 bits) {
  half h;
  memcpy(&h, &bits, sizeof(h));
  return h;
}

__device__ inline float float_of(float x) { return x; }
__device__ inline float float_of(half x) { return x; }

// Programmatic dependent launch: the next kernel may start now, and must not depend on this one before its `wait_for_dependencies`.
// Called after `wait_for_dependencies`, so that only one kernel is ahead: more would evict each other's weights from L2. A short kernel
// before one that loads much calls it first: the loads then also overlap with the kernel before the short one.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900 && !defined(WATERLINE_DECODE)
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

#ifndef WATERLINE_DECODE
// In the decode kernel: arrives at the grid barrier before the op ends.
__device__ inline void arrive_early() {}
#endif

// Waits until the writes of earlier kernels, or ops of the decode kernel, are visible.
__device__ inline void wait_for_dependencies() {
#if defined(WATERLINE_DECODE)
  if (threadIdx.x == 0) grid_barrier_wait();
  op_barrier();
#elif __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Prefetches bytes into L2; `from` and `bytes` are multiples of 16.
__device__ inline void prefetch(const void* from, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
#endif
}

constexpr u32 all_lanes = 0xffffffff;

__device__ inline int lane_index() { return threadIdx.x % 32; }
__device__ inline int warp_index() { return threadIdx.x / 32; }

// Copies parameters from global into shared memory, by the whole block; `bytes` is a multiple of 16.
__device__ inline void copy_parameters(u8* to, const u8* from, int bytes) {
  __syncthreads();
  for (int i = threadIdx.x; i < bytes / 16; i += blockDim.x) {
    reinterpret_cast<uint4*>(to)[i] = reinterpret_cast<const uint4*>(from)[i];
  }
  __syncthreads();
}

// Copies a row from global into shared memory, by one warp; `aligned` if both addresses are multiples of 16 bytes.
template <bool aligned>
__device__ inline void copy_row(float* to, const float* from, int n) {
  int first = 0;
  if constexpr (aligned) {
    for (int i = lane_index() * 4; i + 4 <= n; i += 128) copy_async<16>(to + i, from + i);
    first = n & ~3;
  }
  for (int i = first + lane_index(); i < n; i += 32) copy_async<4>(to + i, from + i);
}

// The largest number over a warp, by one instruction.
__device__ inline u32 warp_max_of_bits(u32 x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_max_sync(all_lanes, x);
#else
  for (int distance = 16; distance > 0; distance /= 2) x = max(x, __shfl_xor_sync(all_lanes, x, distance));
  return x;
#endif
}

// The sum over a warp, in every lane.
__device__ inline float warp_sum(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
}

// The sum of integers over a warp, by one instruction.
__device__ inline int warp_sum_of_codes(int x) {
#if __CUDA_ARCH__ >= 800
  return __reduce_add_sync(all_lanes, x);
#else
  for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
  return x;
#endif
}

__device__ inline float warp_max(float x) {
  for (int distance = 16; distance > 0; distance /= 2) x = fmaxf(x, __shfl_xor_sync(all_lanes, x, distance));
  return x;
}

// Softmax of n values by one warp, in place.
__device__ inline void warp_softmax(float* x, int n) {
  float largest = -infinity, sum = 0.0f;
  for (int i = lane_index(); i < n; i += 32) largest = fmaxf(largest, x[i]);
  largest = warp_max(largest);
  for (int i = lane_index(); i < n; i += 32) {
    x[i] = expf(x[i] - largest);
    sum += x[i];
  }
  float factor = 1.0f / warp_sum(sum);
  for (int i = lane_index(); i < n; i += 32) x[i] *= factor;
}

// The sum over a block, in every thread.
__device__ inline float block_sum(float x) {
  __shared__ float sums[32];
  x = warp_sum(x);
  __syncthreads();
  if (lane_index() == 0) sums[warp_index()] = x;
  __syncthreads();
  x = lane_index() < blockDim.x / 32 ? sums[lane_index()] : 0.0f;
  return warp_sum(x);
}

__device__ inline float block_max(float x) {
  __shared__ float largest[32];
  x = warp_max(x);
  __syncthreads();
  if (lane_index() == 0) largest[warp_index()] = x;
  __syncthreads();
  x = lane_index() < blockDim.x / 32 ? largest[lane_index()] : -infinity;
  return warp_max(x);
}

// A key that rises with the logit; among equal logits the lower token has the larger key.
__device__ inline u64 key_of(float logit, u32 token) {
  u32 bits = __float_as_uint(logit);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (u64)bits << 32 | (u32)~token;
}

__device__ inline float sigmoid(float x) { return __fdividef(1.0f, 1.0f + expf(-x)); }
__device__ inline float silu(float x) { return __fdividef(x, 1.0f + expf(-x)); }
__device__ inline float softplus(float x) { return fmaxf(x, 0.0f) + log1pf(expf(-fabsf(x))); }
__device__ inline float log_sigmoid(float x) { return -softplus(-x); }

// `Activation` is in functions/activation.rs.
__device__ inline float activate(int function, float x) {
  switch (function) {
    case SILU: return silu(x);
    case SIGMOID: return sigmoid(x);
    case TANH: return tanhf(x);
    case LOG_SIGMOID: return log_sigmoid(x);
    case RELU: return fmaxf(x, 0.0f);
    case SQUARED_RELU: return fmaxf(x, 0.0f) * fmaxf(x, 0.0f);
    case GELU: return x * sigmoid(2.0f * 0.7978846f * x * (1.0f + 0.044715f * x * x));
    case ELU_PLUS_ONE: return x > 0.0f ? x + 1.0f : expf(x);
    case GELU_ERF: return 0.5f * x * (1.0f + erff(0.70710678f * x));
    case SOFTPLUS: return softplus(x);
    default: return x;
  }
}

template <int function>
__device__ float4 activate_each(float4 x) {
  return {activate(function, x.x), activate(function, x.y), activate(function, x.z), activate(function, x.w)};
}

// Four values at once. Not inlined: at every use it would overflow the instruction caches.
__device__ __noinline__ float4 activate_four(int function, float4 x) {
  switch (function) {
    case SILU: return activate_each<SILU>(x);
    case SIGMOID: return activate_each<SIGMOID>(x);
    case TANH: return activate_each<TANH>(x);
    case LOG_SIGMOID: return activate_each<LOG_SIGMOID>(x);
    case RELU: return activate_each<RELU>(x);
    case SQUARED_RELU: return activate_each<SQUARED_RELU>(x);
    case GELU: return activate_each<GELU>(x);
    case ELU_PLUS_ONE: return activate_each<ELU_PLUS_ONE>(x);
    case GELU_ERF: return activate_each<GELU_ERF>(x);
    case SOFTPLUS: return activate_each<SOFTPLUS>(x);
    default: return x;
  }
}

template <int count>
__device__ void activate_all(int function, float (&x)[count]) {
#pragma unroll
  for (int i = 0; i < count; i += 4) {
    float4 four = {x[i], i + 1 < count ? x[i + 1] : 0.0f, i + 2 < count ? x[i + 2] : 0.0f, i + 3 < count ? x[i + 3] : 0.0f};
    four = activate_four(function, four);
    x[i] = four.x;
    if (i + 1 < count) x[i + 1] = four.y;
    if (i + 2 < count) x[i + 2] = four.z;
    if (i + 3 < count) x[i + 3] = four.w;
  }
}
