// PTQ1_0 on the device: the first sixteen bytes of each block, then the others.
struct PTQ1_0Block {
  static constexpr int numbers = 128, bytes = 28, apart = 16, apart_end = 28, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<PTQ1_0Block> block, int run, u32* packed) {
    pack_codes(packed, [&](int i) {
      int number = 32 * run + i;
      if (number < 80) return ternary_digit(block.byte(number % 16), number / 16);
      number -= 80;
      if (number < 40) return ternary_digit(block.byte(16 + number % 8), number / 8);
      number -= 40;
      return ternary_digit(block.byte(24 + number % 2), number / 2);
    });
    float d = block.half_at(26);
    return {d, d};
  }
};

template <int cols>
struct Format<PTQ1_0, cols> : WideBlocks<PTQ1_0Block, cols> {};
