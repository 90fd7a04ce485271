// Q5_0 on the device: the low bits of the whole matrix, then the scales and fifth bits.
template <int cols>
struct Format<Q5_0, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 2;
  static constexpr int scale_row_bytes = cols / 32 * 6;
  static constexpr int unit = 32;
  // Codes in bytes, not yet less 16, and the scale.
  static __device__ float codes(Units matrix, long long index, int* packed) {
    const u16* head = reinterpret_cast<const u16*>(matrix.scales) + index * 3;
    split_halves(matrix.codes + index * 16, packed);
    add_fifth_bits(head[1] | (u32)head[2] << 16, packed);
    return half_bits(head[0]);
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    float d = codes(matrix, index, packed);
#pragma unroll
    for (int i = 0; i < 32; i++) out[i] = d * (float)((packed[i / 4] >> 8 * (i % 4) & 31) - 16);
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8];
    float d = codes(matrix, index, packed);
    return (code_dot(packed, x) - 16 * x.sum) * (d * x.scale);
  }
};
