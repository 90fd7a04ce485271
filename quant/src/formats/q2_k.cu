// Q2_K on the device: all super-blocks of the matrix without d and dmin, then all d and dmin. A unit is a run of 32.
template <int cols>
struct Format<Q2_K, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 256 * 80;
  static constexpr int scale_row_bytes = cols / 256 * 4;
  static constexpr int unit = 32;
  // Unpacks codes to bytes. Returns the scale and the minimum of the first half in one byte, and those of the second half in the next.
  static __device__ u32 codes(Units matrix, long long index, int* packed) {
    const u8* block = matrix.codes + index / 8 * 80;
    int run = index % 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 words = load_once(block + 16 + run / 4 * 32 + 16 * i);
      u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 4; j++) packed[4 * i + j] = word[j] >> 2 * (run % 4) & 0x03030303;
    }
    return reinterpret_cast<const u16*>(block)[run];
  }
  // Returns d and dmin.
  static __device__ Affine units(Units matrix, long long index) {
    u32 both = reinterpret_cast<const u32*>(matrix.scales)[index / 8];
    return {half_bits(both & 0xffff), half_bits(both >> 16)};
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    u32 lines = codes(matrix, index, packed);
    Affine units_of = units(matrix, index);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      u32 line = lines >> 8 * (i / 16);
      float q = (float)(packed[i / 4] >> 8 * (i % 4) & 3);
      out[i] = units_of.scale * (line & 15) * q - units_of.min * (line >> 4 & 15);
    }
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8], sums[2] = {0, 0}, ones[2] = {0, 0};
    u32 lines = codes(matrix, index, packed);
    Affine units_of = units(matrix, index);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      sums[i / 4] = __dp4a(packed[i], x.packed[i], sums[i / 4]);
      ones[i / 4] = __dp4a(0x01010101, x.packed[i], ones[i / 4]);
    }
    int above = (int)(lines & 15) * sums[0] + (int)(lines >> 8 & 15) * sums[1];
    int below = (int)(lines >> 4 & 15) * ones[0] + (int)(lines >> 12 & 15) * ones[1];
    return x.scale * (units_of.scale * above - units_of.min * below);
  }
};
