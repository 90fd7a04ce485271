// F16.
struct F16Number {
  static __device__ float of(u16 bits) { return half_bits(bits); }
};

template <int cols>
struct Format<F16, cols> : Floats16<F16Number, cols> {};
