// Makes the test vectors of the formats that ggml's Python package does not encode, using ggml's own C code:
//
//     cc -O2 -DNDEBUG -I GGML/include -I GGML/src make_vectors.c GGML/src/ggml-quants.c ... -lm -o make_vectors
//     ./make_vectors FOLDER
//
// The vectors of Q6_0 were made with ik_llama.cpp's quantize_row_q6_0_impl and dequantize_row_q6_0 (commit 8337e4c) and ggml's
// make_qx_quants, without flags that allow fused multiply-adds, as ggml builds these functions for x86-64. Files:
//     rows.values    f32: rows of 256 numbers, ordinary and awkward
//     NAME.encoded   output of ggml's quantize_NAME for these rows, without an importance matrix
//     row.importance f32: mean squares of a row's inputs
//     NAME.weighted  output of quantize_NAME for these rows, with row.importance
//     NAME.blocks    random bytes with finite scales
//     NAME.values    f32: output of dequantize_row_NAME for NAME.blocks

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-quants.h"

typedef size_t (*Encode)(const float *, void *, int64_t, int64_t, const float *);
typedef void (*Decode)(const void *, float *, int64_t);

enum { ROW = 256, BLOCKS = 10 };

static uint64_t state = 0x9e3779b97f4a7c15;

static uint64_t bits(void) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

static double uniform(void) { return ((bits() >> 40) + 0.5) / (1 << 24); }
static double gaussian(void) { return sqrt(-2 * log(uniform())) * cos(6.283185307179586 * uniform()); }

static float number(int row, int i) {
  switch (row) {
    case 0: return gaussian();
    case 1: return gaussian() * 0.02;
    case 2: return uniform() * 6 - 3;
    case 3: return 0;
    case 4: return -1.25;
    case 5: return 0.75;
    case 6: return gaussian() * (uniform() < 0.05 ? 40 : 0.1);
    case 7: return ((int)(bits() % 17) - 8) / 8.0;   // ties
    case 8: return gaussian() * 1e-7;                // f16 scales below the normal range
    case 9: return gaussian() * 1e5;                 // f16 scales above it
    case 10: return i == 77 ? 100 : gaussian() * 1e-3;
    case 11: return i % 64 < 32 ? 0 : gaussian();    // sub-blocks of zeros
    case 12: return gaussian() * 1e-20;
    case 13: return gaussian() * 1e-41;              // subnormal numbers
    case 14: return gaussian() * 1e30;
    case 15: return i % 2 ? -3e38f : 3e38f;
    case 16: return uniform() + 3;                   // nothing near zero
    case 17: return -uniform() - 3;
    case 18: return gaussian() * exp(-i / 16);       // scales of very different size
    case 19: return i % 16 == 5 ? gaussian() : 0;
    case 20: return i == 0 ? -0.0f : i == 200 ? 1e-30 : 0;
    case 21: return ldexp(1 - 0x1p-24, i / 32 - 4);  // just below powers of two
    case 22: return (i % 16 - 7.5) / 4;
    default: return gaussian() * 0.05 + (row % 2 ? 0.02 : 0);
  }
}

static void store(const char *folder, const char *name, const char *kind, const void *data, size_t bytes) {
  char path[4096];
  snprintf(path, sizeof(path), "%s/%s.%s", folder, name, kind);
  FILE *file = fopen(path, "wb");
  if (!file || fwrite(data, 1, bytes, file) != bytes || fclose(file)) exit(1);
}

int main(int count, char **arguments) {
  int rows = count > 2 ? atoi(arguments[2]) : 32;
  float *values = malloc(4ul * rows * ROW), *decoded = malloc(4ul * BLOCKS * ROW);
  uint8_t *blocks = malloc(2ul * rows * ROW);
  for (int i = 0; i < rows * ROW; i++) values[i] = number(i / ROW, i % ROW);
  store(arguments[1], "rows", "values", values, 4ul * rows * ROW);
  // Importances of very different sizes; some inputs are always zero.
  float importance[ROW];
  for (int i = 0; i < ROW; i++) importance[i] = i % 7 == 3 ? 0 : ldexp(1 + i * 37 % 64 / 64.0, i % 11 - 6);
  store(arguments[1], "row", "importance", importance, sizeof(importance));
  // Bytes and numbers per block, and the offsets of its f16 numbers, negative if absent. IQ1_M has four bits of its number at each of four
  // places; those at this offset hold the upper bits of the exponent.
  struct {
    const char *name;
    Encode encode;
    Decode decode;
    int bytes, numbers, halves[2];
  } formats[] = {
      {"Q8_0", quantize_q8_0, 0},
      {"Q4_0", quantize_q4_0, 0},
      {"Q4_K", quantize_q4_K, 0},
      {"Q5_K", quantize_q5_K, 0},
      {"Q6_K", quantize_q6_K, 0},
      {"Q5_0", quantize_q5_0, (Decode)dequantize_row_q5_0, 22, 32, {0, -1}},
      {"Q5_1", quantize_q5_1, (Decode)dequantize_row_q5_1, 24, 32, {0, 2}},
      {"Q4_1", quantize_q4_1, (Decode)dequantize_row_q4_1, 20, 32, {0, 2}},
      {"IQ4_NL", quantize_iq4_nl, (Decode)dequantize_row_iq4_nl, 18, 32, {0, -1}},
      {"IQ4_XS", quantize_iq4_xs, (Decode)dequantize_row_iq4_xs, 136, 256, {0, -1}},
      {"Q3_K", quantize_q3_K, (Decode)dequantize_row_q3_K, 110, 256, {108, -1}},
      {"Q2_K", quantize_q2_K, (Decode)dequantize_row_q2_K, 84, 256, {80, 82}},
      {"MXFP4", quantize_mxfp4, (Decode)dequantize_row_mxfp4, 17, 32, {-1, -1}},
      {"NVFP4", quantize_nvfp4, (Decode)dequantize_row_nvfp4, 36, 64, {-1, -1}},
      {"Q1_0", quantize_q1_0, (Decode)dequantize_row_q1_0, 18, 128, {0, -1}},
      {"Q2_0", quantize_q2_0, (Decode)dequantize_row_q2_0, 18, 64, {0, -1}},
      {"TQ1_0", quantize_tq1_0, (Decode)dequantize_row_tq1_0, 54, 256, {52, -1}},
      {"TQ2_0", quantize_tq2_0, (Decode)dequantize_row_tq2_0, 66, 256, {64, -1}},
      {"IQ1_S", 0, (Decode)dequantize_row_iq1_s, 50, 256, {0, -1}},
      {"IQ1_M", 0, (Decode)dequantize_row_iq1_m, 56, 256, {54, -1}},
      {"IQ2_XXS", 0, (Decode)dequantize_row_iq2_xxs, 66, 256, {0, -1}},
      {"IQ2_XS", 0, (Decode)dequantize_row_iq2_xs, 74, 256, {0, -1}},
      {"IQ2_S", 0, (Decode)dequantize_row_iq2_s, 82, 256, {0, -1}},
      {"IQ3_XXS", 0, (Decode)dequantize_row_iq3_xxs, 98, 256, {0, -1}},
      {"IQ3_S", 0, (Decode)dequantize_row_iq3_s, 110, 256, {0, -1}},
  };
  for (size_t f = 0; f < sizeof(formats) / sizeof(*formats); f++) {
    const char *name = formats[f].name;
    if (formats[f].encode) {
      store(arguments[1], name, "encoded", blocks, formats[f].encode(values, blocks, rows, ROW, 0));
      store(arguments[1], name, "weighted", blocks, formats[f].encode(values, blocks, rows, ROW, importance));
    }
    if (!formats[f].decode || rows != 32) continue;
    int of_block = formats[f].bytes, all = BLOCKS * ROW / formats[f].numbers;
    for (int i = 0; i < all * of_block; i++) blocks[i] = bits() >> 32;
    for (int i = 0; i < all; i++) {
      for (int half = 0; half < 2; half++) {
        int place = formats[f].halves[half];
        // Any size and sign, including subnormal numbers, but no infinities.
        int exponent = strcmp(name, "IQ1_M") ? 0x7c : 0x70;
        if (place >= 0 && (blocks[i * of_block + place + 1] & exponent) == exponent) blocks[i * of_block + place + 1] ^= 0x40;
      }
    }
    formats[f].decode(blocks, decoded, BLOCKS * ROW);
    store(arguments[1], name, "blocks", blocks, all * of_block);
    store(arguments[1], name, "values", decoded, 4ul * BLOCKS * ROW);
  }
}
