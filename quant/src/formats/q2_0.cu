// Q2_0 and PQ2_0 on the device: all codes of the matrix, then all scales.
template <int length>
struct Q2_0Block {
  static constexpr int numbers = length, bytes = 2 + length / 4, apart = 0, apart_end = 2, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<Q2_0Block> block, int run, u32* packed) {
#pragma unroll
    for (int i = 0; i < 8; i++) packed[i] = spread_pairs(block.byte(2 + 8 * run + i));
    float d = block.half_at(0);
    return {d, d};
  }
};

template <int cols>
struct Format<Q2_0, cols> : WideBlocks<Q2_0Block<64>, cols> {};
