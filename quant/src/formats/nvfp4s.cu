// NVFP4S: as NVFP4, with an f32 scale before each block.
struct NVFP4SBlock {
  static constexpr int numbers = 64, bytes = 40, apart = 0, apart_end = 8, offset = 12;
  static __device__ HalfScales unpack(StoredBlock<NVFP4SBlock> block, int run, u32* packed) {
    HalfScales scales = NVFP4Block::unpack_at<4>(block, run, packed);
    float all = __uint_as_float(block.word(0));
    return {scales.first * all, scales.second * all};
  }
};

template <int cols>
struct Format<NVFP4S, cols> : WideBlocks<NVFP4SBlock, cols> {};
