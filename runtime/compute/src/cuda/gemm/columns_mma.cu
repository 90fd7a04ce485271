// Products of matrices with many columns on tensor cores. A block takes sixteen rows of one matrix, or of two, and each of its warps
// its own part of their depth. A column's sums do not depend on the other columns.
//
// BF16: an input is the sum of two bf16 numbers, which leaves out less than 2^-16 of it; sums are f32.
// Q8_0 and Q4_0: the products of codes are summed in integers, unit by unit, and each product has the bits of `gemv`: a warp keeps the
// sums of four of that function's lanes apart, and all sums are added in the order of `warp_sum`.

constexpr int column_rows = 16;
constexpr int column_warps = 8;

// Makes the input of token `blockIdx.y` in two parts, one behind the other.
template <int rounding, int cols, int flags>
__device__ void columns_prologue_parts(const Prologue& prologue, u8* inputs) {
  float* x = shared_memory<float>();
  load_input<rounding, cols, flags>(prologue, blockIdx.y, x);
  u16* row = reinterpret_cast<u16*>(inputs) + (long long)blockIdx.y * 2 * cols;
  for (int i = 2 * threadIdx.x; i < cols; i += 2 * blockDim.x) SplitPair<2>(x[i], x[i + 1]).store(row + i, cols);
}

// A unit of eight columns: two words of codes for each lane, then of each pair of columns both scales and both sums of codes.
struct ColumnUnit {
  uint2 codes[32];
  uint4 scales[4];
};

// Makes the input of token `blockIdx.y` in 8 bits, `ColumnUnit`s of eight columns one after another.
template <int rounding, int cols, int flags>
__device__ void columns_prologue_codes(const Prologue& prologue, u8* inputs) {
  constexpr int units = cols / 32;
  float* x = shared_memory<float>();
  const auto& rounded = *reinterpret_cast<const Rounded<cols>*>(load_input<rounding, cols, flags>(prologue, blockIdx.y, x));
  ColumnUnit* tile = reinterpret_cast<ColumnUnit*>(inputs) + (long long)(blockIdx.y / 8) * units;
  int column = blockIdx.y % 8;
  for (int i = threadIdx.x; i < cols / 4; i += blockDim.x) {
    int word = i % 8;
    reinterpret_cast<int*>(&tile[i / 8].codes[4 * column + word % 4])[word / 4] = rounded.packed[i];
  }
  for (int i = threadIdx.x; i < units; i += blockDim.x) {
    u32* pair = reinterpret_cast<u32*>(&tile[i].scales[column / 2]) + column % 2;
    pair[0] = __float_as_uint(rounded.scales[i]);
    pair[2] = (u32)rounded.sums[i];
  }
}

// The sums of a warp's part of the depth, [16 rows, 8 columns] for each tile of columns that is used. Eight numbers of the depth that
// follow one another are a lane's, in both operands.
template <int cols, int tiles>
__device__ void sums_of_parts(const Linear& linear, int first_row, const u16* inputs, int used, float (&sums)[tiles][4]) {
  int g = lane_index() / 4, t = lane_index() % 4;
  const u16* weights = reinterpret_cast<const u16*>(linear.weights);
  const u16* rows[2];
  for (int i = 0; i < 2; i++) rows[i] = weights + (long long)min(first_row + g + 8 * i, linear.rows - 1) * cols + 8 * t;
  const u16* column = inputs + (long long)g * 2 * cols + 8 * t;
#pragma unroll 4
  for (int depth = 32 * warp_index(); depth < cols; depth += 32 * column_warps) {
    uint4 upper = load_once(rows[0] + depth), lower = load_once(rows[1] + depth);
    u32 left[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
      if (tile >= used) break;
#pragma unroll
      for (int part = 0; part < 2; part++) {
        uint4 x = *reinterpret_cast<const uint4*>(column + tile * 16 * cols + part * cols + depth);
        u32 right[2][2] = {{x.x, x.y}, {x.z, x.w}};
        multiply_add(sums[tile], left[0], right[0]);
        multiply_add(sums[tile], left[1], right[1]);
      }
    }
  }
}

// The same of codes: units w, w + 8, w + 16 and w + 24 of every 32 are those of warp w.
template <int format, int cols, int tiles>
__device__ void sums_of_codes(const Linear& linear, int first_row, const ColumnUnit* inputs, int used, float (&sums)[tiles][4]) {
  using Weights = Format<format, cols>;
  constexpr int units = cols / 32, lanes = 4;
  // 1.5 * 2^23: as a float, with an integer below 2^22 added to its bits, it is the larger by that integer.
  constexpr int magic = 0x4b400000;
  int g = lane_index() / 4, t = lane_index() % 4;
  Units matrix = all_units<Weights>(linear.weights, linear.rows);
  long long rows[2];
  for (int i = 0; i < 2; i++) rows[i] = (long long)min(first_row + g + 8 * i, linear.rows - 1) * units;
  float parts[lanes][tiles][4] = {};
  for (int first = warp_index(); first < units; first += 32) {
    // All loads of four units are in flight at once; those behind the last unit are of it, and not summed.
    u32 codes[lanes][4];
    float scales[lanes][2];
#pragma unroll
    for (int part = 0; part < lanes; part++) {
      int unit = min(first + column_warps * part, units - 1);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        Weights::code_words(matrix, rows[i] + unit, t, codes[part][i], codes[part][2 + i]);
        scales[part][i] = Weights::scale(matrix, rows[i] + unit);
      }
    }
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
      if (tile >= used) break;
      uint2 words[lanes];
      uint4 pairs[lanes];
#pragma unroll
      for (int part = 0; part < lanes; part++) {
        const ColumnUnit& in = inputs[tile * units + min(first + column_warps * part, units - 1)];
        words[part] = in.codes[lane_index()], pairs[part] = in.scales[t];
      }
#pragma unroll
      for (int part = 0; part < lanes; part++) {
        u32 right[2] = {words[part].x, words[part].y};
        float column_scales[2] = {__uint_as_float(pairs[part].x), __uint_as_float(pairs[part].y)};
        int bases[2] = {magic - Weights::offset * (int)pairs[part].z, magic - Weights::offset * (int)pairs[part].w};
        int products[4] = {bases[0], bases[1], bases[0], bases[1]};
        multiply_add_codes(products, codes[part], right);
        if (first + column_warps * part >= units) continue;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          float product = __uint_as_float((u32)products[i]) - __uint_as_float((u32)magic);
          parts[part][tile][i] += product * (scales[part][i / 2] * column_scales[i % 2]);
        }
      }
    }
  }
#pragma unroll
  for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
      sums[tile][i] = (parts[0][tile][i] + parts[2][tile][i]) + (parts[1][tile][i] + parts[3][tile][i]);
    }
  }
}

template <int format, int cols, int tiles>
__device__ void column_sums(const Linear& linear, int first_row, const u8* inputs, int used, float (&sums)[tiles][4]) {
  if constexpr (format == BF16) {
    sums_of_parts<cols, tiles>(linear, first_row, reinterpret_cast<const u16*>(inputs), used, sums);
  } else {
    sums_of_codes<format, cols, tiles>(linear, first_row, reinterpret_cast<const ColumnUnit*>(inputs), used, sums);
  }
}

// The sums of all warps in shared memory, [matrix, warp, column, row].
template <int tiles>
__device__ void share_sums(const float (&sums)[tiles][4], float* room) {
  int g = lane_index() / 4, t = lane_index() % 4;
  float* own = room + warp_index() * (8 * tiles * column_rows);
  for (int tile = 0; tile < tiles; tile++) {
    for (int i = 0; i < 4; i++) own[(8 * tile + 2 * t + i % 2) * column_rows + g + i / 2 * 8] = sums[tile][i];
  }
}

// One product: the sum over warps, multiplied, with its bias.
template <int tiles>
__device__ float column_product(const Linear& linear, const float* room, int place, int row) {
  float sums[column_warps];
#pragma unroll
  for (int warp = 0; warp < column_warps; warp++) sums[warp] = room[warp * (8 * tiles * column_rows) + place];
#pragma unroll
  for (int distance = column_warps / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < distance; i++) sums[i] += sums[i + distance];
  }
  float product = linear.multiplier * sums[0];
  return linear.bias ? product + linear.bias[row] : product;
}

template <int format, int cols, int tiles>
__device__ void gemm_columns_tensor(const u8* inputs, const Linears& linears, Rows output, int tokens) {
  const Linear& linear = linear_of(linears, blockIdx.x);
  int first = (blockIdx.x - linear.first) * column_rows;
  if (warp_index() == 0) prefetch_row_codes<1 << format, cols, column_rows>(linear, first);
  wait_for_dependencies();
  launch_dependents();
  float* room = shared_memory<float>();
  float sums[tiles][4] = {};
  column_sums<format, cols, tiles>(linear, first, inputs, (tokens + 7) / 8, sums);
  share_sums<tiles>(sums, room);
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * column_rows; i += blockDim.x) {
    int row = first + i % column_rows;
    if (row >= linear.rows) continue;
    float product = column_product<tiles>(linear, room, i, row);
    float* place = output.token(i / column_rows) + linear.column + row;
    *place = linears.add ? *place + product : product;
  }
}

// `output = function(gate x) * up x` of two matrices of the same shape.
template <int format, int cols, int tiles, int function>
__device__ void gemm_gated_columns_tensor(const u8* inputs, const Linears& linears, Rows output, int tokens) {
  constexpr int matrix_floats = 8 * tiles * column_rows;
  const Linear &gate = linears.at[0], &up = linears.at[1];
  int first = blockIdx.x * column_rows, used = (tokens + 7) / 8;
  if (warp_index() < 2) prefetch_row_codes<1 << format, cols, column_rows>(linears.at[warp_index()], first);
  wait_for_dependencies();
  launch_dependents();
  float* room = shared_memory<float>();
  float* other = room + column_warps * matrix_floats;
  {
    float sums[tiles][4] = {};
    column_sums<format, cols, tiles>(gate, first, inputs, used, sums);
    share_sums<tiles>(sums, room);
  }
  float sums[tiles][4] = {};
  column_sums<format, cols, tiles>(up, first, inputs, used, sums);
  share_sums<tiles>(sums, other);
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * column_rows; i += blockDim.x) {
    int row = first + i % column_rows;
    if (row >= gate.rows) continue;
    float gate_value = column_product<tiles>(gate, room, i, row), product = column_product<tiles>(up, other, i, row);
    output.token(i / column_rows)[row] = activate(function, gate_value) * product;
  }
}
