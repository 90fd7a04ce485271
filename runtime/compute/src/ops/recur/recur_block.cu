// The matrix form of recurrences, for chunks. In a block of 64 tokens, S is the state before the block, G_i is the sum of the
// log decays up to token i, and F_ij = e^(G_i - G_j):
//
//   u_i = beta_i (v_i - e^G_i k_i S - sum_{j<i} F_ij (k_i . k_j) u_j)    the delta rule; else u_i = v_i
//   o_i = e^G_i q_i S + sum_{j<=i} F_ij (q_i . k_j) u_j
//   S  <- e^G_last S + sum_j F_last,j k_j^T u_j
//
// An erasing key e_i replaces the reading k_i in the first equation, with beta_i one. If tokens remove the values under keys
// r_i, at rates b_i, before the state decays, there is a second write under c_i = b_i r_i:
//
//   w_i = -e^G_{i-1} r_i S - sum_{j<i} F_{i-1,j} ((r_i . k_j) v_j + (r_i . c_j) w_j)
//
// With L_ij = beta_i F_ij (k_i . k_j) below the diagonal, T = (I + L)^-1 diag(beta), A_ij = F_ij (q_i . k_j) up to the diagonal,
// M = A T, K* = diag(e^G) K and Q* = diag(e^G) Q, this is
//
//   U = T V - (T K*) S
//   O = M V + (Q* - M K*) S
//
// With removals, L is the triangle of r and c, with beta one, P that of r and k, and B that of q and c; with R* in place of K*
// and M = B T,
//
//   W = -T P V - (T R*) S
//   O = (A - M P) V + (Q* - M R*) S
//
// Everything that does not depend on S is computed for all blocks at once: by `recur_blocks` in recur_chunk.cu, where states
// decay uniformly or each column decays separately; by `recur_row_blocks` in recur_rows.cu, where each row decays separately.
// `recur_states` in recur_states.cu passes the states through the blocks. Operands are sums of `parts` bf16 numbers (see `Plan`
// in launch/mod.rs); sums, states and the inverse are f32.

constexpr int chunk_block = 64;
constexpr int chunk_warps = 8;
// The row pitch in shared memory, in numbers: the eight rows that one instruction reads lie in different banks.
constexpr int block_pitch = chunk_block + 8;
// Numbers in one part of a split [64, 64] matrix in shared memory, and the row pitch of an f32 matrix in the place of two parts.
constexpr int tile_part = chunk_block * block_pitch;
constexpr int square_pitch = chunk_block + 4;
// Numbers in one part of a [64, 64] matrix in transit between the kernels. This image has no gaps, so that it is copied as is;
// instead, pieces of eight numbers are swizzled by the row number modulo 8.
constexpr int image_part = chunk_block * chunk_block;

__device__ inline int image_place(int row, int column) {
  return row * chunk_block + ((column / 8 ^ row % 8) * 8) + column % 8;
}

template <bool across, int parts>
__device__ inline void load_left_of_image(SplitOperand<parts>& a, const u16* image, int row, int column) {
  int lane = lane_index();
  row += across ? lane % 8 + lane / 16 * 8 : lane % 16;
  column += across ? lane / 8 % 2 * 8 : lane / 16 * 8;
  const u16* place = image + image_place(row, column);
#pragma unroll
  for (int i = 0; i < parts; i++) load_matrices<across>(a.part[i], place + i * image_part);
}

// Stores two adjacent numbers of a row.
template <int parts>
__device__ inline void store_pair(u16* image, int row, int column, float2 x) {
  SplitPair<parts>(x.x, x.y).store(image + image_place(row, column), image_part);
}

// The results of a token block, in 16-bit numbers: for each 64 rows of a state its operands, [panels] images (`-T K*` or `-T R*`
// first, then one for each query); for each write, images of its keys, decayed to the block's end; the values of each write
// without a state, f32 [64, width]; the block's decay, or the decay of each row or column; and with column decays, the decay up
// to each token, f32 [64, width].
template <int dk, int dv, int queries, int decay_kind, int write, int parts>
struct ChunkBlock {
  // Whether written values depend on the state, and the number of writes per token.
  static constexpr bool solves = write != WRITE_ADD;
  static constexpr int writes = write == WRITE_REPLACE ? 2 : 1;
  static constexpr bool row_decays = decay_kind == DECAY_ROWS || decay_kind == DECAY_BY_KEY;
  static constexpr bool column_decays = decay_kind == DECAY_BY_VALUE;
  static constexpr int slices = (dk + 63) / 64;
  static constexpr int width = (dv + 63) / 64 * 64;
  static constexpr int panels = queries + solves;
  static constexpr int image_size = parts * image_part;
  static constexpr int keys_at = slices * panels * image_size;
  static constexpr int values_at = keys_at + writes * slices * image_size;
  static constexpr int reach_at = values_at + writes * chunk_block * width * 2;
  static constexpr int decay_at = reach_at + (column_decays ? chunk_block * width * 2 : 0);
  static constexpr int size = decay_at + (row_decays ? 2 * slices * chunk_block : column_decays ? 2 * width : 8);

  u16* place;
  __device__ u16* panel(int slice, int panel) const { return place + (slice * panels + panel) * image_size; }
  __device__ u16* keys(int number, int slice) const { return place + keys_at + (number * slices + slice) * image_size; }
  __device__ float* values(int number, int t) const {
    return reinterpret_cast<float*>(place + values_at) + (number * chunk_block + t) * width;
  }
  __device__ float* reach(int t) const { return reinterpret_cast<float*>(place + reach_at) + t * width; }
  // The decay of the state, or of this row or column.
  __device__ float& decay(int number) const {
    return reinterpret_cast<float*>(place + decay_at)[row_decays || column_decays ? number : 0];
  }
};

// Values `column..column + 4` of a row of `width` values; zeros beyond.
template <bool aligned>
__device__ inline float4 four_of_row(const float* row, int column, int width) {
  if constexpr (aligned) {
    return column < width ? *reinterpret_cast<const float4*>(row + column) : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  } else {
    return make_float4(column < width ? row[column] : 0.0f, column + 1 < width ? row[column + 1] : 0.0f,
                       column + 2 < width ? row[column + 2] : 0.0f, column + 3 < width ? row[column + 3] : 0.0f);
  }
}

__device__ inline float4 scaled(float4 x, float factor) {
  return make_float4(factor * x.x, factor * x.y, factor * x.z, factor * x.w);
}

// Splits and stores four numbers; each term is stored `distance` after the previous one.
template <int parts>
__device__ inline void store_split(u16* to, int distance, float4 x) {
  SplitPair<parts> first(x.x, x.y), second(x.z, x.w);
#pragma unroll
  for (int i = 0; i < parts; i++) *reinterpret_cast<uint2*>(to + i * distance) = {first.part[i], second.part[i]};
}

template <int parts>
__device__ inline void store_split(const SplitTile<parts>& tile, int row, int column, float4 x) {
  store_split<parts>(tile.first + row * tile.pitch + column, tile.distance, x);
}

// sums += left right for 16 rows, `pairs` times 16 columns, and `depth`. The rows of `right` run along the depth; with `across`,
// its columns do.
template <int pairs, bool across, int parts>
__device__ inline void multiply_tiles(float (*sums)[4], const SplitTile<parts>& left, const SplitTile<parts>& right, int depth) {
#pragma unroll 1
  for (int k = 0; k < depth; k += 16) {
    SplitOperand<parts> a, b;
    load_left<false>(a, left.at(0, k));
#pragma unroll
    for (int n = 0; n < pairs; n++) {
      load_right<across>(b, across ? right.at(k, 16 * n) : right.at(16 * n, k));
      multiply_add(sums + 2 * n, a, b);
    }
  }
}

// This thread's share of a [64, 64] slice: `x[i]` are columns `column()..column() + 4` of token `token(i)`.
struct ChunkShare {
  static constexpr int count = chunk_block * 16 / (32 * chunk_warps);
  float4 x[count];

  __device__ static int token(int i) { return (i * 32 * chunk_warps + threadIdx.x) / 16; }
  __device__ static int column() { return threadIdx.x % 16 * 4; }

  // Loads from rows of `tokens` tokens and `width` columns; zeros beyond. All loads are in flight at once.
  template <bool aligned>
  __device__ void load(const float* rows, int stride, int tokens, int first, int width) {
#pragma unroll
    for (int i = 0; i < count; i++) {
      int t = token(i);
      x[i] = t < tokens ? four_of_row<aligned>(rows + (long long)t * stride, first + column(), width)
                        : make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }
  }
};

// This thread's share of an image, on its way into a split matrix in shared memory, in pieces of eight numbers.
template <int parts>
struct ImageShare {
  static constexpr int count = parts * image_part / 8 / (32 * chunk_warps);
  uint4 x[count];

  __device__ void load(const u16* image) {
#pragma unroll
    for (int i = 0; i < count; i++) x[i] = reinterpret_cast<const uint4*>(image)[i * 32 * chunk_warps + threadIdx.x];
  }
  __device__ void store(const SplitTile<parts>& tile) const {
#pragma unroll
    for (int i = 0; i < count; i++) {
      int piece = i * 32 * chunk_warps + threadIdx.x, part = piece / (image_part / 8), row = piece / 8 % chunk_block;
      u16* to = tile.at(row, (piece % 8 ^ row % 8) * 8).first + part * tile.distance;
      *reinterpret_cast<uint4*>(to) = x[i];
    }
  }
};

// Calls `task(tile, i, row, column)` for each pair of adjacent sums i and i + 1, in `tiles` adjacent tiles.
template <int tiles, class Task>
__device__ inline void each_pair(int row, int column, Task task) {
#pragma unroll
  for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i += 2) task(tile, i, row + lane_index() / 4 + i * 4, column + 8 * tile + lane_index() % 4 * 2);
  }
}

// Replaces L, which is stored transposed in f32, by (I + L)^-1 diag(factors), split. A thread solves a column of one of the two
// halves on the diagonal; the part below follows from them. `room` holds 96 rows of 32 numbers.
template <int parts>
__device__ inline void invert_triangle(const SplitTile<parts>& tile, float* room, const float* factors) {
  constexpr int half_block = chunk_block / 2;
  const float* transposed = reinterpret_cast<const float*>(tile.first);
  float *diagonal = room, *product = room + chunk_block * half_block;
  int across = threadIdx.x % half_block, down = threadIdx.x / half_block;
  if (threadIdx.x < chunk_block) {
    float column[half_block];
    int first = down * half_block;
#pragma unroll
    for (int i = 0; i < half_block; i++) column[i] = i == across ? 1.0f : 0.0f;
#pragma unroll
    for (int i = 0; i < half_block; i++) {
      const float* row = transposed + (first + i) * square_pitch + first;
#pragma unroll
      for (int j = i / 4 * 4; j < half_block; j += 4) {
        float4 x = *reinterpret_cast<const float4*>(row + j);
        if (j > i) column[j] -= x.x * column[i];
        if (j + 1 > i) column[j + 1] -= x.y * column[i];
        if (j + 2 > i) column[j + 2] -= x.z * column[i];
        if (j + 3 > i) column[j + 3] -= x.w * column[i];
      }
      diagonal[(first + i) * half_block + across] = column[i];
    }
  }
  __syncthreads();
  constexpr int rows = half_block * half_block / (32 * chunk_warps), step = half_block / rows;
  float sums[rows] = {};
#pragma unroll 4
  for (int k = 0; k < half_block; k++) {
#pragma unroll
    for (int i = 0; i < rows; i++) {
      sums[i] += transposed[k * square_pitch + half_block + down + step * i] * diagonal[k * half_block + across];
    }
  }
#pragma unroll
  for (int i = 0; i < rows; i++) product[(down + step * i) * half_block + across] = sums[i];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < rows; i++) {
    int row = down + step * i, lower = half_block + row;
    float sum = 0.0f;
#pragma unroll 4
    for (int k = 0; k < half_block; k++) sum -= diagonal[lower * half_block + k] * product[k * half_block + across];
    auto store = [&](int row, int column, float x) { tile.store(row, column, factors[column] * x); };
    store(row, across, diagonal[row * half_block + across]);
    store(row, half_block + across, 0.0f);
    store(lower, across, sum);
    store(lower, half_block + across, diagonal[lower * half_block + across]);
  }
  __syncthreads();
}

// The work on a token block of one state that does not depend on the kind of decay.
template <int dk, int dv, int queries, int decay_kind, int write, bool aligned, int parts>
struct ChunkMaker {
  using Block = ChunkBlock<dk, dv, queries, decay_kind, write, parts>;
  using Tile = SplitTile<parts>;
  static constexpr int tile_size = parts * tile_part;
  // The last write, which depends on the state.
  static constexpr int last = Block::writes - 1;
  // Shared memory for the operands of the triangles, later for the operands that their weights multiply, in 16-bit numbers.
  static constexpr int operands = (Block::row_decays || Block::column_decays ? 3 : 2) * tile_size;
  const RecurInputs& in;
  int head, first, count;
  Block block;
  u16* room;
  // Per token: the betas, the write gates, and the output factors of each query.
  float *betas, *gates, *factors, *rest;
  // This warp's rows of each 64, and its half of the columns.
  int warp_row, half_of;

  __device__ ChunkMaker(const RecurInputs& in, u16* scratch, int tokens)
      : in(in),
        head(blockIdx.x * queries),
        first(blockIdx.y * chunk_block),
        count(min(chunk_block, tokens - first)),
        block{scratch + ((long long)blockIdx.y * gridDim.x + blockIdx.x) * Block::size},
        room(shared_memory<u16>()),
        warp_row(warp_index() % 4 * 16),
        half_of(warp_index() / 4) {
    betas = reinterpret_cast<float*>(room + operands + Block::panels * Block::writes * tile_size);
    gates = betas + chunk_block;
    factors = gates + chunk_block;
    rest = factors + queries * chunk_block;
  }

  // A panel's weights for each write: for the first panel the inverse, and -T P; for each query the triangle up to its own token.
  __device__ Tile weights(int panel, int number) const {
    return {room + operands + (panel * Block::writes + number) * tile_size, tile_part, block_pitch};
  }

  // The place of L before its inversion.
  __device__ float* transposed() const { return reinterpret_cast<float*>(weights(0, last).first); }

  __device__ void load_gates() const {
    if (threadIdx.x >= chunk_block) return;
    bool inside = threadIdx.x < count;
    int t = first + threadIdx.x;
    if (write == WRITE_DELTA) betas[threadIdx.x] = inside ? *in.beta.at(t, head, 1, 0) : 0.0f;
    if (write == WRITE_REPLACE || write == WRITE_ERASE) betas[threadIdx.x] = 1.0f;
    gates[threadIdx.x] = in.write_gate.rows.first && inside ? *in.write_gate.at(t, head, 1, 0) : 1.0f;
    for (int query = 0; query < queries; query++) {
      bool gated = in.read_gate.rows.first && inside;
      float gate = gated ? *in.read_gate.at(t, head + query, 1, 0) : 1.0f;
      factors[query * chunk_block + threadIdx.x] = in.scale * gate;
    }
  }

  // Computes to = factor left right, or adds the product to `to` if `adds`; all are triangles.
  __device__ void multiply_weights(const Tile& to, const Tile& left, const Tile& right, float factor, bool adds) const {
    float sums[4][4] = {};
    __syncthreads();
    multiply_tiles<2, true>(sums, left.at(warp_row, 0), right.at(0, 32 * half_of), warp_row + 16);
    __syncthreads();
    each_pair<4>(warp_row, 32 * half_of, [&](int n, int i, int row, int column) {
      SplitPair<parts> before;
      if (adds) before.load(to.at(row, column).first, to.distance);
      float2 x = before.sum();
      to.store(row, column, SplitPair<parts>(x.x + factor * sums[n][i], x.y + factor * sums[n][i + 1]));
    });
  }

  // Computes the rest of the block. On entry the weights are triangles, L is stored transposed in f32, and the panels are K* or
  // R*, and Q*.
  __device__ void finish() const {
    __syncthreads();
    if constexpr (Block::solves) {
      Tile inverse = weights(0, last);
      invert_triangle(inverse, reinterpret_cast<float*>(room), betas);
      if constexpr (last > 0) multiply_weights(weights(0, 0), inverse, weights(0, 0), -1.0f, false);
      for (int panel = 1; panel < Block::panels; panel++) {
        Tile own = weights(panel, last);
        if constexpr (last > 0) multiply_weights(weights(panel, 0), own, weights(0, 0), 1.0f, true);
        multiply_weights(own, own, inverse, 1.0f, false);
      }
    }

    // The slices of K* or R*, then the slices of the values.
    constexpr int key_slices = Block::solves ? Block::slices : 0, slices = key_slices + Block::width / chunk_block;
    Tile right = {room, tile_part, block_pitch};
    const float* value_rows = in.v.at(first, head, dv, 0);
    ImageShare<parts> keys_ahead;
    ChunkShare ahead;
    auto load = [&](int slice) {
      if (slice < key_slices) {
        keys_ahead.load(block.panel(slice, 0));
      } else {
        ahead.load<aligned>(value_rows, in.v.rows.stride, count, (slice - key_slices) * chunk_block, dv);
      }
    };
    load(0);
#pragma unroll 1
    for (int slice = 0; slice < slices; slice++) {
      bool of_keys = slice < key_slices;
      int first_column = (of_keys ? slice : slice - key_slices) * chunk_block;
      __syncthreads();
      if (of_keys) {
        keys_ahead.store(right);
      } else {
#pragma unroll
        for (int i = 0; i < ChunkShare::count; i++) {
          int t = ChunkShare::token(i), c = ChunkShare::column();
          float4 x = scaled(ahead.x[i], gates[t]);
          store_split(right, t, c, x);
          if (!Block::solves || last > 0) *reinterpret_cast<float4*>(block.values(0, t) + first_column + c) = x;
        }
      }
      if (slice + 1 < slices) load(slice + 1);
      __syncthreads();
#pragma unroll 1
      for (int task = half_of; task < 2 * Block::panels; task += 2) {
        int panel = task / 2, half_column = task % 2 * 32;
        bool written = Block::solves && panel == 0;
        int query = panel - Block::solves;
        // Q*, which is loaded while the products are computed.
        SplitPair<parts> own[4][2] = {};
        if (of_keys && !written) {
          each_pair<4>(warp_row, half_column, [&](int n, int i, int t, int column) {
            own[n][i / 2].load(block.panel(slice, panel) + image_place(t, column), image_part);
          });
        }
        float sums[4][4] = {};
        Tile own_weights = weights(panel, of_keys ? last : 0);
        multiply_tiles<2, true>(sums, own_weights.at(warp_row, 0), right.at(0, half_column), warp_row + 16);
        each_pair<4>(warp_row, half_column, [&](int n, int i, int t, int column) {
          const float* x = sums[n] + i;
          float factor = written ? 1.0f : factors[query * chunk_block + t];
          if (of_keys) {
            float2 q = own[n][i / 2].sum();
            store_pair<parts>(block.panel(slice, panel), t, column, {q.x - factor * x[0], q.y - factor * x[1]});
          } else if (written) {
            *reinterpret_cast<float2*>(block.values(last, t) + first_column + column) = {x[0], x[1]};
          } else if (t < count) {
            float* out = in.out.token(first + t) + (head + query) * dv + first_column + column;
            if (first_column + column < dv) out[0] = factor * x[0];
            if (first_column + column + 1 < dv) out[1] = factor * x[1];
          }
        });
      }
    }
  }
};

