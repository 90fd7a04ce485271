// IQ2_S on the device: all blocks of the matrix without their d, then all d.
struct IQ2_SBlock {
  static constexpr int numbers = 256, bytes = 82, apart = 0, apart_end = 2, offset = 64;
  static __device__ HalfScales unpack(StoredBlock<IQ2_SBlock> block, int run, u32* packed) {
    u32 high = block.byte(66 + run);
#pragma unroll
    for (int l = 0; l < 4; l++) {
      u32 entry = block.byte(2 + 4 * run + l) | (high >> 2 * l & 3) << 8;
      iq2_codes(IQ2_S_GRID + entry, block.byte(34 + 4 * run + l), packed + 2 * l);
    }
    return iq2_scales(block.half_at(0), block.byte(74 + run));
  }
};

template <int cols>
struct Format<IQ2_S, cols> : WideBlocks<IQ2_SBlock, cols> {};
