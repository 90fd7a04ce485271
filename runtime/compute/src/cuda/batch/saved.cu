// Copies the columns of token `blockIdx.y` to its row of `saved`, or back.
// `ColumnList` is in saved.rs.
template <bool back>
__device__ void copy_columns(const ColumnList& list, float* saved) {
  float* row = saved + (long long)blockIdx.y * list.width;
  for (int i = 0; i < list.count; i++) {
    float* columns = list.at[i].token(blockIdx.y);
    int width = list.at[i].width;
    for (int c = blockIdx.x * blockDim.x + threadIdx.x; c < width; c += gridDim.x * blockDim.x) {
      if (back) {
        columns[c] = row[c];
      } else {
        row[c] = columns[c];
      }
    }
    row += width;
  }
}
