// IQ2_XXS on the device: all entries of the matrix, then all d.
struct IQ2_XXSBlock {
  static constexpr int numbers = 256, bytes = 66, apart = 0, apart_end = 2, offset = 64;
  static __device__ HalfScales unpack(StoredBlock<IQ2_XXSBlock> block, int run, u32* packed) {
    u32 signs = block.word(6 + 8 * run);
#pragma unroll
    for (int l = 0; l < 4; l++) {
      iq2_codes(IQ2_XXS_GRID + block.byte(2 + 8 * run + l), even_signs(signs >> 7 * l), packed + 2 * l);
    }
    float d = block.half_at(0) * 0.125f * (float)(2 * (signs >> 28) + 1);
    return {d, d};
  }
};

template <int cols>
struct Format<IQ2_XXS, cols> : WideBlocks<IQ2_XXSBlock, cols> {};
