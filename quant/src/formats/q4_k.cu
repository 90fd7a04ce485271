// Q4_K, in units of a sub-block.
template <int cols>
struct Format<Q4_K, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 256 * 144;
  static constexpr int unit = 32;
  static __device__ Affine codes(const u8* matrix, long long index, int* packed) {
    const u8* block = matrix + index / 8 * 144;
    int sub = index % 8;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 words = load_once(block + 16 + sub / 2 * 32 + 16 * i);
      u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int j = 0; j < 4; j++) packed[4 * i + j] = word[j] >> 4 * (sub % 2) & 0x0f0f0f0f;
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
