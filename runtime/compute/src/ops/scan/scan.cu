// The selective scan. Four threads divide the components of a channel and keep them in registers; the tokens' inputs come
// through shared memory, `batch` tokens at a time while the previous ones are computed. There, step sizes and inputs of several
// tokens become their softplus and what they write.

template <int channels, int components, int batch, bool aligned>
__device__ void scan(Rows x, Rows step, Rows b, Rows c, const float* rates, float* states, Rows out, int tokens) {
  constexpr int warps = 4, block_channels = 8 * warps;
  constexpr int parts = (components + 3) / 4;
  // The layout of a token in shared memory, in floats.
  constexpr int step_at = block_channels, b_at = 2 * block_channels, c_at = b_at + 4 * parts;
  constexpr int token_floats = c_at + 4 * parts;
  constexpr int buffers = batch == 1 ? 1 : 2;
  __shared__ __align__(16) float room[buffers * batch * token_floats];
  int first_channel = blockIdx.x * block_channels;
  int own = warp_index() * 8 + lane_index() % 8, place = lane_index() / 8;
  int channel = first_channel + own;
  float state[parts], rate[parts];
  auto load_state = [&] {
#pragma unroll
    for (int i = 0; i < parts; i++) {
      int n = i * 4 + place;
      bool inside = n < components && channel < channels;
      state[i] = inside ? states[n * channels + channel] : 0.0f;
      rate[i] = inside ? rates[n * channels + channel] : 0.0f;
    }
  };
  // The previous step, which has completed, wrote the state: these loads overlap with earlier kernels.
  if constexpr (batch == 1) load_state();
  wait_for_dependencies();
  launch_dependents();
  if constexpr (batch != 1) load_state();
  auto load = [&](int first) {
    for (int i = warp_index(); i < batch && first + i < tokens; i += warps) {
      float* to = room + (first / batch % buffers * batch + i) * token_floats;
      int t = first + i, count = min(block_channels, channels - first_channel);
      copy_row<aligned>(to, x.token(t) + first_channel, count);
      copy_row<aligned>(to + step_at, step.token(t) + first_channel, count);
      copy_row<aligned>(to + b_at, b.token(t), components);
      copy_row<aligned>(to + c_at, c.token(t), components);
    }
    commit_copies();
  };
  load(0);
  for (int first = 0; first < tokens; first += batch) {
    if constexpr (buffers == 2) {
      load(first + batch);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    float* now = room + first / batch % buffers * (batch * token_floats);
    int count = min(batch, tokens - first);
    if constexpr (batch > 1) {
      for (int t = place; t < count; t += 4) {
        float *token = now + t * token_floats, length = softplus(token[step_at + own]);
        token[step_at + own] = length, token[own] *= length;
      }
      __syncwarp();
    }
    auto advance = [&](int t) {
      const float* token = now + t * token_floats;
      float length = token[step_at + own], written = token[own], sum = 0.0f;
      if constexpr (batch == 1) length = softplus(length), written *= length;
#pragma unroll
      for (int i = 0; i < parts; i++) {
        int n = i * 4 + place;
        if (components % 4 != 0 && n >= components) continue;
        state[i] = fmaf(expf(length * rate[i]), state[i], written * token[b_at + n]);
        sum = fmaf(token[c_at + n], state[i], sum);
      }
      sum += __shfl_xor_sync(all_lanes, sum, 8);
      sum += __shfl_xor_sync(all_lanes, sum, 16);
      if (place == 0 && channel < channels) out.token(first + t)[channel] = sum;
    };
    // Tokens depend on each other by one addition: unrolled, they overlap.
    if (count == batch) {
#pragma unroll
      for (int t = 0; t < batch; t++) advance(t);
    } else {
#pragma unroll 1
      for (int t = 0; t < count; t++) advance(t);
    }
    // The next copies overwrite this batch.
    __syncthreads();
    if constexpr (buffers == 1) {
      if (first + batch < tokens) load(first + batch);
    }
  }
  arrive_early();
#pragma unroll
  for (int i = 0; i < parts; i++) {
    int n = i * 4 + place;
    if (n < components && channel < channels) states[n * channels + channel] = state[i];
  }
}
