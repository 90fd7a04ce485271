// F16, in units of eight numbers where rows allow it.
template <int cols>
struct Format<F16, cols> {
  static constexpr bool integer = false;
  static constexpr int row_bytes = cols * 2;
  static constexpr int unit = cols % 8 == 0 ? 8 : 1;
  static __device__ float number(u16 bits) { return half_bits(bits); }
  static __device__ void values(const u8* matrix, long long, long long index, float* out) {
    if constexpr (unit == 8) {
      uint4 words = load_once(matrix + index * 16);
      u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        out[2 * i] = number(pairs[i] & 0xffff);
        out[2 * i + 1] = number(pairs[i] >> 16);
      }
    } else {
      out[0] = number(reinterpret_cast<const u16*>(matrix)[index]);
    }
  }
};
