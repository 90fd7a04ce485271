// The end of a chunk: its tokens go to the log, the position moves on.
template <int log_length>
__device__ void advance(const u32* ids, u32* log, u64* position, int tokens) {
  u64 before = *position;
  // A chunk longer than the log leaves its last tokens there.
  int first = tokens > log_length ? tokens - log_length : 0;
  for (int t = first + threadIdx.x; t < tokens; t += blockDim.x) log[(before + t) % log_length] = ids[t];
  __syncthreads();
  if (threadIdx.x == 0) *position = before + tokens;
}

// The lowest token of the largest logit; none (all bits set) if one is NaN or infinite, or if all are minus infinity.
template <int vocab>
__device__ void choose(const float* logits, u32* ids, u32* chosen) {
  __shared__ u32 tokens[32];
  float best = -infinity;
  u32 token = vocab;
  bool damaged = false;
#pragma unroll 8
  for (int i = threadIdx.x; i < vocab; i += blockDim.x) {
    float x = logits[i];
    damaged |= !(x < infinity);
    if (x > best) {
      best = x;
      token = i;
    }
  }
  float largest = block_max(damaged ? infinity : best);
  u32 mine = best == largest && largest < infinity ? token : vocab;
  for (int distance = 16; distance > 0; distance /= 2) {
    u32 other = __shfl_xor_sync(all_lanes, mine, distance);
    mine = other < mine ? other : mine;
  }
  if (lane_index() == 0) tokens[warp_index()] = mine;
  __syncthreads();
  if (threadIdx.x != 0) return;
  for (int i = 0; i < blockDim.x / 32; i++) mine = tokens[i] < mine ? tokens[i] : mine;
  *chosen = mine < vocab ? mine : ~0u;
  ids[0] = mine < vocab ? mine : 0;
}
