// Products of a chunk of a mixture of experts. A thread block multiplies rows of one expert with the inputs of a tile of its
// pairs, so that the rows are read once for all of these pairs.

// Describes a product: `expert_rows` rows per expert; pair p has input p / `sharing`. The pairs are listed, `per_token` for each
// token, or are the tokens, which all have one network. The result is an `inner_value`.
template <int gate_format, int up_format, int inputs, int expert_rows, int networks, int per_token, int sharing, bool in_lists, int act>
struct PairProduct {
  static constexpr int gate = gate_format, up = up_format, cols = inputs, rows = expert_rows, all = networks * expert_rows;
  static constexpr int chosen = per_token, share = sharing, function = act;
  static constexpr bool listed = in_lists;
};

// The pairs of a thread block: tile `blockIdx.y`, from pair `from` on.
template <class Product>
struct PairTile {
  int expert = 0;
  int first;
  const int* listed;
  int tokens;

  __device__ PairTile(const ExpertLists& lists, int from, int all_tokens)
      : first(blockIdx.y * tile_pairs + from), listed(lists.pairs + first), tokens(all_tokens) {
    if constexpr (Product::listed) expert = lists.experts[blockIdx.y];
  }
  // The pair at `index`; negative after the last one.
  __device__ int pair(int index) const {
    if constexpr (Product::listed) return listed[index];
    return first + index < tokens ? first + index : no_expert;
  }
  // Whether the tile has no pairs.
  __device__ bool is_empty() const { return expert < 0 || pair(0) < 0; }
  __device__ static float* place(Rows output, int pair, int part) {
    return output.token(pair / Product::chosen) + pair % Product::chosen * part;
  }
};

// Pairs and rows that a warp multiplies at once on CUDA cores.
constexpr int plain_pairs = 8;
constexpr int plain_rows = 4;

// The inputs of some pairs, with the interface of `Columns`.
template <class Product>
struct PairInputs {
  const Staged& staged;
  int number[plain_pairs];

  __device__ PairInputs(const Staged& all, const PairTile<Product>& tile) : staged(all) {
#pragma unroll
    for (int i = 0; i < plain_pairs; i++) {
      int pair = tile.pair(i);
      // Products of places without a pair are not used.
      number[i] = i == 0 || pair >= 0 ? pair / Product::share : number[0];
    }
  }
  template <int cols>
  __device__ const Rounded<cols>& rounded(int c) const {
    return *reinterpret_cast<const Rounded<cols>*>(staged.codes + (long long)number[c] * codes_pitch<cols>);
  }
  template <int cols>
  __device__ const float* values(int c) const {
    return staged.floats + (long long)number[c] * floats_pitch<cols>;
  }
};

// The products of a warp's rows, from `row` on, with the inputs; lane 32 / (rows * pairs) * (pairs * r + i) holds the product of
// row r and pair i.
template <int format, class Product>
__device__ float plain_product(const u8* matrix, int row, const PairInputs<Product>& in) {
  constexpr int count = plain_rows * plain_pairs;
  Linear linear = {matrix, nullptr, Product::all, 0, format, 0};
  float sums[count] = {};
  slot_products<format, Product::cols, plain_rows, plain_pairs>(linear, row, in, sums);
  sum_lanes<count>(sums);
  return sums[0];
}

// The products on CUDA cores. In the output each pair has `part` values, for the rows from `begin` on.
template <class Product>
__device__ void pair_products(
    Matrices matrices, ExpertLists lists, Staged inputs, Rows output, int begin, int part, int tokens) {
  static_assert(plain_rows * plain_pairs == 32);
  int tiles = (part + 8 * plain_rows - 1) / (8 * plain_rows), row = ((int)blockIdx.x % tiles * 8 + warp_index()) * plain_rows;
  PairTile<Product> tile(lists, blockIdx.x / tiles * plain_pairs, tokens);
  int end = min(part, Product::rows - begin);
  if (tile.is_empty() || row >= end) return;
  PairInputs<Product> in(inputs, tile);
  int first = tile.expert * Product::rows + begin + row;
  constexpr bool gated = Product::gate >= 0;
  float up = plain_product<Product::up, Product>(matrices.up, first, in), gate = 0.0f;
  if constexpr (gated) gate = plain_product<Product::gate, Product>(matrices.gate, first, in);
  row += lane_index() / plain_pairs;
  int pair = tile.pair(lane_index() % plain_pairs);
  if (pair < 0 || row >= end) return;
  long long whole = (long long)tile.expert * Product::rows + begin + row;
  tile.place(output, pair, part)[row] = inner_value<Product::function, gated>(matrices, whole, gate, up);
}

// Like `pair_products`, for codes on tensor cores.
template <class Product>
__device__ void pair_codes(
    Matrices matrices, ExpertLists lists, Staged inputs, Rows output, int begin, int part, int tokens) {
  constexpr int cols = Product::cols;
  static_assert(tile_pairs == code_columns);
  PairTile<Product> tile(lists, 0, tokens);
  if (tile.is_empty()) return;
  int columns = 0, own = tile.pair(threadIdx.x / 4), row = blockIdx.x * code_rows;
  for (int i = 0; i < tile_pairs; i += 8) columns += tile.pair(i) >= 0 ? 8 : 0;
  const u8* input = inputs.codes + (long long)(own / Product::share) * codes_pitch<cols>;
  const auto* rounded = own >= 0 ? reinterpret_cast<const Rounded<cols>*>(input) : nullptr;
  int first = tile.expert * Product::rows + begin + row, end = min(part, Product::rows - begin);
  float sums[code_columns / 8][4], gates[code_columns / 8][4];
  constexpr bool gated = Product::gate >= 0;
  if constexpr (gated) code_products<Product::gate, cols>(matrices.gate, Product::all, first, rounded, columns, gates);
  code_products<Product::up, cols>(matrices.up, Product::all, first, rounded, columns, sums);
  each_place([&](int place, int column, int n, int i) {
    place += row;
    int pair = tile.pair(column);
    if (pair < 0 || place >= end) return;
    float gate = gated ? gates[n][i] : 0.0f;
    long long whole = (long long)tile.expert * Product::rows + begin + place;
    tile.place(output, pair, part)[place] = inner_value<Product::function, gated>(matrices, whole, gate, sums[n][i]);
  });
}

// The weighted sum of the outputs of a token's experts in routing order, then of the shared expert; each output has `part` values.
template <int chosen, bool shared, bool add>
__device__ void sum_experts(Rows products, int part, Rows route, Rows gate, float multiplier, Rows output) {
  int t = blockIdx.y, i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= output.width) return;
  const float *values = products.token(t) + i, *weights = route.token(t) + chosen;
  float sum = 0.0f;
#pragma unroll
  for (int rank = 0; rank < chosen; rank++) sum += weights[rank] * values[rank * part];
  if constexpr (shared) sum += multiplier * (gate.first ? sigmoid(gate.token(t)[0]) : 1.0f) * values[chosen * part];
  float* place = output.token(t) + i;
  *place = add ? *place + sum : sum;
}
