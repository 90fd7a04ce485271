// TQ2_0 on the device: all codes of the matrix, then all scales.
struct TQ2_0Block {
  static constexpr int numbers = 256, bytes = 66, apart = 64, apart_end = 66, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<TQ2_0Block> block, int run, u32* packed) {
#pragma unroll
    for (int i = 0; i < 8; i++) packed[i] = block.word(32 * (run / 4) + 4 * i) >> 2 * (run % 4) & 0x03030303;
    float d = block.half_at(64);
    return {d, d};
  }
};

template <int cols>
struct Format<TQ2_0, cols> : WideBlocks<TQ2_0Block, cols> {};
