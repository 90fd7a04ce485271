// Rows of an embedding, scaled, into the columns of the output, after an optional norm.
template <int format, int cols, int flags>
__device__ void embed(const u8* matrix, int vocab, float multiplier, const u32* ids, const Prologue& norm, Rows output) {
  using Weights = Format<format, cols>;
  constexpr int units = cols / Weights::unit;
  float* row = output.token(blockIdx.x);
  for (int unit = threadIdx.x; unit < units; unit += blockDim.x) {
    float values[Weights::unit];
    long long index = (long long)ids[blockIdx.x] * units + unit;
    Weights::values(all_units<Weights>(matrix, vocab), index, values);
    for (int i = 0; i < Weights::unit; i++) row[unit * Weights::unit + i] = multiplier * values[i];
  }
  __syncthreads();
  if (norm.steps > 0) store_prologue_row<cols, flags>(norm, blockIdx.x, row);
}
