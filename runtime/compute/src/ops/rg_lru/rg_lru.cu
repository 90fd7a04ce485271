// The real-gated linear recurrent unit. Four threads divide the rows of a channel's column in both gates' matrices and keep them
// in registers for all tokens of the chunk.

template <int dim>
__device__ void rg_lru(Rows x, const float* input_weight, const float* input_bias, const float* recurrence_weight,
                       const float* recurrence_bias, const float* rates, float* states, Rows out, const u64* position, int tokens) {
  constexpr int warps = 4, block_channels = 8 * warps;
  constexpr int groups = (dim + block_channels - 1) / block_channels, rows = (dim + 3) / 4;
  int head = blockIdx.x / groups, place = lane_index() / 8;
  int own = blockIdx.x % groups * block_channels + warp_index() * 8 + lane_index() % 8;
  int channel = head * dim + own;
  bool inside = own < dim;
  float of_input[rows], of_recurrence[rows];
#pragma unroll
  for (int i = 0; i < rows; i++) {
    int row = i * 4 + place;
    bool there = inside && row < dim;
    long long at = (long long)(head * dim + row) * dim + own;
    of_input[i] = there ? input_weight[at] : 0.0f;
    of_recurrence[i] = there ? recurrence_weight[at] : 0.0f;
  }
  float input_offset = inside ? input_bias[channel] : 0.0f;
  float recurrence_offset = inside ? recurrence_bias[channel] : 0.0f;
  float rate = inside ? rates[channel] : 0.0f;
  wait_for_dependencies();
  launch_dependents();
  float state = inside ? states[channel] : 0.0f;
  for (int t = 0; t < tokens; t++) {
    const float* head_input = x.token(t) + head * dim;
    float input = 0.0f, recurrence = 0.0f;
#pragma unroll
    for (int i = 0; i < rows; i++) {
      int row = i * 4 + place;
      float value = dim % 4 == 0 || row < dim ? head_input[row] : 0.0f;
      input += of_input[i] * value;
      recurrence += of_recurrence[i] * value;
    }
#pragma unroll
    for (int distance = 8; distance < 32; distance *= 2) {
      input += __shfl_xor_sync(all_lanes, input, distance);
      recurrence += __shfl_xor_sync(all_lanes, recurrence, distance);
    }
    if (!inside) continue;
    float log_decay = rate * sigmoid(recurrence + recurrence_offset);
    float share = *position + t == 0 ? 1.0f : sqrtf(fmaxf(1.0f - expf(2.0f * log_decay), 0.0f));
    state = expf(log_decay) * state + share * sigmoid(input + input_offset) * head_input[own];
    if (place == 0) out.token(t)[channel] = state;
  }
  arrive_early();
  if (inside && place == 0) states[channel] = state;
}
