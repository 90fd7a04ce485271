// Short convolutions over the tokens that chose a partition. A thread block takes a head of one partition for a tile of tokens,
// and a warp takes a token: it searches backwards for the previous tokens that made the same choice. `ChosenGroups` is in
// launch.rs.

constexpr int most_past = 8;

__device__ inline bool chooses(const ChosenGroups& groups, int t, int partition) {
  bool found = false;
  for (int rank = 0; rank < groups.chosen; rank++) found |= (int)groups.route.token(t)[rank] == partition;
  return found;
}

// Finds the last tokens before `end` that chose the partition, at most `past`, latest first; called by one warp.
__device__ inline int find_before(const ChosenGroups& groups, int partition, int end, int past, int* before) {
  int found = 0;
  for (int last = end - 1; last >= 0 && found < past; last -= 32) {
    int t = last - lane_index();
    u32 choose = __ballot_sync(all_lanes, t >= 0 && chooses(groups, t, partition));
    for (; choose != 0 && found < past; choose &= choose - 1, found++) {
      if (lane_index() == 0) before[found] = last - (__ffs((int)choose) - 1);
    }
  }
  __syncwarp();
  return found;
}

// The head of a thread block: its group, and its first column in the results, in its partition and in the input.
struct ChosenHead {
  ChosenGroup group;
  int width, past, partition, inner, input, column;

  __device__ ChosenHead(const ChosenGroups& groups, int partitions, int found)
      : group(groups.at[found]), width(group.out.width / partitions), past(group.taps - 1) {
    column = (blockIdx.x - group.first) * group.head_dim;
    partition = column / width;
    inner = column % width;
    input = group.input.width == group.out.width ? column : inner;
  }

  __device__ static int find(const ChosenGroups& groups) {
    int found = 0;
    for (int i = 1; i < groups.groups; i++) found = (int)blockIdx.x >= groups.at[i].first ? i : found;
    return found;
  }

  __device__ float* history(int row, int i) const {
    return group.history + ((long long)partition * past + row) * width + inner + i;
  }

  // The input j tokens of the partition before the current one; the chunk holds the last `found` of these tokens.
  __device__ float earlier(int j, int i, int found, const int* before) const {
    return j <= found ? group.input.token(before[j - 1])[input + i] : *history(past - (j - found), i);
  }
};

// `step`: there is only one token, and the stored inputs advance at once.
template <int partitions, int tile, bool step>
__device__ void conv_chosen(ChosenGroups groups, int tokens) {
  __shared__ int found_before[32][most_past];
  ChosenHead head(groups, partitions, ChosenHead::find(groups));
  const ChosenGroup& group = head.group;
  int* before = found_before[warp_index()];
  int end = min((int)(blockIdx.y + 1) * tile, tokens);
  for (int t = blockIdx.y * tile + warp_index(); t < end; t += blockDim.x / 32) {
    if (!chooses(groups, t, head.partition)) continue;
    int found = find_before(groups, head.partition, t, head.past, before);
    const float* x = group.input.token(t) + head.input;
    float* y = group.out.token(t) + head.column;
    float squares = 0.0f;
    for (int i = lane_index(); i < group.head_dim; i += 32) {
      const float* weight = group.weight + head.inner + i;
      float sum = group.bias ? group.bias[head.inner + i] : 0.0f;
      for (int j = head.past; j > 0; j--) sum += weight[(head.past - j) * head.width] * head.earlier(j, i, found, before);
      y[i] = silu(sum + weight[head.past * head.width] * x[i]);
      squares += y[i] * y[i];
      if (step) {
        for (int row = 0; row < head.past; row++) *head.history(row, i) = row + 1 < head.past ? *head.history(row + 1, i) : x[i];
      }
    }
    if (group.unit_length) {
      float factor = 1.0f / sqrtf(warp_sum(squares) + 1e-6f);
      for (int i = lane_index(); i < group.head_dim; i += 32) y[i] *= factor;
    }
    __syncwarp();
  }
}

// Stores the last inputs of each partition, once all tokens have read the inputs from before the chunk.
template <int partitions>
__device__ void keep_chosen(ChosenGroups groups, int tokens) {
  __shared__ int before[most_past];
  ChosenHead head(groups, partitions, ChosenHead::find(groups));
  int found = find_before(groups, head.partition, tokens, head.past, before);
  if (found == 0) return;
  for (int i = lane_index(); i < head.group.head_dim; i += 32) {
    // A row is read before it is overwritten.
    for (int row = 0; row < head.past; row++) {
      int j = head.past - row;
      *head.history(row, i) =
          j <= found ? head.group.input.token(before[j - 1])[head.input + i] : *head.history(row + found, i);
    }
  }
}
