// Native sparse attention. `stage_blocks` rounds the chunk's keys and values as they will be cached and averages the blocks that
// the chunk completes, `attend_blocks` computes the queries of a chunk in parallel, `cache_blocks` writes the state. `Blocks` is
// in launch.rs.

// A key head's keys or values by position, either cached before the chunk or part of the chunk.
template <class E>
struct Positions {
  const E* cached;
  const E* staged;
  long long start;
  int rows;
  int dim;
  // The oldest visible position, and its row: a division for each row would cost more than everything else.
  long long base;
  int base_row;
  __device__ Positions(const E* cached, const E* staged, long long start, int rows, int dim)
      : cached(cached), staged(staged), start(start), rows(rows), dim(dim), base(start > rows ? start - rows : 0),
        base_row((int)((u64)base % rows)) {}
  __device__ const E* at(long long p) const {
    if (p >= start) return staged + (p - start) * dim;
    int row = base_row + (int)(p - base);
    return cached + (long long)(row >= rows ? row - rows : row) * dim;
  }
};

// The keys (`which` is 0) or values (1) of one key head.
template <class E>
__device__ Positions<E> positions_of(const Blocks& b, int kv_head, int which, long long start, int dim) {
  const E* cached = reinterpret_cast<const E*>(which == 0 ? b.keys : b.values);
  const E* staged = reinterpret_cast<const E*>(b.staged) + (long long)which * b.kv_heads * b.chunk * dim;
  return {cached + (long long)kv_head * b.rows * dim, staged + (long long)kv_head * b.chunk * dim, start, b.rows, dim};
}

// The mean keys or values of one key head, by block number.
template <class E>
__device__ Positions<E> means_of(const Blocks& b, int kv_head, int which, long long start, int dim) {
  const E* cached = reinterpret_cast<const E*>(which == 0 ? b.mean_keys : b.mean_values);
  int room = b.chunk / b.block + 1;
  const E* staged = reinterpret_cast<const E*>(b.staged_means) + (long long)which * b.kv_heads * room * dim;
  return {cached + (long long)kv_head * b.blocks * dim, staged + (long long)kv_head * room * dim, start / b.block,
          b.blocks, dim};
}

// The visible range of token t of the chunk: positions `oldest..end`, and `count` blocks from `first` to the token's block
// `current`, of which the first `complete` have means.
struct InView {
  long long oldest, end, first, current;
  int complete, count;
};

__device__ inline InView in_view(const Blocks& b, long long start, int t) {
  long long end = start + t + 1, oldest = end > b.rows ? end - b.rows : 0;
  long long current = (end - 1) / b.block, first = (oldest + b.block - 1) / b.block;
  if (first > current) first = current;
  int complete = end / b.block > first ? (int)(end / b.block - first) : 0;
  return {oldest, end, first, current, complete, (int)(current - first) + 1};
}

template <class E, int dim>
__device__ void stage_blocks(Blocks b, const u64* position) {
  int kv_head = blockIdx.x, t = blockIdx.y;
  long long start = *position, end = start + t + 1;
  for (int which = 0; which < 2; which++) {
    Rows rows = which == 0 ? b.k : b.v;
    auto own = positions_of<E>(b, kv_head, which, start, dim);
    auto means = means_of<E>(b, kv_head, which, start, dim);
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
      const_cast<E*>(own.at(start + t))[i] = E(rows.token(t)[kv_head * dim + i]);
      if (end % b.block != 0) continue;
      float sum = 0.0f;
      // A block longer than the cache has no mean.
      for (long long p = end - b.block; b.block <= b.rows && p < end; p++) {
        sum += p < start ? float_of(own.at(p)[i]) : float_of(E(rows.token(p - start)[kv_head * dim + i]));
      }
      const_cast<E*>(means.at(end / b.block - 1))[i] = E(sum * (1.0f / b.block));
    }
  }
}

// Entries by number: from position `first` on, or the tokens of the chosen blocks, one block after another.
template <class E>
struct Listed {
  using Value = E;
  Positions<E> keys;
  Positions<E> values;
  long long first;
  // The range of visible entries; a block may reach beyond it.
  long long oldest;
  long long last;
  const int* chosen;
  int block;
  __device__ long long position(int i) const {
    return chosen ? first + (long long)chosen[i / block] * block + i % block : first + i;
  }
  __device__ bool sees(int i) const {
    long long p = position(i);
    return p >= oldest && p <= last;
  }
  __device__ long long near(int i) const {
    long long p = position(i);
    return p > last ? last : p < oldest ? oldest : p;
  }
  __device__ const E* key(int i) const { return keys.at(near(i)); }
  __device__ const E* value(int i) const { return values.at(near(i)); }

  // The tokens of the chosen blocks, which are numbered from the first block in view.
  __device__ Listed of_blocks(const InView& view, const int* chosen) const {
    Listed list = *this;
    list.first = view.first * block;
    list.chosen = chosen;
    return list;
  }
  __device__ Listed of_window(const InView& view, int window) const {
    Listed list = *this;
    list.first = view.end - window > oldest ? view.end - window : oldest;
    return list;
  }
};

template <class E, int dim>
__device__ Listed<E> listed_means(const Blocks& b, int kv_head, long long start, const InView& view) {
  return {means_of<E>(b, kv_head, 0, start, dim), means_of<E>(b, kv_head, 1, start, dim), view.first, view.first,
          view.current, nullptr, 1};
}

template <class E, int dim>
__device__ Listed<E> listed_tokens(const Blocks& b, int kv_head, long long start, const InView& view) {
  return {positions_of<E>(b, kv_head, 0, start, dim), positions_of<E>(b, kv_head, 1, start, dim), view.oldest,
          view.oldest, view.end - 1, nullptr, b.block};
}

// The importance of blocks `from..to` of `count` for token t: the sum of each head's share, for which `totals` holds the head's
// largest score and the sum of all.
template <class Queries, int dim, int heads, class E>
__device__ void find_importance(const Blocks& b, int t, int kv_head, const Listed<E>& means, const float* totals, int from,
                                int to, int count, float* importance) {
  int group = b.heads / b.kv_heads, warps = blockDim.x / 32;
  int own = from + warp_index() * Queries::keys_of_warp + lane_index() / Queries::lanes;
  Queries queries;
  for (int part = 0; part < group; part += heads) {
#pragma unroll
    for (int g = 0; g < heads; g++) queries.load_query(g, b.q.token(t) + (kv_head * group + part + g) * dim);
    for (int i = own; i - own < to - from; i += warps * Queries::keys_of_warp) {
      // The first block and the last two count as a full share; the last two may have no mean yet.
      bool fixed = i == 0 || i >= count - 2, inside = i < to;
      typename Queries::Key key[Queries::pieces] = {};
      if (!fixed && inside) Queries::load(means.key(i), key);
      float share = fixed || !inside || part == 0 ? 0.0f : importance[i];
#pragma unroll
      for (int g = 0; g < heads; g++) {
        float score = b.scale * Queries::over_lanes(queries.product(g, key));
        share += expf(score - totals[(part + g) * 2]) / totals[(part + g) * 2 + 1];
      }
      if (lane_index() % Queries::lanes == 0 && inside) importance[i] = fixed ? group : share;
    }
    // Other lanes read these shares for the next heads.
    __syncthreads();
  }
}

// Writes the indices of the highest of `count` numbers, at most `most`, the first of equal numbers first; returns how many.
__device__ inline int choose_highest(const float* numbers, int count, int most, int* chosen) {
  __shared__ float highest[2][32];
  __shared__ int places[2][32];
  float high;
  int place;
  auto take = [&](float number, int at) {
    if (number > high || (number == high && at < place)) high = number, place = at;
  };
  // Finds this thread's highest of the numbers that rank after number `last`, whose value is `below`.
  auto find = [&](float below, int last) {
    high = -infinity, place = count;
    for (int i = threadIdx.x; i < count; i += blockDim.x) {
      float number = numbers[i];
      if (number < below || (number == below && i > last)) take(number, i);
    }
  };
  find(infinity, -1);
  int taken = min(most, count);
  for (int n = 0; n < taken; n++) {
    float own_high = high;
    int own = place;
    for (int distance = 16; distance > 0; distance /= 2) {
      float number = __shfl_xor_sync(all_lanes, high, distance);
      take(number, __shfl_xor_sync(all_lanes, place, distance));
    }
    // Two rows alternate. A warp that writes a row again has passed the other row's barrier, before which all warps read it.
    if (lane_index() == 0) highest[n % 2][warp_index()] = high, places[n % 2][warp_index()] = place;
    __syncthreads();
    for (int warp = 0; warp < (int)blockDim.x / 32; warp++) take(highest[n % 2][warp], places[n % 2][warp]);
    // Nothing is found only if all remaining numbers are NaN.
    if (threadIdx.x == 0) chosen[n] = place < count ? place : 0;
    if (place == own) {
      find(high, place);
    } else {
      high = own_high, place = own;
    }
  }
  __syncthreads();
  return taken;
}

// Thread blocks loop over pairs of a token and a key head. Shared memory: the data of `merge`; the largest score and the sum
// over the means for each query head of the group; the chosen blocks. `picks`: computes only the means and the choice.
template <class E, int dim, int unit, int heads, bool picks>
__device__ void attend_blocks(Blocks b, const u64* position, int tokens) {
  using Queries = Softmaxes<E, dim, unit, heads>;
  int group = b.heads / b.kv_heads, warps = blockDim.x / 32;
  float* merged = shared_memory<float>();
  float* totals = merged + warps * heads * (dim + 2);
  int* chosen = reinterpret_cast<int*>(totals + 2 * group);
  float* importance = b.importance + (long long)blockIdx.x * (b.blocks + 2);
  long long start = *position;
  for (int task = blockIdx.x; task < tokens * b.kv_heads; task += gridDim.x) {
    int t = task / b.kv_heads, kv_head = task % b.kv_heads;
    InView view = in_view(b, start, t);
    auto means = listed_means<E, dim>(b, kv_head, start, view);
    auto cached = listed_tokens<E, dim>(b, kv_head, start, view);
    Queries queries;
    // One branch for some heads; the first branch sets the output.
    auto branch = [&](int part, int number, const Listed<E>& keys, int count) {
      int first_head = kv_head * group + part;
      queries.clear();
#pragma unroll
      for (int g = 0; g < heads; g++) queries.load_query(g, b.q.token(t) + (first_head + g) * dim);
      queries.add(0, count, keys, b.scale, [&](int i, int) { return keys.sees(i); });
      queries.merge(merged, [&](int g, int i, float largest, float sum, float weighted) {
        float* out = b.out.token(t) + (first_head + g) * dim + i;
        // A sum of zero means that no key was added. A NaN passes the test and shows in the output.
        float share = sum != 0.0f ? b.gates.token(t)[(first_head + g) * 3 + number] / sum * weighted : 0.0f;
        *out = number == 0 ? share : *out + share;
        if (number == 0 && i == 0) {
          totals[(part + g) * 2] = largest;
          totals[(part + g) * 2 + 1] = sum;
        }
      });
    };
    for (int part = 0; part < group; part += heads) branch(part, 0, means, view.complete);
    __syncthreads();
    find_importance<Queries, dim, heads>(b, t, kv_head, means, totals, 0, view.count, view.count, importance);
    int taken = choose_highest(importance, view.count, b.chosen, chosen);
    if constexpr (picks) {
      int* picked = b.picked + task * (b.chosen + 1);
      for (int n = threadIdx.x; n < taken; n += blockDim.x) picked[n] = chosen[n];
      if (threadIdx.x == 0) picked[b.chosen] = taken;
    } else {
      auto window = cached.of_window(view, b.window);
      for (int part = 0; part < group; part += heads) {
        branch(part, 1, cached.of_blocks(view, chosen), taken * b.block);
        branch(part, 2, window, (int)(view.end - window.first));
      }
    }
    __syncthreads();
  }
}

template <class E, int dim>
__device__ void cache_blocks(Blocks b, const u64* position, int tokens) {
  int kv_head = blockIdx.x, t = blockIdx.y;
  long long start = *position, end = start + t + 1;
  long long completed = end / b.block - 1;
  bool last = t + b.rows >= tokens;
  bool completes = end % b.block == 0 && completed + b.blocks >= (start + tokens) / b.block && b.block <= b.rows;
  for (int which = 0; which < 2; which++) {
    auto own = positions_of<E>(b, kv_head, which, start, dim);
    auto means = means_of<E>(b, kv_head, which, start, dim);
    E* place = const_cast<E*>(own.cached) + (long long)((u64)(end - 1) % b.rows) * dim;
    E* mean = const_cast<E*>(means.cached) + (long long)((u64)completed % b.blocks) * dim;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
      if (last) place[i] = own.at(end - 1)[i];
      if (completes) mean[i] = means.at(completed)[i];
    }
  }
}
