// F32, in units of four numbers if the row length allows.
template <int cols>
struct Format<F32, cols> {
  static constexpr bool integer = false;
  static constexpr int row_bytes = cols * 4;
  static constexpr int scale_row_bytes = 0;
  static constexpr int unit = cols % 4 == 0 ? 4 : 1;
  static __device__ void values(Units matrix, long long index, float* out) {
    if constexpr (unit == 4) {
      uint4 words = load_once(matrix.codes + index * 16);
      out[0] = __uint_as_float(words.x);
      out[1] = __uint_as_float(words.y);
      out[2] = __uint_as_float(words.z);
      out[3] = __uint_as_float(words.w);
    } else {
      out[0] = reinterpret_cast<const float*>(matrix.codes)[index];
    }
  }
};
