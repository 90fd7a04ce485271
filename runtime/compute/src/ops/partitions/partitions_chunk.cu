// The matrix form of recurrences in partitions, for chunks: `list_partitions` lists the tokens of each partition,
// `gather_partitions` gathers their inputs, so that the kernels of recur_chunk.cu and recur_states.cu pass over them in blocks,
// and `sum_gathered` sums each token's results from its partitions. `PartitionLists` is in matrix_form.rs.

// Marks a place of `PartitionLists` without a token.
constexpr int no_source = -1;

// A thread block takes one partition. `used`: partitions that each token writes or reads.
template <int partitions, int used>
__device__ void list_partitions(PartitionRoute route, PartitionLists lists, int tokens) {
  __shared__ int counts[partitions];
  __shared__ int of_warps[32];
  int partition = blockIdx.x, warps = blockDim.x / 32;
  for (int i = threadIdx.x; i < partitions; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * used; i += blockDim.x) {
    atomicAdd(counts + (int)route.chosen.token(i / used)[i % used], 1);
  }
  __syncthreads();
  auto blocks_of = [&](int number) { return (counts[number] + chunk_block - 1) / chunk_block; };
  int first = 0;
  for (int i = 0; i < partition; i++) first += blocks_of(i);
  int end = first + blocks_of(partition);
  if (threadIdx.x == 0) {
    lists.firsts[partition] = first;
    if (partition == partitions - 1) lists.firsts[partitions] = end;
  }
  int place = first * chunk_block;
  for (int start = 0; start < tokens; start += blockDim.x) {
    int t = start + threadIdx.x, rank = -1;
    for (int r = 0; r < used && t < tokens; r++) rank = (int)route.chosen.token(t)[r] == partition ? r : rank;
    u32 mine = __ballot_sync(all_lanes, rank >= 0);
    if (lane_index() == 0) of_warps[warp_index()] = __popc(mine);
    __syncthreads();
    int before = __popc(mine & ((1u << lane_index()) - 1)), found = 0;
    for (int warp = 0; warp < warps; warp++) {
      before += warp < warp_index() ? of_warps[warp] : 0;
      found += of_warps[warp];
    }
    if (rank >= 0) {
      lists.sources[place + before] = t * used + rank;
      lists.places[t * used + rank] = place + before;
    }
    place += found;
    // The next counts overwrite these.
    __syncthreads();
  }
  for (int i = place + threadIdx.x; i < end * chunk_block; i += blockDim.x) lists.sources[i] = no_source;
}

// Copies a row of n values by one warp, times `weight`, or times the factor that normalizes the product; zeros if `from` is null.
template <int n>
__device__ inline void gather_row_of(float* to, const float* from, float weight, bool unit_length) {
  constexpr int count = (n + 31) / 32;
  float x[count], sum = 0.0f;
#pragma unroll
  for (int i = 0; i < count; i++) {
    int column = i * 32 + lane_index();
    x[i] = from && (n % 32 == 0 || column < n) ? from[column] : 0.0f;
    sum += x[i] * x[i];
  }
  if (unit_length) weight /= sqrtf(weight * weight * warp_sum(sum) + 1e-6f);
#pragma unroll
  for (int i = 0; i < count; i++) {
    int column = i * 32 + lane_index();
    if (n % 32 == 0 || column < n) to[column] = weight * x[i];
  }
}

// A thread block takes a head in a block of places. An empty place writes nothing and decays nothing; nor does a token in a
// partition that it only reads. `decays`: number of log decays per head.
template <int partitions, int used, int dk, int dv, int decays, bool delta>
__device__ void gather_partitions(RecurInputs from, RecurInputs to, PartitionRoute route, PartitionLists lists) {
  int head = blockIdx.x, end = lists.firsts[partitions] * chunk_block;
  for (int i = warp_index(); i < chunk_block; i += blockDim.x / 32) {
    int place = blockIdx.y * chunk_block + i;
    int source = place < end ? lists.sources[place] : no_source;
    bool taken = source >= 0;
    int t = taken ? source / used : 0, rank = taken ? source % used : 0;
    const float* chosen = route.chosen.token(t);
    int partition = (int)chosen[rank];
    float weight = chosen[route.count + rank];
    bool writes = taken && rank < route.writers;
    auto row = [&](const RecurInput& input, int width, bool wanted) {
      return wanted ? input.at(t, head, width, partition) : nullptr;
    };
    auto place_of = [&](const RecurInput& input, int width) { return input.rows.token(place) + head * width; };
    gather_row_of<dk>(place_of(to.q, dk), row(from.q, dk, taken), route.weigh_queries ? weight : 1.0f, route.unit_length);
    gather_row_of<dk>(place_of(to.k, dk), row(from.k, dk, writes), route.weigh_keys ? weight : 1.0f, route.unit_length);
    gather_row_of<dv>(place_of(to.v, dv), row(from.v, dv, writes), 1.0f, false);
    if constexpr (decays > 0) {
      gather_row_of<decays>(place_of(to.decay, decays), row(from.decay, decays, writes), 1.0f, false);
    }
    if constexpr (delta) gather_row_of<1>(place_of(to.beta, 1), row(from.beta, 1, writes), 1.0f, false);
  }
}

template <int width, int used, int readers, bool add>
__device__ void sum_gathered(Rows gathered, PartitionLists lists, Rows out) {
  float* row = out.token(blockIdx.x);
  const int* places = lists.places + blockIdx.x * used;
  for (int i = threadIdx.x; i < width; i += blockDim.x) {
    float sum = add ? row[i] : 0.0f;
    for (int rank = 0; rank < readers; rank++) sum += gathered.token(places[rank])[i];
    row[i] = sum;
  }
}
