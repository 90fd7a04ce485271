// MXFP4 on the device: the codes of the whole matrix, then the exponents.
template <int cols>
struct Format<MXFP4, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 2;
  static constexpr int scale_row_bytes = cols / 32;
  static constexpr int unit = 32;
  // Twice the values of the codes.
  static __device__ void codes(Units matrix, long long index, int* packed) {
    const u32 values[4] = {0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc};
    look_up_all(values, matrix.codes + index * 16, packed);
  }
  static __device__ float scale(Units matrix, long long index) {
    u32 e = matrix.scales[index];
    return __uint_as_float(e < 2 ? 1u << (21 + e) : (e - 1) << 23);
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    codes(matrix, index, packed);
    scaled_values(packed, scale(matrix, index), out);
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8];
    codes(matrix, index, packed);
    return code_dot(packed, x) * (scale(matrix, index) * x.scale);
  }
};
