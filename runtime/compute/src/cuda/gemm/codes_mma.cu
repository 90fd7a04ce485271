// Products of quantized matrices with many 8-bit inputs, in tiles on tensor cores. The products of a unit are summed in integers, as in
// `gemv`. The sums of units are added in another order than there, so results differ from a step's by f32 roundings. They do not depend on
// the other columns.

constexpr int code_rows = 128;
constexpr int code_columns = 64;

// Two units of the depth. Sixteen bytes after each row put the eight rows that a matrix load reads in different banks.
struct CodeStage {
  static constexpr int units = 2, pitch = 32 * units + 16;
  i8 weights[code_rows * pitch];
  i8 inputs[code_columns * pitch];
  Affine lines[units][code_rows];
  float input_scales[units][code_columns];
  int input_sums[units][code_columns];

  // Adds the products of a warp's 16 rows with the columns, sixteen columns at a time; `tiles` is the format's kind of tiles.
  template <int tiles>
  __device__ void multiply(int columns, float (&sums)[code_columns / 8][4]) const {
    int g = lane_index() / 4, t = lane_index() % 4, row = 16 * warp_index();
#pragma unroll
    for (int unit = 0; unit < units; unit++) {
      u32 left[4], right[4];
      load_left(left, reinterpret_cast<const u16*>(weights + row * pitch + 32 * unit), pitch / 2);
      u32 lower[4] = {left[0], left[1], 0, 0}, upper[4] = {0, 0, left[2], left[3]};
      Affine of_rows[2] = {lines[unit][row + g], lines[unit][row + g + 8]};
#pragma unroll
      for (int n = 0; n < code_columns / 8; n++) {
        if (n % 2 == 0) {
          if (8 * n >= columns) break;
          load_right(right, reinterpret_cast<const u16*>(inputs + 8 * n * pitch + 32 * unit), pitch / 2);
        }
        int column = 8 * n + 2 * t;
        float2 pair = *reinterpret_cast<const float2*>(&input_scales[unit][column]);
        int products[4] = {}, others[4] = {};
        multiply_add_codes(products, tiles == HALVED_TILES ? lower : left, right + n % 2 * 2);
        if constexpr (tiles == HALVED_TILES) multiply_add_codes(others, upper, right + n % 2 * 2);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float product = products[i], scale = i % 2 ? pair.y : pair.x;
          const auto& line = of_rows[i / 2];
          if constexpr (tiles == PLAIN_TILES) {
            sums[n][i] += product * (line.scale * scale);
          } else {
            float other = tiles == HALVED_TILES ? others[i] : -input_sums[unit][column + i % 2];
            sums[n][i] += scale * (line.scale * product + line.min * other);
          }
        }
      }
    }
  }
};

// Computes the products of a tile: a warp's 16 rows with `columns` columns, in the places that `each_place` visits. The matrix has `all`
// rows. `input` is the input of column threadIdx.x / 4, or null if that column is unused.
template <int format, int cols>
__device__ void code_products(
    const u8* weights, int all, int first_row, const Rounded<cols>* input, int columns, float (&sums)[code_columns / 8][4]) {
  using Weights = Format<format, cols>;
  using Stage = CodeStage;
  constexpr int units = cols / 32;
  Units matrix = all_units<Weights>(weights, all);
  Stage* stages = shared_memory<Stage>();
  // A thread unpacks a unit of a row, and copies half a unit of a column.
  int row = threadIdx.x / Stage::units, part = threadIdx.x % Stage::units;
  int column = threadIdx.x / 4, piece = threadIdx.x % 4;
  long long first_unit = (long long)min(first_row + row, all - 1) * units;
  auto load_weights = [&](int first) { return Weights::load(matrix, first_unit + min(first + part, units - 1)); };
  auto copy_input = [&](int first, Stage& stage) {
    int unit = min(first + piece / 2, units - 1);
    if (input) {
      copy_async<16>(stage.inputs + column * Stage::pitch + 16 * piece, input->packed + 8 * unit + 4 * (piece % 2));
      if (piece % 2 == 0) {
        copy_async<4>(&stage.input_scales[piece / 2][column], input->scales + unit);
      } else if constexpr (Weights::tiles == AFFINE_TILES) {
        copy_async<4>(&stage.input_sums[piece / 2][column], input->sums + unit);
      }
    }
    commit_copies();
  };
#pragma unroll
  for (int n = 0; n < code_columns / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) sums[n][i] = 0.0f;
  }
  __syncthreads();
  auto stored = load_weights(0);
  copy_input(0, stages[0]);
  for (int first = 0, at = 0; first < units; first += Stage::units, at ^= 1) {
    Stage& stage = stages[at];
    u32 codes[8];
    Affine line = Weights::unpack(stored, codes);
    uint4* place = reinterpret_cast<uint4*>(stage.weights + row * Stage::pitch + 32 * part);
    place[0] = {codes[0], codes[1], codes[2], codes[3]}, place[1] = {codes[4], codes[5], codes[6], codes[7]};
    stage.lines[part][row] = first + part < units ? line : Affine{0.0f, 0.0f};
    wait_for_copies<0>();
    __syncthreads();
    // The next stage is loaded while this one is multiplied.
    if (first + Stage::units < units) {
      stored = load_weights(first + Stage::units);
      copy_input(first + Stage::units, stages[at ^ 1]);
    }
    stage.template multiply<Weights::tiles>(columns, sums);
  }
}

// Calls `visit` with the row in the tile, the column and the indices of each product of a lane.
template <class Visit>
__device__ void each_place(Visit visit) {
  int g = lane_index() / 4, t = lane_index() % 4, row = 16 * warp_index();
#pragma unroll
  for (int n = 0; n < code_columns / 8; n++) {
#pragma unroll
    for (int i = 0; i < 4; i++) visit(row + g + i / 2 * 8, 8 * n + 2 * t + i % 2, n, i);
  }
}

// Like `each_place`, with the value of each product.
template <class Visit>
__device__ void each_product(const float (&sums)[code_columns / 8][4], Visit visit) {
  each_place([&](int row, int column, int n, int i) { visit(row, column, sums[n][i]); });
}

// Like `gemm_slots`, for matrices of one format.
template <int format, int cols>
__device__ void gemm_codes(const u8* codes, const Linears& linears, Rows output, int tokens) {
  const Linear& linear = linear_of(linears, blockIdx.x);
  int first_row = (blockIdx.x - linear.first) * code_rows, first = blockIdx.y * code_columns, columns = tokens - first;
  int own = threadIdx.x / 4;
  SlotInputs in = {nullptr, codes + (long long)first * codes_pitch<cols>};
  float sums[code_columns / 8][4];
  code_products<format, cols>(
      linear.weights, linear.rows, first_row, own < columns ? &in.rounded<cols>(own) : nullptr, columns, sums);
  each_product(sums, [&](int row, int column, float product) {
    row += first_row;
    if (row >= linear.rows || column >= columns) return;
    product = linear.multiplier * product;
    if (linear.bias) product += linear.bias[row];
    float* place = output.token(first + column) + linear.column + row;
    *place = linears.add ? *place + product : product;
  });
}
