// MXFP4 on the device: all codes of the matrix, then all exponents.
struct MXFP4Block {
  static constexpr int block_bytes = 16, scale_bytes = 1, offset = 0;
  static __device__ float codes(Units matrix, long long index, int* packed) {
    // Twice the values of the codes.
    const u32 values[4] = {0x03020100, 0x0c080604, 0xfdfeff00, 0xf4f8fafc};
    look_up_all(values, matrix.codes + index * 16, packed);
    u32 e = matrix.scales[index];
    return __uint_as_float(e < 2 ? 1u << (21 + e) : (e - 1) << 23);
  }
};

template <int cols>
struct Format<MXFP4, cols> : ScaledBlocks<MXFP4Block, cols> {};
