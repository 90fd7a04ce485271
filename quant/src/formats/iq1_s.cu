// IQ1_S on the device: all entries of the matrix, then all d.
struct IQ1_SBlock {
  static constexpr int numbers = 256, bytes = 50, apart = 0, apart_end = 2, offset = 9;
  static __device__ HalfScales unpack(StoredBlock<IQ1_SBlock> block, int run, u32* packed) {
    u32 high = block.short_word(34 + 2 * run);
#pragma unroll
    for (int l = 0; l < 4; l++) {
      u32 entry = block.byte(2 + 4 * run + l) | (high >> 3 * l & 7) << 8;
      iq1_codes(entry, high >> 15 != 0, packed + 2 * l);
    }
    float d = block.half_at(0) * 0.125f * (float)(2 * (high >> 12 & 7) + 1);
    return {d, d};
  }
};

template <int cols>
struct Format<IQ1_S, cols> : WideBlocks<IQ1_SBlock, cols> {};
