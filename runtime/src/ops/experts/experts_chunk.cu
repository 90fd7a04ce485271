// Products of a chunk of a mixture of experts: a warp multiplies its rows of a matrix with the inputs of a tile of pairs, so that a row is
// read once for up to `tile_pairs` tokens. Sums over experts have one order, whatever the schedule.

// Pairs of tokens with one expert.
struct PairTile {
  int expert;
  int count;
  int pairs[tile_pairs];

  __device__ int pair(int index) const {
    int found = pairs[0];
#pragma unroll
    for (int i = 1; i < tile_pairs; i++) found = index == i ? pairs[i] : found;
    return found;
  }
};

// A tile of the lists; without an expert behind the last one.
__device__ inline PairTile listed_tile(const ExpertLists& lists, int slice, int index) {
  long long place = (long long)slice * lists.capacity + index;
  PairTile tile = {lists.experts[place], 0, {}};
  if (tile.expert < 0) return tile;
#pragma unroll
  for (int i = 0; i < tile_pairs; i++) {
    int pair = lists.pairs[place * tile_pairs + i];
    // Products of places without a pair are not used.
    tile.pairs[i] = i == 0 || pair >= 0 ? pair : tile.pairs[0];
    tile.count += pair >= 0;
  }
  return tile;
}

// Tokens that follow one another, for the network that all of them pass.
__device__ inline PairTile token_tile(int first, int end) {
  PairTile tile = {0, min(tile_pairs, end - first), {}};
#pragma unroll
  for (int i = 0; i < tile_pairs; i++) tile.pairs[i] = min(first + i, end - 1);
  return tile;
}

// The inputs of a tile, as `Columns` has them; one for every `share` pairs.
template <int share>
struct TileInputs {
  const Staged& staged;
  const PairTile& tile;

  template <int cols>
  __device__ const Rounded<cols>& rounded(int c) const {
    return *reinterpret_cast<const Rounded<cols>*>(staged.codes + (long long)(tile.pairs[c] / share) * codes_pitch<cols>);
  }
  template <int cols>
  __device__ const float* values(int c) const {
    return staged.floats + (long long)(tile.pairs[c] / share) * floats_pitch<cols>;
  }
};

// Which product of a warp's rows with a tile a lane has; none but for one of the lanes with the same.
template <int rows>
struct LaneProduct {
  int row;
  int index;
  bool mine;

  __device__ LaneProduct() {
    constexpr int lanes = 32 / (rows * tile_pairs);
    int sum = lane_index() / lanes;
    row = sum / tile_pairs, index = sum % tile_pairs, mine = lane_index() % lanes == 0;
  }
};

// The products of rows from `row` on, of `all` in the matrix, with a tile's inputs: a lane has the one that `LaneProduct` says.
template <int format, int cols, int rows, int share>
__device__ float tile_product(const u8* matrix, int all, int row, const Staged& staged, const PairTile& tile) {
  Linear linear = {matrix, nullptr, all, 0, format, 0};
  TileInputs<share> in = {staged, tile};
  float sums[rows * tile_pairs] = {};
  column_products<format, cols, rows, tile_pairs>(linear, row, in, sums);
  sum_lanes<rows * tile_pairs>(sums);
  return sums[0];
}

// `act(gate x) * up x` of a tile, without a gate `act(up x)`. Tiles are those of the lists, or of all tokens for the one shared network.
template <int cols, int rows, class Networks, int networks, int chosen, bool listed, int function>
__device__ void begin_tiles(Matrices matrices, ExpertLists lists, Staged inputs, Rows inner, int tokens) {
  int warps = blockDim.x / 32, row_tiles = (Networks::width + warps * rows - 1) / (warps * rows);
  int row = ((int)blockIdx.x % row_tiles * warps + warp_index()) * rows;
  PairTile tile = listed ? listed_tile(lists, blockIdx.y, blockIdx.x / row_tiles) : token_tile(blockIdx.y * tile_pairs, tokens);
  if (tile.expert < 0 || row >= Networks::width) return;
  int all = networks * Networks::width, first = tile.expert * Networks::width + row;
  float product = tile_product<Networks::up, cols, rows, chosen>(matrices.up, all, first, inputs, tile);
  if constexpr (Networks::gate >= 0) {
    float gate = tile_product<Networks::gate, cols, rows, chosen>(matrices.gate, all, first, inputs, tile);
    product *= activate(function, gate);
  } else {
    product = activate(function, product);
  }
  LaneProduct<rows> lane;
  if (!lane.mine || lane.index >= tile.count || row + lane.row >= Networks::width) return;
  int pair = tile.pair(lane.index);
  inner.token(pair / chosen)[pair % chosen * Networks::width + row + lane.row] = product;
}

// The weighted sum of what the experts make of their inner values, and of what the shared one makes. A warp has its rows' sums for all
// tokens of a slice in shared memory.
template <int rows, class Routed, class Common, int experts, int chosen, int width, bool add>
__device__ void end_tiles(Matrices routed, Matrices common, ExpertLists lists, Staged pairs, Staged shared, Rows route, Rows gate,
                          float multiplier, Rows output, int tokens) {
  float* sums = shared_memory<float>() + warp_index() * rows * slice_tokens;
  int begin = blockIdx.y * slice_tokens, end = min(begin + slice_tokens, tokens);
  int row = (blockIdx.x * (blockDim.x / 32) + warp_index()) * rows;
  if (row >= width) return;
  for (int i = lane_index(); i < rows * slice_tokens; i += 32) sums[i] = 0.0f;
  __syncwarp();
  LaneProduct<rows> lane;
  for (int i = 0; i < lists.capacity; i++) {
    PairTile tile = listed_tile(lists, blockIdx.y, i);
    if (tile.expert < 0) break;
    int first = tile.expert * width + row;
    float product = tile_product<Routed::down, Routed::width, rows, 1>(routed.down, experts * width, first, pairs, tile);
    if (lane.mine && lane.index < tile.count) {
      int pair = tile.pair(lane.index), t = pair / chosen;
      sums[lane.row * slice_tokens + t - begin] += route.token(t)[chosen + pair % chosen] * product;
    }
    __syncwarp();
  }
  if constexpr (Common::width > 0) {
    for (int first = begin; first < end; first += tile_pairs) {
      PairTile tile = token_tile(first, end);
      float product = tile_product<Common::down, Common::width, rows, 1>(common.down, width, row, shared, tile);
      if (lane.mine && lane.index < tile.count) {
        int t = first + lane.index;
        float weight = multiplier * (gate.first ? sigmoid(gate.token(t)[0]) : 1.0f);
        sums[lane.row * slice_tokens + t - begin] += weight * product;
      }
      __syncwarp();
    }
  }
  for (int i = lane_index(); i < rows * (end - begin); i += 32) {
    int t = i / rows, r = i % rows;
    if (row + r >= width) continue;
    float* place = output.token(begin + t) + row + r;
    float sum = sums[r * slice_tokens + t];
    *place = add ? *place + sum : sum;
  }
}
