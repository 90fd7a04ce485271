// Number formats on the device. A matrix is read in units of `unit` numbers: unit `index` of `total` in the whole matrix,
// row after row; `row_bytes` are the codes of a row. `values` writes a unit's numbers; `dot` multiplies it with inputs that were rounded to 8 bits.

enum { F32, F16, BF16, Q8_0, Q6_K, Q5_K, Q4_K, Q4_0 };

// 32 inputs in 8 bits: x = scale * code, and the sum of the codes.
struct Codes {
  int packed[8];
  float scale;
  int sum;
};

template <int format, int cols>
struct Format;
