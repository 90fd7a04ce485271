// Chooses a token from the state's logits: the token that the host's sampler (sampler/mod.rs) chooses. Logits and weights are computed with
// the same roundings, and weights are summed as integers.
//
//   survey     penalties; the largest and the smallest logit of each segment of the vocabulary
//   histogram  the number of tokens in each of many bins between the largest and the smallest logit, and their weight
//   cut        one block finds the bin in which top-k cuts and the bin in which top-p cuts, and orders the tokens in these bins
//   draw       the weight of the kept tokens of each segment; the last block picks a token
// `Sampling` is in sample.rs, `SamplerState` in sampler/random.rs.

constexpr int segment = 256;  // tokens that a warp reads together
constexpr int bins = 1024;    // the last bin holds tokens without weight
constexpr int most_members = 1024;
constexpr int survey_threads = 256;
constexpr int survey_tokens = survey_threads / 32 * segment;
constexpr int histogram_tokens = 8192;

// The relevant range of the logits, and how it is divided into bins.
struct Range {
  float largest, limit, scale, temperature;

  // A lower logit never gets a lower bin. Beyond `limit`, 28 temperatures below the largest logit, a weight is less than one part.
  __device__ int bin(float x) const {
    if (!(largest - x < limit)) return bins - 1;
    float bin = (largest - x) * scale;
    return bin < bins - 2 ? (int)bin : bins - 2;
  }
};

// A cut: the lowest key that is kept, and the weight of all kept tokens.
struct Cut {
  u64 key, weight;
};

template <int vocab>
struct Working {
  static constexpr int segments = (vocab + segment - 1) / segment;
  u16 bin[segments * segment];
  u64 weights[bins];
  u64 sums[segments];
  Cut cut;
  Range range;
  u32 arrived;  // blocks of `draw`
  u32 counts[bins];
  float logits[vocab];  // after the penalties
  float largest[segments];  // infinity if a logit is NaN or infinity
  float smallest[segments];  // of the finite ones
};

// Applies penalties for `count` occurrences in the window. No operations are fused, as on the host.
__device__ inline float penalized(float x, u32 count, const Sampling* s) {
  if (count == 0) return x;
  x = x > 0.0f ? __fdiv_rn(x, s->repetition) : __fmul_rn(x, s->repetition);
  return __fsub_rn(x, __fadd_rn(__fmul_rn((float)count, s->frequency), s->presence));
}

// Returns a logit's weight, computed as by `exp` of cpu/simd/mod.rs. The argument is at most 0.
__device__ inline float weight_of(float logit, const Range& range) {
  float x = __fdiv_rn(__fsub_rn(logit, range.largest), range.temperature);
  constexpr float round = 12582912.0f;
  float clamped = fmaxf(x, -87.33654f);
  float n = __fsub_rn(__fadd_rn(__fmul_rn(clamped, 1.44269504f), round), round);
  float r = __fsub_rn(__fsub_rn(clamped, __fmul_rn(n, 0.6933594f)), __fmul_rn(n, -2.1219444e-4f));
  float p = 1.9875691e-4f;
  p = __fadd_rn(__fmul_rn(p, r), 1.3981999e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 8.333452e-3f);
  p = __fadd_rn(__fmul_rn(p, r), 4.1665796e-2f);
  p = __fadd_rn(__fmul_rn(p, r), 0.16666665f);
  p = __fadd_rn(__fmul_rn(p, r), 0.5f);
  float y = __fadd_rn(__fadd_rn(__fmul_rn(__fmul_rn(p, r), r), r), 1.0f);
  int half = (int)(n * 0.5f), rest = (int)n - half;
  y = __fmul_rn(__fmul_rn(y, __uint_as_float((u32)(half + 127) << 23)), __uint_as_float((u32)(rest + 127) << 23));
  return x < -87.33654f ? 0.0f : y;
}

// Returns a weight in parts of 2^-40.
__device__ inline u64 parts_of(float weight) { return (u64)(weight * 1099511627776.0f); }

template <int vocab, int log_length>
__device__ void survey(const float* logits, const u32* log, const u64* position, const Sampling* s, Working<vocab>* work) {
  __shared__ u32 seen[survey_tokens];
  int first = blockIdx.x * survey_tokens;
  for (int i = blockIdx.x * survey_threads + threadIdx.x; i < bins; i += gridDim.x * survey_threads) {
    work->counts[i] = 0;
    work->weights[i] = 0;
    if (i == 0) work->arrived = 0;
  }
  u64 read = *position;
  u32 window = s->window < log_length ? s->window : log_length;
  if (read < window) window = read;
  for (int i = threadIdx.x; i < survey_tokens; i += survey_threads) seen[i] = 0;
  __syncthreads();
  for (u32 i = threadIdx.x; i < window; i += survey_threads) {
    u32 token = log[(read - 1 - i) % log_length] - first;
    if (token < survey_tokens) atomicAdd(&seen[token], 1u);
  }
  __syncthreads();
  float largest = -infinity, smallest = infinity;
  for (int i = lane_index(); i < segment; i += 32) {
    int own = warp_index() * segment + i, token = first + own;
    if (token >= vocab) break;
    // Adding 0 maps both zeros to one.
    float x = __fadd_rn(penalized(logits[token], seen[own], s), 0.0f);
    work->logits[token] = x;
    largest = x < infinity ? fmaxf(largest, x) : infinity;
    if (x > -infinity) smallest = fminf(smallest, x);
  }
  largest = warp_max(largest);
  smallest = -warp_max(-smallest);
  int index = first / segment + warp_index();
  if (lane_index() == 0 && index < Working<vocab>::segments) {
    work->largest[index] = largest;
    work->smallest[index] = smallest;
  }
}

// A weight has 41 bits, and many are summed: shared memory holds the sums in limbs of 14 bits.
template <int vocab>
__device__ void histogram(const Sampling* s, Working<vocab>* work) {
  constexpr int segments = Working<vocab>::segments;
  __shared__ u32 counts[bins], limbs[3][bins];
  float high = -infinity, low = infinity;
  for (int i = threadIdx.x; i < segments; i += 1024) {
    high = fmaxf(high, work->largest[i]);
    low = fminf(low, work->smallest[i]);
  }
  int own = threadIdx.x;
  counts[own] = limbs[0][own] = limbs[1][own] = limbs[2][own] = 0;
  Range range;
  range.largest = block_max(high);
  low = -block_max(-low);
  range.temperature = s->temperature;
  range.limit = fminf(28.0f * range.temperature, 3.4028235e38f);
  range.scale = (bins - 1) / fminf(range.largest - low, range.limit);
  if (blockIdx.x == 0 && own == 0) work->range = range;
  int first = blockIdx.x * histogram_tokens;
  for (int i = own; i < histogram_tokens && first + i < segments * segment; i += 1024) {
    float x = first + i < vocab ? work->logits[first + i] : -infinity;
    int bin = range.bin(x);
    work->bin[first + i] = bin;
    if (bin == bins - 1) continue;
    atomicAdd(&counts[bin], 1u);
    u64 parts = parts_of(weight_of(x, range));
    for (int limb = 0; limb < 3; limb++)
      if (u32 bits = parts >> 14 * limb & 0x3fff) atomicAdd(&limbs[limb][bin], bits);
  }
  __syncthreads();
  if (counts[own] == 0) return;
  atomicAdd(&work->counts[own], counts[own]);
  atomicAdd(&work->weights[own], limbs[0][own] + ((u64)limbs[1][own] << 14) + ((u64)limbs[2][own] << 28));
}

// Returns the sum over this lane and all lanes before it.
__device__ inline u64 warp_scan(u64 x) {
  for (int distance = 1; distance < 32; distance *= 2) {
    u64 before = __shfl_up_sync(all_lanes, x, distance);
    if (lane_index() >= distance) x += before;
  }
  return x;
}

// Returns the sum over this thread and all threads before it; `total` is the sum over all threads.
__device__ __noinline__ u64 block_scan(u64 x, u64* total) {
  __shared__ u64 sums[32];
  x = warp_scan(x);
  __syncthreads();
  if (lane_index() == 31) sums[warp_index()] = x;
  __syncthreads();
  u64 through = warp_scan(lane_index() < blockDim.x / 32 ? sums[lane_index()] : 0);
  *total = __shfl_sync(all_lanes, through, 31);
  u64 before = __shfl_sync(all_lanes, through, (warp_index() + 31) % 32);
  return warp_index() == 0 ? x : x + before;
}

// A bin that contains a cut: the amount needed from it, and the weight before it.
struct Place {
  int bin;
  u64 needed, weight_before;
};

// Counts the tokens and the weight of a bin from a key on.
template <int vocab>
__device__ void tally(const Working<vocab>* work, int bin, u64 key, u64* count, u64* weight) {
  Range range = work->range;
  u64 tokens = 0, parts = 0;
#pragma unroll 1
  for (int token = threadIdx.x; token < vocab; token += blockDim.x) {
    float x = work->logits[token];
    if (work->bin[token] != bin || key_of(x, token) < key) continue;
    tokens++;
    parts += parts_of(weight_of(x, range));
  }
  block_scan(tokens, count);
  block_scan(parts, weight);
}

// Finds the position of a cut within its bin, measured in tokens or in weight.
template <int vocab>
__device__ Cut cut_in(const Working<vocab>* work, const Place& place, bool by_weight) {
  __shared__ u64 keys[most_members], parts[most_members];
  __shared__ u32 concerned[1024], members, some;
  __shared__ Cut cut;
  Range range = work->range;
  if (threadIdx.x == 0) members = 0;
  for (int base = 0; base < Working<vocab>::segments; base += 1024) {
    if (threadIdx.x == 0) some = 0;
    __syncthreads();
    int s = base + threadIdx.x;
    if (s < Working<vocab>::segments && range.bin(work->largest[s]) <= place.bin &&
        range.bin(work->smallest[s]) >= place.bin)
      concerned[atomicAdd(&some, 1u)] = s;
    __syncthreads();
#pragma unroll 4
    for (u32 i = warp_index(); i < some; i += 32) {
      int first = concerned[i] * segment + 8 * lane_index();
      uint4 words = *reinterpret_cast<const uint4*>(work->bin + first);
      u32 pairs[4] = {words.x, words.y, words.z, words.w};
      for (int j = 0; j < 8; j++) {
        if ((pairs[j / 2] >> 16 * (j % 2) & 0xffff) != place.bin) continue;
        u32 at = atomicAdd(&members, 1u);
        if (at < most_members) keys[at] = first + j;
      }
    }
    __syncthreads();
  }
  if (threadIdx.x < members && threadIdx.x < most_members) {
    u32 token = keys[threadIdx.x];
    float x = work->logits[token];
    keys[threadIdx.x] = key_of(x, token);
    parts[threadIdx.x] = parts_of(weight_of(x, range));
  }
  __syncthreads();
  if (members <= most_members) {
    if (threadIdx.x < members) {
      u64 key = keys[threadIdx.x], weight = parts[threadIdx.x], count = 1;
      u64 own = by_weight ? weight : count;
#pragma unroll 4
      for (u32 i = 0; i < members; i++) {
        if (keys[i] <= key) continue;
        weight += parts[i];
        count++;
      }
      u64 through = by_weight ? weight : count;
      if (through - own < place.needed && place.needed <= through) cut = {key, place.weight_before + weight};
    }
    __syncthreads();
    return cut;
  }
  // Too many to compare with each other, which takes many equal logits. The key is found bit by bit.
  u64 key = 0, weight = 0;
#pragma unroll 1
  for (int bit = 63; bit >= -1; bit--) {
    u64 tried = bit >= 0 ? key | 1ull << bit : key, count;
    tally(work, place.bin, tried, &count, &weight);
    if ((by_weight ? weight : count) >= place.needed) key = tried;
  }
  return {key, place.weight_before + weight};
}

// Finds the cut, with 1024 threads, one per bin.
template <int vocab>
__device__ void cut(const Sampling* s, Working<vocab>* work) {
  __shared__ Place place;
  u64 count = work->counts[threadIdx.x], weight = work->weights[threadIdx.x], tokens, total;
  u64 count_through = block_scan(count, &tokens), weight_through = block_scan(weight, &total);
  Cut cut = {0, total};
  // No cut where the logits are unusable; `draw` checks that.
#pragma unroll 1
  for (int by_weight = 0; by_weight < 2 && tokens > 0; by_weight++) {
    // Top-k, then top-p of the tokens that top-k keeps.
    u64 needed = by_weight ? (u64)ceil(__dmul_rn((double)s->top_p, (double)cut.weight)) : s->top_k;
    if (by_weight ? s->top_p >= 1.0f : needed == 0 || needed >= tokens) continue;
    u64 through = by_weight ? weight_through : count_through, own = by_weight ? weight : count;
    __syncthreads();
    if (through - own < needed && needed <= through)
      place = {(int)threadIdx.x, needed - (through - own), weight_through - weight};
    __syncthreads();
    Cut found = cut_in(work, place, by_weight);
    cut = {found.key > cut.key ? found.key : cut.key, found.weight};
  }
  if (threadIdx.x == 0) work->cut = cut;
}

__device__ inline u64 mix(u64 z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
  return z ^ (z >> 31);
}

// `uniform` of sampler/random.rs.
__device__ inline double uniform(u64 seed, u64 n) {
  u64 bits = mix(mix(seed) + (n + 1) * 0x9e3779b97f4a7c15ull);
  return (double)(bits >> 11) * (1.0 / 9007199254740992.0);
}

// Writes the token to the place of the next chunk's tokens and to `chosen`; none (all bits set) if a logit is NaN or infinite, or if all
// are minus infinity.
template <int vocab>
__device__ void draw(const Sampling* s, SamplerState* random, u32* ids, u32* chosen, Working<vocab>* work) {
  constexpr int segments = Working<vocab>::segments, each = (segments + survey_threads - 1) / survey_threads;
  __shared__ u32 last;
  __shared__ int found;
  __shared__ u64 rest;
  Range range = work->range;
  if (!(range.largest > -infinity && range.largest < infinity)) {
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      *chosen = ~0u;
      ids[0] = 0;
    }
    return;
  }
  u64 lowest = work->cut.key;
  float min_p = s->min_p;
  auto kept = [&](int token) -> u64 {
    if (token >= vocab) return 0;
    float x = work->logits[token];
    if (key_of(x, token) < lowest) return 0;
    float weight = weight_of(x, range);
    return weight >= min_p ? parts_of(weight) : 0;
  };

  int mine = blockIdx.x * (survey_threads / 32) + warp_index();
  if (mine < segments) {
    u64 sum = 0;
    if (key_of(work->largest[mine], 0) >= lowest)
      for (int i = lane_index(); i < segment; i += 32) sum += kept(mine * segment + i);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
    if (lane_index() == 0) {
      work->sums[mine] = sum;
      __threadfence();
    }
  }
  __syncthreads();
  if (threadIdx.x == 0) last = atomicAdd(&work->arrived, 1u) == gridDim.x - 1;
  __syncthreads();
  if (!last) return;
  __threadfence();

  // Each thread has `each` segments.
  u64 own = 0, total;
  int start = threadIdx.x * each, end = min(start + each, segments);
  for (int i = start; i < end; i++) own += work->sums[i];
  u64 before = block_scan(own, &total) - own;
  u64 target = s->draws ? (u64)__dmul_rn(uniform(random->seed, random->draws), (double)total) : 0;
  if (target >= total) target = total - 1;
  for (int i = start; i < end; i++) {
    u64 sum = work->sums[i];
    if (before <= target && target < before + sum) {
      found = i;
      rest = target - before;
    }
    before += sum;
  }
  __syncthreads();
  if (warp_index() != 0) return;
  // Each lane has eight tokens.
  u64 parts[8], eight = 0;
  int first = found * segment + 8 * lane_index();
  for (int i = 0; i < 8; i++) eight += parts[i] = kept(first + i);
  before = warp_scan(eight) - eight;
  for (int i = 0; i < 8; i++) {
    if (before <= rest && rest < before + parts[i]) {
      *chosen = first + i;
      ids[0] = first + i;
    }
    before += parts[i];
  }
  if (threadIdx.x == 0 && s->draws) random->draws++;
}
