// GEMM of a chunk by `mma`: weights are converted to `number`, BF16 or F16, in shared memory. Inputs are in this format, sums in f32. A
// block computes a tile of 128 rows and 128 tokens, each of its eight warps 32 rows and 64 tokens.

constexpr int mma_rows = 128;
constexpr int mma_tokens = 128;
constexpr int mma_depth = 64;
// Values from row to row in shared memory: the eight rows of an `ldmatrix` lie in different banks.
constexpr int mma_pitch = mma_depth + 8;
constexpr int mma_tile = 128 * mma_pitch;

// Stores the input of a token in 16-bit numbers, with zeros up to a multiple of the depth. Inputs that a step reads in 8 bits are rounded
// to 8 bits first. `floats` receives the input without this rounding, for products with f32 weights.
template <int number, int rounding, int cols, int flags, bool stores_floats>
__device__ void prologue_16_bits(const Prologue& prologue, u16* output, const Rows& floats) {
  constexpr int pitch = (cols + mma_depth - 1) / mma_depth * mma_depth;
  float* x = shared_memory<float>();
  store_prologue_row<cols, flags>(prologue, blockIdx.x, x);
  __syncthreads();
  if constexpr (stores_floats) {
    float* row = floats.token(blockIdx.x);
    for (int i = threadIdx.x; i < cols; i += blockDim.x) row[i] = x[i];
  }
  if constexpr (to_codes(rounding)) {
    if constexpr (stores_floats) __syncthreads();
    round_values<rounding, cols>(x, x);
    __syncthreads();
  }
  auto value = [&](int i) { return i < cols ? x[i] : 0.0f; };
  u32* row = reinterpret_cast<u32*>(output + (long long)blockIdx.x * pitch);
  for (int i = threadIdx.x; i < pitch / 2; i += blockDim.x) row[i] = pack_numbers<number>(value(2 * i), value(2 * i + 1));
}

// Loads 32 weights of a row in 16-bit numbers.
template <int format, int number, int cols>
__device__ void load_weights(const Linear& linear, int row, int first, u32* packed) {
  float values[32];
  weights_of_row<format, cols>(linear, row, first, values);
#pragma unroll
  for (int i = 0; i < 16; i++) packed[i] = pack_numbers<number>(values[2 * i], values[2 * i + 1]);
}

__device__ inline void store_weights(u16* to, const u32* packed) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    uint4 words = {packed[4 * i], packed[4 * i + 1], packed[4 * i + 2], packed[4 * i + 3]};
    *reinterpret_cast<uint4*>(to + 8 * i) = words;
  }
}

template <int format, int number, int cols>
__device__ void gemm_mma(const u16* inputs, Linears linears, Rows output, int tokens) {
  constexpr int pitch = (cols + mma_depth - 1) / mma_depth * mma_depth;
  constexpr int steps = pitch / mma_depth;
  // Two tiles of weights, then two of inputs.
  u16* tiles = shared_memory<u16>();
  const Linear& linear = linear_of(linears, blockIdx.x);
  int first_row = (blockIdx.x - linear.first) * mma_rows, first_token = blockIdx.y * mma_tokens;
  int line = threadIdx.x / 2, part = threadIdx.x % 2 * 32;
  const u16* source = inputs + (long long)(first_token + line) * pitch + part;
  u16* weight_place = tiles + line * mma_pitch + part;
  u16* input_place = weight_place + 2 * mma_tile;
  u32 packed[16];
  load_weights<format, number, cols>(linear, first_row + line, part, packed);
#pragma unroll
  for (int i = 0; i < 4; i++) copy_or_clear(input_place + 8 * i, source + 8 * i);
  store_weights(weight_place, packed);
  commit_copies();
  wait_for_copies<0>();
  __syncthreads();

  int lane = lane_index(), warp_row = warp_index() / 2 * 32, warp_token = warp_index() % 2 * 64;
  float sums[2][8][4] = {};
  for (int step = 0; step < steps; step++) {
    int now = step % 2 * mma_tile, next = mma_tile - now;
    if (step + 1 < steps) {
      int depth = (step + 1) * mma_depth;
#pragma unroll
      for (int i = 0; i < 4; i++) copy_or_clear(input_place + next + 8 * i, source + depth + 8 * i);
      load_weights<format, number, cols>(linear, first_row + line, depth + part, packed);
    }
    const u16* a_rows = tiles + now + (warp_row + lane % 16) * mma_pitch + lane / 16 * 8;
    const u16* b_rows = tiles + 2 * mma_tile + now + (warp_token + lane / 16 * 8 + lane % 8) * mma_pitch +
                        lane / 8 % 2 * 8;
#pragma unroll
    for (int k = 0; k < mma_depth; k += 16) {
      u32 a[2][4], b[4][4];
#pragma unroll
      for (int r = 0; r < 2; r++) load_matrices(a[r], a_rows + 16 * r * mma_pitch + k);
#pragma unroll
      for (int t = 0; t < 4; t++) load_matrices(b[t], b_rows + 16 * t * mma_pitch + k);
#pragma unroll
      for (int r = 0; r < 2; r++) {
#pragma unroll
        for (int t = 0; t < 8; t++) multiply_add<number>(sums[r][t], a[r], b[t / 2] + t % 2 * 2);
      }
    }
    if (step + 1 < steps) store_weights(weight_place + next, packed);
    commit_copies();
    wait_for_copies<0>();
    __syncthreads();
  }
#pragma unroll
  for (int r = 0; r < 2; r++) {
#pragma unroll
    for (int half_tile = 0; half_tile < 2; half_tile++) {
      int row = first_row + warp_row + 16 * r + 8 * half_tile + lane / 4;
      if (row >= linear.rows) continue;
      float bias = linear.bias ? linear.bias[row] : 0.0f;
#pragma unroll
      for (int t = 0; t < 8; t++) {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          int token = first_token + warp_token + 8 * t + lane % 4 * 2 + i;
          if (token >= tokens) continue;
          float* place = output.token(token) + linear.column + row;
          float product = linear.multiplier * sums[r][t][2 * half_tile + i] + bias;
          *place = linears.add ? *place + product : product;
        }
      }
    }
  }
}
