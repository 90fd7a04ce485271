// Native sparse attention. `stage_blocks` rounds the chunk's keys and values as they will be cached and averages the
// blocks that the chunk completes, `attend_blocks` computes the queries side by side, `cache_blocks` writes the state.

struct Blocks {
  Rows q, k, v, gates, out;
  void* keys;
  void* values;
  void* mean_keys;
  void* mean_values;
  // The chunk's keys and values `[kv_heads, chunk, head_dim]` and the means of the blocks that it completes
  // `[kv_heads, chunk / block + 1, head_dim]`, each twice.
  void* staged;
  void* staged_means;
  // A row for each block of threads.
  float* importance;
  // Where other kernels attend to them: the chosen blocks of each token and key head, from the first in view on, and then their
  // count.
  int* picked;
  float scale;
  int heads;
  int kv_heads;
  int block;
  int chosen;
  int window;
  // Of the cached keys and of the means.
  int rows;
  int blocks;
  int chunk;
};

// A key head's keys or values by position: cached before the chunk, or of the chunk.
template <class E>
struct Positions {
  const E* cached;
  const E* staged;
  long long start;
  int rows;
  int dim;
  __device__ const E* at(long long p) const {
    return p < start ? cached + (long long)((u64)p % rows) * dim : staged + (p - start) * dim;
  }
};

// Which of a block's parts: its keys and values, those of one key head.
template <class E>
__device__ Positions<E> positions_of(const Blocks& b, int kv_head, int which, long long start, int dim) {
  const E* cached = reinterpret_cast<const E*>(which == 0 ? b.keys : b.values);
  const E* staged = reinterpret_cast<const E*>(b.staged) + (long long)which * b.kv_heads * b.chunk * dim;
  return {cached + (long long)kv_head * b.rows * dim, staged + (long long)kv_head * b.chunk * dim, start, b.rows, dim};
}

// The same of the means, by the number of the block.
template <class E>
__device__ Positions<E> means_of(const Blocks& b, int kv_head, int which, long long start, int dim) {
  const E* cached = reinterpret_cast<const E*>(which == 0 ? b.mean_keys : b.mean_values);
  int room = b.chunk / b.block + 1;
  const E* staged = reinterpret_cast<const E*>(b.staged_means) + (long long)which * b.kv_heads * room * dim;
  return {cached + (long long)kv_head * b.blocks * dim, staged + (long long)kv_head * room * dim, start / b.block,
          b.blocks, dim};
}

// What token t of the chunk sees: positions `oldest..end`, and blocks from `first` to its own, `current`.
struct InView {
  long long oldest, end, first, current;
};

__device__ inline InView in_view(const Blocks& b, long long start, int t) {
  long long end = start + t + 1, oldest = end > b.rows ? end - b.rows : 0;
  long long current = (end - 1) / b.block, first = (oldest + b.block - 1) / b.block;
  return {oldest, end, first > current ? current : first, current};
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

// Entries by number: those from `first` on, or those of the chosen blocks one after another.
template <class E>
struct Listed {
  using Value = E;
  Positions<E> keys;
  Positions<E> values;
  long long first;
  // The entries in view; a block may reach beyond them.
  long long oldest;
  long long last;
  const int* chosen;
  int block;
  __device__ long long position(int i) const {
    return chosen ? first + (long long)chosen[i / block] * block + i % block : first + i;
  }
  __device__ const E* key(int i) const { return keys.at(position(i) < last ? position(i) : last); }
  __device__ const E* value(int i) const { return values.at(position(i) < last ? position(i) : last); }
};

// The first of the highest of `count` numbers, in every thread. Numbers that are not above minus infinity are passed over.
__device__ inline int first_highest(const float* numbers, int count) {
  __shared__ float highest[32];
  __shared__ int places[32];
  float high = -infinity;
  int place = count;
  auto take = [&](float number, int at) {
    if (number > high || (number == high && at < place)) high = number, place = at;
  };
  for (int i = threadIdx.x; i < count; i += blockDim.x) take(numbers[i], i);
  for (int distance = 16; distance > 0; distance /= 2) {
    float number = __shfl_xor_sync(all_lanes, high, distance);
    take(number, __shfl_xor_sync(all_lanes, place, distance));
  }
  __syncthreads();
  if (lane_index() == 0) {
    highest[warp_index()] = high;
    places[warp_index()] = place;
  }
  __syncthreads();
  for (int warp = 0; warp < (int)blockDim.x / 32; warp++) take(highest[warp], places[warp]);
  return place;
}

// Blocks take pairs of a token and a key head in turn. Shared memory: what `merge` needs; the largest score and the sum
// over the means for each query head of the group; the chosen blocks. `picks`: only the means, and the choice.
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
    long long end = view.end, oldest = view.oldest, current = view.current, first = view.first;
    int complete = end / b.block > first ? (int)(end / b.block - first) : 0, count = (int)(current - first) + 1;

    Listed<E> means = {means_of<E>(b, kv_head, 0, start, dim), means_of<E>(b, kv_head, 1, start, dim), first, first,
                       current, nullptr, 1};
    Listed<E> cached = {positions_of<E>(b, kv_head, 0, start, dim), positions_of<E>(b, kv_head, 1, start, dim), oldest,
                        oldest, end - 1, nullptr, b.block};
    Queries queries;
    // A branch of some heads; the first one sets the output.
    auto branch = [&](int part, int number, const Listed<E>& keys, int count) {
      int first_head = kv_head * group + part;
      queries.clear();
#pragma unroll
      for (int g = 0; g < heads; g++) queries.load_query(g, b.q.token(t) + (first_head + g) * dim);
      queries.add(0, count, keys, b.scale, [&](int i, int) {
        long long p = keys.position(i);
        return p >= keys.oldest && p <= keys.last;
      });
      queries.merge(merged, [&](int g, int i, float largest, float sum, float weighted) {
        float* out = b.out.token(t) + (first_head + g) * dim + i;
        // No key has passed: not so for a NaN, which must show.
        float share = sum != 0.0f ? b.gates.token(t)[(first_head + g) * 3 + number] / sum * weighted : 0.0f;
        *out = number == 0 ? share : *out + share;
        if (number == 0 && i == 0) {
          totals[(part + g) * 2] = largest;
          totals[(part + g) * 2 + 1] = sum;
        }
      });
    };
    for (int part = 0; part < group; part += heads) {
      branch(part, 0, means, complete);
    }
    __syncthreads();

    for (int part = 0; part < group; part += heads) {
#pragma unroll
      for (int g = 0; g < heads; g++) queries.load_query(g, b.q.token(t) + (kv_head * group + part + g) * dim);
      int own = warp_index() * Queries::keys_of_warp + lane_index() / Queries::lanes;
      for (int i = own; i - own < count; i += warps * Queries::keys_of_warp) {
        // Those that count as a full share; the last ones may have no mean yet.
        bool fixed = i == 0 || i >= count - 2;
        Piece<E, unit> key[Queries::pieces] = {};
        if (!fixed) Queries::load(means.key(i), key);
        float share = fixed || part == 0 ? 0.0f : importance[i];
#pragma unroll
        for (int g = 0; g < heads; g++) {
          float score = b.scale * Queries::over_lanes(queries.product(g, key));
          share += expf(score - totals[(part + g) * 2]) / totals[(part + g) * 2 + 1];
        }
        if (lane_index() % Queries::lanes == 0 && i < count) importance[i] = fixed ? group : share;
      }
      __syncthreads();
    }
    int taken = min(b.chosen, count);
    for (int n = 0; n < taken; n++) {
      int best = first_highest(importance, count);
      __syncthreads();
      if (threadIdx.x == 0) {
        chosen[n] = best < count ? best : 0;
        if (picks) b.picked[task * (b.chosen + 1) + n] = chosen[n];
        if (best < count) importance[best] = -infinity;
      }
      __syncthreads();
    }

    if constexpr (picks) {
      if (threadIdx.x == 0) b.picked[task * (b.chosen + 1) + b.chosen] = taken;
      continue;
    }
    Listed<E> blocks = cached;
    blocks.first = first * b.block;
    blocks.chosen = chosen;
    Listed<E> window = cached;
    window.first = end - b.window > oldest ? end - b.window : oldest;
    for (int part = 0; part < group; part += heads) {
      branch(part, 1, blocks, taken * b.block);
      branch(part, 2, window, (int)(end - window.first));
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
