// Sparse attention in parallel with a state-space model, a step. `hax_choose` takes the key in one block: which rows it
// takes, which rows its query sees, with which weights. `hax_mix` follows that plan with the values, 32 channels a block.
// Both take several tokens one after another where a query sees more rows than chunks have room for.

enum { HAX_WINDOW, HAX_SINK, HAX_DILATED, HAX_SIGNS, HAX_LARGEST, HAX_BEST };

struct HaxSource {
  // Weights of the hash `[width, columns]`, or of the scorer's layers, transposed `[2 width, 2
  // width]`.
  const float* weights;
  const float* second_weights;
  const float* bias;
  const float* second_bias;
  const float* last;
  float last_bias;
  int kind;
  // Its first row, and the rows that a query sees.
  int first;
  int rows;
  int every;
  int columns;
};

constexpr int most_sources = 8;

struct HaxParts {
  Rows k, q, v, plan, out;
  void* keys;
  void* values;
  u64* positions;
  float* means;
  u32* cursors;
  float* scores;
  int count;
  // Rows that a query sees at most.
  int seen;
  HaxSource at[most_sources];
};

// A query sees nothing there.
constexpr int none_seen = -1;

// A token's plan: the row that it takes in each source, the rows that its query sees, their weights.
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

// A token's key, scaled. Not fused with what follows: steps and chunks round here.
template <int width>
__device__ float hax_key(const HaxParts& hax, int t, int i) {
  return __fmul_rn(hax.k.token(t)[i], 1.0f / sqrtf((float)width));
}

// A value for the query and one for the key.
template <class T>
struct HaxPair {
  T query, key;
};

// The bins of a query and a key, each less its mean; `products` has room for two of each column. Begins with a barrier.
template <int width>
__device__ HaxPair<int> hax_bins(const HaxSource& source, HaxPair<const float*> x, HaxPair<const float*> mean, float* products) {
  HaxPair<float*> sums = {products, products + source.columns};
  __syncthreads();
  for (int r = threadIdx.x; r < source.columns; r += blockDim.x) {
    float query = 0.0f, key = 0.0f;
#pragma unroll 32
    for (int i = 0; i < width; i++) {
      float weight = source.weights[i * source.columns + r];
      query += (x.query[i] - mean.query[i]) * weight;
      key += (x.key[i] - mean.key[i]) * weight;
    }
    sums.query[r] = query;
    sums.key[r] = key;
  }
  __syncthreads();
  HaxPair<int> bins = {0, 0};
  for (int r = 0; r < source.columns; r++) {
    if (source.kind == HAX_SIGNS) {
      bins.query |= (sums.query[r] > 0.0f) << r;
      bins.key |= (sums.key[r] > 0.0f) << r;
    } else {
      if (sums.query[r] > sums.query[bins.query]) bins.query = r;
      if (sums.key[r] > sums.key[bins.key]) bins.key = r;
    }
  }
  return bins;
}

// The scores of `tile` keys, `key(t, i)`, given the mean queries, `mean_query(t, i)`; x and y have room for `[2 width, tile]`.
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
#pragma unroll(tile == 1 ? 32 : 8)
      for (int i = 0; i < n; i++) {
        float weight = weights[i * n + j];
#pragma unroll
        for (int t = 0; t < tile; t++) sums[t] += x[i * tile + t] * weight;
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

// The row of the lowest score, of equal ones the newest, in every thread.
__device__ inline int hax_worst(const float* scores, const u64* positions, int count) {
  __shared__ int rows[32];
  int worst = -1;
  auto take = [&](int row) {
    if (row < 0) return;
    bool lower = worst < 0 || scores[row] < scores[worst] ||
                 (scores[row] == scores[worst] && positions[row] > positions[worst]);
    if (lower) worst = row;
  };
  for (int row = threadIdx.x; row < count; row += blockDim.x) take(row);
  for (int distance = 16; distance > 0; distance /= 2) take(__shfl_xor_sync(all_lanes, worst, distance));
  __syncthreads();
  if (lane_index() == 0) rows[warp_index()] = worst;
  __syncthreads();
  for (int warp = 0; warp < (int)blockDim.x / 32; warp++) take(rows[warp]);
  return worst;
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

// Shared memory: a key, two rows of twice its width, the products of a hash with query and key.
template <class E, int width>
__device__ void hax_choose(HaxParts hax, const u64* start, int tokens) {
  __shared__ int firsts[most_sources];
  float* key = shared_memory<float>();
  float* x = key + width;
  float* y = x + 2 * width;
  float* products = y + 2 * width;
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
      mean_key[i] += (key[i] - mean_key[i]) / count;
      mean_query[i] += (query[i] - mean_query[i]) / count;
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
        HaxPair<int> bins = hax_bins<width>(source, {query, key}, {mean_query, mean_key}, products);
        first = bins.query * source.rows;
        row = bins.key * source.rows + (int)hax.cursors[bins.key];
      }
      // Data that all threads have read changes now.
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

    // A row is not seen if it is empty, or if a source before has its token.
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

// The warps of a block share the rows that a query sees; they are `mix_warps`.
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
