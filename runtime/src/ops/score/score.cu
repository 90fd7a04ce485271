// The retention router: convolutions over the keys and values of neighbouring tokens, then a score for each token.

// The inputs of a layer: those kept from before the chunk, oldest first, then the chunk's, which are keys and values for the
// first layer (`outputs` is null) and rows of the layer before for the others. `kept` and `outputs` have a part for each
// key head, with room for `past` and `chunk` rows.
struct RouterInputs {
  Rows k;
  Rows v;
  float* outputs;
  float* kept;
  // Where the layer copies a single token's inputs, in rows as of `outputs`, or null: what they are read from may be overwritten before
  // the next layer keeps them.
  float* copy;
  int inputs;
  int past;
  int chunk;

  // Input `channel` of a head at the chunk's token t; negative tokens were kept.
  __device__ float at(int head, int t, int channel) const {
    bool before = t < 0;
    const float* row = (before ? kept : outputs) + ((long long)head * (before ? past : chunk) + (before ? past : 0) + t) * inputs;
    if (!before && !outputs) {
      int dim = inputs / 2;
      row = channel < dim ? k.token(t) + head * dim : v.token(t) + (head - 1) * dim;
    }
    return row[channel];
  }
};

// Rows whose loads are under way together.
constexpr int kept_together = 4;

// Keeps the inputs that the next outputs need. A block takes a head of a layer, a thread a channel, so that the rows move
// up in place: the last threads the first channels, since the first warp may have other things to do.
__device__ void keep_inputs(const RouterInputs& from, int head, int tokens) {
  for (int channel = blockDim.x - 1 - threadIdx.x; channel < from.inputs; channel += blockDim.x) {
    float* kept = from.kept + (long long)head * from.past * from.inputs + channel;
    int stay = max(from.past - tokens, 0);
#pragma unroll 1
    for (int first = 0; first < stay; first += kept_together) {
      // What these rows become stands in later ones.
      float x[kept_together];
#pragma unroll
      for (int i = 0; i < kept_together; i++) {
        if (first + i < stay) x[i] = kept[(first + i + tokens) * from.inputs];
      }
#pragma unroll
      for (int i = 0; i < kept_together; i++) {
        if (first + i < stay) kept[(first + i) * from.inputs] = x[i];
      }
    }
#pragma unroll 1
    for (int row = stay; row < from.past; row++) kept[row * from.inputs] = from.at(head, tokens - from.past + row, channel);
  }
}

enum { SIGMOID_LESS_HALF, POSITIVE };

// From the last layer's outputs to a score.
struct RouterEnd {
  const float* weight;
  const float* bias;
  Rows out;
  // The scores of a head's window, `rows` of them, where that of the token `margin` before a single one goes at once, or null. In a decode
  // kernel it goes nowhere else: `out` is null.
  float* window;
  int rows;
  int margin;

  // By one warp, whose lanes have their parts of the sum of a token's head.
  template <int map>
  __device__ void give(int head, int t, float part, float bias, u64 position) const {
    float z = warp_sum(part) + bias;
    if (lane_index() != 0) return;
    float score = map == SIGMOID_LESS_HALF ? sigmoid(z) - 0.5f : fmaxf(z, 0.0f);
    if (out.first) out.token(t)[head] = score;
    if (window && position >= margin) window[(long long)head * rows + (position - margin) % rows] = score;
  }
};

// Most rows of weights that a lane holds while it waits for its inputs.
constexpr int most_held_rows = 24;

// One layer: a block takes `width` outputs, one a lane, of `tile` tokens of a head; its warps, and the lanes of the same output,
// share the taps and inputs. The output of token t stands at position + t - ahead; before the sequence begins it is zero, the
// next layer's padding. For a single token, weights and what was kept come while earlier kernels end; more blocks keep the inputs
// of the layer `before`, if there is one, and where a block has all outputs of a head, it makes the score of them.
template <int inputs, int outputs, int taps, int dilation, int tile, int width, int threads, bool shared_by_heads, int heads, int map>
__device__ void score_layer(const RouterInputs& from, const RouterInputs& before, const float* weight, const float* bias, float* out,
                            const RouterEnd& end, const u64* position, int ahead, int tokens) {
  constexpr int columns = (outputs + width - 1) / width, together = 32 / width, warps = threads / 32;
  constexpr int rows = taps * inputs, step = warps * together, own_rows = (rows + step - 1) / step;
  constexpr bool ends = map >= 0;
  static_assert(!ends || tile == 1 && columns == 1, "a block has all outputs of a token's head");
  int head = blockIdx.x / columns, group = shared_by_heads ? 0 : head;
  int column = blockIdx.x % columns * width + lane_index() % width;
  int start = blockIdx.y * tile, first_row = warp_index() * together + lane_index() / width;
  float sums[tile] = {};
  bool only_keeps = (int)blockIdx.x >= heads * columns;
  const float* own = weight + (long long)group * rows * outputs + min(column, outputs - 1);
  if constexpr (tile == 1 && own_rows <= most_held_rows) {
    // The last tap's inputs are the token's, those of the others were kept.
    constexpr int kept_rows = rows - inputs;
    const float* kept = from.kept + (long long)head * (taps - 1) * dilation * inputs;
    float w[own_rows] = {}, x[own_rows] = {};
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      int row = first_row + r * step;
      if (only_keeps || row >= rows) continue;
      w[r] = own[(long long)row * outputs];
      if (row < kept_rows) x[r] = kept[row + row / inputs * (dilation - 1) * inputs];
    }
    wait_for_dependencies();
    launch_dependents();
    if (only_keeps) return keep_inputs(before, blockIdx.x - heads * columns, tokens);
#pragma unroll
    for (int r = 0; r < own_rows; r++) {
      int row = first_row + r * step;
      if (row >= kept_rows && row < rows) x[r] = from.at(head, 0, row - kept_rows);
    }
#pragma unroll
    for (int r = 0; r < own_rows; r++) sums[0] += w[r] * x[r];
  } else {
    wait_for_dependencies();
    launch_dependents();
    if (only_keeps) return keep_inputs(before, blockIdx.x - heads * columns, tokens);
#pragma unroll 8
    for (int row = first_row; row < rows; row += step) {
      float w = own[(long long)row * outputs];
#pragma unroll
      for (int i = 0; i < tile; i++) {
        int t = min(start + i, tokens - 1) - from.past + row / inputs * dilation;
        sums[i] += w * from.at(head, t, row % inputs);
      }
    }
  }
  if (tile == 1 && from.copy && blockIdx.x % columns == 0) {
    for (int i = threadIdx.x; i < inputs; i += blockDim.x) from.copy[head * inputs + i] = from.at(head, 0, i);
  }
  float own_bias = bias[group * outputs + min(column, outputs - 1)];
  float end_weight = ends && column < outputs ? end.weight[group * outputs + column] : 0.0f;
  float end_bias = ends ? end.bias[group] : 0.0f;
  long long first = (long long)*position;
  float* parts = shared_memory<float>();
#pragma unroll
  for (int i = 0; i < tile; i++) {
#pragma unroll
    for (int distance = width; distance < 32; distance *= 2) sums[i] += __shfl_xor_sync(all_lanes, sums[i], distance);
    if (lane_index() < width) parts[(warp_index() * tile + i) * width + lane_index()] = sums[i];
  }
  __syncthreads();
  if constexpr (ends) keep_inputs(from, head, tokens);
  for (int i = warp_index(); i < tile; i += warps) {
    float sum = own_bias;
#pragma unroll 8
    for (int warp = 0; warp < warps; warp++) sum += parts[(warp * tile + i) * width + lane_index() % width];
    int t = start + i;
    float value = first + t < ahead ? 0.0f : silu(sum);
    bool own = t < tokens && column < outputs && lane_index() < width;
    if constexpr (ends) {
      end.template give<map>(head, t, own ? value * end_weight : 0.0f, end_bias, first);
    } else if (own) {
      out[((long long)head * from.chunk + t) * outputs + column] = value;
    }
  }
}

constexpr int most_layers = 8;

struct RouterLayers {
  RouterInputs at[most_layers];
};

// The scores from the last layer's outputs, a block for each head of a token, and what is kept of all layers' inputs. The blocks
// of a token are as many as the heads of all layers.
template <int inputs, int heads, int map, bool shared_by_heads>
__device__ void finish_scores(const RouterLayers& layers, const float* from, const RouterEnd& end, int chunk, int tokens) {
  int t = blockIdx.y, head = blockIdx.x % heads;
  if (t == 0) keep_inputs(layers.at[blockIdx.x / heads], head, tokens);
  if ((int)blockIdx.x >= heads || warp_index() > 0) return;
  int group = shared_by_heads ? 0 : head;
  float part = 0.0f;
  for (int i = lane_index(); i < inputs; i += 32) {
    part += from[((long long)head * chunk + t) * inputs + i] * end.weight[group * inputs + i];
  }
  end.give<map>(head, t, part, end.bias[group], 0);
}
