// Products of BF16 matrices with many columns on tensor cores. An input is the sum of two bf16 numbers, which leaves out less than
// 2^-16 of it; sums are f32. A column's sums do not depend on the other columns. A block takes sixteen rows of one matrix, or of
// two, and each of its warps its own part of their depth.

// Makes the input of token `blockIdx.y` in two parts, one behind the other.
template <int cols, int flags>
__device__ void columns_prologue_tensor(const Prologue& prologue, u16* inputs) {
  float* x = shared_memory<float>();
  store_prologue_row<cols, flags>(prologue, blockIdx.y, x);
  __syncthreads();
  u16* row = inputs + (long long)blockIdx.y * 2 * cols;
  for (int i = 2 * threadIdx.x; i < cols; i += 2 * blockDim.x) SplitPair(x[i], x[i + 1]).store(row + i, cols);
}

constexpr int column_rows = 16;

// The sums of a warp's part of the depth, [16 rows, 8 columns] for each tile of columns. Eight numbers of the depth that follow one
// another are a lane's, in both operands.
template <int cols, int tiles>
__device__ void column_sums(const Linear& linear, int first_row, const u16* inputs, float (&sums)[tiles][4]) {
  int g = lane_index() / 4, t = lane_index() % 4;
  const u16* weights = reinterpret_cast<const u16*>(linear.weights);
  const u16* rows[2];
  for (int i = 0; i < 2; i++) rows[i] = weights + (long long)min(first_row + g + 8 * i, linear.rows - 1) * cols + 8 * t;
  const u16* column = inputs + (long long)g * 2 * cols + 8 * t;
#pragma unroll 4
  for (int depth = 32 * warp_index(); depth < cols; depth += 32 * (int)(blockDim.x / 32)) {
    uint4 upper = load_once(rows[0] + depth), lower = load_once(rows[1] + depth);
    u32 left[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
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
  float sum = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; warp++) sum += room[warp * (8 * tiles * column_rows) + place];
  float product = linear.multiplier * sum;
  return linear.bias ? product + linear.bias[row] : product;
}

template <int format, int cols, int tiles>
__device__ void gemm_columns_tensor(const u16* inputs, const Linears& linears, Rows output, int tokens) {
  const Linear& linear = linear_of(linears, blockIdx.x);
  int first = (blockIdx.x - linear.first) * column_rows;
  if (warp_index() == 0) prefetch_row_codes<1 << format, cols, column_rows>(linear, first);
  wait_for_dependencies();
  launch_dependents();
  float* room = shared_memory<float>();
  float sums[tiles][4] = {};
  column_sums<cols, tiles>(linear, first, inputs, sums);
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
__device__ void gemm_gated_columns_tensor(const u16* inputs, const Linears& linears, Rows output, int tokens) {
  constexpr int matrix_floats = 8 * tiles * column_rows;
  const Linear &gate = linears.at[0], &up = linears.at[1];
  int first = blockIdx.x * column_rows;
  if (warp_index() < 2) prefetch_row_codes<1 << format, cols, column_rows>(linears.at[warp_index()], first);
  wait_for_dependencies();
  launch_dependents();
  float* room = shared_memory<float>();
  float* other = room + (int)(blockDim.x / 32) * matrix_floats;
  {
    float sums[tiles][4] = {};
    column_sums<cols, tiles>(gate, first, inputs, sums);
    share_sums<tiles>(sums, room);
  }
  float sums[tiles][4] = {};
  column_sums<cols, tiles>(up, first, inputs, sums);
  share_sums<tiles>(sums, other);
  __syncthreads();
  for (int i = threadIdx.x; i < tokens * column_rows; i += blockDim.x) {
    int row = first + i % column_rows;
    if (row >= gate.rows) continue;
    float gate_value = column_product<tiles>(gate, room, i, row), product = column_product<tiles>(up, other, i, row);
    output.token(i / column_rows)[row] = activate(function, gate_value) * product;
  }
}
