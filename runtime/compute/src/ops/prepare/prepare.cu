// Short convolutions, maps of heads, and gates, in place. A task is one head of a group or a few columns of a gate; a thread
// block takes a task for a tile of tokens, and a warp takes one token.

// The types are in cuda/schedule/row_ops.rs.
constexpr int most_groups = sizeof(PrepareTasks::group) / sizeof(PrepareGroup);

// The input of the convolution, which is also stored.
__device__ inline float PrepareGroup::input(int t, int channel) const {
  float x = columns.token(t)[channel];
  return gate.first ? x * gate.token(t)[channel] : x;
}

// The threads that process one head: a warp for each of many tokens, or all threads of the block for a single token.
struct WarpTeam {
  static __device__ int first() { return lane_index(); }
  static __device__ int size() { return 32; }
  static __device__ float sum(float x) { return warp_sum(x); }
  static __device__ float max(float x) { return warp_max(x); }
  static __device__ void wait() { __syncwarp(); }
};

struct BlockTeam {
  static __device__ int first() { return threadIdx.x; }
  static __device__ int size() { return blockDim.x; }
  static __device__ float sum(float x) { return block_sum(x); }
  static __device__ float max(float x) { return block_max(x); }
  static __device__ void wait() { __syncthreads(); }
};

// Applies one map to the head at x, whose first column in its group is `column`. `other` is scratch for one head. Long or rare
// loops are not unrolled, since the code would not fit into the instruction caches.
template <class Team>
__device__ void map_head(const PrepareMap& map, const PrepareTasks& tasks, int t, const u64* position, int column,
                                int dim, float* x, float* other) {
  const float* source = map.source.first ? map.source.token(t) + column : nullptr;
  int step = Team::size();
  float sum = 0.0f, mean = 0.0f, factor = 1.0f;
  switch (map.kind) {
    case MAP_ACTIVATION:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] = activate(map.function, x[i]);
      break;
    case MAP_L2_NORM:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) sum += x[i] * x[i];
      factor = 1.0f / sqrtf(Team::sum(sum) + 1e-6f);
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] *= factor;
      break;
    case MAP_SUM_NORM:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) sum += fabsf(x[i]);
      factor = 1.0f / fmaxf(Team::sum(sum), 1e-6f);
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] *= factor;
      break;
    case MAP_SOFTMAX:
      factor = -infinity;
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) factor = fmaxf(factor, x[i]);
      factor = Team::max(factor);
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) {
        x[i] = expf(x[i] - factor);
        sum += x[i];
      }
      factor = 1.0f / Team::sum(sum);
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] *= factor;
      break;
    case MAP_LINEAR:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) other[i] = x[i];
      Team::wait();
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) {
        float product = 0.0f;
        for (int j = 0; j < dim; j++) product += map.weight[i * dim + j] * other[j];
        x[i] = product;
      }
      break;
    case MAP_ADD:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] += source[i];
      break;
    case MAP_COPY:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] = source[i];
      break;
    case MAP_NORM:
      if (map.function != 0) {
#pragma unroll 1
        for (int i = Team::first(); i < dim; i += step) mean += x[i];
        mean = Team::sum(mean) / dim;
      }
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) sum += (x[i] - mean) * (x[i] - mean);
      factor = 1.0f / sqrtf(Team::sum(sum) / dim + map.eps);
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) {
        x[i] = (x[i] - mean) * factor * map.weight[i] + (map.bias ? map.bias[i] : 0.0f);
      }
      break;
    case MAP_LARGEST:
      // `function` is the number of values that stay, which have the largest magnitudes; the lower index wins a tie.
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) other[i] = fabsf(x[i]);
      Team::wait();
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) {
        int before = 0;
#pragma unroll 1
        for (int j = 0; j < dim; j++) before += other[j] > other[i] || (other[j] == other[i] && j < i);
        if (before >= map.function) x[i] = 0.0f;
      }
      break;
    case MAP_WHERE:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) {
        if (source[i] == 0.0f) x[i] = 0.0f;
      }
      break;
    case MAP_MULTIPLY:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] *= source[i];
      break;
    case MAP_GATE:
    case MAP_WEIGH:
    case MAP_SCALE:
      factor = map.kind == MAP_SCALE ? map.eps : map.source.token(t)[column / dim];
      if (map.kind == MAP_GATE) factor = activate(map.function, factor);
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] *= factor;
      break;
    case MAP_WRITE_STRENGTH:
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] = 1.0f - expf(x[i]);
      break;
    case MAP_ROPE:
#pragma unroll 1
      for (int i = Team::first(); i < tasks.pairs; i += step) {
        float sine, cosine, a = x[i], b = x[i + tasks.pairs];
        sincosf((float)(*position + t) * tasks.frequencies[i], &sine, &cosine);
        sine *= tasks.magnitude;
        cosine *= tasks.magnitude;
        x[i] = a * cosine - b * sine;
        x[i + tasks.pairs] = b * cosine + a * sine;
      }
      break;
    case MAP_GROW:
      factor = 1.0f + map.eps * logf(1.0f + (float)((*position + t) / map.period));
#pragma unroll 1
      for (int i = Team::first(); i < dim; i += step) x[i] *= factor;
      break;
  }
  Team::wait();
}

__device__ inline float gate_value(const PrepareGate& gate, int i, float x) {
  switch (gate.kind) {
    case GATE_DECAY: return -gate.rate[i] * softplus(x + gate.bias[i]);
    case GATE_BOUNDED_DECAY: return gate.low * sigmoid(gate.rate[i] * (x + gate.bias[i]));
    case GATE_LOG_SIGMOID: return fmaxf(gate.scale * log_sigmoid(x), gate.low);
    case GATE_LOWER_BOUND: return logf(gate.bias[i] + (1.0f - gate.bias[i]) * sigmoid(x));
    case GATE_SIGMOID: return gate.scale * sigmoid(x);
    case GATE_STEP: return fminf(fmaxf(softplus(x + gate.bias[i]), gate.low), gate.high);
    case GATE_EXPONENTIAL: return -expf(x);
    case GATE_FORGET: return 1.0f - expf(gate.scale * log_sigmoid(x));
    default: return gate.bias[i];
  }
}

// Softmax over time of a column, from the first token of the chunk to the last. The state holds the largest x of each
// column, then the sums.
__device__ inline void running_softmax(const PrepareGate& gate, int column, int tokens) {
  float largest = gate.state[column], sum = gate.state[gate.columns.width + column];
#pragma unroll 1
  for (int t = 0; t < tokens; t++) {
    float* x = gate.columns.token(t) + column;
    float now = fminf(fmaxf(*x, gate.low), gate.high);
    float before = sum > 0.0f ? largest : now;
    largest = fmaxf(now, before);
    float weight = expf(now - largest);
    sum = sum * expf(before - largest) + weight;
    *x = weight / sum;
  }
  gate.state[column] = largest;
  gate.state[gate.columns.width + column] = sum;
}

template <int tile>
__device__ void prepare_gate(const PrepareGate& gate, int tokens) {
  int start = (blockIdx.x - gate.first) * gate.span, end = min(start + gate.span, gate.columns.width);
  int first = blockIdx.y * tile, last = min(first + tile, tokens);
  if (gate.kind == GATE_SOFTMAX) {
    for (int t = first + warp_index(); t < last; t += blockDim.x / 32) warp_softmax(gate.columns.token(t), end);
  } else if (gate.kind == GATE_RUNNING_SOFTMAX) {
    // The first tile processes all tokens.
    if (first != 0) return;
#pragma unroll 1
    for (int i = start + threadIdx.x; i < end; i += blockDim.x) running_softmax(gate, i, tokens);
  } else {
    for (int t = first; t < last; t++) {
      float* x = gate.columns.token(t);
#pragma unroll 1
      for (int i = start + threadIdx.x; i < end; i += blockDim.x) x[i] = gate_value(gate, i, x[i]);
    }
  }
}

constexpr int short_past = 3;

// A short convolution: adds the products of the kept inputs with all weights but the last tap's; absent taps are zero.
__device__ inline float convolve_short(float sum, const float (&weights)[short_past], const float (&kept)[short_past]) {
#pragma unroll
  for (int j = 0; j < short_past; j++) sum += weights[j] * kept[j];
  return sum;
}

// Advances the input window of a channel.
__device__ inline void keep_short(const PrepareGroup& group, int channel, const float (&kept)[short_past], float value) {
  int channels = group.columns.width, last = group.taps - 1;
  float* past = group.past + channel;
#pragma unroll
  for (int j = 1; j < short_past; j++) {
    if (j < last) past[(j - 1) * channels] = kept[j];
  }
  if (last > 0) past[(last - 1) * channels] = value;
}

// Convolves one channel of the single token of a step and advances its window. All loads start at once.
__device__ inline float convolve_step(const PrepareGroup& group, int channel, float value) {
  int channels = group.columns.width, last = group.taps - 1;
  const float* weight = group.weight + channel;
  float* past = group.past + channel;
  float sum = (group.bias ? group.bias[channel] : 0.0f) + weight[last * channels] * value;
  if (last <= short_past) {
    float kept[short_past], weights[short_past];
#pragma unroll
    for (int j = 0; j < short_past; j++) {
      kept[j] = j < last ? past[j * channels] : 0.0f;
      weights[j] = j < last ? weight[j * channels] : 0.0f;
    }
    keep_short(group, channel, kept, value);
    return convolve_short(sum, weights, kept);
  }
#pragma unroll 1
  for (int j = 0; j < last; j++) {
    float kept = past[j * channels];
    sum += weight[j * channels] * kept;
    if (j > 0) past[(j - 1) * channels] = kept;
  }
  past[(last - 1) * channels] = value;
  return sum;
}

// The single token of a step: each thread convolves a channel, then all threads share the head.
__device__ inline void prepare_head_of_step(const PrepareGroup& group, const PrepareTasks& tasks, const u64* position,
                                            float* shared) {
  int dim = group.head_dim, column = (blockIdx.x - group.first) * dim;
  float* x = group.columns.first + column;
#pragma unroll 1
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    shared[i] = group.weight ? convolve_step(group, column + i, group.input(0, column + i)) : x[i];
  }
  __syncthreads();
  for (int m = 0; m < group.maps; m++) {
    map_head<BlockTeam>(group.at[m], tasks, 0, position, column, dim, shared, shared + dim);
  }
#pragma unroll 1
  for (int i = threadIdx.x; i < dim; i += blockDim.x) x[i] = shared[i];
}

// Most taps of a convolution whose inputs stay in registers, the newest last.
constexpr int most_taps = 4;

// Convolves a channel for all tokens of a tile; `before` holds the inputs before the tile, `input_at(t)` returns the tile's inputs.
template <class Input>
__device__ inline void convolve_inputs(const PrepareGroup& group, int channel, int count, const float* before, float* out, Input input_at) {
  int channels = group.columns.width, past = group.taps - 1;
  int dim = group.head_dim;
  float bias = group.bias ? group.bias[channel] : 0.0f;
  if (group.taps > most_taps) {
    auto input = [&](int t) { return t < 0 ? before[(past + t) * channels] : input_at(t); };
    for (int t = 0; t < count; t++) {
      float sum = bias;
      for (int j = 0; j < group.taps; j++) sum += group.weight[j * channels + channel] * input(t - past + j);
      out[t * dim] = sum;
    }
    return;
  }
  // Shorter convolutions start with weights of zero.
  float weights[most_taps], inputs[most_taps] = {};
#pragma unroll
  for (int j = 0; j < most_taps; j++) {
    int tap = j - (most_taps - group.taps);
    weights[j] = tap >= 0 ? group.weight[tap * channels + channel] : 0.0f;
    if (tap > 0) inputs[j] = before[(tap - 1) * channels];
  }
#pragma unroll 8
  for (int t = 0; t < count; t++) {
#pragma unroll
    for (int j = 0; j + 1 < most_taps; j++) inputs[j] = inputs[j + 1];
    inputs[most_taps - 1] = input_at(t);
    float sum = bias;
#pragma unroll
    for (int j = 0; j < most_taps; j++) sum += weights[j] * inputs[j];
    out[t * dim] = sum;
  }
}

__device__ inline void convolve_tile(const PrepareGroup& group, int channel, int first, int count, const float* before, float* out) {
  // Like `group.input`, but the pointers and the test for a gate stay outside of the loop over tokens.
  const float* columns = group.columns.token(first) + channel;
  int stride = group.columns.stride;
  if (!group.gate.first) {
    convolve_inputs(group, channel, count, before, out, [&](int t) { return columns[(long long)t * stride]; });
    return;
  }
  const float* gates = group.gate.token(first) + channel;
  int gate_stride = group.gate.stride;
  convolve_inputs(group, channel, count, before, out,
                  [&](int t) { return columns[(long long)t * stride] * gates[(long long)t * gate_stride]; });
}

// A tile of tokens: each thread convolves a channel, then each warp takes a token. All inputs are read before any is overwritten.
template <int tile>
__device__ void prepare_heads(const PrepareGroup& group, const PrepareTasks& tasks, const u64* position, int tokens,
                              float* shared) {
  int dim = group.head_dim, column = (blockIdx.x - group.first) * dim, past = group.weight ? group.taps - 1 : 0;
  int first = blockIdx.y * tile, count = min(tile, tokens - first), warps = blockDim.x / 32;
  float* other = shared + warp_index() * dim;
  float* rows = shared + warps * dim;
  if (group.weight) {
    const float* before = group.before + (long long)blockIdx.y * past * group.columns.width + column;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
      convolve_tile(group, column + i, first, count, before + i, rows + i);
    }
    __syncthreads();
  }
  for (int t = warp_index(); t < count; t += warps) {
    float* row = group.columns.token(first + t) + column;
    float* x = rows + (group.weight ? t : warp_index()) * dim;
    if (!group.weight) {
      for (int i = lane_index(); i < dim; i += 32) x[i] = row[i];
      __syncwarp();
    }
    for (int m = 0; m < group.maps; m++) {
      map_head<WarpTeam>(group.at[m], tasks, first + t, position, column, dim, x, other);
    }
    for (int i = lane_index(); i < dim; i += 32) row[i] = x[i];
    __syncwarp();
  }
}

// Prefetches the operands of a convolution, except its input.
__device__ inline void prefetch_group(const PrepareGroup& group) {
  int dim = group.head_dim, channels = group.columns.width, column = (blockIdx.x - group.first) * dim, j = threadIdx.x;
  if (!group.weight || dim % 4 != 0 || channels % 4 != 0 || j >= group.taps) return;
  prefetch(group.weight + j * channels + column, dim * sizeof(float));
  if (j + 1 < group.taps) prefetch(group.past + j * channels + column, dim * sizeof(float));
  else if (group.bias) prefetch(group.bias + column, dim * sizeof(float));
}

// Prefetches the constants of a gate.
__device__ inline void prefetch_gate(const PrepareGate& gate) {
  int start = (blockIdx.x - gate.first) * gate.span, count = min(gate.span, gate.columns.width - start);
  const float* from = threadIdx.x == 0 ? gate.rate : gate.bias;
  if (threadIdx.x < 2 && from && count % 4 == 0) prefetch(from + start, count * sizeof(float));
}

// `tile` is 0 for a step.
template <int tile>
__device__ void prepare(const PrepareTasks& tasks, const u64* position, int tokens) {
  int gate = -1, group = 0;
#pragma unroll 1
  for (int i = 0; i < tasks.gates; i++) gate = (int)blockIdx.x >= tasks.gate[i].first ? i : gate;
#pragma unroll 1
  for (int i = 1; i < tasks.groups; i++) group = (int)blockIdx.x >= tasks.group[i].first ? i : group;
  if constexpr (tile == 0) {
    // A step's kernel is short: the next kernel, which may load a state, starts together with it.
    launch_dependents();
    if (gate < 0) prefetch_group(tasks.group[group]);
    else prefetch_gate(tasks.gate[gate]);
  }
  wait_for_dependencies();
  if constexpr (tile != 0) launch_dependents();
  if (gate >= 0) return prepare_gate<tile == 0 ? 1 : tile>(tasks.gate[gate], tokens);
  float* shared = shared_memory<float>();
  if constexpr (tile == 0) {
    prepare_head_of_step(tasks.group[group], tasks, position, shared);
  } else {
    prepare_heads<tile>(tasks.group[group], tasks, position, tokens, shared);
  }
}

// Copies the inputs before each tile, which the previous tile overwrites, and advances the state tensors to the end of the chunk.
template <int tile>
__device__ void keep_inputs(PrepareTasks tasks, int tokens) {
  int found = 0;
  for (int i = 1; i < tasks.groups; i++) found = (int)blockIdx.x >= tasks.group[i].first ? i : found;
  const PrepareGroup& group = tasks.group[found];
  if (!group.weight) return;
  int start = (blockIdx.x - group.first) * group.head_dim, channels = group.columns.width, past = group.taps - 1;
  float* before = group.before + (long long)blockIdx.y * past * channels;
  for (int i = start + threadIdx.x; i < start + group.head_dim; i += blockDim.x) {
    for (int j = 0; j < past; j++) {
      before[j * channels + i] =
          blockIdx.y == 0 ? group.past[j * channels + i] : group.input(blockIdx.y * tile - past + j, i);
    }
    if (blockIdx.y != 0) continue;
    for (int j = 0; j < past; j++) {
      int t = tokens + j - past;
      group.past[j * channels + i] = t >= 0 ? group.input(t, i) : before[(tokens + j) * channels + i];
    }
  }
}
