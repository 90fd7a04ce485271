// Q5_K. A unit is a sub-block.
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
    return affine(load_once(first), sub);
  }
  // For tensor cores: the scale and minimum of a unit in shared memory, its codes 4t..4t + 3 and the four codes sixteen later.
  static __device__ Affine code_words(Units row, int unit, int t, u32& low, u32& high) {
    const u8* first = row.codes + unit / 8 * block_bytes;
    int sub = unit % 8;
    const u32* lows = reinterpret_cast<const u32*>(first + 48 + sub / 2 * 32) + t;
    const u32* highs = reinterpret_cast<const u32*>(first + 16) + t;
    auto word = [&](int i) { return (lows[i] >> 4 * (sub % 2) & 0x0f0f0f0f) | (highs[i] >> sub & 0x01010101) << 4; };
    low = word(0), high = word(4);
    return affine(*reinterpret_cast<const uint4*>(first), sub);
  }
};

template <int cols>
struct Format<Q5_K, cols> : Affines<Q5KSubBlock, cols> {};
