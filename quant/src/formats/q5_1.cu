// Q5_1 on the device: all low bits of the matrix, then all scales, minima and fifth bits.
struct Q51Block {
  static constexpr int block = 32;
  static constexpr int block_bytes = 16;
  static constexpr int scale_bytes = 8;
  static __device__ Affine codes(Units matrix, long long index, int* packed) {
    const u32* head = reinterpret_cast<const u32*>(matrix.scales) + index * 2;
    split_halves(matrix.codes + index * 16, packed);
    add_fifth_bits(head[1], packed);
    return {half_bits(head[0] & 0xffff), -half_bits(head[0] >> 16)};
  }
};

template <int cols>
struct Format<Q5_1, cols> : Affines<Q51Block, cols> {};
