// Q4_1 on the device: all codes of the matrix, then all scales and minima.
struct Q41Block {
  static constexpr int block = 32;
  static constexpr int block_bytes = 16;
  static constexpr int scale_bytes = 4;
  static __device__ Affine codes(Units matrix, long long index, int* packed) {
    split_halves(matrix.codes + index * 16, packed);
    u32 line = reinterpret_cast<const u32*>(matrix.scales)[index];
    return {half_bits(line & 0xffff), -half_bits(line >> 16)};
  }
};

template <int cols>
struct Format<Q4_1, cols> : Affines<Q41Block, cols> {};
