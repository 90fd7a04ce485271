// IQ2_XS on the device: the first 64 bytes of each block, then the others.
struct IQ2_XSBlock {
  static constexpr int numbers = 256, bytes = 74, apart = 64, apart_end = 74, offset = 64;
  static __device__ HalfScales unpack(StoredBlock<IQ2_XSBlock> block, int run, u32* packed) {
#pragma unroll
    for (int l = 0; l < 4; l++) {
      u32 word = block.short_word(2 + 8 * run + 2 * l);
      iq2_codes(IQ2_XS_GRID + (word & 511), even_signs(word >> 9), packed + 2 * l);
    }
    return iq2_scales(block.half_at(0), block.byte(66 + run));
  }
};

template <int cols>
struct Format<IQ2_XS, cols> : WideBlocks<IQ2_XSBlock, cols> {};
