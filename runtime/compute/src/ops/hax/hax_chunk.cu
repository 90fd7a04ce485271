// Sparse attention in parallel with a state-space model, a chunk at once, with the sums of steps. What depends on the tokens before
// is little: the means (`hax_means`), and which tokens bins and the best keys hold (`hax_hold`). The rest is parallel: hashes and
// scores of all keys (`hax_measure`), weights (`hax_weigh_chunk`), values (`hax_mix_chunk`). The state is written last (`hax_store`).

struct HaxChunk {
  // The mean key and the mean query after each token, [tokens, 2, width].
  float* means;
  // Of each token: the bins of its query and its key, the score of its key.
  int* measures;
  // The token of the chunk that holds each row after it, or `none_seen`.
  int* last;
};

enum { OF_QUERY, OF_KEY, OF_SCORE, measures_of_token };

// What a plan's rows hold in a chunk: a token's number in it, or a row of the state, as a negative number below `none_seen`.
__device__ inline int hax_before(int row) { return -row - 2; }

// Tokens that a block of `hax_measure` scores at once, so that they share the scorer's weights.
constexpr int hax_tile = 8;
// Tokens of a block of `hax_mix_chunk`.
constexpr int hax_mix_tile = 16;

__device__ inline bool hax_is_hashed(const HaxSource& source) { return source.kind == HAX_SIGNS || source.kind == HAX_LARGEST; }

// Whether its rows depend on the keys, not only on their positions.
__device__ inline bool hax_moves(const HaxSource& source) { return source.kind == HAX_BEST || hax_is_hashed(source); }

// A thread for each value of the mean key, then of the mean query.
template <int width>
__device__ void hax_means(HaxParts hax, HaxChunk chunk, const u64* start, int tokens) {
  int column = blockIdx.x * blockDim.x + threadIdx.x;
  if (column >= 2 * width) return;
  int i = column % width;
  bool of_key = column < width;
  float mean = hax.means[column];
  u64 count = *start;
  constexpr int ahead = 8;
  for (int first = 0; first < tokens; first += ahead) {
    float values[ahead];
#pragma unroll
    for (int t = 0; t < ahead; t++) {
      if (first + t < tokens) values[t] = of_key ? hax_key<width>(hax, first + t, i) : hax.q.token(first + t)[i];
    }
#pragma unroll
    for (int t = 0; t < ahead; t++) {
      if (first + t >= tokens) break;
      mean += (values[t] - mean) / (float)++count;
      chunk.means[(long long)(first + t) * 2 * width + column] = mean;
    }
  }
  hax.means[column] = mean;
}

// Shared memory: two rows of twice the width for each token of a tile, or a key and
// the products of a hash.
template <int width>
__device__ void hax_measure(HaxParts hax, HaxChunk chunk, int tokens) {
  float* x = shared_memory<float>();
  float* y = x + 2 * width * hax_tile;
  int first = blockIdx.y * hax_tile;
  auto token = [=](int t) { return min(first + t, tokens - 1); };
  auto mean_key = [=](int t) { return chunk.means + (long long)token(t) * 2 * width; };
  for (int s = 0; s < hax.count; s++) {
    const HaxSource& source = hax.at[s];
    if (source.kind == HAX_BEST) {
      float scores[hax_tile];
      auto key = [=](int t, int i) { return hax_key<width>(hax, token(t), i); };
      auto query = [=](int t, int i) { return mean_key(t)[width + i]; };
      hax_scores<width>(source, key, query, x, y, scores);
      for (int t = 0; t < hax_tile && first + t < tokens; t++) {
        if (threadIdx.x == 0) chunk.measures[(first + t) * measures_of_token + OF_SCORE] = (int)__float_as_uint(scores[t]);
      }
    } else if (hax_is_hashed(source)) {
      for (int t = 0; t < hax_tile && first + t < tokens; t++) {
        __syncthreads();
        for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] = hax_key<width>(hax, first + t, i);
        const float* mean = mean_key(t);
        HaxPair<int> bins = hax_bins<width>(source, {hax.q.token(first + t), x}, {mean + width, mean}, y);
        if (threadIdx.x != 0) continue;
        int* measures = chunk.measures + (first + t) * measures_of_token;
        measures[OF_QUERY] = bins.query, measures[OF_KEY] = bins.key;
      }
    }
    __syncthreads();
  }
}

// Follows the tokens that a bin holds, and tells the queries of this bin.
__device__ inline void hax_hold_bin(const HaxParts& hax, const HaxChunk& chunk, int bin, int rows, int entry, int tokens, int* held) {
  u32 cursor = hax.cursors[bin];
  for (int first = 0; first < tokens; first += 32) {
    int t = first + lane_index();
    const int* measures = chunk.measures + t * measures_of_token;
    u32 keys = __ballot_sync(all_lanes, t < tokens && measures[OF_KEY] == bin);
    u32 queries = __ballot_sync(all_lanes, t < tokens && measures[OF_QUERY] == bin);
    for (u32 left = keys | queries; left != 0; left &= left - 1) {
      int lane = __ffs(left) - 1;
      if (keys >> lane & 1) {
        if (lane_index() == 0) held[cursor] = first + lane;
        cursor = (cursor + 1) % rows;
        __syncwarp();
      }
      if (queries >> lane & 1) {
        HaxPlan plan(hax, first + lane);
        for (int i = lane_index(); i < rows; i += 32) plan.rows[entry + i] = held[i];
        __syncwarp();
      }
    }
  }
  if (lane_index() == 0) hax.cursors[bin] = cursor;
}

// The same for the keys of the highest scores; `scores` and `positions` have room for theirs.
__device__ inline void hax_hold_best(const HaxParts& hax, const HaxChunk& chunk, int first_row, int rows, int entry, u64 start,
                                     int tokens, int* held, float* scores, u64* positions) {
  for (int i = lane_index(); i < rows; i += 32) {
    scores[i] = hax.scores[i];
    positions[i] = hax.positions[first_row + i];
  }
  // The lowest score's row, of equal ones the newest, as `hax_worst` finds it; in every lane.
  auto find_worst = [&] {
    int worst = -1;
    auto take = [&](int row) {
      if (row < 0) return;
      bool lower = worst < 0 || scores[row] < scores[worst] ||
                   (scores[row] == scores[worst] && positions[row] > positions[worst]);
      if (lower) worst = row;
    };
    for (int row = lane_index(); row < rows; row += 32) take(row);
    for (int distance = 16; distance > 0; distance /= 2) take(__shfl_xor_sync(all_lanes, worst, distance));
    return worst;
  };
  __syncwarp();
  int worst = start >= (u64)rows ? find_worst() : -1;
  for (int first = 0; first < tokens; first += 32) {
    int own = min(first + lane_index(), tokens - 1);
    float own_score = __uint_as_float((u32)chunk.measures[own * measures_of_token + OF_SCORE]);
    for (int lane = 0; lane < 32 && first + lane < tokens; lane++) {
      float score = __shfl_sync(all_lanes, own_score, lane);
      u64 position = start + first + lane;
      int row = -1;
      if (position < (u64)rows) {
        row = (int)position;
      } else if (scores[worst] < score) {
        row = worst;
      }
      if (row >= 0) {
        __syncwarp();
        if (lane_index() == 0) held[row] = first + lane, scores[row] = score, positions[row] = position + 1;
        __syncwarp();
        if (position + 1 >= (u64)rows) worst = find_worst();
      }
      HaxPlan plan(hax, first + lane);
      for (int i = lane_index(); i < rows; i += 32) plan.rows[entry + i] = held[i];
    }
  }
  for (int i = lane_index(); i < rows; i += 32) hax.scores[i] = scores[i];
}

// A warp for each bin, and one for the best keys. Shared memory: what its rows hold, with scores and positions.
__device__ inline void hax_hold(HaxParts hax, HaxChunk chunk, const u64* start, int tokens) {
  int list = blockIdx.x;
  for (int s = 0, entry = 0; s < hax.count; entry += hax.at[s++].rows) {
    const HaxSource& source = hax.at[s];
    bool best = source.kind == HAX_BEST;
    int lists = best ? 1 : !hax_is_hashed(source) ? 0 : source.kind == HAX_SIGNS ? 1 << source.columns : source.columns;
    if (list >= lists) {
      list -= lists;
      continue;
    }
    int rows = source.rows, first_row = source.first + list * rows;
    u64* positions = shared_memory<u64>();
    int* held = reinterpret_cast<int*>(positions + rows);
    float* scores = reinterpret_cast<float*>(held + rows);
    for (int i = lane_index(); i < rows; i += 32) held[i] = hax_before(first_row + i);
    __syncwarp();
    if (best) {
      hax_hold_best(hax, chunk, first_row, rows, entry, *start, tokens, held, scores, positions);
    } else {
      hax_hold_bin(hax, chunk, list, rows, entry, tokens, held);
    }
    for (int i = lane_index(); i < rows; i += 32) chunk.last[first_row + i] = max(held[i], none_seen);
    return;
  }
}

// What row `i` of a source of fixed positions holds once the token at `position` has come.
__device__ inline int hax_fixed(const HaxSource& source, int i, u64 start, u64 position) {
  // The number of its tokens so far, which take the rows in turn, or each row once.
  u64 every = source.kind == HAX_DILATED ? (u64)source.every : 1, taken = (position + 1) / every;
  if ((u64)i >= taken) return none_seen;
  u64 newest = taken - 1 - (taken - 1 - i) % source.rows;
  u64 own = (source.kind == HAX_SINK ? i : newest) * every + every - 1;
  return own >= start ? (int)(own - start) : hax_before(source.first + i);
}

// Weights of a token's rows. Shared memory: one more than the position of what each row holds, or 0.
template <class E, int width>
__device__ void hax_weigh_chunk(HaxParts hax, HaxChunk chunk, const u64* start, int tokens) {
  int t = blockIdx.x;
  u64 first = *start;
  u64* owners = shared_memory<u64>();
  HaxPlan plan(hax, t);
  for (int s = 0, entry = 0; s < hax.count; entry += hax.at[s++].rows) {
    const HaxSource& source = hax.at[s];
    for (int i = threadIdx.x; i < source.rows; i += blockDim.x) {
      int row = hax_moves(source) ? plan.rows[entry + i] : hax_fixed(source, i, first, first + t);
      plan.rows[entry + i] = row;
      owners[entry + i] = row >= 0 ? first + row + 1 : row == none_seen ? 0 : hax.positions[hax_before(row)];
    }
  }
  __syncthreads();
  // A row is not seen if it is empty, or if a source before has its token.
  for (int s = 0, entry = 0; s < hax.count; entry += hax.at[s++].rows) {
    for (int i = threadIdx.x; i < hax.at[s].rows; i += blockDim.x) {
      u64 own = owners[entry + i];
      bool sees = own != 0;
      for (int other = 0; other < entry; other++) sees = sees && owners[other] != own;
      if (!sees) plan.rows[entry + i] = none_seen;
    }
  }
  __syncthreads();
  const E* keys = reinterpret_cast<const E*>(hax.keys);
  hax_weigh<width>(hax, plan, hax.q.token(t), [&](int row, int i) {
    return float_of(row >= 0 ? E(hax_key<width>(hax, row, i)) : keys[(long long)hax_before(row) * width + i]);
  });
}

// As `hax_mix`, for a tile of tokens.
template <class E, int channels>
__device__ void hax_mix_chunk(HaxParts hax, int tokens) {
  __shared__ float sums[mix_warps][32];
  int channel = blockIdx.x * 32 + lane_index(), first = blockIdx.y * hax_mix_tile;
  bool used = channel < channels;
  const E* values = reinterpret_cast<const E*>(hax.values) + channel;
  for (int t = first; t < min(first + hax_mix_tile, tokens); t++) {
    HaxPlan plan(hax, t);
    float sum = 0.0f;
#pragma unroll 4
    for (int entry = warp_index(); entry < hax.seen; entry += mix_warps) {
      int row = plan.rows[entry];
      if (row == none_seen || !used) continue;
      E value = row >= 0 ? E(hax.v.token(row)[channel]) : values[(long long)hax_before(row) * channels];
      sum += plan.weights[entry] * float_of(value);
    }
    __syncthreads();
    sums[warp_index()][lane_index()] = sum;
    __syncthreads();
    if (warp_index() == 0 && used) {
      for (int warp = 1; warp < mix_warps; warp++) sum += sums[warp][lane_index()];
      hax.out.token(t)[channel] = sum;
    }
  }
}

// What the rows of the table hold after the chunk; a block for each, if there are so many.
template <class E, int width, int channels>
__device__ void hax_store(HaxParts hax, HaxChunk chunk, const u64* start, int table_rows, int tokens) {
  for (int row = blockIdx.x, s = 0; row < table_rows; row += gridDim.x) {
    while (s + 1 < hax.count && hax.at[s + 1].first <= row) s++;
    const HaxSource& source = hax.at[s];
    int t = hax_moves(source) ? chunk.last[row] : hax_fixed(source, row - source.first, *start, *start + tokens - 1);
    if (t < 0) continue;
    E* keys = reinterpret_cast<E*>(hax.keys) + (long long)row * width;
    E* values = reinterpret_cast<E*>(hax.values) + (long long)row * channels;
    for (int i = threadIdx.x; i < width; i += blockDim.x) keys[i] = E(hax_key<width>(hax, t, i));
    for (int i = threadIdx.x; i < channels; i += blockDim.x) values[i] = E(hax.v.token(t)[i]);
    if (threadIdx.x == 0) hax.positions[row] = *start + t + 1;
  }
}
