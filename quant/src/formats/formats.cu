// Number formats on the device. A matrix is read in units of `unit` numbers, numbered row after row; `row_bytes` are the codes
// of a row, `scale_row_bytes` its scales where they stand apart. `values` writes a unit's numbers; `dot` multiplies it with inputs
// that were rounded to 8 bits.

enum { F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_0 };

// 32 inputs in 8 bits: x = scale * code, and the sum of the codes.
struct Codes {
  int packed[8];
  float scale;
  int sum;
};

// The products of four bytes without a sign with four that have one, and `sum`, in all.
__device__ inline int dot_unsigned(u32 bytes, int codes, int sum) {
#if defined(WATERLINE_EMULATOR)
  for (int i = 0; i < 32; i += 8) sum += (int)(bytes >> i & 255) * (int)(i8)(codes >> i);
#else
  asm("dp4a.u32.s32 %0, %1, %2, %0;" : "+r"(sum) : "r"(bytes), "r"(codes));
#endif
  return sum;
}

template <int format, int cols>
struct Format;

// Where units lie: their codes, and their scales if those stand apart.
struct Units {
  const u8* codes;
  const u8* scales;
};

// Those of a whole matrix.
template <class Weights>
__device__ Units all_units(const u8* matrix, int rows) {
  return {matrix, matrix + (long long)rows * Weights::row_bytes};
}

// A format of 16-bit floats, which `Number::of` decodes: in units of eight numbers where rows allow it.
template <class Number, int cols>
struct Floats16 {
  static constexpr bool integer = false;
  static constexpr int row_bytes = cols * 2;
  static constexpr int scale_row_bytes = 0;
  static constexpr int unit = cols % 8 == 0 ? 8 : 1;
  static __device__ void values(Units matrix, long long index, float* out) {
    if constexpr (unit == 8) {
      uint4 words = load_once(matrix.codes + index * 16);
      u32 pairs[4] = {words.x, words.y, words.z, words.w};
#pragma unroll
      for (int i = 0; i < 4; i++) {
        out[2 * i] = Number::of(pairs[i] & 0xffff);
        out[2 * i + 1] = Number::of(pairs[i] >> 16);
      }
    } else {
      out[0] = Number::of(reinterpret_cast<const u16*>(matrix.codes)[index]);
    }
  }
};
