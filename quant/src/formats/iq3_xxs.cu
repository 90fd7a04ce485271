// IQ3_XXS on the device: all entries of the matrix, then all d.
struct IQ3_XXSBlock {
  static constexpr int numbers = 256, bytes = 98, apart = 0, apart_end = 2, offset = 64;
  static __device__ HalfScales unpack(StoredBlock<IQ3_XXSBlock> block, int run, u32* packed) {
    u32 signs = block.word(66 + 4 * run);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 digits = iq3_digits(IQ3_XXS_GRID + block.byte(2 + 8 * run + i));
      // 4 + 8 * digit, and 62 instead of 60.
      u32 numbers = 0x04040404 + 8 * digits + 2 * (digits & digits >> 1 & digits >> 2 & 0x01010101);
      packed[i] = signed_codes(numbers, even_signs(signs >> 7 * (i / 2)) >> 4 * (i % 2));
    }
    float d = block.half_at(0) * 0.25f * (float)(2 * (signs >> 28) + 1);
    return {d, d};
  }
};

template <int cols>
struct Format<IQ3_XXS, cols> : WideBlocks<IQ3_XXSBlock, cols> {};
