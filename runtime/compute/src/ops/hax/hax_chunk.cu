// Sparse attention in parallel with a state-space model, a chunk at once, with the same sums as steps. Little depends on earlier
// tokens: the means (`hax_means`), and which tokens bins and the best keys hold (`hax_hold`). The rest is parallel: hashes and
// scores of all keys (`hax_measure`), weights (`hax_weigh_chunk`), values (`hax_mix_chunk`). The state is written last
// (`hax_store`). `HaxChunk` is in launch.rs.

enum { OF_QUERY, OF_KEY, OF_SCORE, measures_of_token };

// In a chunk, a plan's row is the number of a token in the chunk, or a row of the state as a negative number below `none_seen`.
__device__ inline int hax_before(int row) { return -row - 2; }

// Tokens that a thread block of `hax_measure` scores at once, so that they share the scorer's weights.
constexpr int hax_tile = 8;
// Channels per thread block of `hax_mix_chunk`, in which each warp takes a token.
constexpr int hax_mix_channels = 64;

__device__ inline bool hax_is_hashed(const HaxSource& source) { return source.kind == HAX_SIGNS || source.kind == HAX_LARGEST; }

// Whether the source's rows depend on the keys, and not only on positions.
__device__ inline bool hax_moves(const HaxSource& source) { return source.kind == HAX_BEST || hax_is_hashed(source); }

// One thread per value of the mean key, then of the mean query. The next tokens' values are loaded while the current ones are added.
template <int width>
__device__ void hax_means(HaxParts hax, HaxChunk chunk, const u64* start, int tokens) {
  constexpr int ahead = 16;
  int column = blockIdx.x * blockDim.x + threadIdx.x, own = min(column, 2 * width - 1), i = own % width;
  bool of_key = own < width;
  float mean = hax.means[own];
  u64 before = *start;
  float next[ahead];
  auto load = [&](int first) {
#pragma unroll
    for (int t = 0; t < ahead; t++) {
      int token = min(first + t, tokens - 1);
      next[t] = of_key ? hax_key<width>(hax, token, i) : hax.q.token(token)[i];
    }
  };
  load(0);
  for (int first = 0; first < tokens; first += ahead) {
    float values[ahead];
#pragma unroll
    for (int t = 0; t < ahead; t++) values[t] = next[t];
    load(first + ahead);
    // Each lane divides for one token, on behalf of its warp.
    float own_count = (float)(before + first + lane_index() + 1), own_inverse = 1.0f / own_count;
#pragma unroll
    for (int t = 0; t < ahead; t++) {
      float count = __shfl_sync(all_lanes, own_count, t), inverse = __shfl_sync(all_lanes, own_inverse, t);
      if (first + t >= tokens) continue;
      mean = hax_mean(mean, values[t], count, inverse);
      if (column < 2 * width) chunk.means[(long long)(first + t) * 2 * width + column] = mean;
    }
  }
  if (column < 2 * width) hax.means[column] = mean;
}

// Shared memory: two rows of twice the width for each token of a tile.
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
      HaxPair<int> bins[hax_tile];
      auto query = [=](int t, int i) { return hax.q.token(token(t))[i] - mean_key(t)[width + i]; };
      auto key = [=](int t, int i) { return hax_key<width>(hax, token(t), i) - mean_key(t)[i]; };
      hax_bins<width>(source, query, key, x, bins);
      for (int t = 0; t < hax_tile && first + t < tokens; t++) {
        int* measures = chunk.measures + (first + t) * measures_of_token;
        if (threadIdx.x == 0) measures[OF_QUERY] = bins[t].query, measures[OF_KEY] = bins[t].key;
      }
    }
    __syncthreads();
  }
}

// Tracks the tokens that a bin holds, and writes them to the plans of the queries in this bin.
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

// Tracks the keys with the highest scores and writes them to the plans of all queries; `scores` and `positions` are scratch for
// these keys.
__device__ inline void hax_hold_best(const HaxParts& hax, const HaxChunk& chunk, int first_row, int rows, int entry, u64 start,
                                     int tokens, int* held, float* scores, u64* positions) {
  for (int i = lane_index(); i < rows; i += 32) {
    scores[i] = hax.scores[i];
    positions[i] = hax.positions[first_row + i];
  }
  auto find_worst = [&] { return HaxWorst(scores, positions, rows, lane_index(), 32).row; };
  __syncwarp();
  auto tell = [&](int first, int end) {
    for (int i = lane_index(); i < rows; i += 32) {
      int own = held[i];
      for (int t = first; t < end; t++) HaxPlan(hax, t).rows[entry + i] = own;
    }
  };
  int worst = start >= (u64)rows ? find_worst() : -1;
  for (int first = 0; first < tokens; first += 32) {
    int count = min(32, tokens - first);
    int own = min(first + lane_index(), tokens - 1);
    float own_score = __uint_as_float((u32)chunk.measures[own * measures_of_token + OF_SCORE]);
    // Between two tokens that enter, all queries see the same rows.
    for (int told = 0; told < count;) {
      bool fills = worst < 0;
      bool enters = lane_index() >= told && lane_index() < count && (fills || scores[worst] < own_score);
      u32 entering = __ballot_sync(all_lanes, enters);
      int next = entering != 0 ? __ffs(entering) - 1 : count;
      tell(first + told, first + next);
      if (next == count) break;
      float score = __shfl_sync(all_lanes, own_score, next);
      u64 position = start + first + next;
      int row = fills ? (int)position : worst;
      __syncwarp();
      if (lane_index() == 0) held[row] = first + next, scores[row] = score, positions[row] = position + 1;
      __syncwarp();
      if (position + 1 >= (u64)rows) worst = find_worst();
      tell(first + next, first + next + 1);
      told = next + 1;
    }
  }
  for (int i = lane_index(); i < rows; i += 32) hax.scores[i] = scores[i];
}

// One warp for each bin, and one for the best keys. Shared memory: the tokens that its rows hold, with scores and positions.
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

// The token that row `i` of a source of fixed positions holds once the token at `position` has arrived.
__device__ inline int hax_fixed(const HaxSource& source, int i, u64 start, u64 position) {
  // The number of the source's tokens so far, which take the rows cyclically, or each row once.
  u64 every = source.kind == HAX_DILATED ? (u64)source.every : 1, taken = (position + 1) / every;
  if ((u64)i >= taken) return none_seen;
  u64 newest = taken - 1 - (taken - 1 - i) % source.rows;
  u64 own = (source.kind == HAX_SINK ? i : newest) * every + every - 1;
  return own >= start ? (int)(own - start) : hax_before(source.first + i);
}

// The weights of a token's rows. Shared memory: for each row the position of its token plus one, or 0.
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
  // A row is not seen if it is empty, or if an earlier source has its token.
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

// Rounds values as they are cached.
template <class E, int channels>
__device__ void hax_narrow(HaxParts hax, HaxChunk chunk, int) {
  int t = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < channels) reinterpret_cast<E*>(chunk.values)[(long long)t * channels + i] = E(hax.v.token(t)[i]);
}

// Like `hax_mix`: the partial sums of each lane are the sums of the warps there.
template <class E, int channels>
__device__ void hax_mix_chunk(HaxParts hax, HaxChunk chunk, int tokens) {
  int channel = blockIdx.x * hax_mix_channels + lane_index(), t = blockIdx.y * mix_warps + warp_index();
  if (t >= tokens) return;
  HaxPlan plan(hax, t);
  const E* before = reinterpret_cast<const E*>(hax.values);
  const E* values = reinterpret_cast<const E*>(chunk.values);
  float sums[2][mix_warps] = {};
  for (int first = 0; first < hax.seen; first += 32) {
    int own = first + lane_index();
    int own_row = own < hax.seen ? plan.rows[own] : none_seen;
    float own_weight = own < hax.seen ? plan.weights[own] : 0.0f;
#pragma unroll
    for (int entry = 0; entry < 32; entry++) {
      int row = __shfl_sync(all_lanes, own_row, entry);
      float weight = __shfl_sync(all_lanes, own_weight, entry);
      if (row == none_seen) continue;
      const E* from = row >= 0 ? values + (long long)row * channels : before + (long long)hax_before(row) * channels;
#pragma unroll
      for (int half = 0; half < 2; half++) {
        if (channel + 32 * half < channels) sums[half][entry % mix_warps] += weight * float_of(from[channel + 32 * half]);
      }
    }
  }
#pragma unroll
  for (int half = 0; half < 2; half++) {
    float sum = sums[half][0];
#pragma unroll
    for (int warp = 1; warp < mix_warps; warp++) sum += sums[half][warp];
    if (channel + 32 * half < channels) hax.out.token(t)[channel + 32 * half] = sum;
  }
}

// Writes the rows of the table that the chunk changed, with one thread block per row, up to a bound.
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
    const E* from = reinterpret_cast<const E*>(chunk.values) + (long long)t * channels;
    for (int i = threadIdx.x; i < channels; i += blockDim.x) values[i] = from[i];
    if (threadIdx.x == 0) hax.positions[row] = *start + t + 1;
  }
}
