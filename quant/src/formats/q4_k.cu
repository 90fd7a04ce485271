// Q4_K. A unit is a sub-block.
struct Q4KSubBlock {
  static constexpr int block = 256;
  static constexpr int scale_bytes = 0;
  static constexpr int block_bytes = 144;
  static __device__ Affine codes(Units matrix, long long index, int* packed) {
    const u8* first = matrix.codes + index / 8 * block_bytes;
    int sub = index % 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 words = load_once(first + 16 + sub / 2 * 32 + 16 * i);
      u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 4; j++) packed[4 * i + j] = word[j] >> 4 * (sub % 2) & 0x0f0f0f0f;
    }
    return affine(load_once(first), sub);
  }
  // For tensor cores: the scale and minimum of a unit in shared memory, its codes 4t..4t + 3 and the four codes sixteen later.
  static __device__ Affine code_words(Units row, int unit, int t, u32& low, u32& high) {
    const u8* first = row.codes + unit / 8 * block_bytes;
    int sub = unit % 8;
    const u32* words = reinterpret_cast<const u32*>(first + 16 + sub / 2 * 32) + t;
    low = words[0] >> 4 * (sub % 2) & 0x0f0f0f0f, high = words[4] >> 4 * (sub % 2) & 0x0f0f0f0f;
    return affine(*reinterpret_cast<const uint4*>(first), sub);
  }
};

template <int cols>
struct Format<Q4_K, cols> : Affines<Q4KSubBlock, cols> {};
