// A mixture of experts, one token at a time: `route` holds the indices of the chosen experts, whose rows are read in place.
// The second half of the file prepares the products of a chunk (experts_chunk.cu).
// `Matrices` is in launch.rs, `ExpertLists` and `Staged` in launch_chunk.rs.

// Feed-forward networks of one shape: the formats of their matrices, -1 for an absent one, and the width between the matrices, 0
// without networks. Then the rounding of the inputs of the first matrices, and of the last one.
template <int gate_format, int up_format, int down_format, int inner_width, int first_rounding, int last_rounding>
struct Network {
  static constexpr int gate = gate_format, up = up_format, down = down_format, width = inner_width;
  static constexpr int first = first_rounding, last = last_rounding;
};

// Prefetches the codes of a row.
template <int format, int cols>
__device__ void prefetch_row(const u8* matrix, long long row) {
  if constexpr (format >= 0) {
    // Prefetches need aligned rows.
    constexpr u32 bytes = Format<format, cols>::row_bytes;
    if constexpr (bytes % 16 == 0) prefetch(matrix + row * bytes, bytes);
  }
}

// The product of unit `index` of a matrix and unit `unit` of an input of `inputs` values.
template <class Weights, int inputs>
__device__ float unit_product(Units matrix, long long index, const float* x, const int* rounded, int unit) {
  if constexpr (Weights::integer) {
    return Weights::dot(matrix, index, reinterpret_cast<const Rounded<inputs>*>(rounded)->unit(unit));
  } else {
    float values[Weights::unit], product = 0.0f;
    Weights::values(matrix, index, values);
#pragma unroll
    for (int i = 0; i < Weights::unit; i++) product += values[i] * x[unit * Weights::unit + i];
    return product;
  }
}

// This lane's part of the products of x with rows `row` and `row + 1` of a matrix; `rows` counts the rows of all networks. There
// are no branches, so that many loads are in flight: computing one product after the other takes 19 us, both in one loop 24 us
// (kimi-linear-4.6b in Q4_0, H100).
template <int format, int cols>
__device__ void lane_products(const u8* matrix, long long rows, long long row, const float* x, const int* rounded, float* products) {
  using Weights = Format<format, cols>;
  constexpr int units = cols / Weights::unit, passes = (units + 31) / 32;
  Units all = {matrix, matrix + rows * Weights::row_bytes};
#pragma unroll(Weights::integer ? 4 : 2)
  for (int pass = 0; pass < passes; pass++) {
    int own = pass * 32 + lane_index(), unit = min(own, units - 1);
#pragma unroll
    for (int r = 0; r < rows_of_warp; r++) {
      long long index = min(row + r, rows - 1) * units + unit;
      float product = unit_product<Weights, cols>(all, index, x, rounded, unit);
      if (own < units) products[r] += product;
    }
  }
}

// The `function` of a gated unit with bounds, in place of an `Activation`.
constexpr int clamped_unit = -1;

// The value between the matrices for the products of row `row`, counted over all networks: `act(gate x) * up x`, or `act(up x)` without
// a gate. The products lack their biases.
template <int function, bool gated>
__device__ float inner_value(const Matrices& matrices, long long row, float gate, float up) {
  if (matrices.up_bias) up += matrices.up_bias[row];
  if constexpr (!gated) return activate(function, up);
  if (matrices.gate_bias) gate += matrices.gate_bias[row];
  if constexpr (function == clamped_unit) {
    gate = fminf(gate, matrices.limit);
    up = fminf(fmaxf(up, -matrices.limit), matrices.limit);
    return (up + 1.0f) * gate * sigmoid(matrices.slope * gate);
  }
  return up * activate(function, gate);
}

// The values between the matrices for a warp's rows. `rows` counts the rows of all networks.
template <class Networks, int cols, int function>
__device__ void begin_rows(
    const Matrices& matrices, long long rows, long long row, const float* x, const int* rounded, float* products) {
  float gates[rows_of_warp] = {};
  if constexpr (Networks::gate >= 0) lane_products<Networks::gate, cols>(matrices.gate, rows, row, x, rounded, gates);
  lane_products<Networks::up, cols>(matrices.up, rows, row, x, rounded, products);
#pragma unroll
  for (int r = 0; r < rows_of_warp; r++) {
    constexpr bool gated = Networks::gate >= 0;
    float up = warp_sum(products[r]), gate = gated ? warp_sum(gates[r]) : 0.0f;
    products[r] = inner_value<function, gated>(matrices, min(row + r, rows - 1), gate, up);
  }
}

// The rows of the chosen networks, then of the shared one, are distributed over the warps of all thread blocks, `rows_of_warp`
// at a time.
template <int cols, int flags, class Routed, class Common, int experts, int chosen, int function>
__device__ void begin_experts(const Prologue& prologue, Matrices routed, Matrices common, Rows route, Rows inner) {
  constexpr int parts = (Routed::width + rows_of_warp - 1) / rows_of_warp, of_routed = chosen * parts;
  constexpr int of_common = (Common::width + rows_of_warp - 1) / rows_of_warp;
  int t = blockIdx.y, warps = blockDim.x / 32;
  int begin = blockIdx.x * warps + warp_index(), step = gridDim.x * warps;
  const float* numbers = route.token(t);
  auto row_of = [&](int part) { return (long long)(int)numbers[part / parts] * Routed::width + part % parts * rows_of_warp; };
  for (int part = begin; part < of_routed; part += step) {
    int r = lane_index() % rows_of_warp, which = lane_index() / rows_of_warp;
    long long row = row_of(part) + r;
    if (part % parts * rows_of_warp + r >= Routed::width) continue;
    if (which == 0) prefetch_row<Routed::up, cols>(routed.up, row);
    if (which == 1) prefetch_row<Routed::gate, cols>(routed.gate, row);
  }
  float* x = shared_memory<float>();
  int* rounded = load_input<Routed::first, cols, flags>(prologue, t, x);
  auto store = [&](int column, int row, int width, const float* products) {
    int r = lane_index();
    if (r < rows_of_warp && row + r < width) inner.token(t)[column + row + r] = r == 0 ? products[0] : products[1];
  };
  int part = begin;
  for (; part < of_routed; part += step) {
    float products[rows_of_warp] = {};
    begin_rows<Routed, cols, function>(routed, (long long)experts * Routed::width, row_of(part), x, rounded, products);
    store(part / parts * Routed::width, part % parts * rows_of_warp, Routed::width, products);
  }
  if constexpr (Common::width > 0) {
    if constexpr (Common::first != Routed::first) {
      __syncthreads();
      rounded = load_input<Common::first, cols, flags>(prologue, t, x);
    }
    for (; part < of_routed + of_common; part += step) {
      float products[rows_of_warp] = {};
      int row = (part - of_routed) * rows_of_warp;
      begin_rows<Common, cols, function>(common, Common::width, row, x, rounded, products);
      store(chosen * Routed::width, row, Common::width, products);
    }
  }
}

// Stores `count` values as the input of products, rounded to 16 bits, or as f32 followed by the 8-bit form; there is room for
// `most` values.
template <int rounding, int most>
__device__ int* load_values(const float* values, int count, float* x) {
  __syncthreads();
  // Loads per thread that are in flight together.
  constexpr int at_once = 8;
  for (int first = threadIdx.x; first < most; first += at_once * blockDim.x) {
    float loaded[at_once];
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      int at = first + i * blockDim.x;
      loaded[i] = at < count ? round_short<rounding>(values[at]) : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < at_once; i++) {
      int at = first + i * blockDim.x;
      if (at < most) x[at] = loaded[i];
    }
  }
  __syncthreads();
  int* rounded = round_input<rounding, most>(x);
  if constexpr (to_codes(rounding)) __syncthreads();
  return rounded;
}

// This lane's part of `sum_i weights[i] (row `row` of network numbers[i]) x_i` for `count` networks of `rows` rows, whose inputs
// x_i are contiguous.
template <int format, int width, int most>
__device__ float lane_sum(
    const u8* matrix, int networks, int rows, int row, int count, const float* numbers, const float* weights, const float* x,
    const int* rounded) {
  using Weights = Format<format, width>;
  constexpr int units = width / Weights::unit;
  Units all = all_units<Weights>(matrix, networks * rows);
  float sum = 0.0f;
#pragma unroll 4
  for (int i = lane_index(); i < count * units; i += 32) {
    int of = i / units;
    long long index = ((long long)(int)numbers[of] * rows + row) * units + i % units;
    sum += weights[of] * unit_product<Weights, most>(all, index, x, rounded, i);
  }
  return sum;
}

// The weighted sum of the experts' outputs for their inner values. Rows are distributed over the warps of all thread blocks; a
// warp takes at most `turns` rows. The inputs of `at_once` experts are in shared memory at once.
template <class Routed, class Common, int experts, int chosen, int at_once, int rows, int turns, bool add>
__device__ void end_experts(Matrices routed, Matrices common, Rows inner, Rows route, Rows gate, float multiplier, Rows output) {
  float* x = shared_memory<float>();
  int t = blockIdx.y, warps = blockDim.x / 32;
  auto row_of = [&](int turn) { return (turn * (int)gridDim.x + (int)blockIdx.x) * warps + warp_index(); };
  const float *values = inner.token(t), *numbers = route.token(t), *weights = numbers + chosen;
  for (int i = lane_index(); i < chosen * turns; i += 32) {
    int row = row_of(i / chosen);
    if (row < rows) prefetch_row<Routed::down, Routed::width>(routed.down, (long long)(int)numbers[i % chosen] * rows + row);
  }
  float sums[turns] = {};
  for (int first = 0; first < chosen; first += at_once) {
    constexpr int width = Routed::width, most = at_once * width;
    int count = min(at_once, chosen - first);
    int* rounded = load_values<Routed::last, most>(values + first * width, count * width, x);
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
      int row = row_of(turn);
      if (row >= rows) break;
      sums[turn] += lane_sum<Routed::down, width, most>(
          routed.down, experts, rows, row, count, numbers + first, weights + first, x, rounded);
    }
  }
  if constexpr (Common::width > 0) {
    constexpr int width = Common::width;
    int* rounded = load_values<Common::last, width>(values + chosen * Routed::width, width, x);
    float number = 0.0f, weight = multiplier * (gate.first ? sigmoid(gate.token(t)[0]) : 1.0f);
#pragma unroll 1
    for (int turn = 0; turn < turns; turn++) {
      int row = row_of(turn);
      if (row >= rows) break;
      sums[turn] += lane_sum<Common::down, width, width>(common.down, 1, rows, row, 1, &number, &weight, x, rounded);
    }
  }
#pragma unroll 1
  for (int turn = 0; turn < turns; turn++) {
    int row = row_of(turn);
    if (row >= rows) break;
    float sum = warp_sum(sums[turn]);
    if (lane_index() == 0) {
      if (routed.down_bias) {
#pragma unroll 1
        for (int i = 0; i < chosen; i++) sum += weights[i] * routed.down_bias[(long long)(int)numbers[i] * rows + row];
      }
      float* place = output.token(t) + row;
      *place = add ? *place + sum : sum;
    }
  }
}

// Pairs of a token and an expert per tile of the lists.
constexpr int tile_pairs = 64;

// Marks a tile of `ExpertLists` without an expert, and a place of a tile without a pair.
constexpr int no_expert = -1;

// Lists the pairs by expert; a thread block takes an expert.
template <int experts, int chosen>
__device__ void list_pairs(Rows route, ExpertLists lists, int tokens) {
  __shared__ int counts[experts];
  __shared__ int of_warps[32];
  int expert = blockIdx.x;
  for (int i = threadIdx.x; i < experts; i += blockDim.x) counts[i] = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * chosen; i += blockDim.x) {
    atomicAdd(counts + (int)route.token(i / chosen)[i % chosen], 1);
  }
  __syncthreads();
  auto tiles_of = [&](int number) { return (counts[number] + tile_pairs - 1) / tile_pairs; };
  int first = 0;
  for (int i = 0; i < expert; i++) first += tiles_of(i);
  int end = first + tiles_of(expert), place = first * tile_pairs;
  for (int i = first + threadIdx.x; i < end; i += blockDim.x) lists.experts[i] = expert;
  if (expert == experts - 1) {
    for (int i = end + threadIdx.x; i < tokens * chosen / tile_pairs + experts; i += blockDim.x) lists.experts[i] = no_expert;
  }
  for (int start = 0; start < tokens; start += blockDim.x) {
    int t = start + threadIdx.x, rank = -1;
    for (int r = 0; r < chosen && t < tokens; r++) rank = (int)route.token(t)[r] == expert ? r : rank;
    u32 mine = __ballot_sync(all_lanes, rank >= 0);
    if (lane_index() == 0) of_warps[warp_index()] = __popc(mine);
    __syncthreads();
    int before = __popc(mine & ((1u << lane_index()) - 1)), found = 0;
    for (int warp = 0; warp < blockDim.x / 32; warp++) {
      before += warp < warp_index() ? of_warps[warp] : 0;
      found += of_warps[warp];
    }
    if (rank >= 0) lists.pairs[place + before] = t * chosen + rank;
    place += found;
    // The next counts overwrite these.
    __syncthreads();
  }
  for (int i = place + threadIdx.x; i < end * tile_pairs; i += blockDim.x) lists.pairs[i] = no_expert;
}

// Prepares a pair's inner values as the input of products; `blockIdx.x` is the rank, `blockIdx.y` the token.
template <int rounding, int width, int chosen>
__device__ void stage_inner(Rows inner, Staged staged) {
  float* x = shared_memory<float>();
  const int* rounded = load_values<rounding, width>(inner.token(blockIdx.y) + blockIdx.x * width, width, x);
  long long pair = (long long)blockIdx.y * chosen + blockIdx.x;
  if constexpr (to_codes(rounding)) {
    constexpr int pitch = (sizeof(Rounded<width>) + 15) / 16 * 16;
    int* to = reinterpret_cast<int*>(staged.codes + pair * pitch);
    for (int i = threadIdx.x; i < sizeof(Rounded<width>) / 4; i += blockDim.x) to[i] = rounded[i];
  } else {
    constexpr int pitch = (width + 31) / 32 * 32;
    for (int i = threadIdx.x; i < width; i += blockDim.x) staged.floats[pair * pitch + i] = x[i];
  }
}
