// A step of sparse attention in parallel with a state-space model. `hax_choose` takes the key in one thread block and decides
// which rows it takes and which rows its query sees, with which weights. `hax_mix` applies that plan to the values, 32 channels
// per thread block. Both take several tokens one after another where a query sees more rows than chunks have room for.
// `HaxParts` is in launch.rs.

constexpr int most_sources = sizeof(HaxParts::at) / sizeof(HaxSource);

// Marks an entry of a plan without a visible row.
constexpr int none_seen = -1;

// A token's plan: the row that it takes in each source, the rows that its query sees, and their weights.
struct HaxPlan {
  int* taken;
  int* rows;
  float* weights;
  __device__ HaxPlan(const HaxParts& hax, int t) {
    taken = reinterpret_cast<int*>(hax.plan.token(t));
    rows = taken + hax.count;
    weights = hax.plan.token(t) + hax.count + hax.seen;
  }
};

// A token's key, scaled. The product is not fused with what follows: steps and chunks round here.
template <int width>
__device__ float hax_key(const HaxParts& hax, int t, int i) {
  return __fmul_rn(hax.k.token(t)[i], 1.0f / sqrtf((float)width));
}

// The mean of `count` values, from the mean of all but the last value x. The quotient, whose reciprocal is known, is rounded
// like a division: a first quotient, and the share of its remainder.
__device__ inline float hax_mean(float mean, float x, float count, float inverse) {
  float difference = x - mean, quotient = __fmul_rn(difference, inverse);
  return __fadd_rn(mean, fmaf(fmaf(-quotient, count, difference), inverse, quotient));
}

// One value for a query and one for a key.
template <class T>
struct HaxPair {
  T query, key;
};

// The bins of `tile` queries and keys; `query(t, i)` and `key(t, i)` return their values less the means. `x` has room for
// `[2 tile, width]`.
template <int width, int tile, class Query, class Key>
__device__ void hax_bins(const HaxSource& source, Query query, Key key, float* x, HaxPair<int> (&bins)[tile]) {
  // A bit for each positive product, or the largest product with its column.
  __shared__ u32 signs[2 * tile];
  __shared__ u64 largest[2 * tile];
  __syncthreads();
  if (threadIdx.x < 2 * tile) signs[threadIdx.x] = 0, largest[threadIdx.x] = 0;
  for (int n = threadIdx.x; n < tile * width; n += blockDim.x) {
    x[n] = query(n / width, n % width);
    x[tile * width + n] = key(n / width, n % width);
  }
  __syncthreads();
  for (int n = threadIdx.x; n < 2 * tile * source.columns; n += blockDim.x) {
    int row = n / source.columns, column = n % source.columns;
    float product = 0.0f;
    constexpr int some = width % 16 == 0 ? 16 : 1;
    for (int first = 0; first < width; first += some) {
      float weights[some];
#pragma unroll
      for (int i = 0; i < some; i++) weights[i] = source.weights[(first + i) * source.columns + column];
#pragma unroll
      for (int i = 0; i < some; i++) product += x[row * width + first + i] * weights[i];
    }
    // The addition removes the sign of a zero.
    if (source.kind == HAX_LARGEST) atomicMax(&largest[row], key_of(product + 0.0f, column));
    if (source.kind == HAX_SIGNS && product > 0.0f) atomicOr(&signs[row], 1u << column);
  }
  __syncthreads();
  for (int t = 0; t < tile; t++) {
    auto bin = [&](int row) { return source.kind == HAX_SIGNS ? (int)signs[row] : (int)~(u32)largest[row]; };
    bins[t] = {bin(t), bin(tile + t)};
  }
}

template <int count>
__device__ void load_row(const float* from, float (&values)[count]) {
  if constexpr (count % 4 == 0) {
#pragma unroll
    for (int n = 0; n < count; n += 4) {
      float4 four = *reinterpret_cast<const float4*>(from + n);
      values[n] = four.x, values[n + 1] = four.y, values[n + 2] = four.z, values[n + 3] = four.w;
    }
  } else {
#pragma unroll
    for (int n = 0; n < count; n++) values[n] = from[n];
  }
}

// The scores of `tile` keys, `key(t, i)`, given the mean queries, `mean_query(t, i)`; x and y have room for `[2 width, tile]` each.
template <int width, int tile, class Key, class Mean>
__device__ void hax_scores(const HaxSource& source, Key key, Mean mean_query, float* x, float* y, float (&scores)[tile]) {
  constexpr int n = 2 * width;
  for (int t = 0; t < tile; t++) {
    float squares = 0.0f;
    for (int i = threadIdx.x; i < width; i += blockDim.x) squares += mean_query(t, i) * mean_query(t, i);
    float inverse = 1.0f / fmaxf(sqrtf(block_sum(squares)), 1e-12f);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      x[i * tile + t] = key(t, i);
      x[(width + i) * tile + t] = mean_query(t, i) * inverse;
    }
  }
  for (int layer = 0; layer < 2; layer++) {
    const float* weights = layer == 0 ? source.weights : source.second_weights;
    const float* bias = layer == 0 ? source.bias : source.second_bias;
    __syncthreads();
    for (int j = threadIdx.x; j < n; j += blockDim.x) {
      float sums[tile];
      for (int t = 0; t < tile; t++) sums[t] = bias[j];
      // Weights are loaded together, as far as registers allow.
      constexpr int most = tile == 1 ? 32 : 8, some = n % most == 0 ? most : 2;
      for (int first = 0; first < n; first += some) {
        float loaded[some];
#pragma unroll
        for (int i = 0; i < some; i++) loaded[i] = weights[(first + i) * n + j];
#pragma unroll
        for (int i = 0; i < some; i++) {
          float inputs[tile];
          load_row<tile>(x + (first + i) * tile, inputs);
#pragma unroll
          for (int t = 0; t < tile; t++) sums[t] += inputs[t] * loaded[i];
        }
      }
      for (int t = 0; t < tile; t++) y[j * tile + t] = fmaxf(sums[t], 0.0f);
    }
    float* swapped = x;
    x = y;
    y = swapped;
  }
  __syncthreads();
  for (int t = 0; t < tile; t++) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < n; i += blockDim.x) sum += x[i * tile + t] * source.last[i];
    scores[t] = block_sum(sum) + source.last_bias;
  }
}

// The row of the lowest score; among equal scores, the newest.
struct HaxWorst {
  int row = -1;
  float score = infinity;
  u64 position = 0;

  __device__ void take(int other, float other_score, u64 other_position) {
    bool lower = row < 0 || other_score < score || (other_score == score && other_position > position);
    if (other >= 0 && lower) row = other, score = other_score, position = other_position;
  }

  // Searches `count` rows: thread `first` of `threads` examines every `threads`th row, and each lane gets the result of its warp.
  __device__ HaxWorst(const float* scores, const u64* positions, int count, int first, int threads) {
    for (int i = first; i < count; i += threads) take(i, scores[i], positions[i]);
    for (int distance = 16; distance > 0; distance /= 2) {
      int other = __shfl_xor_sync(all_lanes, row, distance);
      float other_score = __shfl_xor_sync(all_lanes, score, distance);
      take(other, other_score, __shfl_xor_sync(all_lanes, position, distance));
    }
  }
};

// The worst row over all threads of a block, in every thread.
__device__ inline int hax_worst(const float* scores, const u64* positions, int count) {
  __shared__ int rows[32];
  HaxWorst worst(scores, positions, count, threadIdx.x, blockDim.x);
  __syncthreads();
  if (lane_index() == 0) rows[warp_index()] = worst.row;
  __syncthreads();
  for (int warp = 0; warp < (int)blockDim.x / 32; warp++) {
    int row = rows[warp];
    if (row >= 0) worst.take(row, scores[row], positions[row]);
  }
  return worst.row;
}

// The weights of the rows that a query sees: softmax of its products with their keys, `key(row, i)`.
template <int width, class Key>
__device__ void hax_weigh(const HaxParts& hax, const HaxPlan& plan, const float* query, Key key) {
  // Several rows at once, so that their loads overlap.
  constexpr int some = 4;
  for (int first = warp_index() * some; first < hax.seen; first += blockDim.x / 32 * some) {
    int rows[some];
    float products[some] = {};
#pragma unroll
    for (int n = 0; n < some; n++) rows[n] = first + n < hax.seen ? plan.rows[first + n] : none_seen;
#pragma unroll
    for (int n = 0; n < some; n++) {
      for (int i = lane_index(); i < width && rows[n] != none_seen; i += 32) products[n] += query[i] * key(rows[n], i);
    }
#pragma unroll
    for (int n = 0; n < some; n++) {
      float product = warp_sum(products[n]);
      if (lane_index() == 0 && first + n < hax.seen) plan.weights[first + n] = rows[n] == none_seen ? -infinity : product;
    }
  }
  __syncthreads();
  float largest = -infinity, sum = 0.0f;
  for (int entry = threadIdx.x; entry < hax.seen; entry += blockDim.x) largest = fmaxf(largest, plan.weights[entry]);
  largest = block_max(largest);
  for (int entry = threadIdx.x; entry < hax.seen; entry += blockDim.x) {
    if (plan.rows[entry] != none_seen) sum += expf(plan.weights[entry] - largest);
  }
  sum = block_sum(sum);
  for (int entry = threadIdx.x; entry < hax.seen; entry += blockDim.x) {
    if (plan.rows[entry] != none_seen) plan.weights[entry] = expf(plan.weights[entry] - largest) * (1.0f / sum);
  }
}

// Shared memory: a key and two rows of twice its width.
template <class E, int width>
__device__ void hax_choose(HaxParts hax, const u64* start, int tokens) {
  __shared__ int firsts[most_sources];
  float* key = shared_memory<float>();
  float* x = key + width;
  float* y = x + 2 * width;
  float* mean_key = hax.means;
  float* mean_query = hax.means + width;
  E* keys = reinterpret_cast<E*>(hax.keys);
  for (int t = 0; t < tokens; t++) {
    u64 position = *start + t;
    const float* query = hax.q.token(t);
    HaxPlan plan(hax, t);
    float count = (float)(position + 1);
    for (int i = threadIdx.x; i < width; i += blockDim.x) {
      key[i] = hax_key<width>(hax, t, i);
      mean_key[i] = hax_mean(mean_key[i], key[i], count, 1.0f / count);
      mean_query[i] = hax_mean(mean_query[i], query[i], count, 1.0f / count);
    }
    __syncthreads();

    for (int s = 0; s < hax.count; s++) {
      const HaxSource& source = hax.at[s];
      u64* positions = hax.positions + source.first;
      int row = -1, first = 0;
      float score = 0.0f;
      u64 every = (u64)source.every;
      if (source.kind == HAX_WINDOW) {
        row = (int)(position % source.rows);
      } else if (source.kind == HAX_SINK) {
        if (position < (u64)source.rows) row = (int)position;
      } else if (source.kind == HAX_DILATED) {
        if (position % every == every - 1) row = (int)(position / every % source.rows);
      } else if (source.kind == HAX_BEST) {
        float scores[1];
        auto of_key = [&](int, int i) { return key[i]; };
        auto of_query = [&](int, int i) { return mean_query[i]; };
        hax_scores<width>(source, of_key, of_query, x, y, scores);
        score = scores[0];
        if (position < (u64)source.rows) {
          row = (int)position;
        } else {
          int worst = hax_worst(hax.scores, positions, source.rows);
          if (hax.scores[worst] < score) row = worst;
        }
      } else {
        HaxPair<int> bins[1];
        auto of_query = [&](int, int i) { return query[i] - mean_query[i]; };
        auto of_key = [&](int, int i) { return key[i] - mean_key[i]; };
        hax_bins<width>(source, of_query, of_key, x, bins);
        first = bins[0].query * source.rows;
        row = bins[0].key * source.rows + (int)hax.cursors[bins[0].key];
      }
      // The writes below change data that all threads have read.
      __syncthreads();
      if (threadIdx.x == 0) {
        plan.taken[s] = row < 0 ? -1 : source.first + row;
        firsts[s] = source.first + first;
        if (row >= 0) positions[row] = position + 1;
        if (row >= 0 && source.kind == HAX_BEST) hax.scores[row] = score;
        if (source.kind == HAX_SIGNS || source.kind == HAX_LARGEST) {
          hax.cursors[row / source.rows] = (row + 1) % source.rows;
        }
      }
      for (int i = threadIdx.x; i < width && row >= 0; i += blockDim.x) {
        keys[(long long)(source.first + row) * width + i] = E(key[i]);
      }
    }
    __syncthreads();

    // A row is not seen if it is empty, or if an earlier source has its token.
    for (int s = 0, entry = 0; s < hax.count; entry += hax.at[s++].rows) {
      for (int i = threadIdx.x; i < hax.at[s].rows; i += blockDim.x) {
        u64 own = hax.positions[firsts[s] + i];
        bool sees = own != 0;
        for (int other = 0; other < s; other++) {
#pragma unroll 8
          for (int j = 0; j < hax.at[other].rows; j++) sees &= hax.positions[firsts[other] + j] != own;
        }
        plan.rows[entry + i] = sees ? firsts[s] + i : none_seen;
      }
    }
    __syncthreads();
    hax_weigh<width>(hax, plan, query, [&](int row, int i) { return float_of(keys[(long long)row * width + i]); });
    __syncthreads();
  }
}

constexpr int mix_warps = 8;

// The `mix_warps` warps of a block divide the rows that a query sees.
template <class E, int channels>
__device__ void hax_mix(HaxParts hax, int tokens) {
  __shared__ float sums[mix_warps][32];
  constexpr int warps = mix_warps;
  int channel = blockIdx.x * 32 + lane_index();
  bool used = channel < channels;
  E* values = reinterpret_cast<E*>(hax.values) + channel;
  for (int t = 0; t < tokens; t++) {
    HaxPlan plan(hax, t);
    for (int s = warp_index(); s < hax.count; s += warps) {
      int row = plan.taken[s];
      if (row >= 0 && used) values[(long long)row * channels] = E(hax.v.token(t)[channel]);
    }
    __syncthreads();
    float sum = 0.0f;
#pragma unroll 4
    for (int entry = warp_index(); entry < hax.seen; entry += warps) {
      int row = plan.rows[entry];
      if (row >= 0 && used) sum += plan.weights[entry] * float_of(values[(long long)row * channels]);
    }
    sums[warp_index()][lane_index()] = sum;
    __syncthreads();
    if (warp_index() == 0 && used) {
      for (int warp = 1; warp < warps; warp++) sum += sums[warp][lane_index()];
      hax.out.token(t)[channel] = sum;
    }
  }
}
