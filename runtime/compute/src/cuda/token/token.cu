// Ends a chunk: its tokens go to the log, and the position advances.
template <int log_length>
__device__ void advance(const u32* ids, u32* log, u64* position, int tokens) {
  u64 before = *position;
  // A chunk longer than the log leaves only its last tokens there.
  int first = tokens > log_length ? tokens - log_length : 0;
  for (int t = first + threadIdx.x; t < tokens; t += blockDim.x) log[(before + t) % log_length] = ids[t];
  __syncthreads();
  if (threadIdx.x == 0) *position = before + tokens;
}

// Writes the positions of the tokens of a chunk.
__device__ inline void count_positions(const u64* position, u64* positions, int tokens) {
  for (int t = threadIdx.x; t < tokens; t += blockDim.x) positions[t] = *position + t;
}

// Copies the logits of a slot into its state.
template <int vocab>
__device__ void copy_logits(const float* from, float* to) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < vocab) to[i] = from[i];
}

// Returns the key by which a token is chosen. All bits are set if its logit is NaN or infinite. For minus infinity the key is 0, which is
// never chosen.
__device__ inline u64 order_of(float logit, u32 token) {
  if (!(logit < infinity)) return ~0ull;
  if (logit == -infinity) return 0;
  // Both zeros get the same key.
  return key_of(logit + 0.0f, token);
}

// Returns the largest value over a block, in thread 0.
__device__ inline u64 block_largest(u64 x) {
  __shared__ u64 of_warps[32];
  for (int distance = 16; distance > 0; distance /= 2) {
    u64 other = __shfl_xor_sync(all_lanes, x, distance);
    x = other > x ? other : x;
  }
  if (lane_index() == 0) of_warps[warp_index()] = x;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < blockDim.x / 32; i++) x = of_warps[i] > x ? of_warps[i] : x;
  }
  return x;
}

// Finds the best key of each part of the logits; each thread reads `run` logits.
template <int vocab, int run>
__device__ void best_of_part(const float* logits, u64* best) {
  int first = (blockIdx.x * blockDim.x + threadIdx.x) * run;
  u64 largest = 0;
#pragma unroll
  for (int i = 0; i < run; i++) {
    u64 order = first + i < vocab ? order_of(logits[first + i], first + i) : 0;
    largest = order > largest ? order : largest;
  }
  largest = block_largest(largest);
  if (threadIdx.x == 0) best[blockIdx.x] = largest;
}

// Chooses the lowest token with the largest logit; none (all bits set) if a logit is NaN or infinite, or if all are minus infinity.
template <int parts>
__device__ void choose(const u64* best, u32* ids, u32* chosen) {
  u64 largest = 0;
  for (int i = threadIdx.x; i < parts; i += blockDim.x) largest = best[i] > largest ? best[i] : largest;
  largest = block_largest(largest);
  if (threadIdx.x != 0) return;
  bool some = largest != 0 && largest != ~0ull;
  *chosen = some ? ~(u32)largest : ~0u;
  ids[0] = some ? ~(u32)largest : 0;
}
