// The rounding of a product's inputs. `Rounding` is defined in rounding.rs, its numbers in device.rs.

// Whether inputs are rounded to 8 bits.
__device__ constexpr bool to_codes(int rounding) { return rounding >= IN_SUPER_BLOCKS; }

// Number of 32-input units that share a scale.
__device__ constexpr int units_of_scale(int rounding) { return rounding == IN_SUPER_BLOCKS ? 8 : 1; }

// Rounds an input to 16 bits if the rounding is to 16 bits.
template <int rounding>
__device__ float round_short(float x) {
  if constexpr (rounding == TO_F16) return half(x);
  if constexpr (rounding == TO_BF16) {
    u32 bits = __float_as_uint(x);
    return x == x ? __uint_as_float((bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000) : x;
  }
  return x;
}

// Compared as integers, NaN exceeds infinity, and neither is lost, as it could be in a float maximum.
__device__ inline u32 magnitude(float x) { return __float_as_uint(x) & 0x7fffffff; }

// A scale rounded to f16. A scale outside f16's range stays f32.
__device__ inline float short_scale(float exact) {
  float rounded = half(exact);
  return magnitude(rounded) < 0x7f800000 ? rounded : exact;
}

// The reciprocal of a number of at least 1e-36, correct to the last bit or nearly so.
__device__ inline float reciprocal(float x) {
#ifdef WATERLINE_EMULATOR
  return 1.0f / x;
#else
  float y;
  // No branch for denormals: neither a quarter of the number nor its reciprocal is denormal.
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(0.25f * x));
  y *= 0.25f;
  return fmaf(fmaf(-x, y, 1.0f), y, y);
#endif
}

// a / b, rounded as IEEE division rounds it, from b's reciprocal, if a or b is 127: a test tries all mantissas of the other operand. The
// compiler's division has a branch for values at the ends of the range, with which GDN 1.3B in Q4_0 takes 1.9 % longer per token on an
// H200.
__device__ inline float quotient(float a, float b, float reciprocal_of_b) {
  float q = a * reciprocal_of_b;
  return fmaf(fmaf(-b, q, a), reciprocal_of_b, q);
}

// The nearest integer, ties to even, of a value of magnitude below 2^22: after adding 1.5 * 2^23, it is in the low bits of the mantissa. A
// conversion takes eight times as long as an addition.
__device__ inline int nearest(float x) {
  constexpr float shift = 12582912.0f;
  return (int)(__float_as_uint(__fadd_rn(x, shift)) - __float_as_uint(shift));
}

// The scale of inputs that are rounded to 8 bits, from the largest magnitude among them.
template <int rounding>
struct Scale {
  float exact;
  // code = round(inverse * value)
  float inverse;

  __device__ explicit Scale(u32 largest) {
    float x = __uint_as_float(largest);
    // Below this the reciprocal overflows; such inputs are rounded to zero.
    bool none = x <= 1e-36f;
    inverse = none ? 0.0f : quotient(127.0f, x, reciprocal(x));
    // Without that branch, 1 / inverse is off by one unit in the last place if all bits of its mantissa are set.
    exact = none ? 0.0f : rounding == IN_SUPER_BLOCKS ? __fdiv_rn(1.0f, inverse) : quotient(x, 127.0f, 1.0f / 127.0f);
  }
  __device__ int code(float x) const { return nearest(__fmul_rn(x, inverse)); }
  // The scale as products read it.
  __device__ float rounded() const { return rounding == IN_BLOCKS ? short_scale(exact) : exact; }
};
