// Q6_K on the device: all super-blocks of the matrix without their d, then all d. A unit is a run of 32.
template <int cols>
struct Format<Q6_K, cols> {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / 256 * 208;
  static constexpr int scale_row_bytes = cols / 256 * 2;
  static constexpr int unit = 32;
  // Unpacks codes to bytes, without subtracting 32. Returns the scales of the two halves.
  static __device__ const i8* codes(Units matrix, long long index, int* packed) {
    const u8* block = matrix.codes + index / 8 * 208;
    int part = index % 8 / 4, run = index % 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint4 low = load_once(block + part * 64 + run % 2 * 32 + 16 * i);
      uint4 high = load_once(block + 128 + part * 32 + 16 * i);
      u32 lows[4] = {low.x, low.y, low.z, low.w};
      u32 highs[4] = {high.x, high.y, high.z, high.w};
#pragma unroll
      for (int j = 0; j < 4; j++) {
        u32 upper = (highs[j] >> 2 * run & 0x03030303) << 4;
        packed[4 * i + j] = (lows[j] >> 4 * (run / 2) & 0x0f0f0f0f) | upper;
      }
    }
    return reinterpret_cast<const i8*>(block + 192 + 2 * (index % 8));
  }
  static __device__ float scale(Units matrix, long long index) {
    return half_bits(reinterpret_cast<const u16*>(matrix.scales)[index / 8]);
  }
  // For tensor cores: the scales of the halves of a unit in shared memory, its codes 4t..4t + 3 and the four codes sixteen later.
  static __device__ const i8* code_words(Units row, int unit, int t, u32& low, u32& high) {
    const u8* block = row.codes + unit / 8 * 208;
    int part = unit % 8 / 4, run = unit % 4;
    const u32* lows = reinterpret_cast<const u32*>(block + part * 64 + run % 2 * 32) + t;
    const u32* highs = reinterpret_cast<const u32*>(block + 128 + part * 32) + t;
    auto word = [&](int i) {
      u32 upper = (highs[i] >> 2 * run & 0x03030303) << 4;
      return less<32>((lows[i] >> 4 * (run / 2) & 0x0f0f0f0f) | upper);
    };
    low = word(0), high = word(4);
    return reinterpret_cast<const i8*>(block + 192 + 2 * (unit % 8));
  }
  static constexpr int tiles = HALVED_TILES;
  static __device__ JoinedUnit load(Units matrix, long long index) {
    JoinedUnit unit;
    const i8* scales = codes(matrix, index, reinterpret_cast<int*>(unit.packed));
    float d = scale(matrix, index);
    unit.line = {d * scales[0], d * scales[1]};
    return unit;
  }
  static __device__ Affine unpack(const JoinedUnit& unit, u32* codes) {
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] = less<32>(unit.packed[i]);
    return unit.line;
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    const i8* scales = codes(matrix, index, packed);
    float d = scale(matrix, index);
#pragma unroll
    for (int i = 0; i < 32; i++) {
      out[i] = d * scales[i / 16] * (float)((packed[i / 4] >> 8 * (i % 4) & 63) - 32);
    }
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8], sums[2] = {0, 0}, ones[2] = {0, 0};
    const i8* scales = codes(matrix, index, packed);
#pragma unroll
    for (int i = 0; i < 8; i++) {
      sums[i / 4] = __dp4a(packed[i], x.packed[i], sums[i / 4]);
      ones[i / 4] = __dp4a(0x01010101, x.packed[i], ones[i / 4]);
    }
    int sum = scales[0] * (sums[0] - 32 * ones[0]) + scales[1] * (sums[1] - 32 * ones[1]);
    return sum * (scale(matrix, index) * x.scale);
  }
};
