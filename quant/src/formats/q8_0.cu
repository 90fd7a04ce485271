// Q8_0 on the device: all codes of the matrix, then all scales.
template <int cols>
struct Format<Q8_0, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols;
  static constexpr int scale_row_bytes = cols / 32 * 2;
  static constexpr int unit = 32;
  static __device__ float scale(Units matrix, long long index) {
    return half_bits(reinterpret_cast<const u16*>(matrix.scales)[index]);
  }
  static __device__ void codes(Units matrix, long long index, int* packed) {
    uint4 a = load_once(matrix.codes + index * 32), b = load_once(matrix.codes + index * 32 + 16);
    packed[0] = a.x, packed[1] = a.y, packed[2] = a.z, packed[3] = a.w;
    packed[4] = b.x, packed[5] = b.y, packed[6] = b.z, packed[7] = b.w;
  }
  // For tensor cores: codes 4t..4t + 3 of a unit in shared memory and the four codes sixteen later.
  static constexpr int offset = 0;
  static __device__ void code_words(Units matrix, long long index, int t, u32& low, u32& high) {
    const u32* words = reinterpret_cast<const u32*>(matrix.codes + index * 32);
    low = words[t], high = words[4 + t];
  }
  static constexpr int tiles = PLAIN_TILES;
  struct Stored {
    uint4 words[2];
    u16 scale;
  };
  static __device__ Stored load(Units matrix, long long index) {
    const uint4* words = reinterpret_cast<const uint4*>(matrix.codes) + index * 2;
    return {{words[0], words[1]}, reinterpret_cast<const u16*>(matrix.scales)[index]};
  }
  static __device__ Affine unpack(const Stored& unit, u32* codes) {
    const uint4 &a = unit.words[0], &b = unit.words[1];
    codes[0] = a.x, codes[1] = a.y, codes[2] = a.z, codes[3] = a.w;
    codes[4] = b.x, codes[5] = b.y, codes[6] = b.z, codes[7] = b.w;
    return {half_bits(unit.scale), 0.0f};
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    codes(matrix, index, packed);
    float d = scale(matrix, index);
#pragma unroll
    for (int i = 0; i < 32; i++) out[i] = d * (float)(i8)(packed[i / 4] >> 8 * (i % 4));
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8], sum = 0;
    codes(matrix, index, packed);
#pragma unroll
    for (int i = 0; i < 8; i++) sum = __dp4a(packed[i], x.packed[i], sum);
    return sum * (scale(matrix, index) * x.scale);
  }
};
