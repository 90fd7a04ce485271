// Attention of chunks over a cache in f16, on tensor cores: a thread block takes one query head of 128 tokens over the retained tokens,
// the cached segment and the chunk, a tile of keys at a time. Keys, values and weights are f16 and queries are rounded to f16, each row
// scaled to the range of f16; scores and sums are f32. While one product runs, the operand of the next one is copied into shared memory.
// With `groups`, two warp groups multiply by `wgmma` (Hopper), otherwise warps by `mma`.

constexpr int chunk_queries = 128;

// Rows of f16 numbers in shared memory, in blocks of 64 columns with rows of 128 bytes, whose eight pieces of 16 bytes change places by row
// (the 128-byte swizzle of `wgmma`): neither copies nor `ldmatrix` meet in a bank.
template <int rows, int dim>
struct SwizzledTile {
  static constexpr int blocks = (dim + 63) / 64, pieces = blocks * 8, size = blocks * rows * 64;
  u16* first;

  // The place of eight columns of a row.
  __device__ u16* at(int row, int piece) const { return first + (piece / 8 * rows + row) * 64 + (piece % 8 ^ row % 8) * 8; }
  // Like `load_left` of 16 rows and columns.
  __device__ void left(u32* a, int row, int column) const { load_matrices(a, at(row + lane_index() % 16, column / 8 + lane_index() / 16)); }
  // Like `load_right` of 16 rows along the columns, or across them.
  __device__ void right(u32* b, int row, int column) const {
    load_matrices(b, at(row + lane_index() / 16 * 8 + lane_index() % 8, column / 8 + lane_index() / 8 % 2));
  }
  __device__ void right_across(u32* b, int row, int column) const {
    load_matrices<true>(b, at(row + lane_index() % 16, column / 8 + lane_index() / 16));
  }
};

// The keys of a tile: rows of keys and values, or null, and the tokens of the chunk that see them.
template <int keys>
struct TileKeys {
  const half* key[keys];
  const half* value[keys];
  int from[keys];
  int until[keys];
};

// Rounds the chunk's keys and values as the cache does: `[kv_heads, tokens, dim]`.
template <int dim>
__device__ void round_chunk(const Attended& a, int tokens) {
  int kv_head = blockIdx.x, t = blockIdx.y;
  long long place = ((long long)kv_head * tokens + t) * dim;
  const float *key = a.k.token(t) + kv_head * dim, *value = a.v.token(t) + kv_head * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    reinterpret_cast<half*>(a.own_keys)[place + i] = half(key[i]);
    reinterpret_cast<half*>(a.own_values)[place + i] = half(value[i]);
  }
}

// Stores a head's queries in f16, zeros beyond `last_token` and beyond `dim`. Each row times the softmax scale is also scaled by a power of two
// that brings its largest value near the end of the f16 range. The inverse of a row's power turns a product into a score to base two.
template <int dim, class Tile>
__device__ inline void store_chunk_queries(const Tile& tile, float* factors, const Attended& a, int head, int first_token, int last_token) {
  constexpr int pairs = Tile::pieces * 4 / 32;
  // Rows whose loads are in flight at once.
  constexpr int rows_at_once = 4;
  for (int first = warp_index() * rows_at_once; first < chunk_queries; first += blockDim.x / 32 * rows_at_once) {
    float x[rows_at_once][2 * pairs];
#pragma unroll
    for (int r = 0; r < rows_at_once; r++) {
      int t = first_token + first + r;
#pragma unroll
      for (int i = 0; i < 2 * pairs; i++) {
        int column = 2 * (lane_index() + i / 2 * 32) + i % 2;
        x[r][i] = t <= last_token && column < dim ? a.scale * a.q.token(t)[head * dim + column] : 0.0f;
      }
    }
#pragma unroll
    for (int r = 0; r < rows_at_once; r++) {
      float largest = 0.0f;
#pragma unroll
      for (int i = 0; i < 2 * pairs; i++) largest = fmaxf(largest, fabsf(x[r][i]));
      // The largest value becomes at least 2^14 and less than 2^15, or smaller where the power would not be a normal f32.
      int exponent = max((int)(__float_as_uint(warp_max(largest)) >> 23) - 127, -100);
      float raise = __uint_as_float((u32)(127 + 14 - exponent) << 23);
#pragma unroll
      for (int i = 0; i < pairs; i++) {
        int pair = lane_index() + i * 32;
        u16* place = tile.at(first + r, pair / 4) + pair % 4 * 2;
        *reinterpret_cast<u32*>(place) = pack_numbers<F16>(raise * x[r][2 * i], raise * x[r][2 * i + 1]);
      }
      if (lane_index() == 0) factors[first + r] = log2_e * __uint_as_float((u32)(127 - 14 + exponent) << 23);
    }
  }
}

// The weights of 16 keys as a left operand in f16, from the products of two tiles of eight keys, which have the same layout.
__device__ inline void chunk_weights(u32* weights, const float (*products)[4], const float (&factor)[2], const float (&largest)[2], float (&sum)[2]) {
#pragma unroll
  for (int i = 0; i < 4; i++) {
    const float* x = products[i / 2] + i % 2 * 2;
    float first = power_of_two(fmaf(x[0], factor[i % 2], -largest[i % 2])), second = power_of_two(fmaf(x[1], factor[i % 2], -largest[i % 2]));
    sum[i % 2] += first + second;
    weights[i] = pack_numbers<F16>(first, second);
  }
}

#if __CUDA_ARCH__ == 900
// sums [64 rows, 64 columns] += left right, depth 16, in f16; overwrites the sums unless `add`. The layout of a warp's 16 rows is that of `mma`.
#define WATERLINE_SUMS \
  "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, " \
  "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
#define WATERLINE_EIGHT(n) "+f"(sums[n][0]), "+f"(sums[n][1]), "+f"(sums[n][2]), "+f"(sums[n][3]), \
  "+f"(sums[n + 1][0]), "+f"(sums[n + 1][1]), "+f"(sums[n + 1][2]), "+f"(sums[n + 1][3])
__device__ inline void group_products(float (*sums)[4], u64 left, u64 right, int add) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, %34, 0;"
               " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " WATERLINE_SUMS "%32, %33, add, 1, 1, 0, 0; }"
               : WATERLINE_EIGHT(0), WATERLINE_EIGHT(2), WATERLINE_EIGHT(4), WATERLINE_EIGHT(6)
               : "l"(left), "l"(right), "r"(add));
}
// The left operand is in registers, and the right one is read across its rows.
__device__ inline void group_products_across(float (*sums)[4], const u32* left, u64 right) {
  asm volatile("{ .reg .pred add; setp.ne.b32 add, 1, 0;"
               " wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 " WATERLINE_SUMS "{%32, %33, %34, %35}, %36, add, 1, 1, 1; }"
               : WATERLINE_EIGHT(0), WATERLINE_EIGHT(2), WATERLINE_EIGHT(4), WATERLINE_EIGHT(6)
               : "r"(left[0]), "r"(left[1]), "r"(left[2]), "r"(left[3]), "l"(right));
}
#endif

// Waits for this thread's copies. A barrier then makes them visible to the products of all threads.
template <bool groups>
__device__ inline void wait_for_operands() {
  wait_for_copies<0>();
#if __CUDA_ARCH__ == 900
  if constexpr (groups) fence_async_proxy();
#endif
}

// The two products of a tile: queries and keys, weights and values. A warp has `row_tiles` tiles of 16 tokens.
template <int dim, int keys, int row_tiles, bool groups>
struct ChunkProducts {
  using Queries = SwizzledTile<chunk_queries, dim>;
  using Keys = SwizzledTile<keys, dim>;
  static constexpr int depth = (dim + 15) / 16 * 16;
  Queries queries;
  Keys keys_tile;
  Keys values;
  int first_row;

  __device__ void scores(float (&sums)[row_tiles][keys / 8][4]) const {
    if constexpr (groups) {
#if __CUDA_ARCH__ == 900
      u64 left = wgmma_descriptor(reinterpret_cast<const u8*>(queries.first) + warp_index() / 4 * 64 * 128);
      u64 right = wgmma_descriptor(reinterpret_cast<const u8*>(keys_tile.first));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < dim / 16; k++) {
        group_products(sums[0], left + (k / 4 * chunk_queries * 128 + k % 4 * 32) / 16, right + (k / 4 * keys * 128 + k % 4 * 32) / 16, k > 0);
      }
      wgmma_commit();
#endif
    } else {
#pragma unroll
      for (int m = 0; m < row_tiles; m++) {
#pragma unroll
        for (int n = 0; n < keys / 8; n++) {
#pragma unroll
          for (int i = 0; i < 4; i++) sums[m][n][i] = 0.0f;
        }
      }
#pragma unroll 4
      for (int k = 0; k < depth; k += 16) {
        u32 a[row_tiles][4], b[4];
#pragma unroll
        for (int m = 0; m < row_tiles; m++) queries.left(a[m], first_row + 16 * m, k);
#pragma unroll
        for (int n = 0; n < keys / 16; n++) {
          keys_tile.right(b, 16 * n, k);
#pragma unroll
          for (int m = 0; m < row_tiles; m++) {
            multiply_add<F16>(sums[m][2 * n], a[m], b);
            multiply_add<F16>(sums[m][2 * n + 1], a[m], b + 2);
          }
        }
      }
    }
  }
  // The products of `scores` are complete.
  __device__ void wait(float (&sums)[row_tiles][keys / 8][4]) const {
#if __CUDA_ARCH__ == 900
    if constexpr (groups) {
      wgmma_wait<0>();
#pragma unroll
      for (int n = 0; n < keys / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[0][n][i])::"memory");
      }
    }
#endif
  }
  // Adds the values of all keys, times their weights `weights[m][k]`.
  __device__ void add_values(float (&sums)[row_tiles][depth / 8][4], const u32 (&weights)[row_tiles][keys / 16][4]) const {
    if constexpr (groups) {
#if __CUDA_ARCH__ == 900
      u64 right = wgmma_descriptor(reinterpret_cast<const u8*>(values.first));
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < keys / 16; k++) {
#pragma unroll
        for (int n = 0; n < dim / 64; n++) {
          group_products_across(sums[0] + 8 * n, weights[0][k], right + (n * keys * 128 + k * 16 * 128) / 16);
        }
      }
      wgmma_commit();
      wgmma_wait<0>();
#pragma unroll
      for (int n = 0; n < depth / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[0][n][i])::"memory");
      }
#endif
    } else {
#pragma unroll
      for (int k = 0; k < keys / 16; k++) {
#pragma unroll
        for (int n = 0; n < depth / 16; n++) {
          u32 b[4];
          values.right_across(b, 16 * k, 16 * n);
#pragma unroll
          for (int m = 0; m < row_tiles; m++) {
            multiply_add<F16>(sums[m][2 * n], weights[m][k], b);
            multiply_add<F16>(sums[m][2 * n + 1], weights[m][k], b + 2);
          }
        }
      }
    }
  }
};

// Copies the rows of a tile; a null row becomes zeros.
template <int dim, int keys>
__device__ inline void copy_rows(const SwizzledTile<keys, dim>& tile, const half* const (&rows)[keys]) {
  constexpr int pieces = SwizzledTile<keys, dim>::pieces;
#pragma unroll 8
  for (int i = threadIdx.x; i < keys * pieces; i += blockDim.x) {
    int row = i / pieces, piece = i % pieces;
    const half* from = rows[row];
    bool copies = from && piece * 8 < dim;
    copy_or_clear(tile.at(row, piece), copies ? from + piece * 8 : nullptr, copies);
  }
  commit_copies();
}

template <int dim, bool retains, int keys, int row_tiles, bool groups>
__device__ void attend_chunk(Attended a, const u64* position, int tokens) {
  using Products = ChunkProducts<dim, keys, row_tiles, groups>;
  constexpr int depth = Products::depth;
  __shared__ TileKeys<keys> tiles[2];
  __shared__ float factors[chunk_queries];
  u16* room = shared_memory<u16>();
  // The swizzle of `wgmma` repeats every 1024 bytes.
  if constexpr (groups) room += (1024 - shared_address(room) % 1024) % 1024 / 2;
  Products products = {{room}, {room + Products::Queries::size}, {room + Products::Queries::size + Products::Keys::size}, warp_index() * 16 * row_tiles};
  int head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads);
  // Blocks with the most keys start first.
  int first_token = ((tokens - 1) / chunk_queries - blockIdx.y) * chunk_queries, last_token = min(first_token + chunk_queries, tokens) - 1;
  SeenKeys<half, dim, retains, true> seen(a, *position, tokens, kv_head, first_token, last_token);
  SeenQueue<chunk_queries> queue;
  // Prepares the tile of keys from number `first` on, or the next keys that are seen; returns their number.
  auto prepare = [&](int first, bool& all) {
    TileKeys<keys>& tile = tiles[first / keys % 2];
    int count = min(keys, seen.total - first), i = first + threadIdx.x;
    all = false;
    if constexpr (retains) {
      queue.fill(seen, first_token, last_token, keys);
      count = min(keys, queue.waiting);
      if (threadIdx.x < count) i = queue.number(threadIdx.x);
    } else if (count == keys) {
      all = seen.from(first + keys - 1) <= first_token && seen.until(first) > last_token;
    }
    if (threadIdx.x < keys) {
      bool is = (int)threadIdx.x < count;
      tile.key[threadIdx.x] = is ? seen.row(0, i) : nullptr;
      tile.value[threadIdx.x] = is ? seen.row(1, i) : nullptr;
      if (!all) {
        tile.from[threadIdx.x] = is ? seen.from(i) : never;
        tile.until[threadIdx.x] = is ? (retains ? first_token + queue.until(threadIdx.x) : seen.until(i)) : 0;
      }
    }
    if constexpr (retains) queue.drop(max(count, 0));
    return count;
  };
  bool all, next_all = false;
  int count = prepare(0, all);
  store_chunk_queries<dim>(products.queries, factors, a, head, first_token, last_token);
#if __CUDA_ARCH__ == 900
  if constexpr (groups) fence_async_proxy();
#endif
  __syncthreads();
  copy_rows<dim>(products.keys_tile, tiles[0].key);

  int token = first_token + products.first_row + lane_index() / 4;
  float factor[row_tiles][2], largest[row_tiles][2], sum[row_tiles][2] = {}, weighted[row_tiles][depth / 8][4] = {};
#pragma unroll
  for (int i = 0; i < 2 * row_tiles; i++) {
    factor[i / 2][i % 2] = factors[products.first_row + i * 8 + lane_index() / 4];
    largest[i / 2][i % 2] = no_score;
  }
  for (int first = 0; count > 0; first += keys) {
    const TileKeys<keys>& tile = tiles[first / keys % 2];
    wait_for_operands<groups>();
    // The keys are there, and no warp reads the last tile's values any more.
    __syncthreads();
    copy_rows<dim>(products.values, tile.value);
    float scores[row_tiles][keys / 8][4];
    products.scores(scores);
    count = prepare(first + keys, next_all);
    products.wait(scores);
    wait_for_operands<groups>();
    // The values and the next keys' rows are there, and no warp reads the keys any more.
    __syncthreads();
    if (count > 0) copy_rows<dim>(products.keys_tile, tiles[(first / keys + 1) % 2].key);

    u32 weights[row_tiles][keys / 16][4];
#pragma unroll
    for (int m = 0; m < row_tiles; m++) {
      float highest[2] = {-infinity, -infinity};
#pragma unroll
      for (int n = 0; n < keys / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          if (!all) {
            int key = 8 * n + lane_index() % 4 * 2 + i % 2, t = token + 16 * m + i / 2 * 8;
            if (t < tile.from[key] || t >= tile.until[key]) scores[m][n][i] = -infinity;
          }
          highest[i / 2] = fmaxf(highest[i / 2], scores[m][n][i]);
        }
      }
#pragma unroll
      for (int i = 0; i < 2; i++) highest[i] = fmaxf(largest[m][i], highest[i] * factor[m][i]);
      raise_largest(largest[m], highest, sum[m], weighted[m]);
#pragma unroll
      for (int k = 0; k < keys / 16; k++) chunk_weights(weights[m][k], scores[m] + 2 * k, factor[m], largest[m], sum[m]);
    }
    products.add_values(weighted, weights);
    all = next_all;
  }
#pragma unroll
  for (int m = 0; m < row_tiles; m++) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      float total = sum[m][row];
      for (int distance = 1; distance < 4; distance *= 2) total += __shfl_xor_sync(all_lanes, total, distance);
      int t = token + 16 * m + 8 * row;
      if (t > last_token) continue;
      if (a.sinks) total += exp2f(log2_e * a.sinks[head] - largest[m][row]);
      float* out = a.out.token(t) + head * dim;
#pragma unroll
      for (int n = 0; n < depth / 8; n++) {
        int column = 8 * n + lane_index() % 4 * 2;
        if (column >= dim) continue;
        out[column] = weighted[m][n][2 * row] / total;
        out[column + 1] = weighted[m][n][2 * row + 1] / total;
      }
    }
  }
}
