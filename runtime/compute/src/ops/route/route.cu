// The choice of partitions, with one warp per token. `Scoring` is in mod.rs.

// Excludes the members of all but the best groups. Each lane compares its group with the others.
template <int partitions, int groups, int chosen_groups>
__device__ void drop_groups(float* scores, const float* bias) {
  constexpr int size = partitions / groups;
  int group = lane_index();
  float best = -infinity, second = -infinity;
  if (group < groups) {
    for (int i = group * size; i < (group + 1) * size; i++) {
      float x = scores[i] + (bias ? bias[i] : 0.0f);
      if (x > best) {
        second = best, best = x;
      } else if (x > second) {
        second = x;
      }
    }
  }
  float sum = best + second;
  int better = 0;
  for (int other = 0; other < groups; other++) {
    float x = __shfl_sync(all_lanes, sum, other);
    better += x > sum || (x == sum && other < group);
  }
  if (group < groups && better >= chosen_groups) {
    for (int i = group * size; i < (group + 1) * size; i++) scores[i] = -infinity;
  }
  __syncwarp();
}

template <int partitions, int chosen, int scoring, bool normalize, int groups, int chosen_groups>
__device__ void route(Rows logits, const float* bias, const float* gains, float cap, float more, float scale, Rows out, int tokens) {
  int t = blockIdx.y * (blockDim.x / 32) + warp_index();
  if (t >= tokens) return;
  float* scores = logits.token(t);
  float* row = out.token(t);
  if (cap > 0.0f) {
    for (int i = lane_index(); i < partitions; i += 32) scores[i] = cap * tanhf(scores[i] / cap);
    __syncwarp();
  }
  if constexpr (scoring == SCORE_SOFTMAX) {
    warp_softmax(scores, partitions);
  } else {
    for (int i = lane_index(); i < partitions; i += 32) scores[i] = sigmoid(scores[i]);
  }
  if constexpr (groups > 1) {
    __syncwarp();
    drop_groups<partitions, groups, chosen_groups>(scores, bias);
  }
  float sum = 0.0f;
  for (int rank = 0; rank < chosen; rank++) {
    float largest = -infinity, weight = 0.0f;
    int best = 0;
    // Each lane reads and writes the same partitions throughout.
    for (int i = lane_index(); i < partitions; i += 32) {
      float x = scores[i] + (bias ? bias[i] : 0.0f);
      if (x > largest) largest = x, weight = scores[i], best = i;
    }
    // The lower partition wins a tie.
    for (int distance = 16; distance > 0; distance /= 2) {
      float other = __shfl_xor_sync(all_lanes, largest, distance), its = __shfl_xor_sync(all_lanes, weight, distance);
      int index = __shfl_xor_sync(all_lanes, best, distance);
      if (other > largest || (other == largest && index < best)) largest = other, weight = its, best = index;
    }
    if (best % 32 == lane_index()) scores[best] = -infinity;
    if (lane_index() == 0) row[rank] = (float)best, row[chosen + rank] = weight;
    sum += weight;
  }
  if (lane_index() == 0) {
    float factor = normalize ? scale / (sum + more) : scale;
    for (int rank = 0; rank < chosen; rank++) row[chosen + rank] *= gains ? factor * gains[(int)row[rank]] : factor;
  }
}
