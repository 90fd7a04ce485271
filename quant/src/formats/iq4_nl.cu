// The values of the codes of IQ4_NL and IQ4_XS.
__device__ inline void iq4_look_up(const u8* codes, int* packed) {
  const u32 values[4] = {0xbfad9881, 0xf6eaddcf, 0x26190d01, 0x71594535};
  look_up_all(values, codes, packed);
}

__device__ inline void scaled_values(const int* packed, float d, float* out) {
#pragma unroll
  for (int i = 0; i < 32; i++) out[i] = d * (float)(i8)(packed[i / 4] >> 8 * (i % 4));
}

// IQ4_NL on the device: the codes of the whole matrix, then the scales.
template <int cols>
struct Format<IQ4_NL, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 2;
  static constexpr int scale_row_bytes = cols / 32 * 2;
  static constexpr int unit = 32;
  static __device__ float scale(Units matrix, long long index) {
    return half_bits(reinterpret_cast<const u16*>(matrix.scales)[index]);
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    iq4_look_up(matrix.codes + index * 16, packed);
    scaled_values(packed, scale(matrix, index), out);
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8];
    iq4_look_up(matrix.codes + index * 16, packed);
    return code_dot(packed, x) * (scale(matrix, index) * x.scale);
  }
};
