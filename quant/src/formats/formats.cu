// Number formats on the device. A matrix is read in units of `unit` numbers, numbered row after row. `row_bytes` is the size of a row's
// codes, `scale_row_bytes` that of its scales if they are stored separately. `values` writes the numbers of a unit; `dot` multiplies a unit
// with inputs rounded to 8 bits.

// 32 inputs in 8 bits: x = scale * code, with the sum of the codes.
struct Codes {
  int packed[8];
  float scale;
  int sum;
};

// A scale and a minimum: value = scale * code - minimum.
struct Affine {
  float scale, min;
};

// A unit whose codes are combined while it is read.
struct JoinedUnit {
  u32 packed[8];
  Affine line;
};

// Additional operands of tensor core products with the codes of a unit: only a scale, a scale and a minimum, or one scale for each half.
// For these products a format has `load`, which starts reading a unit, and `unpack`, which converts it to signed codes.
enum { PLAIN_TILES, AFFINE_TILES, HALVED_TILES };

// Subtracts `offset`, a power of two, from each of four bytes below twice `offset`; no carry passes between bytes.
template <u32 offset>
__device__ u32 less(u32 bytes) {
  return bytes + 0x01010101 * (128 - offset) ^ 0x80808080;
}

// Adds to `sum` the products of four unsigned bytes with four signed bytes.
__device__ inline int dot_unsigned(u32 bytes, int codes, int sum) {
#if defined(WATERLINE_EMULATOR)
  for (int i = 0; i < 32; i += 8) sum += (int)(bytes >> i & 255) * (int)(i8)(codes >> i);
#else
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(bytes), "r"(codes));
#endif
  return sum;
}

// Selects four of eight bytes, by the indices in bits 0..3, 4..7, 8..11 and 12..15 of `places`.
__device__ inline u32 permute(u32 low, u32 high, u32 places) {
#if defined(WATERLINE_EMULATOR)
  u64 bytes = (u64)high << 32 | low;
  u32 chosen = 0;
  for (int i = 0; i < 4; i++) chosen |= (u32)(bytes >> 8 * (places >> 4 * i & 7) & 255) << 8 * i;
  return chosen;
#else
  return __byte_perm(low, high, places);
#endif
}

// Looks up the low and the high halves of four bytes in a table of sixteen bytes.
__device__ inline void look_up(const u32 (&table)[4], u32 bytes, int& low, int& high) {
  u32 places = bytes & 0x77777777, upper = 0x32103210 | (bytes & 0x88888888) >> 1, two[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 lower_half = permute(table[0], table[1], places >> 16 * i), upper_half = permute(table[2], table[3], places >> 16 * i);
    two[i] = permute(lower_half, upper_half, upper >> 16 * i);
  }
  low = permute(two[0], two[1], 0x6420), high = permute(two[0], two[1], 0x7531);
}

// Looks up both halves of sixteen bytes of codes.
__device__ inline void look_up_all(const u32 (&table)[4], const u8* codes, int* packed) {
  uint4 words = load_once(codes);
  u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; i++) look_up(table, word[i], packed[i], packed[i + 4]);
}

// Splits sixteen bytes of codes into halves, one code per byte.
__device__ inline void split_halves(const u8* codes, int* packed) {
  uint4 words = load_once(codes);
  u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
  for (int i = 0; i < 4; i++) {
    packed[i] = word[i] & 0x0f0f0f0f;
    packed[i + 4] = word[i] >> 4 & 0x0f0f0f0f;
  }
}

// Adds sixteen to each code whose bit in `high` is set.
__device__ inline void add_fifth_bits(u32 high, int* packed) {
#pragma unroll
  for (int i = 0; i < 8; i++) {
    // The product has bit j of the four at bit 8 * j, and other bits in between.
    packed[i] |= ((high >> 4 * i & 15) * 0x00204081 & 0x01010101) << 4;
  }
}

__device__ inline int code_dot(const int* packed, const Codes& x) {
  int sum = 0;
#pragma unroll
  for (int i = 0; i < 8; i++) sum = __dp4a(packed[i], x.packed[i], sum);
  return sum;
}

template <int format, int cols>
struct Format;

// Location of a matrix's units: their codes, and their scales if these are stored separately.
struct Units {
  const u8* codes;
  const u8* scales;
};

// Returns the units of a complete matrix.
template <class Weights>
__device__ Units all_units(const u8* matrix, int rows) {
  return {matrix, matrix + (long long)rows * Weights::row_bytes};
}

// A format of 16-bit floats, which `Number::of` decodes, in units of eight numbers if the row length allows.
template <class Number, int cols>
struct Floats16 {
  static constexpr bool integer = false;
  static constexpr int row_bytes = cols * 2;
  static constexpr int scale_row_bytes = 0;
  static constexpr int unit = cols % 8 == 0 ? 8 : 1;
  static __device__ void values(Units matrix, long long index, float* out) {
    if constexpr (unit == 8) {
      uint4 words = load_once(matrix.codes + index * 16);
      u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        out[2 * i] = Number::of(pairs[i] & 0xffff);
        out[2 * i + 1] = Number::of(pairs[i] >> 16);
      }
    } else {
      out[0] = Number::of(reinterpret_cast<const u16*>(matrix.codes)[index]);
    }
  }
};

// Looks up the values of the codes of IQ4_NL and IQ4_XS.
__device__ inline void iq4_look_up(const u8* codes, int* packed) {
  const u32 values[4] = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};
  look_up_all(values, codes, packed);
}

__device__ inline void scaled_values(const int* packed, float d, float* out) {
#pragma unroll
  for (int i = 0; i < 32; i++) out[i] = d * (float)(i8)(packed[i / 4] >> 8 * (i % 4));
}

// A format of blocks of 32 numbers with one scale. `Block::codes` unpacks a block's codes, each larger by `Block::offset`.
template <class Block, int cols>
struct ScaledBlocks {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 32 * Block::block_bytes;
  static constexpr int scale_row_bytes = cols / 32 * Block::scale_bytes;
  static constexpr int unit = 32;
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    float d = Block::codes(matrix, index, packed);
    if constexpr (Block::offset != 0) {
#pragma unroll
      for (int i = 0; i < 8; i++) packed[i] = less<Block::offset>(packed[i]);
    }
    scaled_values(packed, d, out);
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8];
    float d = Block::codes(matrix, index, packed);
    return (code_dot(packed, x) - Block::offset * x.sum) * (d * x.scale);
  }
};
