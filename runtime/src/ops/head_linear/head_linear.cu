// Products of heads with matrices of their own. Four threads share the rows of a column and keep them in registers for the tokens of
// a tile.

template <int rows, int cols, int kept, int width, int tile>
__device__ void head_linear(Rows x, const float* weights, Rows out, int tokens) {
  constexpr int warps = 4, block_columns = 8 * warps;
  constexpr int groups = (cols + block_columns - 1) / block_columns, parts = (rows + 3) / 4;
  int head = blockIdx.x / groups, group = blockIdx.x % groups, place = lane_index() / 8;
  int column = group * block_columns + warp_index() * 8 + lane_index() % 8;
  bool inside = column < cols;
  float weight[parts];
#pragma unroll
  for (int i = 0; i < parts; i++) {
    int row = i * 4 + place;
    weight[i] = inside && row < rows ? weights[(long long)(head * rows + row) * cols + column] : 0.0f;
  }
  wait_for_dependencies();
  launch_dependents();
  int first = blockIdx.y * tile, last = min(first + tile, tokens);
  for (int t = first; t < last; t++) {
    const float* from = x.token(t) + head * width;
    float* to = out.token(t) + head * (cols + kept);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < parts; i++) {
      int row = i * 4 + place;
      sum += weight[i] * (rows % 4 == 0 || row < rows ? from[row] : 0.0f);
    }
    sum += __shfl_xor_sync(all_lanes, sum, 8);
    sum += __shfl_xor_sync(all_lanes, sum, 16);
    if (inside && place == 0) to[column] = sum;
    if (group == 0) {
      for (int i = threadIdx.x; i < kept; i += blockDim.x) to[cols + i] = from[rows + i];
    }
  }
}
