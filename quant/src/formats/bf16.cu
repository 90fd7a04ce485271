// BF16: the upper half of an f32.
struct BF16Number {
  static __device__ float of(u16 bits) { return __uint_as_float((u32)bits << 16); }
};

template <int cols>
struct Format<BF16, cols> : Floats16<BF16Number, cols> {};
