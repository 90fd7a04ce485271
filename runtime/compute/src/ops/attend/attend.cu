// Attention over a circular segment of cached keys, the chunk itself and a capped set of retained tokens. A chunk takes three
// steps: `retain` (retain.cu) decides which tokens enter and leave the set, and when; `attend` computes all queries in parallel
// and hides each key from the queries after its removal; `cache` writes the state. `Attended` is in launch.rs.

constexpr int never = 0x7fffffff;

// The sum of a query head's softmax with its sink, which has a weight but no value.
__device__ inline float with_sink(const Attended& a, int head, float largest, float sum) {
  return a.sinks ? sum + expf(a.sinks[head] - largest) : sum;
}

// Stores value i of a query's softmax over part `split` of the keys, or over all keys.
template <int dim, int splits>
__device__ void store_attended(const Attended& a, int t, int head, int split, int i, float largest, float sum, float weighted) {
  if constexpr (splits == 1) {
    a.out.token(t)[head * dim + i] = weighted / with_sink(a, head, largest, sum);
  } else {
    float* entry = a.parts + (((long long)t * a.heads + head) * splits + split) * (dim + 2);
    entry[2 + i] = weighted;
    if (i == 0) {
      entry[0] = largest;
      entry[1] = sum;
    }
  }
}

// A thread block takes `heads` query heads of one key head, `tile` tokens, and one of `splits` equal parts of the keys. With
// `caches`, it also caches a single token without a set, in the row of a token that no query sees. Only the heads of a single
// token are divided among warps, and only its keys are split.
template <class E, int dim, int unit, int heads, int tile, bool retains, bool caches, int splits, int sharing>
__device__ void attend(const Attended& a, const u64* position, int tokens) {
  int group = a.heads / a.kv_heads;
  int split = blockIdx.x % splits, part = blockIdx.x / splits % (group / heads);
  int kv_head = blockIdx.x / splits / (group / heads);
  int first_head = kv_head * group + part * heads;
  int first_token = blockIdx.y * tile, last_token = min(first_token + tile, tokens) - 1;
  long long start = *position;
  auto token_of = [&](int g) { return min(first_token + g / heads, last_token); };

  using Queries = Softmaxes<E, dim, unit, heads * tile / sharing, sharing>;
  Queries softmaxes;
  softmaxes.clear();
#pragma unroll
  for (int own = 0; own < heads * tile / sharing; own++) {
    int g = Queries::first_query() + own;
    softmaxes.load_query(own, a.q.token(token_of(g)) + (first_head + g % heads) * dim);
  }

  // The positions of the segment, then the tokens of the chunk, that any of the queries may see.
  int cached = max(0, a.rows - (retains ? 0 : first_token + 1));
  if (cached > start) cached = (int)start;
  int before = a.rows - cached;
  int first_own = retains ? 0 : max(0, first_token + 1 - a.rows), own = last_token + 1 - first_own;
  int count = retains ? a.counts[kv_head] : 0;
  const int* until = a.until + kv_head * a.chunk;
  // Whether query token t still sees the token that chunk token `leaves` pushes out of the window.
  auto stays = [&](int leaves, int t) {
    if constexpr (retains) return leaves >= tokens || until[leaves] > t;
    return leaves > t;
  };

  int span = (count + cached + own + splits - 1) / splits;
  int low = split * span, high = min(low + span, count + cached + own);
  long long head_rows = (long long)kv_head * a.rows * dim;
  const E* keys = reinterpret_cast<const E*>(a.keys) + head_rows;
  const E* values = reinterpret_cast<const E*>(a.values) + head_rows;
  if constexpr (retains) {
    long long head_set = (long long)kv_head * a.capacity * dim;
    CachedRows<E> set = {reinterpret_cast<const E*>(a.set_keys) + head_set,
                         reinterpret_cast<const E*>(a.set_values) + head_set, dim, a.capacity, 0};
    const int* gone = a.gone + kv_head * a.capacity;
    softmaxes.add(low, min(high, count), set, a.scale, [&](int i, int g) { return gone[i] > token_of(g); });
  }
  CachedRows<E> segment = {keys, values, dim, a.rows, (int)((u64)(start - cached) % a.rows)};
  softmaxes.add(max(low - count, 0), min(high - count, cached), segment, a.scale,
                [&](int i, int g) { return stays(before + i, token_of(g)); });
  ChunkRows chunk = {a.k, a.v, kv_head * dim};
  int skipped = count + cached - first_own;
  constexpr bool single = caches || splits > 1 || sharing > 1;
  constexpr int keys_at_once = single ? 1 : Queries::keys_at_once;
  softmaxes.template add<keys_at_once>(max(low - skipped, first_own), high - skipped, chunk, a.scale, [&](int i, int g) {
    return i <= token_of(g) && stays(a.rows + i, token_of(g));
  });

  if constexpr (caches) {
    if (split == 0 && part == 0) {
      long long place = head_rows + (long long)((u64)start % a.rows) * dim;
      for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        reinterpret_cast<E*>(a.keys)[place + i] = E(a.k.token(0)[kv_head * dim + i]);
        reinterpret_cast<E*>(a.values)[place + i] = E(a.v.token(0)[kv_head * dim + i]);
      }
    }
  }
  softmaxes.merge(shared_memory<float>(), [&](int g, int i, float largest, float sum, float weighted) {
    if (first_token + g / heads > last_token) return;
    store_attended<dim, splits>(a, token_of(g), first_head + g % heads, split, i, largest, sum, weighted);
  });
}

// Value i of the head at x, rotated; `angles` holds sines, then cosines.
__device__ inline float rotated(const float* x, int i, const float* angles, int pairs) {
  if (i >= 2 * pairs) return x[i];
  int pair = i < pairs ? i : i - pairs;
  float a = x[pair], b = x[pair + pairs], sine = angles[pair], cosine = angles[pair + pairs];
  return i < pairs ? a * cosine - b * sine : b * cosine + a * sine;
}

// A single token with a set. The visible tokens occupy the same rows whatever the set retains, so tiles of them are copied to
// shared memory, the first tile while earlier kernels finish. Queries and keys are rotated as they are loaded; the thread block
// that reads the token's own key stores this key and its value for `cache`.
template <class E, int dim, int unit, int heads, int splits, int sharing, int tile>
__device__ void attend_retained(const Attended& a, const u64* position) {
  constexpr int pieces = dim / unit;
  int group = a.heads / a.kv_heads;
  int split = blockIdx.x % splits, part = blockIdx.x / splits % (group / heads);
  int kv_head = blockIdx.x / splits / (group / heads);
  int first_head = kv_head * group + part * heads;
  long long start = *position;
  int cached = start < a.rows ? (int)start : a.rows, before = a.rows - cached, all = a.capacity + cached;
  auto rows = [&](const void* keys, const void* values, int rows, int first) {
    long long head = (long long)kv_head * rows * dim;
    return CachedRows<E>{reinterpret_cast<const E*>(keys) + head, reinterpret_cast<const E*>(values) + head, dim, rows, first};
  };
  CachedRows<E> set = rows(a.set_keys, a.set_values, a.capacity, 0);
  CachedRows<E> segment = rows(a.keys, a.values, a.rows, (int)((u64)(start - cached) % a.rows));
  const int* gone = a.gone + kv_head * a.capacity;

  E *keys = shared_memory<E>(), *values = keys + tile * dim;
  int* seen = reinterpret_cast<int*>(values + tile * dim);
  float *queries = reinterpret_cast<float*>(seen + tile), *angles = queries + heads * dim;
  using Queries = Softmaxes<E, dim, unit, heads / sharing, sharing>;
  Queries softmaxes;
  softmaxes.clear();
  int pairs = a.from.pairs;
  for (int i = threadIdx.x; i < pairs; i += blockDim.x) {
    float sine, cosine;
    sincosf((float)start * a.from.frequencies[i], &sine, &cosine);
    angles[i] = sine * a.from.magnitude;
    angles[i + pairs] = cosine * a.from.magnitude;
  }
  // The token's own key follows the cached ones.
  int span = all / splits + 1, low = split * span, high = min(low + span, all + 1), count = 0;
  bool stays = false;
#pragma unroll 1
  for (int first = low; first < high || first == low; first += tile) {
    int n = max(min(tile, high - first), 0), of_cache = max(min(n, all - first), 0);
    if (first > low) __syncthreads();
#pragma unroll 4
    for (int i = threadIdx.x; i < of_cache * pieces; i += blockDim.x) {
      int row = first + i / pieces, column = i % pieces * unit;
      const CachedRows<E>& source = row < a.capacity ? set : segment;
      long long from = source.place(row < a.capacity ? row : row - a.capacity) + column;
      Piece<E, unit> key, value;
      key.load(source.keys + from);
      value.load(source.values + from);
      key.store(keys + i * unit);
      value.store(values + i * unit);
    }
    if (first == low) {
      wait_for_dependencies();
      launch_dependents();
      for (int i = threadIdx.x; i < heads * dim; i += blockDim.x) {
        queries[i] = rotated(a.from.columns[0].first + (first_head + i / dim) * dim, i % dim, angles, pairs);
      }
      count = a.counts[kv_head];
      stays = a.until[kv_head] > 0;
    }
    for (int i = threadIdx.x; i < n; i += blockDim.x) {
      int row = first + i, own = row - a.capacity;
      // In the segment, the token may have pushed the oldest one out of the window.
      seen[i] = own < 0 ? (row < count) & (gone[row] > 0) : stays | (before + own > 0);
    }
    if (of_cache < n) {
      for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        int column = kv_head * dim + i;
        float key = rotated(a.from.columns[1].first + column - i, i, angles, pairs), value = a.from.columns[2].first[column];
        keys[of_cache * dim + i] = E(key);
        values[of_cache * dim + i] = E(value);
        if (pairs > 0 && part == 0) {
          a.k.first[column] = key;
          a.v.first[column] = value;
        }
      }
    }
    __syncthreads();
    if (first == low) {
#pragma unroll
      for (int own = 0; own < heads / sharing; own++) {
        softmaxes.load_query(own, queries + (Queries::first_query() + own) * dim);
      }
    }
    CachedRows<E> near = {keys, values, dim, tile, 0};
    softmaxes.template add<2>(0, n, near, a.scale, [&](int i, int) { return seen[i] != 0; });
  }
  softmaxes.merge(shared_memory<float>(), [&](int g, int i, float largest, float sum, float weighted) {
    store_attended<dim, splits>(a, 0, first_head + g, split, i, largest, sum, weighted);
  });
}

// Writes the chunk's keys and values into the segment, and the retained tokens among those that they evict into the set. A
// thread block owns the row of token blockIdx.y; each thread owns columns.
template <class E, int dim, bool retains>
__device__ void cache(const Attended& a, const u64* position, int tokens) {
  int kv_head = blockIdx.x;
  if (blockIdx.y >= a.rows) return;
  u64 start = *position;
  int row = (int)((start + blockIdx.y) % a.rows);
  long long place = ((long long)kv_head * a.rows + row) * dim;
  E* segments[2] = {reinterpret_cast<E*>(a.keys) + place, reinterpret_cast<E*>(a.values) + place};
  E* sets[2] = {reinterpret_cast<E*>(a.set_keys), reinterpret_cast<E*>(a.set_values)};
  for (int which = 0; which < 2; which++) {
    Rows rows = which == 0 ? a.k : a.v;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
      E last = segments[which][i];
      for (int t = blockIdx.y; t < tokens; t += a.rows) {
        if constexpr (retains) {
          int at = kv_head * a.chunk + t;
          if (a.until[at] == never) sets[which][((long long)kv_head * a.capacity + a.taken[at]) * dim + i] = last;
        }
        last = E(rows.token(t)[kv_head * dim + i]);
      }
      segments[which][i] = last;
    }
  }
}

// Combines the partial softmaxes of each head of a single token and, if there is a set, caches the token.
template <class E, int dim, int splits, bool retains>
__device__ void combine_parts(const Attended& a, const u64* position, int tokens) {
  const float* parts = a.parts + ((long long)blockIdx.y * a.heads + blockIdx.x) * splits * (dim + 2);
  float* out = a.out.token(blockIdx.y) + blockIdx.x * dim;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    Softmaxes<float, dim, 1, 1>::merge_entries(parts, splits, dim + 2, i,
                                               [&](float largest, float sum, float x) {
                                                 out[i] = x / with_sink(a, blockIdx.x, largest, sum);
                                               });
  }
  if (retains && (int)blockIdx.x < a.kv_heads) cache<E, dim, retains>(a, position, tokens);
}
