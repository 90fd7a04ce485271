// Q5_0 on the device: all low bits of the matrix, then all scales and fifth bits.
struct Q50Block {
  static constexpr int block_bytes = 16, scale_bytes = 6, offset = 16;
  static __device__ float codes(Units matrix, long long index, int* packed) {
    const u16* head = reinterpret_cast<const u16*>(matrix.scales) + index * 3;
    split_halves(matrix.codes + index * 16, packed);
    add_fifth_bits(head[1] | (u32)head[2] << 16, packed);
    return half_bits(head[0]);
  }
};

template <int cols>
struct Format<Q5_0, cols> : ScaledBlocks<Q50Block, cols> {};
