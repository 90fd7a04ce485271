// Recurrences over a state in partitions. A thread block takes some columns of one head in one partition, and the tokens of the
// chunk that chose this partition; a token's results from its partitions are summed afterwards. A step has thread blocks for its
// chosen partitions only. `PartitionRoute` is in launch.rs.

// Tokens that pass over a state together, and the partition's rank for each.
template <int batch>
struct Gathered {
  int count;
  int tokens[batch];
  int ranks[batch];

  // Finds the next tokens of the partition from `next` on, and advances `next` past them; called by one warp.
  __device__ void find(const PartitionRoute& route, int partition, int& next, int tokens_of_chunk) {
    int touched = max(route.writers, route.readers), found = 0;
    while (found < batch && next < tokens_of_chunk) {
      int t = next + lane_index(), rank = -1;
      if (t < tokens_of_chunk) {
        for (int r = touched - 1; r >= 0; r--) rank = (int)route.chosen.token(t)[r] == partition ? r : rank;
      }
      u32 mine = __ballot_sync(all_lanes, rank >= 0);
      int index = found + __popc(mine & ((1u << lane_index()) - 1));
      if (rank >= 0 && index < batch) tokens[index] = t, ranks[index] = rank;
      u32 left = __ballot_sync(all_lanes, rank >= 0 && index >= batch);
      next += left != 0 ? __ffs((int)left) - 1 : 32;
      found = min(found + __popc(mine), batch);
    }
    if (lane_index() == 0) count = found;
  }
};

// Multiplies n values by the weight, or by the factor that normalizes the product; called by one warp.
__device__ inline void weigh(float* x, int n, float weight, bool unit_length) {
  if (unit_length) {
    float sum = 0.0f;
    for (int i = lane_index(); i < n; i += 32) sum += x[i] * x[i];
    weight /= sqrtf(weight * weight * warp_sum(sum) + 1e-6f);
  }
  for (int i = lane_index(); i < n; i += 32) x[i] *= weight;
}

// Weighs a loaded token for a partition that has the given rank for it; called by one warp.
template <class State>
__device__ void weigh_token(const PartitionRoute& route, int rank, float weight, float* x, int dk) {
  weigh(x + State::q_at, dk, route.weigh_queries ? weight : 1.0f, route.unit_length);
  weigh(x + State::k_at, dk, route.weigh_keys ? weight : 1.0f, route.unit_length);
  if (rank < route.writers) return;
  // Nothing decays and nothing is written.
  for (int j = lane_index(); j < dk; j += 32) {
    x[State::k_at + j] = 0.0f;
    if (State::row_decays) x[State::decay_at + j] = 0.0f;
  }
  if (lane_index() == 0) x[State::scalars_at + State::DECAY] = 0.0f;
}

// The single token of a step. Its columns are loaded during routing if all partitions share them.
template <int heads, int dk, int dv, int lanes, int columns, int warps, int queries, int decay_kind, bool complement, int write, int finish,
          int batch, bool aligned>
__device__ void partitions_step(const RecurInputs& in, const PartitionRoute& route) {
  static_assert(queries == 1 && !complement && batch == 1, "partitions have one query and keys of their own");
  using State = Recurrence<dk, dv, lanes, columns, warps, queries, decay_kind, complement, write, finish, batch, aligned>;
  float* room = shared_memory<float>();
  int head = blockIdx.x / State::groups % heads, rank = blockIdx.x / State::groups / heads;
  const float* chosen = route.chosen.token(0) + rank;
  float number = chosen[0], weight = chosen[route.count];
  auto load = [&](int partition) {
    State state(in, head, partition, blockIdx.x % State::groups);
    state.clear(room, 1);
    if (warp_index() == 0) state.load_token(room, 0);
    commit_copies();
  };
  bool alike = in.q.part == 0;
  if (alike) load(0);
  int partition = (int)number;
  State state(in, head, partition, blockIdx.x % State::groups);
  float* matrix = in.states + ((long long)partition * heads + head) * dk * dv;
  state.load_state(matrix);
  if (!alike) load(partition);
  wait_for_copies<0>();
  __syncthreads();
  if (warp_index() == 0) weigh_token<State>(route, rank, weight, room, dk);
  __syncthreads();
  state.decay_rows(room, 1);
  float out[queries][columns];
  state.step(room, out);
  if (rank < route.readers) state.emit(room, out, in.out.token(0) + (rank * heads + head) * dv);
  __syncthreads();
  arrive_early();
  state.store_state(matrix);
}

// `out` has `readers` rows of all heads for each token.
template <int heads, int dk, int dv, int lanes, int columns, int warps, int queries, int decay_kind, bool complement,
          int write, int finish, int batch, bool aligned>
__device__ void partitions(const RecurInputs& in, const PartitionRoute& route, int tokens) {
  static_assert(queries == 1 && !complement && batch > 1, "partitions have one query and keys of their own");
  using State = Recurrence<dk, dv, lanes, columns, warps, queries, decay_kind, complement, write, finish, batch, aligned>;
  constexpr int buffers = 2;
  __shared__ Gathered<batch> gathered[buffers];
  float* room = shared_memory<float>();
  int head = blockIdx.x / State::groups % heads, partition = blockIdx.x / State::groups / heads;
  State state(in, head, partition, blockIdx.x % State::groups);
  float* matrix = in.states + ((long long)partition * heads + head) * dk * dv;
  state.load_state(matrix);
  state.clear(room, buffers * batch);

  int next = 0;
  auto load = [&](int buffer) {
    Gathered<batch>& list = gathered[buffer];
    if (warp_index() == 0) list.find(route, partition, next, tokens);
    __syncthreads();
    for (int i = warp_index(); i < list.count; i += warps) {
      state.load_token(room + (buffer * batch + i) * State::token_floats, list.tokens[i]);
    }
    commit_copies();
  };
  load(0);
  for (int buffer = 0;; buffer = (buffer + 1) % buffers) {
    load(1 - buffer);
    wait_for_copies<1>();
    __syncthreads();
    const Gathered<batch>& list = gathered[buffer];
    if (list.count == 0) break;
    float* now = room + buffer * batch * State::token_floats;
    for (int i = warp_index(); i < list.count; i += warps) {
      float* x = now + i * State::token_floats;
      int rank = list.ranks[i];
      float weight = route.chosen.token(list.tokens[i])[route.count + rank];
      weigh_token<State>(route, rank, weight, x, dk);
    }
    __syncthreads();
    state.decay_rows(now, list.count);
    for (int i = 0; i < list.count; i++) {
      float out[queries][columns];
      const float* x = now + i * State::token_floats;
      state.step(x, out);
      int rank = list.ranks[i];
      if (rank < route.readers) state.emit(x, out, in.out.token(list.tokens[i]) + (rank * heads + head) * dv);
    }
    // The next copies overwrite this batch.
    __syncthreads();
  }
  state.store_state(matrix);
}

// Sums a token's results from its partitions; a thread takes a column.
template <int width, int readers, bool add>
__device__ void sum_partitions(Rows parts, Rows out) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= width) return;
  float* place = out.token(blockIdx.y) + i;
  const float* part = parts.token(blockIdx.y) + i;
  float sum = add ? *place : 0.0f;
#pragma unroll 8
  for (int rank = 0; rank < readers; rank++) sum += part[rank * width];
  *place = sum;
}
