// Products of one token with the chosen parts of matrices. They bypass the weight pipeline, whose producers run ahead of the choice.

// Multiplies matrices of `parts` equal parts. A block multiplies rows of one chosen part. Columns of other parts keep their values. `route`
// holds the numbers of the chosen parts.
template <u64 formats, int rounding, int cols, int flags, int parts>
__device__ void gemv_chosen(const Prologue& prologue, const Linears& linears, Rows route, int tiles, Rows output) {
  float* x = shared_memory<float>();
  int* rounded = load_input<rounding, cols, flags>(prologue, blockIdx.y, x);
  int rank = blockIdx.x / tiles, tile = blockIdx.x % tiles;
  const Linear& linear = linear_of(linears, tile);
  int height = linear.rows / parts, first = (int)route.token(blockIdx.y)[rank] * height;
  int row = ((tile - linear.first) * (blockDim.x / 32) + warp_index()) * rows_of_warp;
  if (row >= height) return;
  float products[rows_of_warp] = {};
  products_by_format<formats, cols>(linear, first + row, x, rounded, products);
  if (lane_index() < rows_of_warp && row + lane_index() < height) {
    int r = first + row + lane_index();
    float product = linear.multiplier * (lane_index() == 0 ? products[0] : products[1]);
    output.token(blockIdx.y)[linear.column + r] = product + (linear.bias ? linear.bias[r] : 0.0f);
  }
}
