// TQ1_0 on the device: the bytes of five digits, then the other bytes and the scale of each block.
struct TQ1_0Block {
  static constexpr int numbers = 256, bytes = 54, apart = 48, apart_end = 54, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<TQ1_0Block> block, int run, u32* packed) {
    return unpack_ternary<32, 16, 4>(block, run, packed);
  }
};

template <int cols>
struct Format<TQ1_0, cols> : WideBlocks<TQ1_0Block, cols> {};
