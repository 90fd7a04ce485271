// Q5_K, in units of a sub-block.
struct Q5KSubBlock {
  static constexpr int block = 256;
  static constexpr int scale_bytes = 0;
  static constexpr int block_bytes = 176;
  static __device__ Affine codes(Units matrix, long long index, int* packed) {
    const u8* first = matrix.codes + index / 8 * block_bytes;
    int sub = index % 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 low = load_once(first + 48 + sub / 2 * 32 + 16 * i);
      uint4 high = load_once(first + 16 + 16 * i);
      u32 lows[4] = {low.x, low.y, low.z, low.w};
      u32 highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 fifth = (highs[j] >> sub & 0x01010101) << 4;
        packed[4 * i + j] = (lows[j] >> 4 * (sub % 2) & 0x0f0f0f0f) | fifth;
      }
    }
    return affine(first, sub);
  }
};

template <int cols>
struct Format<Q5_K, cols> : Affines<Q5KSubBlock, cols> {};
