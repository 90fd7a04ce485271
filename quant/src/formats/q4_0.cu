// Q4_0 on the device: all codes of the matrix, then all scales.
template <int cols>
struct Format<Q4_0, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 2;
  static constexpr int scale_row_bytes = cols / 32 * 2;
  static constexpr int unit = 32;
  static __device__ float scale(Units matrix, long long index) {
    return half_bits(reinterpret_cast<const u16*>(matrix.scales)[index]);
  }
  // Unpacks codes to bytes, without subtracting 8.
  static __device__ void codes(Units matrix, long long index, int* packed) {
    uint4 words = load_once(matrix.codes + index * 16);
    u32 word[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      packed[i] = word[i] & 0x0f0f0f0f;
      packed[i + 4] = word[i] >> 4 & 0x0f0f0f0f;
    }
  }
  // For tensor cores: codes 4t..4t + 3 of a unit in shared memory and the four codes sixteen later, before `offset` is subtracted.
  static constexpr int offset = 8;
  static __device__ void code_words(Units matrix, long long index, int t, u32& low, u32& high) {
    u32 word = reinterpret_cast<const u32*>(matrix.codes + index * 16)[t];
    low = word & 0x0f0f0f0f, high = word >> 4 & 0x0f0f0f0f;
  }
  static constexpr int tiles = PLAIN_TILES;
  struct Stored {
    uint4 words;
    u16 scale;
  };
  static __device__ Stored load(Units matrix, long long index) {
    return {reinterpret_cast<const uint4*>(matrix.codes)[index], reinterpret_cast<const u16*>(matrix.scales)[index]};
  }
  static __device__ Affine unpack(const Stored& unit, u32* codes) {
    u32 word[4] = {unit.words.x, unit.words.y, unit.words.z, unit.words.w};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      codes[i] = less<8>(word[i] & 0x0f0f0f0f);
      codes[i + 4] = less<8>(word[i] >> 4 & 0x0f0f0f0f);
    }
    return {half_bits(unit.scale), 0.0f};
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    codes(matrix, index, packed);
    float d = scale(matrix, index);
#pragma unroll
    for (int i = 0; i < 32; i++) out[i] = d * (float)((packed[i / 4] >> 8 * (i % 4) & 15) - 8);
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    uint4 words = load_once(matrix.codes + index * 16);
    u32 word[4] = {words.x, words.y, words.z, words.w};
    // The upper codes stay in place, sixteen times as large, which saves a shift for every four.
    int lower = 0, upper = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) {
      lower = __dp4a((int)(word[i] & 0x0f0f0f0f), x.packed[i], lower);
      upper = dot_unsigned(word[i] & 0xf0f0f0f0, x.packed[i + 4], upper);
    }
    return (lower + (upper >> 4) - 8 * x.sum) * (scale(matrix, index) * x.scale);
  }
};
