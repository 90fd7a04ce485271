// NVFP4 on the device: all codes of the matrix, then all scales. NVFP4S has four more bytes before each block.
struct NVFP4Block {
  static constexpr int numbers = 64, bytes = 36, apart = 0, apart_end = 4, offset = 12;
  // Half the scale, an 8-bit float.
  static __device__ float scale(u32 byte) {
    byte &= 127;
    return byte == 127 ? 0.0f : byte < 8 ? byte * (1.0f / 1024) : __uint_as_float((byte << 20) + (119u << 23));
  }
  // Unpacks a block that begins at byte `first`.
  template <int first, class Block>
  static __device__ HalfScales unpack_at(const Block& block, int run, u32* packed) {
    // Twice the values of the codes, plus the offset.
    const u32 values[4] = {0x0f0e0d0c, 0x18141210, 0x090a0b0c, 0x00040608};
#pragma unroll
    for (int i = 0; i < 4; i++) {
      // Word i % 2 of a half has numbers 4 * (i % 2).. in its low and 8 + 4 * (i % 2).. in its high half bytes.
      int low, high;
      look_up(values, block.word(first + 4 + 16 * run + 4 * i), low, high);
      packed[i / 2 * 4 + i % 2] = low, packed[i / 2 * 4 + i % 2 + 2] = high;
    }
    return {scale(block.byte(first + 2 * run)), scale(block.byte(first + 2 * run + 1))};
  }
  static __device__ HalfScales unpack(StoredBlock<NVFP4Block> block, int run, u32* packed) {
    return unpack_at<0>(block, run, packed);
  }
};

template <int cols>
struct Format<NVFP4, cols> : WideBlocks<NVFP4Block, cols> {};
