// Q1_0 on the device: all signs of the matrix, then all scales.
struct Q1_0Block {
  static constexpr int numbers = 128, bytes = 18, apart = 0, apart_end = 2, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<Q1_0Block> block, int run, u32* packed) {
    u32 signs = block.word(2 + 4 * run);
#pragma unroll
    for (int i = 0; i < 8; i++) packed[i] = spread_bits(signs >> 4 * i) << 1;
    float d = block.half_at(0);
    return {d, d};
  }
};

template <int cols>
struct Format<Q1_0, cols> : WideBlocks<Q1_0Block, cols> {};
