// IQ4_XS on the device: all codes of the matrix, then d and the scales of each super-block. A unit is a sub-block.
template <int cols>
struct Format<IQ4_XS, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 2;
  static constexpr int scale_row_bytes = cols / 256 * 8;
  static constexpr int unit = 32;
  static __device__ float scale(Units matrix, long long index) {
    const u32* head = reinterpret_cast<const u32*>(matrix.scales) + index / 8 * 2;
    int sub = index % 8;
    u32 low = head[1] >> 4 * sub & 15, high = head[0] >> (16 + 2 * sub) & 3;
    return half_bits(head[0] & 0xffff) * (float)((int)(low | high << 4) - 32);
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
