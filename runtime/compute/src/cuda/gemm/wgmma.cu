// GEMM of a chunk by `wgmma` (Hopper): two consumer warp groups multiply tiles in shared memory while a producer warp group loads the next
// ones. A persistent block computes tiles of 128 tokens and 256 rows, each consumer group 64 tokens. Weights and inputs are `number`, BF16
// or F16, sums are f32; other weights are unpacked first. Where a chunk has fewer tiles than the device has SMs, the blocks of a cluster
// share the depth of a tile (split K).

constexpr int wgmma_tokens = 128;
constexpr int wgmma_rows = 256;
constexpr int wgmma_depth = 64;
constexpr int wgmma_stages = 4;
// Stages in flight.
constexpr int wgmma_lead = 2;
constexpr int wgmma_row_bytes = wgmma_depth * 2;
constexpr int wgmma_stage_bytes = (wgmma_tokens + wgmma_rows) * wgmma_row_bytes;
constexpr int wgmma_producers = 128;
constexpr int wgmma_consumers = 256;

// sums [64 tokens, 256 rows] += left right, depth 16, in bf16 or f16. A thread holds two adjacent rows of every eight, for two tokens that
// are 8 apart.
#define WATERLINE_WGMMA(type) \
  asm volatile( \
      "{ .reg .pred add; setp.ne.b32 add, 1, 0;" \
      " wgmma.mma_async.sync.aligned.m64n256k16.f32." type "." type " {" \
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, " \
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, " \
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, " \
      "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, " \
      "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, " \
      "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, " \
      "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127" \
      "}, %128, %129, add, 1, 1, 0, 0; }" \
      : "+f"(sums[0]), "+f"(sums[1]), "+f"(sums[2]), "+f"(sums[3]), "+f"(sums[4]), "+f"(sums[5]), "+f"(sums[6]), \
        "+f"(sums[7]), "+f"(sums[8]), "+f"(sums[9]), "+f"(sums[10]), "+f"(sums[11]), "+f"(sums[12]), "+f"(sums[13]), \
        "+f"(sums[14]), "+f"(sums[15]), "+f"(sums[16]), "+f"(sums[17]), "+f"(sums[18]), "+f"(sums[19]), "+f"(sums[20]), \
        "+f"(sums[21]), "+f"(sums[22]), "+f"(sums[23]), "+f"(sums[24]), "+f"(sums[25]), "+f"(sums[26]), "+f"(sums[27]), \
        "+f"(sums[28]), "+f"(sums[29]), "+f"(sums[30]), "+f"(sums[31]), "+f"(sums[32]), "+f"(sums[33]), "+f"(sums[34]), \
        "+f"(sums[35]), "+f"(sums[36]), "+f"(sums[37]), "+f"(sums[38]), "+f"(sums[39]), "+f"(sums[40]), "+f"(sums[41]), \
        "+f"(sums[42]), "+f"(sums[43]), "+f"(sums[44]), "+f"(sums[45]), "+f"(sums[46]), "+f"(sums[47]), "+f"(sums[48]), \
        "+f"(sums[49]), "+f"(sums[50]), "+f"(sums[51]), "+f"(sums[52]), "+f"(sums[53]), "+f"(sums[54]), "+f"(sums[55]), \
        "+f"(sums[56]), "+f"(sums[57]), "+f"(sums[58]), "+f"(sums[59]), "+f"(sums[60]), "+f"(sums[61]), "+f"(sums[62]), \
        "+f"(sums[63]), "+f"(sums[64]), "+f"(sums[65]), "+f"(sums[66]), "+f"(sums[67]), "+f"(sums[68]), "+f"(sums[69]), \
        "+f"(sums[70]), "+f"(sums[71]), "+f"(sums[72]), "+f"(sums[73]), "+f"(sums[74]), "+f"(sums[75]), "+f"(sums[76]), \
        "+f"(sums[77]), "+f"(sums[78]), "+f"(sums[79]), "+f"(sums[80]), "+f"(sums[81]), "+f"(sums[82]), "+f"(sums[83]), \
        "+f"(sums[84]), "+f"(sums[85]), "+f"(sums[86]), "+f"(sums[87]), "+f"(sums[88]), "+f"(sums[89]), "+f"(sums[90]), \
        "+f"(sums[91]), "+f"(sums[92]), "+f"(sums[93]), "+f"(sums[94]), "+f"(sums[95]), "+f"(sums[96]), "+f"(sums[97]), \
        "+f"(sums[98]), "+f"(sums[99]), "+f"(sums[100]), "+f"(sums[101]), "+f"(sums[102]), "+f"(sums[103]), \
        "+f"(sums[104]), "+f"(sums[105]), "+f"(sums[106]), "+f"(sums[107]), "+f"(sums[108]), "+f"(sums[109]), \
        "+f"(sums[110]), "+f"(sums[111]), "+f"(sums[112]), "+f"(sums[113]), "+f"(sums[114]), "+f"(sums[115]), \
        "+f"(sums[116]), "+f"(sums[117]), "+f"(sums[118]), "+f"(sums[119]), "+f"(sums[120]), "+f"(sums[121]), \
        "+f"(sums[122]), "+f"(sums[123]), "+f"(sums[124]), "+f"(sums[125]), "+f"(sums[126]), "+f"(sums[127]) \
      : "l"(left), "l"(right))
template <int number>
__device__ void wgmma(float (&sums)[128], u64 left, u64 right) {
  if constexpr (number == F16) {
    WATERLINE_WGMMA("f16");
  } else {
    WATERLINE_WGMMA("bf16");
  }
}

// The weights of a tile: two halves of 128 rows, each from its `first` row on, of matrices of `rows` rows.
struct WgmmaRows {
  const u16* weights[2];
  int rows[2];
  int first[2];
};

// A slice is an eighth of a tile's sums: 16 of each thread, four quads. The blocks of a cluster share the depth of a tile and divide its
// slices: each block adds all blocks' sums of its slices.
constexpr int wgmma_slices = 8;
constexpr int wgmma_slice_quads = 128 / wgmma_slices / 4;

// Sums of a cluster's blocks, sent to the block that adds them: they replace the stages in each block's shared memory.
// Racecheck (2025.3) reports them as hazards with the finished copies of the stages, as it does in a kernel that only copies (`cp.async`),
// waits, meets the cluster's barrier and stores in another block. `WATERLINE_GPU_AS=compute_90` runs without this file.
struct ClusterSums {
  u8* room;
  // Completes when this block's slices are stored, so that the stages are free again.
  u64* stored;
  int blocks;
  int rank;

  // Returns the place of this thread's quads of a slice from block `from`: consecutive quads are 16 bytes of each consumer thread apart.
  __device__ u8* place(int local_slice, int from) const {
    return room + ((local_slice * blocks + from) * wgmma_slice_quads * wgmma_consumers + threadIdx.x) * 16;
  }
  // Sends this block's part of every slice to the block that adds it.
  __device__ void send(const float (&sums)[128]) const {
    int owned = wgmma_slices / blocks;
#pragma unroll
    for (int slice = 0; slice < wgmma_slices; slice++) {
      u32 to = address_in_cluster(place(slice % owned, rank), slice / owned);
#pragma unroll
      for (int quad = 0; quad < wgmma_slice_quads; quad++) {
        const float* lower = sums + 8 * slice + 2 * quad;
        store_in_cluster(to + quad * wgmma_consumers * 16, {lower[0], lower[1], lower[64], lower[65]});
      }
    }
  }
  // Returns a quad of one of this block's slices: the sum of what all blocks have sent, in the order of blocks.
  __device__ float4 sum(int local_slice, int quad) const {
    float4 sum = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int from = 0; from < blocks; from++) {
      float4 part = *reinterpret_cast<const float4*>(place(local_slice, from) + quad * wgmma_consumers * 16);
      sum.x += part.x, sum.y += part.y, sum.z += part.z, sum.w += part.w;
    }
    return sum;
  }
  // Called by the consumers: adds all blocks' sums and stores this block's slices. `used`: whether the warp group has a token.
  template <class Target>
  __device__ void add_and_store(const float (&sums)[128], bool used, int first_token, int column, int tokens, const Target& target) const {
    // No block reads its stages any more.
    cluster_barrier();
    if (used) send(sums);
    cluster_barrier();
    int owned = wgmma_slices / blocks;
    for (int i = 0; used && i < owned * wgmma_slice_quads; i++) {
      float4 total = sum(i / wgmma_slice_quads, i % wgmma_slice_quads);
      float lower[] = {total.x, total.y}, upper[] = {total.z, total.w};
      int n = (rank * owned * wgmma_slice_quads + i) / 2, token = first_token + i % 2 * 8;
      if (token < tokens) target.store(token, 8 * n + column, lower, upper);
    }
    __syncwarp();
    if (lane_index() == 0) mbarrier_arrive(stored);
  }
  // Called by the producers: waits until the stages are free again after the block's tile number `number`.
  __device__ void wait(int number) const {
    cluster_barrier();
    cluster_barrier();
    mbarrier_wait(stored, number % 2);
  }
};

// Copies a producer thread's part of a step's weights into the stage at `weights`: eight threads copy a row.
template <int cols>
__device__ inline void copy_weights(u8* weights, const WgmmaRows& rows, int step) {
  static_assert(cols % 8 == 0, "rows of whole pieces of sixteen bytes");
  int line = threadIdx.x % wgmma_producers / 8, piece = threadIdx.x % 8, column = step * wgmma_depth + piece * 8;
  u8* to = weights + line * wgmma_row_bytes + (piece ^ line % 8) * 16;
#pragma unroll
  for (int part = 0; part < 2; part++) {
    int first = rows.first[part] + line, last = cols % wgmma_depth == 0 || column < cols ? rows.rows[part] : 0;
    const u16* from = rows.weights[part] + (long long)first * cols + column;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u8* place = to + (part * 8 + i) * 16 * wgmma_row_bytes;
      copy_or_clear(place, from + (long long)i * 16 * cols, first + i * 16 < last);
    }
  }
}

// Copies the inputs of a step, of which `tokens` are used.
template <int pitch>
__device__ inline void copy_inputs(u8* stage, const u16* inputs, int step, int tokens) {
  int line = threadIdx.x % wgmma_producers / 8, piece = threadIdx.x % 8;
  u8* place = stage + line * wgmma_row_bytes + (piece ^ line % 8) * 16;
  const u16* source = inputs + line * pitch + step * wgmma_depth + piece * 8;
#pragma unroll
  for (int i = 0; i < wgmma_tokens / 16; i++) {
    copy_or_clear(place + i * 16 * wgmma_row_bytes, source + i * 16 * pitch, line + i * 16 < tokens);
  }
}

// Unpacks matrices into 16-bit numbers, one after another: otherwise each tile of tokens would unpack them again, with few threads.
template <int format, int number, int cols>
__device__ void unpack_weights(Linears linears, u16* to) {
  using Weights = Format<format, cols>;
  constexpr int unit = Weights::unit;
  static_assert(cols % 32 == 0 && unit % 8 == 0, "whole units of sixteen bytes");
  for (int m = 0; m < linears.count; m++) {
    const Linear& linear = linears.at[m];
    Units matrix = all_units<Weights>(linear.weights, linear.rows);
    long long count = (long long)linear.rows * (cols / unit);
    for (long long i = blockIdx.x * blockDim.x + threadIdx.x; i < count; i += gridDim.x * blockDim.x) {
      float values[unit];
      Weights::values(matrix, i, values);
#pragma unroll
      for (int j = 0; j < unit; j += 8) {
        uint4 words = {pack_numbers<number>(values[j], values[j + 1]), pack_numbers<number>(values[j + 2], values[j + 3]),
                       pack_numbers<number>(values[j + 4], values[j + 5]), pack_numbers<number>(values[j + 6], values[j + 7])};
        *reinterpret_cast<uint4*>(to + i * unit + j) = words;
      }
    }
    to += (long long)linear.rows * cols;
  }
}

// Multiplies `row_tiles` tiles of rows with all tokens. `plan.rows(tile)` returns a tile's weights, `plan.target(tile)` its output, whose
// `store(token, column, lower, upper)` stores the products of rows `column` and `column + 1` of both halves.
template <int number, int cols, class Plan>
__device__ void wgmma_tiles(const u16* inputs, int row_tiles, int tokens, const Plan& plan) {
  constexpr int pitch = (cols + wgmma_depth - 1) / wgmma_depth * wgmma_depth;
  constexpr int steps = pitch / wgmma_depth;
  u8* room = shared_memory<u8>();
  // The swizzle pattern repeats every 1024 bytes.
  u8* stages = room + (1024 - shared_address(room) % 1024) % 1024;
  __shared__ u64 full[wgmma_stages], empty[wgmma_stages], stored;
  if (threadIdx.x == 0) {
    for (int i = 0; i < wgmma_stages; i++) {
      mbarrier_init(&full[i], wgmma_producers);
      mbarrier_init(&empty[i], wgmma_consumers / 32);
    }
    mbarrier_init(&stored, wgmma_consumers / 32);
  }
  __syncthreads();
  int token_tiles = (tokens + wgmma_tokens - 1) / wgmma_tokens;
  int tiles = row_tiles * token_tiles;
  int blocks = cluster_blocks(), rank = blockIdx.x % blocks;
  int first_step = rank * steps / blocks, last_step = (rank + 1) * steps / blocks;
  ClusterSums exchange = {stages, &stored, blocks, rank};
  int count = 0;
  if (threadIdx.x >= wgmma_consumers) {
    // Signals that the copies of all stages before this one are complete.
    int signalled = 0;
    auto complete = [&](int before) {
      fence_async_proxy();
      for (; signalled < before; signalled++) mbarrier_arrive(&full[signalled % wgmma_stages]);
    };
    for (int tile = blockIdx.x / blocks, number = 0; tile < tiles; tile += gridDim.x / blocks, number++) {
      WgmmaRows rows = plan.rows(tile / token_tiles);
      int first_token = tile % token_tiles * wgmma_tokens;
      const u16* source = inputs + (long long)first_token * pitch;
      for (int step = first_step; step < last_step; step++) {
        mbarrier_wait(&empty[count % wgmma_stages], count / wgmma_stages % 2 ^ 1);
        u8* stage = stages + count % wgmma_stages * wgmma_stage_bytes;
        copy_inputs<pitch>(stage, source, step, tokens - first_token);
        copy_weights<cols>(stage + wgmma_tokens * wgmma_row_bytes, rows, step);
        commit_copies();
        wait_for_copies<wgmma_lead>();
        complete(++count - wgmma_lead);
      }
      if (blocks == 1) continue;
      wait_for_copies<0>();
      complete(count);
      exchange.wait(number);
    }
    wait_for_copies<0>();
    complete(count);
    return;
  }

  int group = warp_index() / 4;
  for (int tile = blockIdx.x / blocks; tile < tiles; tile += gridDim.x / blocks) {
    float sums[128];
#pragma unroll
    for (int i = 0; i < 128; i++) sums[i] = 0.0f;
    for (int step = first_step; step < last_step; step++, count++) {
      const u8* stage = stages + count % wgmma_stages * wgmma_stage_bytes;
      mbarrier_wait(&full[count % wgmma_stages], count / wgmma_stages % 2);
      u64 left = wgmma_descriptor(stage + group * 64 * wgmma_row_bytes);
      u64 right = wgmma_descriptor(stage + wgmma_tokens * wgmma_row_bytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < wgmma_depth / 16; k++) wgmma<number>(sums, left + 2 * k, right + 2 * k);
      wgmma_commit();
      wgmma_wait<1>();
      // The products of the previous step are complete.
      if (step > first_step && lane_index() == 0) mbarrier_arrive(&empty[(count - 1) % wgmma_stages]);
    }
    wgmma_wait<0>();
    if (lane_index() == 0) mbarrier_arrive(&empty[(count - 1) % wgmma_stages]);
#pragma unroll
    for (int i = 0; i < 128; i++) asm volatile("" : "+f"(sums[i])::"memory");
    auto target = plan.target(tile / token_tiles);
    int first_token = tile % token_tiles * wgmma_tokens + group * 64 + warp_index() % 4 * 16 + lane_index() / 4;
    int column = lane_index() % 4 * 2;
    if (blocks > 1) {
      bool used = tile % token_tiles * wgmma_tokens + group * 64 < tokens;
      exchange.add_and_store(sums, used, first_token, column, tokens, target);
      continue;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (first_token + 8 * i >= tokens) continue;
#pragma unroll
      for (int n = 0; n < 16; n++) {
        int at = 4 * n + 2 * i;
        target.store(first_token + 8 * i, 8 * n + column, sums + at, sums + 64 + at);
      }
    }
  }
}

// Output in f32, of consecutive rows: added to what is there if `add`. Constants halve the time that the 128 pairs take to compile.
template <bool add, bool has_bias>
struct WgmmaOutput {
  float* first;
  const float* bias;
  float multiplier;
  int stride;
  int rows;
  // Whether pairs are aligned to 8 bytes; `plain` also requires that there is neither a bias nor a short tile.
  bool in_pairs;
  bool plain;

  __device__ void store_pair(float* place, int row, float x, float y) const {
    x *= multiplier, y *= multiplier;
    if (plain) {
      // Only one thread adds here: a reduction avoids the load.
      if constexpr (add) {
        asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(place), "f"(x), "f"(y) : "memory");
      } else {
        *reinterpret_cast<float2*>(place) = {x, y};
      }
      return;
    }
    if (has_bias && bias) {
      if (row < rows) x += bias[row];
      if (row + 1 < rows) y += bias[row + 1];
    }
    if constexpr (add) {
      if (row < rows) place[0] += x;
      if (row + 1 < rows) place[1] += y;
    } else if (in_pairs && row + 1 < rows) {
      *reinterpret_cast<float2*>(place) = {x, y};
    } else {
      if (row < rows) place[0] = x;
      if (row + 1 < rows) place[1] = y;
    }
  }
  __device__ void store(int token, int column, const float* lower, const float* upper) const {
    float* place = first + (long long)token * stride + column;
    store_pair(place, column, lower[0], lower[1]);
    store_pair(place + 128, column + 128, upper[0], upper[1]);
  }
};

template <bool add, bool has_bias>
struct WgmmaPlan {
  const Linears& linears;
  const Rows& output;

  __device__ WgmmaRows rows(int tile) const {
    const Linear& linear = linear_of(linears, tile);
    int first = (tile - linear.first) * wgmma_rows;
    const u16* weights = reinterpret_cast<const u16*>(linear.weights);
    return {{weights, weights}, {linear.rows, linear.rows}, {first, first + 128}};
  }
  __device__ WgmmaOutput<add, has_bias> target(int tile) const {
    const Linear& linear = linear_of(linears, tile);
    int first = (tile - linear.first) * wgmma_rows;
    float* place = output.first + linear.column + first;
    const float* bias = has_bias && linear.bias ? linear.bias + first : nullptr;
    bool in_pairs = (u64)place % 8 == 0 && output.stride % 2 == 0;
    int left = linear.rows - first;
    return {place, bias, linear.multiplier, output.stride, left, in_pairs, in_pairs && !bias && left >= wgmma_rows};
  }
};

template <int number, int cols, bool add, bool has_bias>
__device__ void gemm_wgmma(const u16* inputs, const Linears& linears, int row_tiles, Rows output, int tokens) {
  wgmma_tiles<number, cols>(inputs, row_tiles, tokens, WgmmaPlan<add, has_bias>{linears, output});
}

// Gated products in 16-bit numbers, with zeros up to the pitch.
template <int function, int number, bool has_bias>
struct GatedProducts {
  u16* first;
  int pitch;
  int columns;
  float gate_multiplier;
  float up_multiplier;
  // Biases of the tile's rows or null, and the number of rows that have biases.
  const float* gate_bias;
  const float* up_bias;
  int rows;

  __device__ float gated(int column, float gate, float up) const {
    gate *= gate_multiplier, up *= up_multiplier;
    if constexpr (has_bias) {
      // Zero past the last row, where there are no biases.
      if (column >= rows) return 0.0f;
      if (gate_bias) gate += gate_bias[column];
      if (up_bias) up += up_bias[column];
    }
    return activate(function, gate) * up;
  }
  __device__ void store(int token, int column, const float* gate, const float* up) const {
    if (column >= columns) return;
    u32 pair = pack_numbers<number>(gated(column, gate[0], up[0]), gated(column + 1, gate[1], up[1]));
    *reinterpret_cast<u32*>(first + (long long)token * pitch + column) = pair;
  }
};

template <int function, int number, bool has_bias>
struct GatedPlan {
  const Linears& linears;
  u16* output;
  int pitch;

  __device__ WgmmaRows rows(int tile) const {
    const Linear &gate = linears.at[0], &up = linears.at[1];
    const u16 *of_gate = reinterpret_cast<const u16*>(gate.weights), *of_up = reinterpret_cast<const u16*>(up.weights);
    return {{of_gate, of_up}, {gate.rows, up.rows}, {tile * 128, tile * 128}};
  }
  __device__ GatedProducts<function, number, has_bias> target(int tile) const {
    const Linear &gate = linears.at[0], &up = linears.at[1];
    int first = tile * 128;
    const float *gate_bias = gate.bias ? gate.bias + first : nullptr, *up_bias = up.bias ? up.bias + first : nullptr;
    return {output + first, pitch, pitch - first, gate.multiplier, up.multiplier, gate_bias, up_bias, gate.rows - first};
  }
};

// `output = function(gate x) * up x` of two matrices of the same shape, in the number format of the next product.
template <int number, int cols, int function, int next_number, bool has_bias>
__device__ void gemm_wgmma_gated(const u16* inputs, const Linears& linears, int row_tiles, u16* output, int pitch, int tokens) {
  wgmma_tiles<number, cols>(inputs, row_tiles, tokens, GatedPlan<function, next_number, has_bias>{linears, output, pitch});
}
