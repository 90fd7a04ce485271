// Q5_K, in units of a sub-block.
template <int cols>
struct Format<Q5_K, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 256 * 176;
  static constexpr int unit = 32;
  static __device__ Affine codes(const u8* matrix, long long index, int* packed) {
    const u8* block = matrix + index / 8 * 176;
    int sub = index % 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 low = load_once(block + 48 + sub / 2 * 32 + 16 * i);
      uint4 high = load_once(block + 16 + 16 * i);
      u32 lows[4] = {low.x, low.y, low.z, low.w};
      u32 highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 fifth = (highs[j] >> sub & 0x01010101) << 4;
        packed[4 * i + j] = (lows[j] >> 4 * (sub % 2) & 0x0f0f0f0f) | fifth;
      }
    }
    return affine(block, sub);
  }
  static __device__ void values(const u8* matrix, long long, long long index, float* out) {
    int packed[8];
    Affine line = codes(matrix, index, packed);
    affine_values(packed, line, out);
  }
  static __device__ float dot(const u8* matrix, long long, long long index, const Codes& x) {
    int packed[8];
    Affine line = codes(matrix, index, packed);
    return affine_dot(packed, line, x);
  }
};
