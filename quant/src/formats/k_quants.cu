// Shared by the K formats: a scale and a minimum per sub-block. Q4_K and Q5_K store them in 6 bits in the header of the super-block: `head`
// holds d, dmin and twelve packed bytes.
__device__ inline Affine affine(uint4 head, int sub) {
  u32 low = head.y, middle = head.z, high = head.w;
  int shift = 8 * (sub % 4);
  u32 scale, min;
  if (sub < 4) {
    scale = low >> shift & 63;
    min = middle >> shift & 63;
  } else {
    scale = (high >> shift & 15) | (low >> (shift + 6) & 3) << 4;
    min = (high >> (shift + 4) & 15) | (middle >> (shift + 6) & 3) << 4;
  }
  return {half_bits(head.x & 0xffff) * scale, half_bits(head.x >> 16) * min};
}

// The product of a sub-block with inputs: `scale` is the inputs' scale, `sum` the sum of their codes, `dot` the dot product of both codes.
__device__ inline float affine_product(Affine line, float scale, int dot, int sum) { return scale * (line.scale * dot - line.min * sum); }

__device__ inline float affine_dot(const int* packed, Affine line, const Codes& x) {
  return affine_product(line, x.scale, code_dot(packed, x), x.sum);
}

__device__ inline void affine_values(const int* packed, Affine line, float* out) {
#pragma unroll
  for (int i = 0; i < 32; i++) out[i] = line.scale * (float)(packed[i / 4] >> 8 * (i % 4) & 31) - line.min;
}

// A format whose sub-blocks have a scale and a minimum. A unit is a sub-block; `SubBlock::codes` unpacks it.
template <class SubBlock, int cols>
struct Affines {
  static constexpr bool integer = true;
  static constexpr int row_bytes = cols / SubBlock::block * SubBlock::block_bytes;
  static constexpr int scale_row_bytes = cols / SubBlock::block * SubBlock::scale_bytes;
  static constexpr int unit = 32;
  static constexpr int tiles = AFFINE_TILES;
  static __device__ Affine code_words(Units row, int unit, int t, u32& low, u32& high) {
    return SubBlock::code_words(row, unit, t, low, high);
  }
  static __device__ JoinedUnit load(Units matrix, long long index) {
    JoinedUnit unit;
    unit.line = SubBlock::codes(matrix, index, reinterpret_cast<int*>(unit.packed));
    return unit;
  }
  static __device__ Affine unpack(const JoinedUnit& unit, u32* codes) {
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i] = unit.packed[i];
    return unit.line;
  }
  static __device__ void values(Units matrix, long long index, float* out) {
    int packed[8];
    Affine line = SubBlock::codes(matrix, index, packed);
    affine_values(packed, line, out);
  }
  static __device__ float dot(Units matrix, long long index, const Codes& x) {
    int packed[8];
    Affine line = SubBlock::codes(matrix, index, packed);
    return affine_dot(packed, line, x);
  }
};
