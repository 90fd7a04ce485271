// Decides which tokens a capped set retains. `Retained` is in launch.rs.

enum { LEARNED, STRIDE };

// The lowest score so far; among equal scores, the first row wins.
struct Lowest {
  float score = infinity;
  int row = never;

  __device__ void take(float other, int at) {
    if (other < score || (other == score && at < row)) score = other, row = at;
  }
};

// The lowest of a thread's share of `count` scores.
__device__ inline Lowest lowest_of_thread(const float* scores, int count) {
  Lowest lowest;
#pragma unroll 4
  for (int i = threadIdx.x; i < count; i += blockDim.x) lowest.take(scores[i], i);
  return lowest;
}

// Returns the row of the lowest score of all threads, in every thread.
__device__ inline int lowest_of_block(Lowest lowest) {
  __shared__ float of_warps[32];
  __shared__ int rows[32];
  for (int distance = 16; distance > 0; distance /= 2) {
    float score = __shfl_xor_sync(all_lanes, lowest.score, distance);
    lowest.take(score, __shfl_xor_sync(all_lanes, lowest.row, distance));
  }
  __syncthreads();
  if (lane_index() == 0) {
    of_warps[warp_index()] = lowest.score;
    rows[warp_index()] = lowest.row;
  }
  __syncthreads();
  for (int warp = 0; warp < (int)blockDim.x / 32; warp++) lowest.take(of_warps[warp], rows[warp]);
  return lowest.row;
}

__device__ inline int lowest_score(const float* scores, int count) { return lowest_of_block(lowest_of_thread(scores, count)); }

// The lowest positive score in a lane of a warp, compared by its bits, which have the same order.
struct LowestOfWarp {
  u32 bits = 0xffffffff;
  int row = never;

  __device__ float score() const { return __uint_as_float(bits); }

  // Considers a row; calls are in increasing order of rows, so the first lowest row wins.
  __device__ void take(float other, int at) {
    if (__float_as_uint(other) < bits) bits = __float_as_uint(other), row = at;
  }

  // The lowest score of all lanes, in every lane; the first row wins.
  __device__ LowestOfWarp of_all_lanes() const {
    LowestOfWarp all;
    all.bits = ~warp_max_of_bits(~bits);
    all.row = (int)~warp_max_of_bits(~(u32)(bits == all.bits ? row : never));
    return all;
  }
};

// The score of the token that leaves the window when the chunk's token t arrives.
__device__ inline float leaving_score(const Attended& a, const Retained& r, int head, long long start, int t) {
  long long leaves = start + t - a.rows;
  int scored = t - a.rows + r.margin;
  if (leaves < r.sink) return infinity;
  return scored >= 0 ? r.router.token(scored)[head] : r.window_scores[head * a.rows + (int)((u64)leaves % a.rows)];
}

// Stores the score that the chunk's token t brings, which belongs to the token `margin` before it.
__device__ inline void store_window_score(const Attended& a, const Retained& r, int head, long long start, int t) {
  long long scored = start + t - r.margin;
  if (scored >= 0 && r.router.first) r.window_scores[head * a.rows + (int)((u64)scored % a.rows)] = r.router.token(t)[head];
}

// Decides which tokens enter the set and which leave it: a single token by its score, or every n-th token of a chunk. One thread
// block per key head takes the tokens in order. Arguments are copied to registers, since the compiler would reload them after
// each store. The inputs for a single token do not depend on earlier kernels of the step, so they are loaded while those kernels
// finish.
template <int policy>
__device__ void retain(Attended a, Retained r, const u64* position, int tokens) {
  int head = blockIdx.x;
  int* gone = a.gone + head * a.capacity;
  int* until = a.until + head * a.chunk;
  int* taken = a.taken + head * a.chunk;
  int* occupants = r.occupants + head * a.capacity;
  float* scores = r.set_scores + head * a.capacity;
  int count = r.counts[head];
  Lowest own;
  // Only a full set has to make room.
  if constexpr (policy == LEARNED) own = lowest_of_thread(scores, a.capacity);
  long long start = *position;
  float score = 0.0f;
  if (policy == LEARNED && start >= a.rows) score = leaving_score(a, r, head, start, 0);
  wait_for_dependencies();
  launch_dependents();
  for (int i = threadIdx.x; i < a.capacity; i += blockDim.x) {
    gone[i] = never;
    occupants[i] = -1;
  }
  if constexpr (policy == LEARNED) {
    // Every thread has read the score of the token that leaves.
    __syncthreads();
    if (threadIdx.x == 0) store_window_score(a, r, head, start, 0);
  }
  __syncthreads();
  if (threadIdx.x == 0) a.counts[head] = count;
  int lowest = policy == LEARNED && count == a.capacity ? lowest_of_block(own) : 0;
  for (int t = 0; t < (policy == LEARNED ? 1 : tokens); t++) {
    long long leaves = start + t - a.rows;
    int kept = -1;
    if (leaves >= 0 && a.capacity > 0) {
      if constexpr (policy == LEARNED) {
        if (score > 0.0f) kept = count < a.capacity ? count : scores[lowest] < score ? lowest : -1;
      } else {
        long long later = leaves - r.sink;
        int room = a.capacity - r.sink;
        if (later < 0) kept = (int)leaves;
        else if (room > 0 && later % r.every == 0) kept = r.sink + (int)(later / r.every % room);
      }
    }
    bool rises = kept >= count;
    if (rises) count = kept + 1;
    // One thread now changes data that all threads have read.
    __syncthreads();
    if (threadIdx.x == 0) {
      taken[t] = kept;
      until[t] = kept < 0 ? t : never;
      if (kept >= 0) {
        // Before the chunk's first token no row has been taken.
        int before = t > 0 ? occupants[kept] : -1;
        (before < 0 ? gone[kept] : until[before]) = t;
        occupants[kept] = t;
        r.set_positions[head * a.capacity + kept] = leaves + 1;
        if constexpr (policy == LEARNED) scores[kept] = score;
      }
    }
  }
  if (threadIdx.x == 0) r.counts[head] = count;
}

// Like `retain`, for a chunk whose tokens have learned scores. One warp takes the tokens in order, 32 at once: tokens that
// cannot enter are skipped together. The set's rows form 32 consecutive groups, and each lane holds the lowest score of one
// group: when a row changes, only its group is searched.
__device__ inline void retain_chunk(const Attended& a, const Retained& r, const u64* position, int tokens) {
  int head = blockIdx.x, lane = lane_index(), capacity = a.capacity;
  int* gone = a.gone + head * capacity;
  int* until = a.until + head * a.chunk;
  int* taken = a.taken + head * a.chunk;
  int* occupants = r.occupants + head * capacity;
  float* leaving = r.leaving + head * a.chunk;
  float* scores = r.set_scores + head * capacity;
  u64* set_positions = r.set_positions + head * capacity;
  wait_for_dependencies();
  launch_dependents();
  int count = r.counts[head];
  long long start = *position;
  for (int i = threadIdx.x; i < capacity; i += blockDim.x) {
    gone[i] = never;
    occupants[i] = -1;
  }
  for (int t = threadIdx.x; t < tokens; t += blockDim.x) {
    taken[t] = -1;
    until[t] = t;
    leaving[t] = start + t >= a.rows && capacity > 0 ? leaving_score(a, r, head, start, t) : 0.0f;
  }
  // Every score of a leaving token has been read.
  __syncthreads();
  for (int t = max(0, tokens - a.rows) + threadIdx.x; t < tokens; t += blockDim.x) store_window_score(a, r, head, start, t);
  if (threadIdx.x == 0) a.counts[head] = count;
  if (warp_index() != 0) return;

  // Groups of 2^shift rows.
  int shift = 0;
  while (32 << shift < capacity) shift++;
  LowestOfWarp of_group, lowest;
  auto search_all = [&] {
    of_group = {};
    for (int i = lane << shift; i < min(capacity, (lane + 1) << shift); i++) of_group.take(scores[i], i);
    lowest = of_group.of_all_lanes();
  };
  auto search = [&](int group) {
    LowestOfWarp found;
    for (int i = (group << shift) + lane; i < min(capacity, (group + 1) << shift); i += 32) found.take(scores[i], i);
    found = found.of_all_lanes();
    if (lane == group) of_group = found;
    lowest = of_group.of_all_lanes();
  };
  if (count == capacity) search_all();
  for (int first = 0; first < tokens; first += 32) {
    int t = first + lane;
    float score = t < tokens ? leaving[t] : 0.0f;
    auto take = [&](int row) {
      int before = occupants[row];
      (before < 0 ? gone[row] : until[before]) = t;
      taken[t] = row;
      until[t] = never;
      occupants[row] = t;
      scores[row] = score;
      set_positions[row] = start + t - a.rows + 1;
    };
    // The lowest score only rises: a token that cannot enter now never can.
    for (u32 undecided = all_lanes;;) {
      bool enters = score > 0.0f && (count < capacity || score > lowest.score());
      u32 entering = __ballot_sync(all_lanes, enters) & undecided;
      if (entering == 0) break;
      if (count < capacity) {
        int rank = __popc(entering & ((1u << lane) - 1));
        bool takes = (entering >> lane & 1) != 0 && rank < capacity - count;
        if (takes) take(count + rank);
        u32 taking = __ballot_sync(all_lanes, takes);
        undecided &= ~taking;
        count += __popc(taking);
        __syncwarp();
        if (count == capacity) search_all();
      } else {
        int from = __ffs((int)entering) - 1, row = lowest.row;
        if (lane == from) take(row);
        undecided &= ~(1u << from);
        __syncwarp();
        search(row >> shift);
      }
    }
  }
  if (lane == 0) r.counts[head] = count;
}

// The attention policy. A query's weights decide which tokens the next query sees, so one thread block per key head processes
// the chunk token by token. Shared memory holds the data of `merge`, then the largest score and the sum of each query head.
template <class E, int dim, int unit, int heads>
__device__ void attend_and_weigh(const Attended& a, const Retained& r, const u64* position, int tokens) {
  int kv_head = blockIdx.x, group = a.heads / a.kv_heads, warps = blockDim.x / 32;
  long long start = *position;
  long long head_rows = (long long)kv_head * a.rows * dim, head_set = (long long)kv_head * a.capacity * dim;
  E* segments[2] = {reinterpret_cast<E*>(a.keys) + head_rows, reinterpret_cast<E*>(a.values) + head_rows};
  E* sets[2] = {reinterpret_cast<E*>(a.set_keys) + head_set, reinterpret_cast<E*>(a.set_values) + head_set};
  float* scores = r.set_scores + kv_head * a.capacity;
  float* window = r.window_scores + kv_head * a.rows;
  float* totals = shared_memory<float>() + warps * heads * (dim + 2);
  int count = r.counts[kv_head];
  for (int t = 0; t < tokens; t++) {
    long long now = start + t;
    int row = (int)((u64)now % a.rows), kept = -1;
    float score = now - a.rows < r.sink ? infinity : window[row];
    if (now >= a.rows && a.capacity > 0 && score == score) {
      if (count < a.capacity) {
        kept = count;
      } else {
        int lowest = lowest_score(scores, count);
        if (scores[lowest] < score) kept = lowest;
      }
    }
    if (kept == count) count++;
    // The writes below change data that all threads have read.
    __syncthreads();
    for (int which = 0; which < 2; which++) {
      const float* own = (which == 0 ? a.k : a.v).token(t) + kv_head * dim;
      for (int i = threadIdx.x; i < dim; i += blockDim.x) {
        E* place = segments[which] + (long long)row * dim + i;
        if (kept >= 0) sets[which][(long long)kept * dim + i] = *place;
        *place = E(own[i]);
      }
    }
    if (threadIdx.x == 0 && kept >= 0) {
      scores[kept] = score;
      r.set_positions[kv_head * a.capacity + kept] = now - a.rows + 1;
    }
    __syncthreads();

    int seen = now + 1 < a.rows ? (int)now + 1 : a.rows;
    CachedRows<E> set = {sets[0], sets[1], dim, a.capacity, 0};
    CachedRows<E> segment = {segments[0], segments[1], dim, a.rows, seen < a.rows ? 0 : (row + 1) % a.rows};
    for (int part = 0; part < group; part += heads) {
      int first_head = kv_head * group + part;
      Softmaxes<E, dim, unit, heads> softmaxes;
      softmaxes.clear();
#pragma unroll
      for (int g = 0; g < heads; g++) softmaxes.load_query(g, a.q.token(t) + (first_head + g) * dim);
      auto all = [](int, int) { return true; };
      softmaxes.add(0, count, set, a.scale, all);
      softmaxes.add(0, seen, segment, a.scale, all);
      softmaxes.merge(shared_memory<float>(), [&](int g, int i, float largest, float sum, float weighted) {
        sum = with_sink(a, first_head + g, largest, sum);
        a.out.token(t)[(first_head + g) * dim + i] = weighted / sum;
        if (i == 0) {
          totals[(part + g) * 2] = largest;
          totals[(part + g) * 2 + 1] = sum;
        }
      });
    }
    __syncthreads();

    // The average weight of each retained token and of the next token to leave; one warp takes one token.
    int next = (int)((u64)(now + 1) % a.rows);
    for (int i = warp_index(); i < count + (now + 1 >= a.rows); i += warps) {
      const E* key = i < count ? sets[0] + (long long)i * dim : segments[0] + (long long)next * dim;
      float weight = 0.0f;
      for (int g = 0; g < group; g++) {
        const float* query = a.q.token(t) + (kv_head * group + g) * dim;
        float product = 0.0f;
        for (int c = lane_index(); c < dim; c += 32) product += query[c] * float_of(key[c]);
        weight += expf(a.scale * warp_sum(product) - totals[g * 2]) / totals[g * 2 + 1];
      }
      weight /= group;
      if (lane_index() == 0 && i == count) window[next] = weight;
      // The first tokens keep their infinite scores.
      if (lane_index() == 0 && i < count && fabsf(scores[i]) < infinity) scores[i] = weight;
    }
    __syncthreads();
  }
  if (threadIdx.x == 0) r.counts[kv_head] = count;
}
