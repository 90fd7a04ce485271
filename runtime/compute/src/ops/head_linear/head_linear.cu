// Products of heads with one matrix per head. `lanes` threads share a row, which they hold in registers for the tokens of a tile.
// Inputs are rounded in shared memory.

template <int format, int rounding, int lanes, int heads, int rows, int cols, int copied, int width, int tile>
__device__ void head_linear(Rows x, const u8* matrix, Rows out, int tokens) {
  using Weights = Format<format, cols>;
  constexpr int threads = 128, block_rows = threads / lanes, groups = (rows + block_rows - 1) / block_rows;
  constexpr int units = cols / Weights::unit, parts = (units + lanes - 1) / lanes;
  int head = blockIdx.x / groups, group = blockIdx.x % groups, place = threadIdx.x % lanes;
  int row = group * block_rows + threadIdx.x / lanes;
  bool inside = row < rows;
  Units all = all_units<Weights>(matrix, heads * rows);
  float weights[parts][Weights::unit];
#pragma unroll
  for (int i = 0; i < parts; i++) {
    int unit = i * lanes + place;
    if (inside && unit < units) {
      Weights::values(all, (long long)(head * rows + row) * units + unit, weights[i]);
    } else {
      for (int j = 0; j < Weights::unit; j++) weights[i][j] = 0.0f;
    }
  }
  wait_for_dependencies();
  launch_dependents();
  int first = blockIdx.y * tile, last = min(first + tile, tokens);
  for (int t = first; t < last; t++) {
    const float *from = x.token(t) + head * width, *inputs = from;
    if constexpr (rounding != IN_F32) {
      float* rounded = shared_memory<float>();
      __syncthreads();
      round_values<rounding, cols>(from, rounded);
      __syncthreads();
      inputs = rounded;
    }
    float* to = out.token(t) + head * (rows + copied);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < parts; i++) {
      // The weights of a unit after the row's end are zero, and no input is read.
      int unit = min(i * lanes + place, units - 1);
#pragma unroll
      for (int j = 0; j < Weights::unit; j++) sum += weights[i][j] * inputs[unit * Weights::unit + j];
    }
#pragma unroll
    for (int i = lanes / 2; i > 0; i /= 2) sum += __shfl_xor_sync(all_lanes, sum, i);
    if (inside && place == 0) to[row] = sum;
    if (group == 0) {
      for (int i = threadIdx.x; i < copied; i += threads) to[rows + i] = from[cols + i];
    }
  }
}
