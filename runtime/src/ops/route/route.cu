// The choice of partitions: a warp takes a token.

template <int partitions, int chosen, bool normalize>
__device__ void route(Rows logits, Rows out, int tokens) {
  int t = blockIdx.y * (blockDim.x / 32) + warp_index();
  if (t >= tokens) return;
  float* weights = logits.token(t);
  float* row = out.token(t);
  warp_softmax(weights, partitions);
  float sum = 0.0f;
  for (int rank = 0; rank < chosen; rank++) {
    float largest = -infinity;
    int best = 0;
    for (int i = lane_index(); i < partitions; i += 32) {
      if (weights[i] > largest) largest = weights[i], best = i;
    }
    // The lower partition wins a tie.
    for (int distance = 16; distance > 0; distance /= 2) {
      float other = __shfl_xor_sync(all_lanes, largest, distance);
      int index = __shfl_xor_sync(all_lanes, best, distance);
      if (other > largest || (other == largest && index < best)) largest = other, best = index;
    }
    // A thread reads and writes the same partitions.
    if (best % 32 == lane_index()) weights[best] = -1.0f;
    if (lane_index() == 0) row[rank] = (float)best, row[chosen + rank] = largest;
    sum += largest;
  }
  if (normalize && lane_index() == 0) {
    for (int rank = 0; rank < chosen; rank++) row[chosen + rank] *= 1.0f / sum;
  }
}
