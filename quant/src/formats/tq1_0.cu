// TQ1_0 on the device: the bytes of five digits, then the other bytes and the scale of each block.
struct TQ1_0Block {
  static constexpr int numbers = 256, bytes = 54, apart = 48, apart_end = 54, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<TQ1_0Block> block, int run, u32* packed) {
    pack_codes(packed, [&](int i) {
      int number = 32 * run + i;
      if (number < 160) return ternary_digit(block.byte(number % 32), number / 32);
      number -= 160;
      if (number < 80) return ternary_digit(block.byte(32 + number % 16), number / 16);
      number -= 80;
      return ternary_digit(block.byte(48 + number % 4), number / 4);
    });
    float d = block.half_at(52);
    return {d, d};
  }
};

template <int cols>
struct Format<TQ1_0, cols> : WideBlocks<TQ1_0Block, cols> {};
