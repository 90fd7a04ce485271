// Formats whose units are unpacked to one byte per number: x = scale * (code - offset), with a scale for each half of a unit. A unit is 32
// numbers. `Block::unpack` writes the codes of a unit of a block and returns the scales.

struct HalfScales {
  float first, second;
};

// A stored block, whose bytes `apart` to `apart_end` are stored behind the codes of all blocks.
template <class Block>
struct StoredBlock {
  static constexpr int apart_bytes = Block::apart_end - Block::apart, code_bytes = Block::bytes - apart_bytes;
  const u8* codes;
  const u8* scales;
  __device__ StoredBlock(Units matrix, long long index) {
    codes = matrix.codes + index * code_bytes;
    scales = matrix.scales + index * apart_bytes;
  }
  __device__ u32 byte(int i) const {
    if (i >= Block::apart && i < Block::apart_end) return scales[i - Block::apart];
    return codes[i < Block::apart ? i : i - apart_bytes];
  }
  __device__ u32 short_word(int i) const { return byte(i) | byte(i + 1) << 8; }
  __device__ u32 word(int i) const { return short_word(i) | short_word(i + 2) << 16; }
  __device__ float half_at(int i) const { return half_bits(short_word(i)); }
};

template <class Block, int cols>
struct WideBlocks {
  using Stored = StoredBlock<Block>;
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / Block::numbers * Stored::code_bytes;
  static constexpr int scale_row_bytes = cols / Block::numbers * Stored::apart_bytes;
  static constexpr int unit = 32, units_of_block = Block::numbers / 32;
  static __device__ HalfScales unpack(Units matrix, long long index, u32* packed) {
    return Block::unpack(Stored(matrix, index / units_of_block), index % units_of_block, packed);
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    u32 packed[8];
    HalfScales scales = unpack(matrix, index, packed);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      float scale = i < 16 ? scales.first : scales.second;
      out[i] = scale * (float)((int)(packed[i / 4] >> 8 * (i % 4) & 255) - Block::offset);
    }
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    u32 packed[8];
    HalfScales scales = unpack(matrix, index, packed);
    int sums[2] = {0, 0}, ones[2] = {0, 0};
#pragma unroll
    for (int i = 0; i < 8; i++) {
      sums[i / 4] = __dp4a((int)packed[i], x.packed[i], sums[i / 4]);
      ones[i / 4] = __dp4a(0x01010101, x.packed[i], ones[i / 4]);
    }
    float first = scales.first * (float)(sums[0] - Block::offset * ones[0]);
    return (first + scales.second * (float)(sums[1] - Block::offset * ones[1])) * x.scale;
  }
};

// Spreads four bits to the lowest bits of four bytes.
__device__ inline u32 spread_bits(u32 bits) { return (bits & 15) * 0x00204081 & 0x01010101; }

// Spreads four numbers of two bits to four bytes.
__device__ inline u32 spread_pairs(u32 byte) {
  byte &= 255;
  return (byte | byte << 6 | byte << 12 | byte << 18) & 0x03030303;
}

// Digit n in base 3 of the fraction `byte / 256`.
__device__ inline u32 ternary_digit(u32 byte, int n) {
  u32 power = n == 0 ? 1 : n == 1 ? 3 : n == 2 ? 9 : n == 3 ? 27 : 81;
  return (byte * power & 255) * 3 >> 8;
}

// Writes the 32 codes that `code` returns.
template <class Code>
__device__ void pack_codes(u32* packed, Code code) {
  for (int i = 0; i < 8; i++) {
    packed[i] = code(4 * i) | code(4 * i + 1) << 8 | code(4 * i + 2) << 16 | code(4 * i + 3) << 24;
  }
}

// The codes of a run in blocks of `five` and `next_five` bytes of five digits, and `four` bytes of four: the first digits of all bytes of a
// group, then their second digits, and so on. A scale follows.
template <int five, int next_five, int four, class Block>
__device__ HalfScales unpack_ternary(StoredBlock<Block> block, int run, u32* packed) {
  pack_codes(packed, [&](int i) {
    int number = 32 * run + i;
    if (number < 5 * five) return ternary_digit(block.byte(number % five), number / five);
    number -= 5 * five;
    if (number < 5 * next_five) return ternary_digit(block.byte(five + number % next_five), number / next_five);
    number -= 5 * next_five;
    return ternary_digit(block.byte(five + next_five + number % four), number / four);
  });
  float d = block.half_at(five + next_five + four);
  return {d, d};
}
