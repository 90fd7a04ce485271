// Matrix products on plain cores. `gemv` multiplies token by token: each block runs the prologue of the whole input, each warp multiplies
// two rows of weights. `store_prologue` and `gemm_simt` do this for chunks, in tiles.
// `Linears` is in mod.rs.

__device__ inline const Linear& linear_of(const Linears& linears, int tile) {
  int found = 0;
  for (int i = 1; i < linears.count; i++) found = tile >= linears.at[i].first ? i : found;
  return linears.at[found];
}

// The inputs of a warp that share a scale, in 8 bits. A lane has one input of each unit.
template <int rounding>
struct WarpCodes {
  static constexpr int units = units_of_scale(rounding);
  int code[units];
  float scale;

  __device__ explicit WarpCodes(const float* x) {
    float value[units];
    u32 largest = 0;
#pragma unroll
    for (int i = 0; i < units; i++) {
      value[i] = x[32 * i + lane_index()];
      largest = max(largest, magnitude(value[i]));
    }
    Scale<rounding> common(warp_max_of_bits(largest));
#pragma unroll
    for (int i = 0; i < units; i++) code[i] = common.code(value[i]);
    scale = common.rounded();
  }
};

// Rounds `count` inputs as products would read them, by the whole block; `to` may be `from`. Complete after a barrier.
template <int rounding, int count>
__device__ void round_values(const float* from, float* to) {
  if constexpr (to_codes(rounding)) {
    constexpr int step = 32 * units_of_scale(rounding);
    for (int first = warp_index() * step; first < count; first += blockDim.x / 32 * step) {
      WarpCodes<rounding> codes(from + first);
#pragma unroll
      for (int i = 0; i < codes.units; i++) to[first + 32 * i + lane_index()] = codes.code[i] * codes.scale;
    }
  } else {
    for (int i = threadIdx.x; i < count; i += blockDim.x) to[i] = round_short<rounding>(from[i]);
  }
}

// The input in 8 bits, in units of 32 values.
template <int cols>
struct Rounded {
  int packed[cols / 4];
  float scales[cols / 32];
  int sums[cols / 32];

  template <int rounding>
  __device__ void load(const float* x) {
    constexpr int units_at_once = units_of_scale(rounding);
    for (int first = warp_index() * units_at_once; first < cols / 32; first += blockDim.x / 32 * units_at_once) {
      WarpCodes<rounding> codes(x + first * 32);
#pragma unroll
      for (int i = 0; i < units_at_once; i++) {
        reinterpret_cast<i8*>(packed)[(first + i) * 32 + lane_index()] = (i8)codes.code[i];
        int sum = warp_sum_of_codes(codes.code[i]);
        if (lane_index() == 0) {
          scales[first + i] = codes.scale;
          sums[first + i] = sum;
        }
      }
    }
  }

  __device__ Codes unit(int index) const {
    Codes codes;
    const int4* four = reinterpret_cast<const int4*>(packed) + index * 2;
    int4 a = four[0], b = four[1];
    codes.packed[0] = a.x, codes.packed[1] = a.y, codes.packed[2] = a.z, codes.packed[3] = a.w;
    codes.packed[4] = b.x, codes.packed[5] = b.y, codes.packed[6] = b.z, codes.packed[7] = b.w;
    codes.scale = scales[index];
    codes.sum = sums[index];
    return codes;
  }
};

constexpr int rows_of_warp = 2;

// Computes the products of a warp's rows with x, in every lane.
template <int format, int cols>
__device__ void warp_products(const Linear& linear, int row, const float* x, const int* rounded, float* products) {
  using Weights = Format<format, cols>;
  constexpr int units = cols / Weights::unit;
  Units matrix = all_units<Weights>(linear.weights, linear.rows);
#pragma unroll 4
  for (int unit = lane_index(); unit < units; unit += 32) {
    if constexpr (Weights::integer) {
      Codes codes = reinterpret_cast<const Rounded<cols>*>(rounded)->unit(unit);
#pragma unroll
      for (int r = 0; r < rows_of_warp; r++) {
        long long index = (long long)min(row + r, linear.rows - 1) * units + unit;
        products[r] += Weights::dot(matrix, index, codes);
      }
    } else {
#pragma unroll
      for (int r = 0; r < rows_of_warp; r++) {
        float values[Weights::unit];
        long long index = (long long)min(row + r, linear.rows - 1) * units + unit;
        Weights::values(matrix, index, values);
#pragma unroll
        for (int i = 0; i < Weights::unit; i++) products[r] += values[i] * x[unit * Weights::unit + i];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < rows_of_warp; r++) products[r] = warp_sum(products[r]);
}

// Calls the instance of `warp_products` for the matrix's format, one of `formats`.
template <u64 formats, int cols, int format = 0>
__device__ void products_by_format(const Linear& linear, int row, const float* x, const int* rounded, float* products) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      if (linear.format == format) return warp_products<format, cols>(linear, row, x, rounded, products);
    }
    products_by_format<formats, cols, format + 1>(linear, row, x, rounded, products);
  }
}

// Prefetched weights must stay in L2 until the kernel starts.
constexpr long long most_prefetched = 16 << 20;

// Prefetches the codes of a warp's rows.
template <u64 formats, int cols, int format = 0>
__device__ void prefetch_rows(const Linear& linear, int row) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      // Prefetches need aligned rows.
      constexpr u32 bytes = Format<format, cols>::row_bytes % 16 == 0 ? Format<format, cols>::row_bytes : 0;
      bool first = blockIdx.x * (prologue_threads / 32) * rows_of_warp * (long long)bytes < most_prefetched;
      if (first && linear.format == format && bytes > 0 && lane_index() < rows_of_warp && row + lane_index() < linear.rows) {
        prefetch(linear.weights + (long long)(row + lane_index()) * Format<format, cols>::row_bytes, bytes);
      }
    }
    prefetch_rows<formats, cols, format + 1>(linear, row);
  }
}

// Rounds the input x of `cols` values to 8 bits and stores the result after it. Complete after a barrier.
template <int rounding, int cols>
__device__ int* round_input(float* x) {
  int* rounded = reinterpret_cast<int*>(x + (cols + 31) / 32 * 32);
  if constexpr (to_codes(rounding)) reinterpret_cast<Rounded<cols>*>(rounded)->template load<rounding>(x);
  return rounded;
}

// Computes the input of token t in x, in f32 or rounded to 16 bits.
template <int rounding, int cols, int flags>
__device__ void load_values(const Prologue& prologue, int t, float* x) {
  Fragment<cols, flags> input = prologue_row<cols, flags>(prologue, t, x);
  input.template round_short<rounding>();
  input.store(x);
  __syncthreads();
}

// Computes the input of token t in x: rounded to 16 bits, or in f32 followed by the 8-bit form, which is returned.
template <int rounding, int cols, int flags>
__device__ int* load_input(const Prologue& prologue, int t, float* x) {
  load_values<rounding, cols, flags>(prologue, t, x);
  int* rounded = round_input<rounding, cols>(x);
  if constexpr (to_codes(rounding)) __syncthreads();
  return rounded;
}

template <u64 formats, int rounding, int cols, int flags>
__device__ void gemv(const Prologue& prologue, const Linears& linears, Rows output) {
  const Linear& linear = linear_of(linears, blockIdx.x);
  int row = ((blockIdx.x - linear.first) * (blockDim.x / 32) + warp_index()) * rows_of_warp;
  prefetch_rows<formats, cols>(linear, row);
  wait_for_dependencies();
  launch_dependents();
  float* x = shared_memory<float>();
  int* rounded = load_input<rounding, cols, flags>(prologue, blockIdx.y, x);
  if (row >= linear.rows) return;
  float products[rows_of_warp] = {};
  products_by_format<formats, cols>(linear, row, x, rounded, products);
  if (lane_index() < rows_of_warp && row + lane_index() < linear.rows) {
    int r = row + lane_index();
    float product = linear.multiplier * (lane_index() == 0 ? products[0] : products[1]);
    if (linear.bias) product += linear.bias[r];
    float* place = output.token(blockIdx.y) + linear.column + r;
    *place = linears.add ? *place + product : product;
  }
}

// `output = function(gate x) * up x` of two matrices of the same shape. A warp multiplies the same rows of both.
template <u64 formats, int rounding, int cols, int flags, int function>
__device__ void gemv_gated(const Prologue& prologue, const Linears& linears, Rows output) {
  const Linear &gate = linears.at[0], &up = linears.at[1];
  int row = (blockIdx.x * (blockDim.x / 32) + warp_index()) * rows_of_warp;
  prefetch_rows<formats, cols>(gate, row);
  prefetch_rows<formats, cols>(up, row);
  wait_for_dependencies();
  launch_dependents();
  float* x = shared_memory<float>();
  int* rounded = load_input<rounding, cols, flags>(prologue, blockIdx.y, x);
  if (row >= gate.rows) return;
  float gates[rows_of_warp] = {}, products[rows_of_warp] = {};
  products_by_format<formats, cols>(gate, row, x, rounded, gates);
  products_by_format<formats, cols>(up, row, x, rounded, products);
  if (lane_index() < rows_of_warp && row + lane_index() < gate.rows) {
    int r = lane_index();
    float gate_value = gate.multiplier * (r == 0 ? gates[0] : gates[1]), product = up.multiplier * (r == 0 ? products[0] : products[1]);
    if (gate.bias) gate_value += gate.bias[row + r];
    if (up.bias) product += up.bias[row + r];
    output.token(blockIdx.y)[row + r] = activate(function, gate_value) * product;
  }
}

template <int cols, int flags>
__device__ void store_prologue(const Prologue& prologue, Rows output) {
  store_prologue_row<cols, flags>(prologue, blockIdx.x, output.token(blockIdx.x));
}

constexpr int tile_rows = 64;
constexpr int tile_tokens = 64;
constexpr int tile_depth = 32;

// Unpacks 32 consecutive weights of a row, or zeros beyond the matrix.
template <int format, int cols>
__device__ void weights_of_row(const Linear& linear, int row, int first, float* out) {
  using Weights = Format<format, cols>;
  constexpr int units = cols / Weights::unit;
  constexpr int count = tile_depth / Weights::unit;
  Units matrix = all_units<Weights>(linear.weights, linear.rows);
#pragma unroll
  for (int i = 0; i < count; i++) {
    float* place = out + i * Weights::unit;
    int unit = first / Weights::unit + i;
    if (row < linear.rows && unit < units) {
      Weights::values(matrix, (long long)row * units + unit, place);
    } else {
      for (int j = 0; j < Weights::unit; j++) place[j] = 0.0f;
    }
  }
}

template <u64 formats, int cols, int format = 0>
__device__ void weights_by_format(const Linear& linear, int row, int first, float* out) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      if (linear.format == format) return weights_of_row<format, cols>(linear, row, first, out);
    }
    weights_by_format<formats, cols, format + 1>(linear, row, first, out);
  }
}

// Multiplies a tile of rows with a tile of tokens: each of 256 threads computes four by four products.
template <u64 formats, int cols>
__device__ void gemm_simt(Rows input, Linears linears, Rows output, int tokens) {
  __shared__ float weights[tile_depth][tile_rows + 1];
  __shared__ float inputs[tile_depth][tile_tokens + 1];
  const Linear& linear = linear_of(linears, blockIdx.x);
  int first_row = (blockIdx.x - linear.first) * tile_rows, first_token = blockIdx.y * tile_tokens;
  int down = threadIdx.x / 16, across = threadIdx.x % 16;
  float sums[4][4] = {};
  for (int depth = 0; depth < cols; depth += tile_depth) {
    __syncthreads();
    if (threadIdx.x < tile_rows) {
      float row[tile_depth];
      weights_by_format<formats, cols>(linear, first_row + threadIdx.x, depth, row);
#pragma unroll
      for (int i = 0; i < tile_depth; i++) weights[i][threadIdx.x] = row[i];
    } else {
      for (int i = threadIdx.x - tile_rows; i < tile_depth * tile_tokens; i += blockDim.x - tile_rows) {
        int t = first_token + i / tile_depth, col = depth + i % tile_depth;
        inputs[i % tile_depth][i / tile_depth] = t < tokens && col < cols ? input.token(t)[col] : 0.0f;
      }
    }
    __syncthreads();
#pragma unroll 8
    for (int i = 0; i < tile_depth; i++) {
#pragma unroll
      for (int r = 0; r < 4; r++) {
#pragma unroll
        for (int t = 0; t < 4; t++) sums[r][t] += weights[i][down + 16 * r] * inputs[i][across + 16 * t];
      }
    }
  }
#pragma unroll
  for (int r = 0; r < 4; r++) {
    int row = first_row + down + 16 * r;
    if (row >= linear.rows) continue;
    float bias = linear.bias ? linear.bias[row] : 0.0f;
#pragma unroll
    for (int t = 0; t < 4; t++) {
      int token = first_token + across + 16 * t;
      if (token >= tokens) continue;
      float* place = output.token(token) + linear.column + row;
      float product = linear.multiplier * sums[r][t] + bias;
      *place = linears.add ? *place + product : product;
    }
  }
}
