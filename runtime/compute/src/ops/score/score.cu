// The retention router: convolutions over the keys and values of neighbouring tokens, then a score for each token.
// The types are in launch.rs.

// Input `channel` of a head at the chunk's token t; negative tokens come from `history`.
__device__ inline float RouterInputs::at(int head, int t, int channel) const {
  bool before = t < 0;
  const float* row = (before ? history : outputs) + ((long long)head * (before ? past : chunk) + (before ? past : 0) + t) * inputs;
  if (!before && !outputs) {
    int dim = inputs / 2;
    row = channel < dim ? k.token(t) + head * dim : v.token(t) + (head - 1) * dim;
  }
  return row[channel];
}

// Rows whose loads are in flight together.
constexpr int rows_at_once = 4;

// Stores the inputs that the next outputs need. A thread block takes a head of a layer, and a thread takes a channel, so that
// the rows move up in place. The last threads take the first channels, since the first warp may have other work.
__device__ void keep_inputs(const RouterInputs& from, int head, int tokens) {
  for (int channel = blockDim.x - 1 - threadIdx.x; channel < from.inputs; channel += blockDim.x) {
    float* history = from.history + (long long)head * from.past * from.inputs + channel;
    int stay = max(from.past - tokens, 0);
#pragma unroll 1
    for (int first = 0; first < stay; first += rows_at_once) {
      // Loads all rows before storing, since their destinations overlap.
      float x[rows_at_once];
#pragma unroll
      for (int i = 0; i < rows_at_once; i++) {
        if (first + i < stay) x[i] = history[(first + i + tokens) * from.inputs];
      }
#pragma unroll
      for (int i = 0; i < rows_at_once; i++) {
        if (first + i < stay) history[(first + i) * from.inputs] = x[i];
      }
    }
#pragma unroll 1
    for (int row = stay; row < from.past; row++) history[row * from.inputs] = from.at(head, tokens - from.past + row, channel);
  }
}

enum { SIGMOID_LESS_HALF, POSITIVE };

// Called by one warp, whose lanes hold parts of the sum of a token's head.
template <int map>
__device__ void RouterEnd::give(int head, int t, float part, float bias, u64 position) const {
  float z = warp_sum(part) + bias;
  if (lane_index() != 0) return;
  float score = map == SIGMOID_LESS_HALF ? sigmoid(z) - 0.5f : fmaxf(z, 0.0f);
  if (out.first) out.token(t)[head] = score;
  if (window && position >= margin) window[(long long)head * rows + (position - margin) % rows] = score;
}

// Most rows of weights that a lane holds while it waits for its inputs.
constexpr int most_held_rows = 24;

// One layer for a single token. A thread block takes `width` outputs of a head, one per lane; its warps, and the lanes of one
// output, divide the taps and inputs. The output of token t has position t - ahead; before the sequence begins it is zero, the
// next layer's padding. Weights and stored inputs are loaded while earlier kernels finish. Additional thread blocks store the
// inputs of the layer `before`, if there is one. A thread block with all outputs of a head also computes its score.
template <int inputs, int outputs, int taps, int dilation, int width, int threads, bool shared_by_heads, int heads, int map>
__device__ void score_layer(const RouterInputs& from, const RouterInputs& before, const float* weight, const float* bias, float* out,
                            const RouterEnd& end, const u64* position, int ahead, int tokens) {
  constexpr int columns = (outputs + width - 1) / width, rows_of_warp = 32 / width, warps = threads / 32;
  constexpr int rows = taps * inputs, step = warps * rows_of_warp, own_rows = (rows + step - 1) / step;
  constexpr bool ends = map >= 0;
  static_assert(!ends || columns == 1, "a block has all outputs of a head");
  int head = blockIdx.x / columns, group = shared_by_heads ? 0 : head;
  int column = blockIdx.x % columns * width + lane_index() % width;
  int first_row = warp_index() * rows_of_warp + lane_index() / width;
  float sum = 0.0f;
  bool only_keeps = (int)blockIdx.x >= heads * columns;
  const float* own = weight + (long long)group * rows * outputs + min(column, outputs - 1);
  if constexpr (own_rows <= most_held_rows) {
    // The last tap reads the token's inputs; the other taps read stored inputs.
    constexpr int past_rows = rows - inputs;
    const float* history = from.history + (long long)head * (taps - 1) * dilation * inputs;
    float w[own_rows] = {}, x[own_rows] = {};
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      int row = first_row + r * step;
      if (only_keeps || row >= rows) continue;
      w[r] = own[(long long)row * outputs];
      if (row < past_rows) x[r] = history[row + row / inputs * (dilation - 1) * inputs];
    }
    wait_for_dependencies();
    launch_dependents();
    if (only_keeps) return keep_inputs(before, blockIdx.x - heads * columns, tokens);
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      int row = first_row + r * step;
      if (row >= past_rows && row < rows) x[r] = from.at(head, 0, row - past_rows);
    }
#pragma unroll
    for (int r = 0; r < own_rows; r++) sum += w[r] * x[r];
  } else {
    wait_for_dependencies();
    launch_dependents();
    if (only_keeps) return keep_inputs(before, blockIdx.x - heads * columns, tokens);
#pragma unroll 8
    for (int row = first_row; row < rows; row += step) {
      sum += own[(long long)row * outputs] * from.at(head, row / inputs * dilation - from.past, row % inputs);
    }
  }
  if (from.copy && blockIdx.x % columns == 0) {
    for (int i = threadIdx.x; i < inputs; i += blockDim.x) from.copy[head * inputs + i] = from.at(head, 0, i);
  }
  float own_bias = bias[group * outputs + min(column, outputs - 1)];
  float end_weight = ends && column < outputs ? end.weight[group * outputs + column] : 0.0f;
  float end_bias = ends ? end.bias[group] : 0.0f;
  long long first = (long long)*position;
  float* parts = shared_memory<float>();
#pragma unroll
  for (int distance = width; distance < 32; distance *= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  if (lane_index() < width) parts[warp_index() * width + lane_index()] = sum;
  __syncthreads();
  if constexpr (ends) keep_inputs(from, head, tokens);
  if (warp_index() > 0) return;
  sum = own_bias;
#pragma unroll 8
  for (int warp = 0; warp < warps; warp++) sum += parts[warp * width + lane_index() % width];
  float value = first < ahead ? 0.0f : silu(sum);
  bool is_own = column < outputs && lane_index() < width;
  if constexpr (ends) {
    end.template give<map>(head, 0, is_own ? value * end_weight : 0.0f, end_bias, first);
  } else if (is_own) {
    out[(long long)head * from.chunk * outputs + column] = value;
  }
}

constexpr int tile_warps = 8;

// One layer for a chunk. A thread block takes `width` outputs of a head, one per lane, for `tile` tokens. Their inputs are in
// shared memory. If there are fewer outputs than lanes, the lanes of a warp process several tokens.
template <int inputs, int outputs, int taps, int dilation, int tile, int width, bool shared_by_heads>
__device__ void score_tile(const RouterInputs& from, const float* weight, const float* bias, float* out, const u64* position, int ahead,
                           int tokens) {
  constexpr int columns = (outputs + width - 1) / width, teams = tile_warps * (32 / width), own = (tile + teams - 1) / teams;
  constexpr int past = (taps - 1) * dilation, quad = inputs % 4 == 0 ? 4 : 1;
  wait_for_dependencies();
  launch_dependents();
  int head = blockIdx.x / columns, group = shared_by_heads ? 0 : head, start = blockIdx.y * tile;
  int column = blockIdx.x % columns * width + lane_index() % width;
  float* rows = shared_memory<float>();
  int count = min(tile, tokens - start) + past;
  for (int i = threadIdx.x; i < count * inputs; i += blockDim.x) rows[i] = from.at(head, start - past + i / inputs, i % inputs);
  __syncthreads();
  int first = (warp_index() * (32 / width) + lane_index() / width) * own;
  if (first >= tile || column >= outputs) return;
  const float* w = weight + (long long)group * taps * inputs * outputs + column;
  float sums[own];
#pragma unroll
  for (int i = 0; i < own; i++) sums[i] = bias[group * outputs + column];
  for (int tap = 0; tap < taps; tap++) {
    const float* x = rows + (first + tap * dilation) * inputs;
#pragma unroll 4
    for (int channel = 0; channel < inputs; channel += quad, w += quad * outputs) {
      float weights[quad];
#pragma unroll
      for (int j = 0; j < quad; j++) weights[j] = w[j * outputs];
#pragma unroll
      for (int i = 0; i < own; i++) {
        const float* values = x + i * inputs + channel;
        if constexpr (quad == 4) {
          float4 four = *reinterpret_cast<const float4*>(values);
          sums[i] += weights[0] * four.x + weights[1] * four.y + weights[2] * four.z + weights[3] * four.w;
        } else {
          sums[i] += weights[0] * values[0];
        }
      }
    }
  }
#pragma unroll
  for (int i = 0; i < own; i++) {
    int t = start + first + i;
    if (t >= tokens) return;
    out[((long long)head * from.chunk + t) * outputs + column] = (long long)*position + t < ahead ? 0.0f : silu(sums[i]);
  }
}

// Computes the scores from the last layer's outputs, one warp for each token of a head, and stores the inputs of all layers:
// there is one thread block per token tile and head of a layer.
template <int inputs, int heads, int map, bool shared_by_heads>
__device__ void finish_scores(const RouterLayers& layers, const float* from, const RouterEnd& end, int chunk, int tokens) {
  int head = blockIdx.x % heads;
  if (blockIdx.y == 0) keep_inputs(layers.at[blockIdx.x / heads], head, tokens);
  int group = shared_by_heads ? 0 : head, t = blockIdx.y * (blockDim.x / 32) + warp_index();
  if ((int)blockIdx.x >= heads || t >= tokens) return;
  float part = 0.0f;
  for (int i = lane_index(); i < inputs; i += 32) {
    part += from[((long long)head * chunk + t) * inputs + i] * end.weight[group * inputs + i];
  }
  end.give<map>(head, t, part, end.bias[group], 0);
}
