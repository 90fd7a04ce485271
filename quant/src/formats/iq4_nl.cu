// IQ4_NL on the device: all codes of the matrix, then all scales.
struct IQ4NLBlock {
  static constexpr int block_bytes = 16, scale_bytes = 2, offset = 0;
  static __device__ float codes(Units matrix, long long index, int* packed) {
    iq4_look_up(matrix.codes + index * 16, packed);
    return half_bits(reinterpret_cast<const u16*>(matrix.scales)[index]);
  }
};

template <int cols>
struct Format<IQ4_NL, cols> : ScaledBlocks<IQ4NLBlock, cols> {};
