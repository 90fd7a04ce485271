// Q3_K on the device: all codes of the matrix, then the scales and d of each super-block. A unit is a run of 32.
template <int cols>
struct Format<Q3_K, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 256 * 96;
  static constexpr int scale_row_bytes = cols / 256 * 14;
  static constexpr int unit = 32;
  // Unpacks codes to bytes, without subtracting 4.
  static __device__ void codes(Units matrix, long long index, int* packed) {
    const u8* block = matrix.codes + index / 8 * 96;
    int run = index % 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 low = load_once(block + 32 + run / 4 * 32 + 16 * i);
      uint4 high = load_once(block + 16 * i);
      u32 lows[4] = {low.x, low.y, low.z, low.w};
      u32 highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        packed[4 * i + j] = (lows[j] >> 2 * (run % 4) & 0x03030303) | (highs[j] >> run & 0x01010101) << 2;
      }
    }
  }
  // Writes the scales of a run's two halves, and returns their common factor.
  static __device__ float scales(Units matrix, long long index, int (&halves)[2]) {
    const u16* head = reinterpret_cast<const u16*>(matrix.scales) + index / 8 * 7;
    int run = index % 8;
    u32 low = head[run % 4] >> run / 4 * 4, high = head[4 + run % 2] >> run / 2 * 2;
#pragma unroll
    for (int i = 0; i < 2; i++) halves[i] = (int)((low >> 8 * i & 15) | (high >> 8 * i & 3) << 4) - 32;
    return half_bits(head[6]);
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8], halves[2];
    codes(matrix, index, packed);
    float d = scales(matrix, index, halves);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      out[i] = d * halves[i / 16] * (float)((packed[i / 4] >> 8 * (i % 4) & 7) - 4);
    }
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8], halves[2], sums[2] = {0, 0}, ones[2] = {0, 0};
    codes(matrix, index, packed);
    float d = scales(matrix, index, halves);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      sums[i / 4] = __dp4a(packed[i], x.packed[i], sums[i / 4]);
      ones[i / 4] = __dp4a(0x01010101, x.packed[i], ones[i / 4]);
    }
    int sum = halves[0] * (sums[0] - 4 * ones[0]) + halves[1] * (sums[1] - 4 * ones[1]);
    return sum * (d * x.scale);
  }
};
