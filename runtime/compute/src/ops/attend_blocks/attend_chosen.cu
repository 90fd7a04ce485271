// Attention to the chosen blocks and to the window on tensor cores. A thread block takes a token and a key head; the group's
// query heads, 16 at a time, are the rows of a tile, 16 keys are its columns, and the warps take tiles cyclically. A tile's keys
// and values go from the cache straight into the registers that multiply them: the order of a head's columns along a depth or a
// row of sums is free, so that each lane reads consecutive columns. Operands are split into two bf16 numbers each.

constexpr int chosen_warps = 4;

// Multiplies a left operand [16, 16] by a right one [16, 8]; omits the product of the two low terms, which is below the rounding
// of f32.
__device__ inline void multiply_add_split(float* sums, const u32* high, const u32* low, SplitPair<2> first, SplitPair<2> second) {
  u32 b_high[2] = {first.part[0], second.part[0]}, b_low[2] = {first.part[1], second.part[1]};
  multiply_add(sums, low, b_high);
  multiply_add(sums, high, b_low);
  multiply_add(sums, high, b_high);
}

// The running softmaxes of 16 query heads over the keys of one warp's tiles. `g` and `t` are as in cuda/instructions.cu. A lane has columns
// `t * of_key ..` of keys and queries, and `g * of_value ..` of values.
template <class E, int dim>
struct GroupSoftmax {
  static constexpr int of_key = dim / 4, of_value = dim / 8, steps = dim / 16;

  u32 query_high[steps][4], query_low[steps][4];
  float weighted[of_value][4];
  float largest[2], sum[2];

  __device__ static int g() { return lane_index() / 4; }
  __device__ static int t() { return lane_index() % 4; }

  // Loads heads `first..first + 16` of a token with `count` heads.
  __device__ void load_queries(const float* heads, int first, int count) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      int head = first + g() + 8 * row;
      const float* from = heads + head * dim + t() * of_key;
#pragma unroll
      for (int i = 0; i < 2 * steps; i++) {
        SplitPair<2> pair(head < count ? from[2 * i] : 0.0f, head < count ? from[2 * i + 1] : 0.0f);
        query_high[i / 2][row + i % 2 * 2] = pair.part[0];
        query_low[i / 2][row + i % 2 * 2] = pair.part[1];
      }
    }
  }

  __device__ void clear() {
#pragma unroll
    for (int row = 0; row < 2; row++) largest[row] = no_score, sum[row] = 0.0f;
#pragma unroll
    for (int i = 0; i < 4 * of_value; i++) weighted[i / 4][i % 4] = 0.0f;
  }

  // Adds 16 keys: `row(which, j)` is the address of key or value j, `sees(j)` returns whether it is visible.
  template <class Row, class Sees>
  __device__ void add(float scale, Row row, Sees sees) {
    Piece<E, of_key> keys[2];
    Piece<E, of_value> values[4];
#pragma unroll
    for (int i = 0; i < 2; i++) keys[i].load(row(0, 8 * i + g()) + t() * of_key);
#pragma unroll
    for (int i = 0; i < 4; i++) values[i].load(row(1, 2 * t() + i % 2 + i / 2 * 8) + g() * of_value);
    float scores[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; i++) {
#pragma unroll
      for (int s = 0; s < steps; s++) {
        const E* x = keys[i].values + 4 * s;
        multiply_add_split(scores[i], query_high[s], query_low[s], SplitPair<2>(float_of(x[0]), float_of(x[1])),
                           SplitPair<2>(float_of(x[2]), float_of(x[3])));
      }
    }
    float highest[2] = {largest[0], largest[1]};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      float& score = scores[i / 4][i % 4];
      score = sees(i / 4 * 8 + 2 * t() + i % 2) ? log2_e * scale * score : -infinity;
      highest[i % 4 / 2] = fmaxf(highest[i % 4 / 2], score);
    }
    raise_largest(largest, highest, sum, weighted);
    SplitOperand<2> weights = softmax_weights(scores, largest, sum);
#pragma unroll
    for (int i = 0; i < of_value; i++) {
      auto value = [&](int key) { return float_of(values[key].values[i]); };
      multiply_add_split(weighted[i], weights.part[0], weights.part[1], SplitPair<2>(value(0), value(1)), SplitPair<2>(value(2), value(3)));
    }
  }

  // Writes the warp's entries `[16, 2 + dim]`: largest, sum, weighted values.
  __device__ void store(float* entries) {
#pragma unroll
    for (int row = 0; row < 2; row++) {
      for (int distance = 1; distance < 4; distance *= 2) sum[row] += __shfl_xor_sync(all_lanes, sum[row], distance);
      float* entry = entries + (g() + 8 * row) * (dim + 2);
      if (t() == 0) entry[0] = largest[row] / log2_e, entry[1] = sum[row];
#pragma unroll
      for (int i = 0; i < of_value; i++) {
        entry[2 + 2 * t() * of_value + i] = weighted[i][2 * row];
        entry[2 + (2 * t() + 1) * of_value + i] = weighted[i][2 * row + 1];
      }
    }
  }
};

// Adds both branches to the output. Shared memory: the entries of the warps.
template <class E, int dim>
__device__ void attend_chosen(Blocks b, const u64* position) {
  constexpr int entry = dim + 2;
  float* merged = shared_memory<float>();
  int kv_head = blockIdx.x, t = blockIdx.y, group = b.heads / b.kv_heads;
  const int* picked = b.picked + (t * b.kv_heads + kv_head) * (b.chosen + 1);
  InView view = in_view(b, *position, t);
  // Visible tokens, numbered from the oldest.
  int seen = (int)(view.end - view.oldest), offset = (int)(view.first * b.block - view.oldest);
  auto keys = positions_of<E>(b, kv_head, 0, *position, dim), values = positions_of<E>(b, kv_head, 1, *position, dim);
  auto row = [&](int which, int i) {
    return (which == 0 ? keys : values).at(view.oldest + max(0, min(i, seen - 1)));
  };
  GroupSoftmax<E, dim> softmax;
  for (int part = 0; part < group; part += 16) {
    softmax.load_queries(b.q.token(t) + kv_head * group * dim, part, group);
    for (int number = 1; number < 3; number++) {
      // Pieces of equal length: the chosen blocks, or the window.
      int window = min(b.window, seen), length = number == 1 ? b.block : window;
      int pieces = number == 1 ? picked[b.chosen] : 1, tiles = (length + 15) / 16;
      softmax.clear();
      for (int tile = warp_index(); tile < pieces * tiles; tile += chosen_warps) {
        int piece = tile / tiles, skipped = (tile - piece * tiles) * 16;
        int first = skipped + (number == 1 ? offset + picked[piece] * b.block : seen - window);
        softmax.add(
            b.scale, [&](int which, int j) { return row(which, first + j); },
            [&](int j) { return skipped + j < length && first + j >= 0 && first + j < seen; });
      }
      softmax.store(merged + warp_index() * 16 * entry);
      __syncthreads();
      for (int i = threadIdx.x; i < min(16, group - part) * dim; i += blockDim.x) {
        int head = kv_head * group + part + i / dim;
        Softmaxes<E, dim, 1, 1>::merge_entries(
            merged + i / dim * entry, chosen_warps, 16 * entry, i % dim, [&](float, float sum, float weighted) {
              // A sum of zero means that no key was added. A NaN passes the test and shows in the output.
              if (sum != 0.0f) b.out.token(t)[head * dim + i % dim] += b.gates.token(t)[head * 3 + number] / sum * weighted;
            });
      }
      __syncthreads();
    }
  }
}
