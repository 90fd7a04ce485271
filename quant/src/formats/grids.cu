// The grids of the IQ formats. grids.rs says how their entries are stored; `stored_grid` has them one after another.
enum { IQ1_GRID = 0, IQ2_XXS_GRID = 2048, IQ2_XS_GRID = 2304, IQ2_S_GRID = 2816, IQ3_XXS_GRID = 3840, IQ3_S_GRID = 4096 };

// Negates the numbers whose bits in `signs` are set, and adds 64 to all. Carries between bytes cancel, as in grids.rs.
__device__ inline u32 signed_codes(u32 numbers, u32 signs) {
  u32 negative = spread_bits(signs) * 255;
  return (numbers ^ negative) - negative + 0x40404040;
}

// The eight sign bits of which seven are stored.
__device__ inline u32 even_signs(u32 seven) {
  seven &= 127;
  u32 odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  return seven | ((odd ^ odd >> 1) & 1) << 7;
}

// Eight numbers 8, 25 or 43 with signs.
__device__ inline void iq2_codes(int entry, u32 signs, u32* packed) {
  u32 stored = stored_grid(entry);
#pragma unroll
  for (int i = 0; i < 2; i++) {
    u32 digits = spread_pairs(stored >> 8 * i);
    packed[i] = signed_codes(0x08080808 + 17 * digits + (digits >> 1 & 0x01010101), signs >> 4 * i);
  }
}

// Four digits of three bits, one in each byte.
__device__ inline u32 iq3_digits(int entry) {
  u32 stored = stored_grid(entry);
  return (stored & 7) | (stored & 0x38) << 5 | (stored & 0x1c0) << 10 | (stored & 0xe00) << 15;
}

// Eight times the numbers -1, 0 and 1, shifted by 1 or -1, plus 9.
__device__ inline void iq1_codes(int entry, bool is_down, u32* packed) {
  u32 stored = stored_grid(IQ1_GRID + entry), lowest = is_down ? 0 : 0x02020202;
#pragma unroll
  for (int i = 0; i < 2; i++) packed[i] = 8 * spread_pairs(stored >> 8 * i) + lowest;
}

// The scales of two halves in the halves of a byte.
__device__ inline HalfScales iq2_scales(float d, u32 byte) {
  return {d * 0.125f * (float)(2 * (byte & 15) + 1), d * 0.125f * (float)(2 * (byte >> 4) + 1)};
}
