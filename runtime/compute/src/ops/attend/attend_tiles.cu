// Attention of chunks in tiles: a thread block takes one query head of 64 tokens over the retained tokens, the cached segment
// and the chunk, 64 keys at a time; each warp has 16 of the tokens. Scores and sums are f32. With an f16 cache, keys and values
// are mma operands directly, and queries and weights are split into two f16 terms; with an f32 cache all operands are split into
// two bf16 terms.

constexpr int tile_keys = 64;
constexpr int tile_queries = 64;

// The keys and values that a tile of tokens may see, numbered: first the set, then the segment, then the chunk.
template <class E, int dim, bool retains, bool aligned>
struct SeenKeys {
  const Attended& a;
  int kv_head;
  int tokens;
  int count;
  int cached;
  int first_own;
  int first_row;
  int total;

  // For the chunk's tokens from `first_token` to `last_token`, inclusive.
  __device__ SeenKeys(const Attended& a, u64 start, int tokens, int kv_head, int first_token, int last_token)
      : a(a), kv_head(kv_head), tokens(tokens), count(retains ? a.counts[kv_head] : 0) {
    cached = max(0, a.rows - (retains ? 0 : first_token + 1));
    if (cached > start) cached = (int)start;
    first_own = retains ? 0 : max(0, first_token + 1 - a.rows);
    first_row = (int)((start - cached) % a.rows);
    total = count + cached + last_token + 1 - first_own;
  }

  // The chunk's tokens from `from(i)` on, up to but not including `until(i)`, see key number i.
  __device__ int from(int i) const { return i < count + cached ? 0 : i - count - cached + first_own; }
  __device__ int until(int i) const {
    if (retains && i < count) return a.gone[kv_head * a.capacity + i];
    // The token of the chunk that pushes the key out of the window.
    int leaves = a.rows + (i < count + cached ? i - count - cached : from(i));
    if constexpr (retains) return leaves >= tokens ? never : a.until[kv_head * a.chunk + leaves];
    return leaves;
  }

  // Stores which tokens see each of the `keys` keys from number `first` on.
  __device__ void store_seeing(int first, int keys, int* from_token, int* until_token) const {
    int i = first + threadIdx.x;
    if (threadIdx.x >= keys) return;
    from_token[threadIdx.x] = i < total ? from(i) : never;
    until_token[threadIdx.x] = i < total ? until(i) : 0;
  }

  // Loads eight columns of a row from `column` on, rounded as in the cache; zeros beyond.
  template <class T>
  __device__ static void load(const T* row, int column, float (&x)[8]) {
    Piece<T, aligned ? 8 : 1> piece;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (aligned ? i == 0 : true) {
        if (column + i < dim) piece.load(row + column + i);
      }
      x[i] = column + i < dim ? float_of(E(float_of(piece.values[aligned ? i : 0]))) : 0.0f;
    }
  }
  // The row of a cached key or value.
  __device__ const E* cached_row(int which, int i) const {
    bool in_set = retains && i < count;
    int row = in_set ? i : first_row + i - count;
    if (!in_set && row >= a.rows) row -= a.rows;
    const void* cache = in_set ? (which == 0 ? a.set_keys : a.set_values) : (which == 0 ? a.keys : a.values);
    long long head_rows = (long long)kv_head * (in_set ? a.capacity : a.rows);
    return reinterpret_cast<const E*>(cache) + (head_rows + row) * dim;
  }
  __device__ void load(int which, int i, int column, float (&x)[8]) const {
    if (i < count + cached) {
      load(cached_row(which, i), column, x);
    } else {
      load((which == 0 ? a.k : a.v).token(from(i)) + kv_head * dim, column, x);
    }
  }
  // Like `load`, in f16.
  __device__ uint4 load_halves(int which, int i, int column) const {
    if (aligned && i < count + cached) {
      if (column < dim) return *reinterpret_cast<const uint4*>(cached_row(which, i) + column);
      return {};
    }
    float x[8];
    load(which, i, column, x);
    return {pack_numbers<F16>(x[0], x[1]), pack_numbers<F16>(x[2], x[3]), pack_numbers<F16>(x[4], x[5]), pack_numbers<F16>(x[6], x[7])};
  }
};

// The numbers of the keys that any token of a tile sees, in order: with a retained set, most keys have left the window and were
// not retained. All threads of a thread block take part.
struct SeenQueue {
  // More than a tile's keys plus a block's threads, and small enough for four thread blocks to share an SM.
  static constexpr int room = 256;
  static constexpr int warps = tile_queries / 16;
  int next = 0;
  int first = 0;
  int waiting = 0;

  __device__ static int* numbers() {
    __shared__ int numbers[room];
    return numbers;
  }
  // How many of the tile's tokens come before a key's removal.
  __device__ static u16* untils() {
    __shared__ u16 untils[room];
    return untils;
  }
  __device__ int number(int i) const { return numbers()[(first + i) % room]; }
  __device__ int until(int i) const { return untils()[(first + i) % room]; }

  // Appends keys to the queue until it holds `wanted`, or no keys remain.
  template <class Keys>
  __device__ void fill(const Keys& seen, int first_token, int last_token, int wanted) {
    __shared__ int of_warps[warps];
    while (waiting < wanted && next < seen.total) {
      int i = next + threadIdx.x, until = i < seen.total ? seen.until(i) : 0;
      bool sees = until > first_token && seen.from(i) <= last_token;
      u32 votes = __ballot_sync(all_lanes, sees);
      if (lane_index() == 0) of_warps[warp_index()] = __popc(votes);
      __syncthreads();
      int place = first + waiting + __popc(votes & ((1u << lane_index()) - 1));
      for (int warp = 0; warp < warps; warp++) {
        if (warp < warp_index()) place += of_warps[warp];
        waiting += of_warps[warp];
      }
      if (sees) {
        numbers()[place % room] = i;
        untils()[place % room] = (u16)min(until - first_token, tile_queries);
      }
      next += blockDim.x;
      __syncthreads();
    }
  }

  __device__ void drop(int count) {
    first = (first + count) % room;
    waiting -= count;
  }
};

// Splits and stores eight columns of a row.
__device__ inline void store_eight(const SplitTile<2>& tile, int row, int column, const float (&x)[8]) {
  SplitPair<2> p(x[0], x[1]), q(x[2], x[3]), r(x[4], x[5]), s(x[6], x[7]);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u16* place = tile.first + i * tile.distance + row * tile.pitch + column;
    *reinterpret_cast<uint4*>(place) = {p.part[i], q.part[i], r.part[i], s.part[i]};
  }
}

// Stores a head's queries for `rows` tokens; zeros beyond `last_token` and beyond `dim`.
template <int dim, int depth, int rows>
__device__ inline void store_queries(const SplitTile<2>& tile, const Attended& a, int head, int first_token, int last_token) {
  for (int i = threadIdx.x; i < rows * depth / 8; i += blockDim.x) {
    int row = i / (depth / 8), column = i % (depth / 8) * 8, t = first_token + row;
    float x[8];
#pragma unroll
    for (int j = 0; j < 8; j++) x[j] = t <= last_token && column + j < dim ? a.q.token(t)[head * dim + column + j] : 0.0f;
    store_eight(tile, row, column, x);
  }
}

// Like `store_queries`, as sums of two f16 numbers: each row is scaled by a power of two that brings its largest value near the
// end of the f16 range. The inverse factor of a row, multiplied by the softmax scale, turns a product into a score to base two.
template <int dim, int depth, int rows>
__device__ inline void store_queries_in_f16(const SplitTile<2>& tile, float* factors, const Attended& a, int head, int first_token, int last_token) {
  constexpr int pairs = (depth / 2 + 31) / 32;
  // Rows whose loads are in flight at once.
  constexpr int rows_at_once = 4;
  for (int first = warp_index() * rows_at_once; first < rows; first += blockDim.x / 32 * rows_at_once) {
    float x[rows_at_once][2 * pairs];
#pragma unroll
    for (int r = 0; r < rows_at_once; r++) {
      int t = first_token + first + r;
#pragma unroll
      for (int i = 0; i < 2 * pairs; i++) {
        int column = 2 * (lane_index() + i / 2 * 32) + i % 2;
        x[r][i] = t <= last_token && column < dim ? a.q.token(t)[head * dim + column] : 0.0f;
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
        int column = 2 * (lane_index() + i * 32);
        SplitPair<2, F16> pair(raise * x[r][2 * i], raise * x[r][2 * i + 1]);
        if (column < depth) pair.store(tile.at(first + r, column).first, tile.distance);
      }
      if (lane_index() == 0) factors[first + r] = log2_e * a.scale * __uint_as_float((u32)(127 - 14 + exponent) << 23);
    }
  }
}

template <class E, int dim, bool retains, bool aligned>
__device__ void attend_tiles(Attended a, const u64* position, int tokens) {
  constexpr int depth = (dim + 15) / 16 * 16, pitch = depth + 8, part = tile_keys * pitch;
  // Groups of eight columns in a row of a tile.
  constexpr int pieces = tile_keys * depth / 8;
  constexpr bool in_f16 = sizeof(E) == 2;
  constexpr int number = in_f16 ? F16 : BF16, parts = in_f16 ? 1 : 2;
  __shared__ int seen_from[tile_keys], seen_until[tile_keys];
  __shared__ float factors[tile_queries];
  u16* room = shared_memory<u16>();
  SplitTile<2> queries = {room, part, pitch};
  SplitTile<parts> keys = {room + 2 * part, part, pitch}, values = {room + (2 + parts) * part, part, pitch};
  int head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads);
  int first_token = blockIdx.y * tile_queries, last_token = min(first_token + tile_queries, tokens) - 1;
  SeenKeys<E, dim, retains, aligned> seen(a, *position, tokens, kv_head, first_token, last_token);
  if constexpr (in_f16) {
    store_queries_in_f16<dim, depth, tile_queries>(queries, factors, a, head, first_token, last_token);
  } else {
    store_queries<dim, depth, tile_queries>(queries, a, head, first_token, last_token);
  }

  int warp_row = warp_index() * 16, token = first_token + warp_row + lane_index() / 4;
  float weighted[depth / 8][4] = {}, largest[2] = {no_score, no_score}, sum[2] = {};
  SeenQueue queue;
  for (int first = 0;; first += tile_keys) {
    __syncthreads();
    int count = min(tile_keys, seen.total - first);
    // Whether all tokens see all of the keys.
    bool all = false;
    if constexpr (retains) {
      queue.fill(seen, first_token, last_token, tile_keys);
      count = min(tile_keys, queue.waiting);
      if (threadIdx.x < tile_keys) {
        seen_from[threadIdx.x] = threadIdx.x < count ? seen.from(queue.number(threadIdx.x)) : never;
        seen_until[threadIdx.x] = first_token + queue.until(threadIdx.x);
      }
    } else if (count > 0) {
      all = count == tile_keys && seen.from(first + tile_keys - 1) <= first_token && seen.until(first) > last_token;
      if (!all) seen.store_seeing(first, tile_keys, seen_from, seen_until);
    }
    if (count <= 0) break;
#pragma unroll 4
    for (int i = threadIdx.x; i < 2 * pieces; i += blockDim.x) {
      int which = i / pieces, row = i % pieces / (depth / 8), column = i % (depth / 8) * 8;
      int key = retains ? queue.number(row) : first + row;
      if constexpr (in_f16) {
        uint4 x = {};
        if (row < count) x = seen.load_halves(which, key, column);
        *reinterpret_cast<uint4*>((which == 0 ? keys : values).at(row, column).first) = x;
      } else {
        float x[8] = {};
        if (row < count) seen.load(which, key, column, x);
        store_eight(which == 0 ? keys : values, row, column, x);
      }
    }
    __syncthreads();

    float scores[tile_keys / 8][4] = {};
#pragma unroll 1
    for (int k = 0; k < depth; k += 16) {
      SplitOperand<2> q;
      SplitOperand<parts> b;
      load_left<false>(q, queries.at(warp_row, k));
#pragma unroll
      for (int n = 0; n < tile_keys / 16; n++) {
        load_right<false>(b, keys.at(16 * n, k));
        multiply_add<number>(scores + 2 * n, q, b);
      }
    }
    float highest[2] = {largest[0], largest[1]}, factor[2] = {log2_e * a.scale, log2_e * a.scale};
    if constexpr (in_f16) {
      factor[0] = factors[warp_row + lane_index() / 4];
      factor[1] = factors[warp_row + lane_index() / 4 + 8];
    }
#pragma unroll
    for (int n = 0; n < tile_keys / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        scores[n][i] *= factor[i / 2];
        if (!all) {
          int key = 8 * n + lane_index() % 4 * 2 + i % 2, t = token + i / 2 * 8;
          if (t < seen_from[key] || t >= seen_until[key]) scores[n][i] = -infinity;
        }
        highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
      }
    }
    queue.drop(count);
    raise_largest(largest, highest, sum, weighted);
#pragma unroll
    for (int k = 0; k < tile_keys / 16; k++) {
      SplitOperand<2> weights = softmax_weights<number>(scores + 2 * k, largest, sum);
      SplitOperand<parts> b;
#pragma unroll
      for (int n = 0; n < depth / 16; n++) {
        load_right<true>(b, values.at(16 * k, 16 * n));
        multiply_add<number>(weighted + 2 * n, weights, b);
      }
    }
  }
#pragma unroll
  for (int row = 0; row < 2; row++) {
    for (int distance = 1; distance < 4; distance *= 2) sum[row] += __shfl_xor_sync(all_lanes, sum[row], distance);
    int t = token + 8 * row;
    if (t > last_token) continue;
    if (a.sinks) sum[row] += exp2f(log2_e * a.sinks[head] - largest[row]);
    float* out = a.out.token(t) + head * dim;
#pragma unroll
    for (int n = 0; n < depth / 8; n++) {
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int column = 8 * n + lane_index() % 4 * 2 + i;
        if (column < dim) out[column] = weighted[n][2 * row + i] / sum[row];
      }
    }
  }
}
