// The retention router: convolutions over the keys and values of neighbouring tokens, then a score for each token.

// The inputs of a layer: those kept from before the chunk, oldest first, then the chunk's, which are keys and values for the
// first layer (`outputs` is null) and rows of the layer before for the others. `kept` and `outputs` have a part for each
// key head, with room for `past` and `chunk` rows.
struct RouterInputs {
  Rows k;
  Rows v;
  float* outputs;
  float* kept;
  int inputs;
  int past;
  int chunk;

  // Input `channel` of a head at the chunk's token t; negative tokens were kept.
  __device__ float at(int head, int t, int channel) const {
    if (t < 0) return kept[((long long)head * past + past + t) * inputs + channel];
    if (outputs) return outputs[((long long)head * chunk + t) * inputs + channel];
    int dim = inputs / 2;
    return channel < dim ? k.token(t)[head * dim + channel] : v.token(t)[head * dim + channel - dim];
  }
};

// One layer: a block takes 32 outputs, one a lane, of `tile` tokens of a head; its warps share the taps and inputs. The
// output of token t stands at position + t - ahead; before the sequence begins it is zero, the next layer's padding.
template <int inputs, int outputs, int taps, int dilation, int tile, bool shared_by_heads>
__device__ void score_layer(RouterInputs from, const float* weight, const float* bias, float* out,
                            const u64* position, int ahead, int tokens) {
  constexpr int columns = (outputs + 31) / 32;
  int head = blockIdx.x / columns, group = shared_by_heads ? 0 : head;
  int column = blockIdx.x % columns * 32 + lane_index();
  int start = blockIdx.y * tile;
  int warps = blockDim.x / 32;
  float sums[tile] = {};
  const float* own = weight + (long long)group * taps * inputs * outputs + min(column, outputs - 1);
  for (int tap = 0; tap < taps; tap++) {
#pragma unroll 4
    for (int input = warp_index(); input < inputs; input += warps) {
      float w = own[((long long)tap * inputs + input) * outputs];
#pragma unroll
      for (int i = 0; i < tile; i++) {
        int t = min(start + i, tokens - 1) - from.past + tap * dilation;
        sums[i] += w * from.at(head, t, input);
      }
    }
  }
  float* parts = shared_memory<float>();
#pragma unroll
  for (int i = 0; i < tile; i++) parts[(warp_index() * tile + i) * 32 + lane_index()] = sums[i];
  __syncthreads();
  for (int i = warp_index(); i < tile; i += warps) {
    float sum = bias[group * outputs + min(column, outputs - 1)];
    for (int warp = 0; warp < warps; warp++) sum += parts[(warp * tile + i) * 32 + lane_index()];
    int t = start + i;
    if (t >= tokens || column >= outputs) continue;
    bool before = (long long)*position + t < ahead;
    out[((long long)head * from.chunk + t) * outputs + column] = before ? 0.0f : silu(sum);
  }
}

constexpr int most_layers = 8;

struct RouterLayers {
  RouterInputs at[most_layers];
};

// Keeps the inputs that the next outputs need. A block takes a head of a layer, a thread a channel, so that the rows move
// up in place.
template <int heads>
__device__ void keep_inputs(RouterLayers layers, int tokens) {
  const RouterInputs& from = layers.at[blockIdx.x / heads];
  int head = blockIdx.x % heads;
  for (int channel = threadIdx.x; channel < from.inputs; channel += blockDim.x) {
    for (int row = 0; row < from.past; row++) {
      float x = from.at(head, tokens - from.past + row, channel);
      from.kept[((long long)head * from.past + row) * from.inputs + channel] = x;
    }
  }
}

enum { SIGMOID_LESS_HALF, POSITIVE };

// The scores from the last layer's outputs; a warp takes a head of a token.
template <int inputs, int heads, int map, bool shared_by_heads>
__device__ void finish_scores(const float* from, const float* weight, const float* bias, Rows out, int chunk) {
  int t = blockIdx.x;
  for (int head = warp_index(); head < heads; head += blockDim.x / 32) {
    int group = shared_by_heads ? 0 : head;
    float z = 0.0f;
    for (int i = lane_index(); i < inputs; i += 32) {
      z += from[((long long)head * chunk + t) * inputs + i] * weight[group * inputs + i];
    }
    z = warp_sum(z) + bias[group];
    if (lane_index() == 0) out.token(t)[head] = map == SIGMOID_LESS_HALF ? sigmoid(z) - 0.5f : fmaxf(z, 0.0f);
  }
}
