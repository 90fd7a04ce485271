// IQ3_S on the device: the first 96 bytes of each block, then the others.
struct IQ3_SBlock {
  static constexpr int numbers = 256, bytes = 110, apart = 96, apart_end = 110, offset = 64;
  static __device__ HalfScales unpack(StoredBlock<IQ3_SBlock> block, int run, u32* packed) {
    u32 high = block.byte(66 + run), signs = block.word(74 + 4 * run);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      u32 digits = iq3_digits(IQ3_S_GRID + (block.byte(2 + 8 * run + i) | (high >> i & 1) << 8));
      packed[i] = signed_codes(0x01010101 + 2 * digits, signs >> 4 * i);
    }
    float d = block.half_at(0) * (float)(2 * (block.byte(106 + run / 2) >> 4 * (run % 2) & 15) + 1);
    return {d, d};
  }
};

template <int cols>
struct Format<IQ3_S, cols> : WideBlocks<IQ3_SBlock, cols> {};
