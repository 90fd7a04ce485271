// Chooses a token from the state's logits: the one that the host's sampler (sampler/mod.rs) chooses. Each logit and weight
// is made by the same roundings, and weights are summed as whole numbers of parts.
//
//   survey     penalties; the largest and the smallest logit of each segment of the vocabulary
//   histogram  how many tokens lie in each of many bins between the largest and the smallest logit, and their weight
//   draw       one block: finds the bin in which top-k cuts, and that in which top-p does; orders only what is in these; draws

// `Sampling` in sample.rs.
struct Sampling {
  float temperature, top_p, min_p;
  float repetition, frequency, presence;
  u32 top_k;   // no cut if 0
  u32 window;  // last tokens that the penalties look at
  u32 draws;   // whether it takes a random number: 1 or 0
};

constexpr int segment = 256;  // tokens that a warp looks at together
constexpr int bins = 1024;    // the last one holds what has no weight
constexpr int most_members = 1024;
constexpr int survey_threads = 256;
constexpr int survey_tokens = survey_threads / 32 * segment;

template <int vocab>
struct Working {
  static constexpr int segments = (vocab + segment - 1) / segment;
  u64 weights[bins];
  u64 sums[segments];
  u32 counts[bins];
  float logits[vocab];  // after the penalties
  float largest[segments];  // infinity if a logit is NaN or infinity
  float smallest[segments];  // of the finite ones
};

// One occurrence or more in the window. No step is fused with the next: the host's are not.
__device__ inline float penalized(float x, u32 count, const Sampling* s) {
  if (count == 0) return x;
  x = x > 0.0f ? __fdiv_rn(x, s->repetition) : __fmul_rn(x, s->repetition);
  return __fsub_rn(x, __fadd_rn(__fmul_rn((float)count, s->frequency), s->presence));
}

// A logit's weight, by `exp` of cpu/simd.rs, for what is not above 0. Not inlined: one block runs most of this file, and
// should not wait for its instructions.
__device__ __noinline__ float weight_of(float logit, float largest, float temperature) {
  float x = __fdiv_rn(__fsub_rn(logit, largest), temperature);
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

// A weight in parts of 2^-40.
__device__ inline u64 parts_of(float weight) { return (u64)(weight * 1099511627776.0f); }

// Rises with the logit; among equals the lower token has the larger key.
__device__ inline u64 key_of(float logit, u32 token) {
  u32 bits = __float_as_uint(logit);
  bits = bits >> 31 ? ~bits : bits | 0x80000000u;
  return (u64)bits << 32 | (u32)~token;
}

// Between the largest and the smallest logit that matter.
struct Range {
  float largest, temperature, scale;

  template <int vocab>
  __device__ Range(const Working<vocab>* work, float temperature) : temperature(temperature) {
    float high = -infinity, low = infinity;
    for (int s = threadIdx.x; s < Working<vocab>::segments; s += blockDim.x) {
      high = fmaxf(high, work->largest[s]);
      low = fminf(low, work->smallest[s]);
    }
    largest = block_max(high);
    low = -block_max(-low);
    scale = (bins - 1) / fminf(largest - low, 28.0f * temperature);
  }

  __device__ float weight(float x) const { return weight_of(x, largest, temperature); }

  // Does not fall where the logit does. Below e^-28 a weight is less than one part.
  __device__ int bin(float x) const {
    if (!(__fdiv_rn(__fsub_rn(x, largest), temperature) >= -28.0f)) return bins - 1;
    float bin = (largest - x) * scale;
    return bin < bins - 2 ? (int)bin : bins - 2;
  }
};

template <int vocab, int log_length>
__device__ void survey(const float* logits, const u32* log, const u64* position, const Sampling* s, Working<vocab>* work) {
  __shared__ u32 seen[survey_tokens];
  int first = blockIdx.x * survey_tokens;
  for (int i = blockIdx.x * survey_threads + threadIdx.x; i < bins; i += gridDim.x * survey_threads) {
    work->counts[i] = 0;
    work->weights[i] = 0;
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
    // Adding 0 makes the two zeros one.
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

template <int vocab>
__device__ void histogram(const Sampling* s, Working<vocab>* work) {
  Range range(work, s->temperature);
  int first = blockIdx.x * survey_tokens;
  for (int i = threadIdx.x; i < survey_tokens && first + i < vocab; i += survey_threads) {
    float x = work->logits[first + i];
    int bin = range.bin(x);
    if (bin == bins - 1) continue;
    atomicAdd(&work->counts[bin], 1u);
    u64 parts = parts_of(range.weight(x));
    if (parts) atomicAdd(&work->weights[bin], parts);
  }
}

// The sum over this and all threads before, and with `total` over all. 1024 threads.
__device__ __noinline__ u64 block_scan(u64 x, u64* total) {
  __shared__ u64 sums[32];
  for (int distance = 1; distance < 32; distance *= 2) {
    u64 before = __shfl_up_sync(all_lanes, x, distance);
    if (lane_index() >= distance) x += before;
  }
  __syncthreads();
  if (lane_index() == 31) sums[warp_index()] = x;
  __syncthreads();
  u64 all = 0;
  for (int i = 0; i < 32; i++) {
    if (i < warp_index()) x += sums[i];
    all += sums[i];
  }
  *total = all;
  return x;
}

// A bin in which a cut lies: so much is needed of it, and so much weight lies before it.
struct Place {
  int bin;
  u64 needed, weight_before;
};

// A cut: the lowest key that is kept, and the weight of all that is kept.
struct Cut {
  u64 key, weight;
};

// What lies in a bin from a key on.
template <int vocab>
__device__ void tally(const Working<vocab>* work, const Range& range, int bin, u64 key, u64* count, u64* weight) {
  u64 tokens = 0, parts = 0;
#pragma unroll 1
  for (int token = threadIdx.x; token < vocab; token += blockDim.x) {
    float x = work->logits[token];
    if (range.bin(x) != bin || key_of(x, token) < key) continue;
    tokens++;
    parts += parts_of(range.weight(x));
  }
  block_scan(tokens, count);
  block_scan(parts, weight);
}

// Finds where in its bin a cut lies, which is measured in tokens or in weight.
template <int vocab>
__device__ Cut cut_in(const Working<vocab>* work, const Range& range, const Place& place, bool by_weight) {
  __shared__ u64 keys[most_members], parts[most_members];
  __shared__ u32 members;
  __shared__ Cut cut;
  __syncthreads();
  if (threadIdx.x == 0) members = 0;
  __syncthreads();
  for (int s = warp_index(); s < Working<vocab>::segments; s += 32) {
    if (range.bin(work->largest[s]) > place.bin || range.bin(work->smallest[s]) < place.bin) continue;
#pragma unroll 4
    for (int token = s * segment + lane_index(); token < (s + 1) * segment && token < vocab; token += 32) {
      float x = work->logits[token];
      if (range.bin(x) != place.bin) continue;
      u32 at = atomicAdd(&members, 1u);
      if (at >= most_members) continue;
      keys[at] = key_of(x, token);
      parts[at] = parts_of(range.weight(x));
    }
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
  // Too many to compare with each other, which takes many equal logits: the key is found bit by bit.
  u64 key = 0, weight = 0;
#pragma unroll 1
  for (int bit = 63; bit >= -1; bit--) {
    u64 tried = bit >= 0 ? key | 1ull << bit : key, count;
    tally(work, range, place.bin, tried, &count, &weight);
    if ((by_weight ? weight : count) >= place.needed) key = tried;
  }
  return {key, place.weight_before + weight};
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

// `random` is the state's seed and how many numbers were taken of it. Puts the token where the next chunk's are, and to
// `chosen`; nothing (all bits set) if a logit is NaN or infinite, or if all are minus infinity. 1024 threads.
template <int vocab>
__device__ void draw(const Sampling* s, u64* random, u32* ids, u32* chosen, Working<vocab>* work) {
  constexpr int segments = Working<vocab>::segments;
  __shared__ Place place;
  __shared__ int found;
  __shared__ u64 rest;
  Range range(work, s->temperature);
  if (!(range.largest > -infinity && range.largest < infinity)) {
    if (threadIdx.x == 0) {
      *chosen = ~0u;
      ids[0] = 0;
    }
    return;
  }
  u64 count = work->counts[threadIdx.x], weight = work->weights[threadIdx.x], tokens, total;
  u64 count_through = block_scan(count, &tokens), weight_through = block_scan(weight, &total);
  Cut cut = {0, total};
#pragma unroll 1
  for (int by_weight = 0; by_weight < 2; by_weight++) {
    // Top-k, then top-p of what it leaves.
    u64 needed = by_weight ? (u64)ceil(__dmul_rn((double)s->top_p, (double)cut.weight)) : s->top_k;
    if (by_weight ? s->top_p >= 1.0f : needed == 0 || needed >= tokens) continue;
    u64 through = by_weight ? weight_through : count_through, own = by_weight ? weight : count;
    __syncthreads();
    if (through - own < needed && needed <= through)
      place = {(int)threadIdx.x, needed - (through - own), weight_through - weight};
    __syncthreads();
    Cut found = cut_in(work, range, place, by_weight);
    cut = {found.key > cut.key ? found.key : cut.key, found.weight};
  }
  float min_p = s->min_p;
  auto kept = [&](int token) -> u64 {
    if (token >= vocab) return 0;
    float x = work->logits[token];
    if (key_of(x, token) < cut.key) return 0;
    float weight = range.weight(x);
    return weight >= min_p ? parts_of(weight) : 0;
  };

  u64 own = 0;
  for (int i = warp_index(); i < segments; i += 32) {
    u64 sum = 0;
    if (key_of(work->largest[i], 0) >= cut.key)
#pragma unroll 4
      for (int j = lane_index(); j < segment; j += 32) sum += kept(i * segment + j);
    for (int distance = 16; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
    if (lane_index() == 0) {
      work->sums[i] = sum;
      own += sum;
    }
  }
  block_scan(own, &total);
  u64 target = s->draws ? (u64)__dmul_rn(uniform(random[0], random[1]), (double)total) : 0;
  if (target >= total) target = total - 1;
  u64 before = 0;
  for (int start = 0; start < segments; start += 1024) {
    u64 sum = start + threadIdx.x < segments ? work->sums[start + threadIdx.x] : 0, all;
    u64 through = before + block_scan(sum, &all);
    if (through - sum <= target && target < through) {
      found = start + threadIdx.x;
      rest = target - (through - sum);
    }
    before += all;
  }
  __syncthreads();
  if (warp_index() != 0) return;
  before = 0;
#pragma unroll 1
  for (int j = 0; j < segment; j += 32) {
    int token = found * segment + j + lane_index();
    u64 mine = kept(token), through = mine;
    for (int distance = 1; distance < 32; distance *= 2) {
      u64 other = __shfl_up_sync(all_lanes, through, distance);
      if (lane_index() >= distance) through += other;
    }
    through += before;
    if (through - mine <= rest && rest < through) {
      *chosen = token;
      ids[0] = token;
    }
    before = __shfl_sync(all_lanes, through, 31);
  }
  if (threadIdx.x == 0 && s->draws) random[1]++;
}
