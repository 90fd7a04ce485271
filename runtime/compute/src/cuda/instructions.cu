// PTX instructions: `mma` and its fragments, asynchronous copies, mbarriers. With `g` = lane / 4 and `t` = lane % 4 a lane holds the sums
// (g, 2t), (g, 2t + 1), (g + 8, 2t) and (g + 8, 2t + 1) of a [16, 8] tile. The emulator has loops in their place.

#ifdef WATERLINE_EMULATOR
struct Operands {
  u32 a[4], b[2];
};
static Operands operands[32];

// Adds `term(row, half, column)` to each of this lane's sums, after every lane has stored its operands.
template <class Sum, class Term>
void sum_operands(Sum* sums, const u32* a, const u32* b, Term term) {
  Operands& own = operands[lane_index()];
  memcpy(own.a, a, sizeof(own.a));
  memcpy(own.b, b, sizeof(own.b));
  __syncwarp();
  for (int i = 0; i < 4; i++) sums[i] += term(lane_index() / 4, i / 2, lane_index() % 4 * 2 + i % 2);
  __syncwarp();
}
#endif

__device__ inline u32 shared_address(const void* pointer) {
#ifdef WATERLINE_EMULATOR
  return 0;
#else
  return (u32)__cvta_generic_to_shared(pointer);
#endif
}

// Returns x in a register. Otherwise the compiler recomputes it at every use, often from a special register that is slow to read.
__device__ inline u32 in_register(u32 x) {
#ifndef WATERLINE_EMULATOR
  asm volatile("mov.u32 %0, %0;" : "+r"(x));
#endif
  return x;
}

// Returns the address of shared memory in a register.
template <class T>
__device__ T* held_pointer(T* pointer) {
#ifndef WATERLINE_EMULATOR
  pointer = static_cast<T*>(__cvta_shared_to_generic(in_register(shared_address(pointer))));
#endif
  return pointer;
}

// 1 / sqrt(x) of a number that is not denormal, to two units in the last place.
__device__ inline float inverse_root(float x) {
#ifdef WATERLINE_EMULATOR
  return 1.0f / sqrtf(x);
#else
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// 2^x, to two units in the last place.
__device__ inline float power_of_two(float x) {
#ifdef WATERLINE_EMULATOR
  return exp2f(x);
#else
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#endif
}

// The numbers of a pair in bf16 or f16.
template <int number = BF16>
__device__ inline float first_of(u32 pair) {
  return number == F16 ? half_bits((u16)pair) : __uint_as_float(pair << 16);
}
template <int number = BF16>
__device__ inline float second_of(u32 pair) {
  return number == F16 ? half_bits((u16)(pair >> 16)) : __uint_as_float(pair & 0xffff0000);
}

// Starts copying 16 aligned bytes from global into shared memory, bypassing L1, or clears them.
__device__ inline void copy_or_clear(void* to, const void* from, bool copies = true) {
#ifdef WATERLINE_EMULATOR
  if (copies) memcpy(to, from, 16);
  else memset(to, 0, 16);
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(to)), "l"(from), "r"(copies ? 16 : 0)
               : "memory");
#endif
}

// Two numbers rounded to bf16.
__device__ inline u32 pack_bf16(float low, float high) {
#ifdef WATERLINE_EMULATOR
  auto round = [](float x) { return (__float_as_uint(x) + 0x7fff + (__float_as_uint(x) >> 16 & 1)) >> 16; };
  return round(low) | round(high) << 16;
#else
  u32 packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}

// Two numbers rounded to BF16 or F16. Values beyond f16's range become infinite, as in ggml.
template <int number>
__device__ inline u32 pack_numbers(float low, float high) {
  if constexpr (number == BF16) return pack_bf16(low, high);
#ifdef WATERLINE_EMULATOR
  half pair[2] = {low, high};
  u32 packed;
  memcpy(&packed, pair, sizeof(packed));
  return packed;
#else
  u32 packed;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
#endif
}

// Loads four 8x8 matrices of 16-bit numbers, a row from each lane's address; with `across`, each is transposed.
template <bool across = false>
__device__ inline void load_matrices(u32* out, const u16* row) {
#ifdef WATERLINE_EMULATOR
  static const u16* rows[32];
  rows[lane_index()] = row;
  __syncwarp();
  for (int i = 0; i < 4; i++) {
    int g = lane_index() / 4, t = lane_index() % 4 * 2;
    u32 low = across ? rows[8 * i + t][g] : rows[8 * i + g][t];
    u32 high = across ? rows[8 * i + t + 1][g] : rows[8 * i + g][t + 1];
    out[i] = low | high << 16;
  }
  __syncwarp();
#else
  if constexpr (across) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row)));
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
                 : "r"(shared_address(row)));
  }
#endif
}

// Transposes an 8x8 matrix of 16-bit numbers: a lane has two adjacent numbers of row `lane / 4`.
__device__ inline u32 transposed(u32 pair) {
#ifdef WATERLINE_EMULATOR
  static u32 pairs[32];
  pairs[lane_index()] = pair;
  __syncwarp();
  int row = lane_index() / 4, column = lane_index() % 4 * 2;
  auto number = [&](int i) { return pairs[4 * i + row / 2] >> row % 2 * 16 & 0xffff; };
  pair = number(column) | number(column + 1) << 16;
  __syncwarp();
  return pair;
#else
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %0;" : "+r"(pair));
  return pair;
#endif
}

// Loads a left operand of 16 rows and a depth of 16, from a matrix in shared memory with `pitch` numbers from one row to the next; with
// `across`, from its transpose.
template <bool across = false>
__device__ inline void load_left(u32* a, const u16* matrix, int pitch) {
  int lane = lane_index();
  int row = across ? lane % 8 + lane / 16 * 8 : lane % 16, column = across ? lane / 8 % 2 * 8 : lane / 16 * 8;
  load_matrices<across>(a, matrix + row * pitch + column);
}

// Loads two adjacent right operands with a depth of 16 and 8 columns each, from a matrix whose rows run along the depth; with `across`,
// from its transpose.
template <bool across = false>
__device__ inline void load_right(u32* b, const u16* matrix, int pitch) {
  int lane = lane_index();
  int row = across ? lane % 16 : lane / 16 * 8 + lane % 8, column = across ? lane / 16 * 8 : lane / 8 % 2 * 8;
  load_matrices<across>(b, matrix + row * pitch + column);
}

// sums += a b in bf16 or f16, of 16 rows, 8 columns and a depth of 16.
template <int number = BF16>
__device__ inline void multiply_add(float* sums, const u32* a, const u32* b) {
#ifdef WATERLINE_EMULATOR
  sum_operands(sums, a, b, [](int g, int lower, int column) {
    auto of = [](u32 pair, int k) {
      u16 bits = pair >> k % 2 * 16;
      return number == F16 ? half_bits(bits) : __uint_as_float((u32)bits << 16);
    };
    float sum = 0.0f;
    for (int k = 0; k < 16; k++) {
      u32 x = operands[4 * g + k % 8 / 2].a[lower + k / 8 * 2], y = operands[4 * column + k % 8 / 2].b[k / 8];
      sum += of(x, k) * of(y, k);
    }
    return sum;
  });
#else
#define WATERLINE_MULTIPLY_ADD(type) \
  asm("mma.sync.aligned.m16n8k16.row.col.f32." type "." type ".f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]) \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]))
  if constexpr (number == F16) {
    WATERLINE_MULTIPLY_ADD("f16");
  } else {
    WATERLINE_MULTIPLY_ADD("bf16");
  }
#endif
}

// sums += a b in 8-bit integers, of 16 rows, 8 columns and a depth of 32. A word has four numbers along the depth: the first words of a row
// and a column have the numbers from 4t on, the other words those from 4t + 16 on.
__device__ inline void multiply_add_codes(int* sums, const u32* a, const u32* b) {
#ifdef WATERLINE_EMULATOR
  sum_operands(sums, a, b, [](int g, int lower, int column) {
    int sum = 0;
    for (int k = 0; k < 8; k++) {
      sum = __dp4a(operands[4 * g + k % 4].a[lower + k / 4 * 2], operands[4 * column + k % 4].b[k / 4], sum);
    }
    return sum;
  });
#else
  asm(
      "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+r"(sums[0]), "+r"(sums[1]), "+r"(sums[2]), "+r"(sums[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
#endif
}

// Two f32 numbers, each as the sum of `parts` numbers in bf16 or f16. Two parts in bf16 hold 16 bits of the fraction, three parts all 24.
// Two parts in f16 hold 22 bits of numbers that are neither too large nor too small for f16.
template <int parts, int number = BF16>
struct SplitPair {
  u32 part[parts] = {};
  SplitPair() = default;
  __device__ SplitPair(float x, float y) {
#pragma unroll
    for (int i = 0; i < parts; i++) {
      part[i] = pack_numbers<number>(x, y);
      x -= first_of<number>(part[i]), y -= second_of<number>(part[i]);
    }
  }

  __device__ float2 sum() const {
    float2 x = {0.0f, 0.0f};
#pragma unroll
    for (int i = parts - 1; i >= 0; i--) x = {x.x + first_of<number>(part[i]), x.y + second_of<number>(part[i])};
    return x;
  }
  // Loads from and stores to memory, with parts `distance` apart.
  __device__ void load(const u16* place, int distance) {
#pragma unroll
    for (int i = 0; i < parts; i++) part[i] = *reinterpret_cast<const u32*>(place + i * distance);
  }
  __device__ void store(u16* place, int distance) const {
#pragma unroll
    for (int i = 0; i < parts; i++) *reinterpret_cast<u32*>(place + i * distance) = part[i];
  }
};

// A matrix in shared memory of numbers that are sums of `parts`; the parts are `distance` apart.
template <int parts>
struct SplitTile {
  u16* first;
  int distance;
  int pitch;

  __device__ SplitTile at(int row, int column) const { return {first + row * pitch + column, distance, pitch}; }
  __device__ void store(int row, int column, SplitPair<parts> x) const { x.store(first + row * pitch + column, distance); }
  __device__ void store(int row, int column, float x) const {
    SplitPair<parts> pair(x, 0.0f);
    u16* place = first + row * pitch + column;
#pragma unroll
    for (int i = 0; i < parts; i++) place[i * distance] = (u16)pair.part[i];
  }
};

// An operand whose numbers are sums of `parts`.
template <int parts>
struct SplitOperand {
  u32 part[parts][4];
};

template <bool across, int parts>
__device__ inline void load_left(SplitOperand<parts>& a, const SplitTile<parts>& tile) {
#pragma unroll
  for (int i = 0; i < parts; i++) load_left<across>(a.part[i], tile.first + i * tile.distance, tile.pitch);
}

template <bool across, int parts>
__device__ inline void load_right(SplitOperand<parts>& b, const SplitTile<parts>& tile) {
#pragma unroll
  for (int i = 0; i < parts; i++) load_right<across>(b.part[i], tile.first + i * tile.distance, tile.pitch);
}

// sums += a b of 16 rows, twice 8 columns and a depth of 16, without products below the last part of a number. The smallest products come
// first.
template <int number = BF16, int parts, int right_parts>
__device__ inline void multiply_add(float (*sums)[4], const SplitOperand<parts>& a, const SplitOperand<right_parts>& b) {
#pragma unroll
  for (int order = parts - 1; order >= 0; order--) {
#pragma unroll
    for (int i = order; i >= 0 && order - i < right_parts; i--) {
#pragma unroll
      for (int n = 0; n < 2; n++) multiply_add<number>(sums[n], a.part[i], b.part[order - i] + 2 * n);
    }
  }
}

#ifndef WATERLINE_EMULATOR
// mbarriers in shared memory.
__device__ inline void mbarrier_init(u64* barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(arrivals) : "memory");
}

__device__ inline void mbarrier_arrive(u64* barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

#if __CUDA_ARCH__ >= 900
// Waits up to 4 us by itself (H100).
#define WATERLINE_TRY(at, parity) "mbarrier.try_wait.parity.shared.b64 done, [" at "], " parity ";"
#define WATERLINE_MOST_TRIES "8388608"
#else
#define WATERLINE_TRY(at, parity) "mbarrier.test_wait.parity.shared.b64 done, [" at "], " parity ";"
#define WATERLINE_MOST_TRIES "268435456"
#endif

// Waits until the phase of this parity is complete. All arrivals come from the same block. After half a minute of tries, later than waits
// for other blocks end, the kernel traps. Reading the clock, or trying in C++, cost chunks in BF16 and steps in Q8_0 1.5 %.
__device__ inline void mbarrier_wait(u64* barrier, int parity) {
  asm volatile(
      "{ .reg .pred done, hangs; .reg .u32 tries; mov.u32 tries, 0;"
      " again: " WATERLINE_TRY("%0", "%1") " @done bra end;"
      " add.u32 tries, tries, 1; setp.gt.u32 hangs, tries, " WATERLINE_MOST_TRIES "; @hangs trap; bra again; end: }" ::"r"(shared_address(barrier)),
      "r"(parity)
      : "memory");
}

// Returns whether the phase of this parity is complete, perhaps after a short wait.
__device__ inline bool mbarrier_try(u64* barrier, int parity) {
  u32 is;
  asm volatile("{ .reg .pred done; " WATERLINE_TRY("%1", "%2") " selp.u32 %0, 1, 0, done; }"
               : "=r"(is)
               : "r"(shared_address(barrier)), "r"(parity)
               : "memory");
  return is != 0;
}

// Like `mbarrier_wait` without a limit, for a loop where every instruction counts and whose end another warp waits for: the compiler moves
// uncounted tries out of the loop, and the instructions around them overlap.
__device__ inline void mbarrier_spin(u64* barrier, int parity) {
  asm volatile("{ .reg .pred done; again: " WATERLINE_TRY("%0", "%1") " @done bra end; bra again; end: }" ::"r"(shared_address(barrier)), "r"(parity)
               : "memory");
}

// Makes this thread's writes to shared memory visible to the async proxy (wgmma, bulk copies).
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Products of warp groups by `wgmma` (Hopper).
__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most `pending` groups of products are in flight.
template <int pending>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(pending) : "memory");
}

// Shared memory descriptor of a tile: rows of 128 bytes, 128-byte swizzle.
__device__ inline u64 wgmma_descriptor(const u8* tile) {
  constexpr u64 exchanged = 1ull << 62, eight_rows = (u64)(8 * 128 / 16) << 32;
  return exchanged | eight_rows | 1ull << 16 | (u64)(shared_address(tile) >> 4 & 0x3fff);
}

// Arrives, and adds this many bytes of bulk copies to what the phase expects.
__device__ inline void mbarrier_expect_bytes(u64* barrier, u32 bytes) {
#if __CUDA_ARCH__ >= 900
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes) : "memory");
#endif
}

// Starts a bulk copy of aligned bytes from global into shared memory, which completes at the barrier.
__device__ inline void bulk_copy(void* to, const void* from, int bytes, u64* barrier) {
  mbarrier_expect_bytes(barrier, bytes);
#if __CUDA_ARCH__ >= 900
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   shared_address(to)),
               "l"(from), "r"(bytes), "r"(shared_address(barrier))
               : "memory");
#endif
}

#if __CUDA_ARCH__ >= 900
// Returns the number of blocks in this block's cluster; they are consecutive.
__device__ inline int cluster_blocks() {
  u32 blocks;
  asm("mov.u32 %0, %%cluster_nctarank;" : "=r"(blocks));
  return (int)blocks;
}

// Waits for all threads of the cluster and for their writes to shared memory.
__device__ inline void cluster_barrier() {
  asm volatile("barrier.cluster.arrive.release.aligned; barrier.cluster.wait.acquire.aligned;" ::: "memory");
}

// Returns the address of the same place in the shared memory of another block of the cluster.
__device__ inline u32 address_in_cluster(const void* place, int block) {
  u32 address;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(shared_address(place)), "r"(block));
  return address;
}

__device__ inline void store_in_cluster(u32 to, float4 x) {
  asm volatile("st.shared::cluster.v4.f32 [%0], {%1, %2, %3, %4};" ::"r"(to), "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w) : "memory");
}
#endif
#endif
