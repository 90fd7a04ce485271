// PTQ1_0 on the device: the first sixteen bytes of each block, then the others.
struct PTQ1_0Block {
  static constexpr int numbers = 128, bytes = 28, apart = 16, apart_end = 28, offset = 1;
  static __device__ HalfScales unpack(StoredBlock<PTQ1_0Block> block, int run, u32* packed) {
    return unpack_ternary<16, 8, 2>(block, run, packed);
  }
};

template <int cols>
struct Format<PTQ1_0, cols> : WideBlocks<PTQ1_0Block, cols> {};
