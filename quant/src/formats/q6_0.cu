// Q6_0 on the device: all low bits of the matrix, then all scales and upper two bits.
struct Q60Block {
  static constexpr int block_bytes = 16, scale_bytes = 10, offset = 32;
  static __device__ float codes(Units matrix, long long index, int* packed) {
    const u16* head = reinterpret_cast<const u16*>(matrix.scales) + index * 5;
    split_halves(matrix.codes + index * 16, packed);
#pragma unroll
    for (int i = 0; i < 2; i++) {
      u32 high = head[1 + 2 * i] | (u32)head[2 + 2 * i] << 16;
#pragma unroll
      for (int j = 0; j < 4; j++) packed[i + (j & 1) * 4 + (j & 2)] |= (high >> 2 * j & 0x03030303) << 4;
    }
    return half_bits(head[0]);
  }
};

template <int cols>
struct Format<Q6_0, cols> : ScaledBlocks<Q60Block, cols> {};
