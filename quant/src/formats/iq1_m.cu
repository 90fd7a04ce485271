// IQ1_M on the device: all entries of the matrix, then the scales of all blocks.
struct IQ1_MBlock {
  static constexpr int numbers = 256, bytes = 56, apart = 48, apart_end = 56, offset = 9;
  static __device__ HalfScales unpack(StoredBlock<IQ1_MBlock> block, int run, u32* packed) {
#pragma unroll
    for (int l = 0; l < 4; l++) {
      u32 high = block.byte(32 + 2 * run + l / 2) >> 4 * (l % 2);
      u32 entry = block.byte(4 * run + l) | (high & 7) << 8;
      iq1_codes(entry, (high & 8) != 0, packed + 2 * l);
    }
    u32 bits = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) bits |= block.short_word(48 + 2 * i) >> 12 << 4 * i;
    float d = half_bits(bits) * 0.125f;
    u32 scales = block.short_word(48 + run / 2 * 2) >> 6 * (run % 2);
    return {d * (float)(2 * (scales & 7) + 1), d * (float)(2 * (scales >> 3 & 7) + 1)};
  }
};

template <int cols>
struct Format<IQ1_M, cols> : WideBlocks<IQ1_MBlock, cols> {};
