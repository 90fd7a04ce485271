// Attention of chunks over a cache in f32, or whose heads are not of whole pieces of 16 bytes: a thread block takes one query head of 64
// tokens over the retained tokens, the cached segment and the chunk, 64 keys at a time; each warp has 16 of the tokens. Scores and sums are
// f32, all operands are split into two bf16 terms. attend_chunk.cu has the other caches.

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
  // Key or value number i of an f16 cache, with the chunk's in `own_keys` and `own_values`.
  __device__ const E* row(int which, int i) const {
    if (i < count + cached) return cached_row(which, i);
    const void* own = which == 0 ? a.own_keys : a.own_values;
    return reinterpret_cast<const E*>(own) + ((long long)kv_head * tokens + from(i)) * dim;
  }
};

// The numbers of the keys that any token of a tile sees, in order: with a retained set, most keys have left the window and were
// not retained. All threads of a thread block take part, at most two for each of its queries.
template <int queries>
struct SeenQueue {
  // More than a tile's keys plus a block's threads, and small enough for four thread blocks to share an SM.
  static constexpr int room = 4 * queries;
  static constexpr int most_warps = queries / 16;
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
    __shared__ int of_warps[most_warps];
    while (waiting < wanted && next < seen.total) {
      int i = next + threadIdx.x, until = i < seen.total ? seen.until(i) : 0;
      bool sees = until > first_token && seen.from(i) <= last_token;
      u32 votes = __ballot_sync(all_lanes, sees);
      if (lane_index() == 0) of_warps[warp_index()] = __popc(votes);
      __syncthreads();
      int place = first + waiting + __popc(votes & ((1u << lane_index()) - 1));
      for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
        if (warp < warp_index()) place += of_warps[warp];
        waiting += of_warps[warp];
      }
      if (sees) {
        numbers()[place % room] = i;
        untils()[place % room] = (u16)min(until - first_token, queries);
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

template <class E, int dim, bool retains, bool aligned>
__device__ void attend_tiles(Attended a, const u64* position, int tokens) {
  constexpr int depth = (dim + 15) / 16 * 16, pitch = depth + 8, part = tile_keys * pitch;
  // Groups of eight columns in a row of a tile.
  constexpr int pieces = tile_keys * depth / 8;
  __shared__ int seen_from[tile_keys], seen_until[tile_keys];
  u16* room = shared_memory<u16>();
  SplitTile<2> queries = {room, part, pitch}, keys = {room + 2 * part, part, pitch}, values = {room + 4 * part, part, pitch};
  int head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads);
  int first_token = blockIdx.y * tile_queries, last_token = min(first_token + tile_queries, tokens) - 1;
  SeenKeys<E, dim, retains, aligned> seen(a, *position, tokens, kv_head, first_token, last_token);
  store_queries<dim, depth, tile_queries>(queries, a, head, first_token, last_token);

  int warp_row = warp_index() * 16, token = first_token + warp_row + lane_index() / 4;
  float weighted[depth / 8][4] = {}, largest[2] = {no_score, no_score}, sum[2] = {};
  SeenQueue<tile_queries> queue;
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
      float x[8] = {};
      if (row < count) seen.load(which, key, column, x);
      store_eight(which == 0 ? keys : values, row, column, x);
    }
    __syncthreads();

    float scores[tile_keys / 8][4] = {};
#pragma unroll 1
    for (int k = 0; k < depth; k += 16) {
      SplitOperand<2> q, b;
      load_left<false>(q, queries.at(warp_row, k));
#pragma unroll
      for (int n = 0; n < tile_keys / 16; n++) {
        load_right<false>(b, keys.at(16 * n, k));
        multiply_add(scores + 2 * n, q, b);
      }
    }
    float highest[2] = {largest[0], largest[1]};
#pragma unroll
    for (int n = 0; n < tile_keys / 8; n++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        scores[n][i] *= log2_e * a.scale;
        if (!all) {
          int key = 8 * n + lane_index() % 4 * 2 + i % 2, t = token + i / 2 * 8;
          if (t < seen_from[key] || t >= seen_until[key]) scores[n][i] = -infinity;
        }
        highest[i / 2] = fmaxf(highest[i / 2], scores[n][i]);
      }
    }
    if constexpr (retains) queue.drop(count);
    raise_largest(largest, highest, sum, weighted);
#pragma unroll
    for (int k = 0; k < tile_keys / 16; k++) {
      SplitOperand<2> b, weights = softmax_weights(scores + 2 * k, largest, sum);
#pragma unroll
      for (int n = 0; n < depth / 16; n++) {
        load_right<true>(b, values.at(16 * k, 16 * n));
        multiply_add(weighted + 2 * n, weights, b);
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
