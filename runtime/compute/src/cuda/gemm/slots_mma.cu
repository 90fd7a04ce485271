// Products of matrices with the slots of a batch on tensor cores. A block multiplies sixteen rows of one matrix or of two, or 32 rows of
// one, and each of its warps a part of their depth. A slot's sums do not depend on the other slots.
//
// BF16: an input is the sum of two bf16 numbers, which omits less than 2^-16 of it; sums are f32.
// 8-bit inputs: the products of codes are summed in integers, unit by unit, and each product has the bits of `gemv`: a warp keeps the sums
// of four lanes of `gemv` separate, and all sums are added in the order of `warp_sum`. The weights are copied into shared memory while the
// kernels that make the inputs still run.

constexpr int slot_rows = 16;
constexpr int slot_warps = 8;

// Makes the input of token `blockIdx.y` in two parts, one after the other; a block makes `span` columns.
template <int rounding, int cols, int flags, int span>
__device__ void slots_prologue_parts(const Prologue& prologue, u8* inputs) {
  InputSpan<span> in = load_span<rounding, cols, flags, span>(prologue);
  u16* row = reinterpret_cast<u16*>(inputs) + (long long)blockIdx.y * 2 * cols + in.first;
  for (int i = 2 * threadIdx.x; i < span; i += 2 * blockDim.x) SplitPair<2>(in.values[i], in.values[i + 1]).store(row + i, cols);
}

// A unit of eight slots: two words of codes for each lane, then for each pair of slots both scales and both sums of codes.
struct SlotUnit {
  uint2 codes[32];
  uint4 scales[4];
};

// Makes the input of token `blockIdx.y` in 8 bits, as consecutive `SlotUnit`s of eight slots. Also makes it as `slots_prologue` does, for
// the matrices of `formats`, which are multiplied on plain cores.
template <u64 formats, int rounding, int cols, int flags, int span>
__device__ void slots_prologue_codes(const Prologue& prologue, float* floats, u8* codes, u8* inputs) {
  InputSpan<span> in = load_span<rounding, cols, flags, span>(prologue);
  SlotUnit* tile = reinterpret_cast<SlotUnit*>(inputs) + (long long)(blockIdx.y / 8) * (cols / 32) + in.first / 32;
  int slot = blockIdx.y % 8;
  for (int i = threadIdx.x; i < span / 4; i += blockDim.x) {
    int word = i % 8;
    reinterpret_cast<int*>(&tile[i / 8].codes[4 * slot + word % 4])[word / 4] = in.codes.packed[i];
  }
  for (int i = threadIdx.x; i < span / 32; i += blockDim.x) {
    u32* pair = reinterpret_cast<u32*>(&tile[i].scales[slot / 2]) + slot % 2;
    pair[0] = __float_as_uint(in.codes.scales[i]);
    pair[2] = (u32)in.codes.sums[i];
  }
  store_slots<formats, rounding, cols>(in, floats, codes);
}

// Sixteen rows, from `first` on, of a matrix of `rows` rows.
struct RowTile {
  const u8* weights;
  int rows;
  int first;

  __device__ RowTile(const Linear& linear, int first) : weights(linear.weights), rows(linear.rows), first(first) {}
};

// Computes the sums of a warp's part of the depth, [16 rows, 8 slots] for each used tile of slots. Each lane takes eight consecutive
// numbers of the depth, in both operands.
template <int cols, int tiles>
__device__ void sums_of_parts(const RowTile& own, const u16* inputs, int used, float (&sums)[1][tiles][4]) {
  int g = lane_index() / 4, t = lane_index() % 4;
  const u16* weights = reinterpret_cast<const u16*>(own.weights);
  const u16* rows[2];
  for (int i = 0; i < 2; i++) rows[i] = weights + (long long)min(own.first + g + 8 * i, own.rows - 1) * cols + 8 * t;
  const u16* slot = inputs + (long long)g * 2 * cols + 8 * t;
#pragma unroll 4
  for (int depth = 32 * warp_index(); depth < cols; depth += 32 * slot_warps) {
    uint4 upper = load_once(rows[0] + depth), lower = load_once(rows[1] + depth);
    u32 left[2][4] = {{upper.x, lower.x, upper.y, lower.y}, {upper.z, lower.z, upper.w, lower.w}};
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
      if (tile >= used) break;
#pragma unroll
      for (int part = 0; part < 2; part++) {
        uint4 x = *reinterpret_cast<const uint4*>(slot + tile * 16 * cols + part * cols + depth);
        u32 right[2][2] = {{x.x, x.y}, {x.z, x.w}};
        multiply_add(sums[0][tile], left[0], right[0]);
        multiply_add(sums[0][tile], left[1], right[1]);
      }
    }
  }
}

// The codes and scales of a block's rows in shared memory, in pieces of 1 KB of each row, `stages` pieces at a time. Sixteen bytes after
// each row put the eight rows of an operand in different banks. `StagedRows` in slots_mma.rs counts the same bytes.
template <int format, int cols, int row_tiles, int stages>
struct StagedRows {
  using Weights = Format<format, cols>;
  static constexpr int units = cols / 32, rows = slot_rows * row_tiles;
  // Units of a piece (whole super-blocks, if the format has them), and their bytes in a row: codes, and separate scales.
  static constexpr int most = 1024 * units / Weights::row_bytes / 32 * 32;
  static constexpr int piece = units > most ? most : (units + 7) / 8 * 8, pieces = (units + piece - 1) / piece;
  static constexpr int code_bytes = piece * Weights::row_bytes / units, scale_bytes = piece * Weights::scale_row_bytes / units;
  static constexpr int pitch = code_bytes + 16, scale_pitch = (scale_bytes + 15) / 16 * 16 + 16;

  RowTile first;
  RowTile last;
  u8* room;

  __device__ u8* codes(int number) const { return room + number % stages * (rows * (pitch + scale_pitch)); }
  __device__ u8* scales(int number) const { return codes(number) + rows * pitch; }

  // Starts copying piece `number`, if it exists. Ends a group of copies in any case.
  __device__ void copy(int number) const {
    int used = min(piece, units - number * piece);
    if (used > 0) {
      int of_codes = used * Weights::row_bytes / units, of_scales = used * Weights::scale_row_bytes / units;
      copy_rows<code_bytes, 16>(codes(number), pitch, of_codes, number * code_bytes, Weights::row_bytes, 0);
      if constexpr (scale_bytes > 0) {
        constexpr int alignment = Weights::scale_row_bytes | scale_bytes, size = alignment % 16 == 0 ? 16 : alignment % 4 == 0 ? 4 : 2;
        copy_rows<scale_bytes, size>(
            scales(number), scale_pitch, of_scales, number * scale_bytes, Weights::scale_row_bytes, Weights::row_bytes);
      }
    }
    commit_copies();
  }

  // Copies `used` of up to `most` bytes of each row, `size` bytes at a time. The part of the matrix that is copied begins after `before`
  // bytes for each of the matrix's rows.
  template <int most, int size>
  __device__ void copy_rows(u8* to, int pitch, int used, int from, int row_bytes, int before) const {
    for (int i = threadIdx.x; i < rows * (most / size); i += blockDim.x) {
      int row = i / (most / size), at = i % (most / size) * size;
      if (at >= used) continue;
      bool is_last = row_tiles > 1 && row >= slot_rows;
      const u8* weights = is_last ? last.weights : first.weights;
      int all = is_last ? last.rows : first.rows, own = min((is_last ? last.first : first.first) + row % slot_rows, all - 1);
      const u8* place = weights + (long long)all * before + (long long)own * row_bytes + from + at;
      if constexpr (size == 16) {
        copy_async_once(to + row * pitch + at, place);
      } else if constexpr (size == 4) {
        copy_async<4>(to + row * pitch + at, place);
      } else {
        *reinterpret_cast<u16*>(to + row * pitch + at) = *reinterpret_cast<const u16*>(place);
      }
    }
  }

  // Returns the codes of row `row` in piece `number`, and its scales.
  __device__ Units row_units(int number, int row) const { return {codes(number) + row * pitch, scales(number) + row * scale_pitch}; }
};

// A lane's words of the inputs: four units of each tile of slots.
template <int tiles, int units>
struct InputWords {
  uint2 codes[4][tiles];
  uint4 scales[4][tiles];

  // Loads units `first`, `first` + 8, and so on. Beyond the last unit it loads the last one, which is not summed again.
  __device__ void load(const SlotUnit* inputs, int first, int used) {
    int t = lane_index() % 4;
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
      if (tile >= used) break;
#pragma unroll
      for (int part = 0; part < 4; part++) {
        const SlotUnit& in = inputs[tile * units + min(first + slot_warps * part, units - 1)];
        codes[part][tile] = in.codes[lane_index()], scales[part][tile] = in.scales[t];
      }
    }
  }
};

// Like `sums_of_parts`, for codes: warp w takes units w, w + 8, w + 16 and w + 24 of every 32.
template <int format, int cols, int tiles, int row_tiles, int stages>
__device__ void sums_of_codes(const StagedRows<format, cols, row_tiles, stages>& staged, const SlotUnit* inputs, int used,
                              float (&sums)[row_tiles][tiles][4]) {
  using Weights = Format<format, cols>;
  using Rows = StagedRows<format, cols, row_tiles, stages>;
  constexpr int units = cols / 32, lanes = 4;
  // 1.5 * 2^23: adding an integer below 2^22 to the bits of this float increases its value by that integer.
  constexpr int magic = 0x4b400000;
  int g = lane_index() / 4, t = lane_index() % 4;
  float parts[lanes][row_tiles][tiles][4] = {};
  InputWords<tiles, units> in;
  in.load(inputs, warp_index(), used);
#pragma unroll 1
  for (int number = 0; number < Rows::pieces; number++) {
    wait_for_copies<stages - 1>();
    __syncthreads();
#pragma unroll
    for (int local = 0; local < Rows::piece; local += 32) {
      int first = number * Rows::piece + local + warp_index();
      if (first >= units) break;
      // The next inputs are loaded while these are multiplied.
      InputWords<tiles, units> next;
      if (tiles * row_tiles == 1) next.load(inputs, first + 32, used);
#pragma unroll
      for (int part = 0; part < lanes; part++) {
        bool is_unit = first + slot_warps * part < units;
        int unit = is_unit ? local + warp_index() + slot_warps * part : 0;
#pragma unroll
        for (int m = 0; m < row_tiles; m++) {
          u32 codes[4];
          float scales[2];
          Affine lines[2];
          const i8* halves[2];
#pragma unroll
          for (int i = 0; i < 2; i++) {
            Units row = staged.row_units(number, slot_rows * m + 8 * i + g);
            if constexpr (Weights::tiles == AFFINE_TILES) {
              lines[i] = Weights::code_words(row, unit, t, codes[i], codes[2 + i]);
            } else if constexpr (Weights::tiles == HALVED_TILES) {
              halves[i] = Weights::code_words(row, unit, t, codes[i], codes[2 + i]), scales[i] = Weights::scale(row, unit);
            } else {
              Weights::code_words(row, unit, t, codes[i], codes[2 + i]), scales[i] = Weights::scale(row, unit);
            }
          }
#pragma unroll
          for (int tile = 0; tile < tiles; tile++) {
            if (tile >= used) break;
            uint2 words = in.codes[part][tile];
            uint4 pair = in.scales[part][tile];
            u32 right[2] = {words.x, words.y};
            float slot_scales[2] = {__uint_as_float(pair.x), __uint_as_float(pair.y)};
            float (&sums)[4] = parts[part][m][tile];
            if constexpr (Weights::tiles == PLAIN_TILES) {
              int bases[2] = {magic - Weights::offset * (int)pair.z, magic - Weights::offset * (int)pair.w};
              int products[4] = {bases[0], bases[1], bases[0], bases[1]};
              multiply_add_codes(products, codes, right);
              if (!is_unit) continue;
#pragma unroll
              for (int i = 0; i < 4; i++) {
                float product = __uint_as_float((u32)products[i]) - __uint_as_float((u32)magic);
                sums[i] += product * (scales[i / 2] * slot_scales[i % 2]);
              }
            } else if constexpr (Weights::tiles == HALVED_TILES) {
              int lower[4] = {}, upper[4] = {};
              u32 first_half[4] = {codes[0], codes[1], 0, 0}, second_half[4] = {0, 0, codes[2], codes[3]};
              multiply_add_codes(lower, first_half, right);
              multiply_add_codes(upper, second_half, right);
              if (!is_unit) continue;
#pragma unroll
              for (int i = 0; i < 4; i++) {
                int product = halves[i / 2][0] * lower[i] + halves[i / 2][1] * upper[i];
                sums[i] += product * (scales[i / 2] * slot_scales[i % 2]);
              }
            } else {
              int products[4] = {}, slot_sums[2] = {(int)pair.z, (int)pair.w};
              multiply_add_codes(products, codes, right);
              if (!is_unit) continue;
#pragma unroll
              for (int i = 0; i < 4; i++) sums[i] += affine_product(lines[i / 2], slot_scales[i % 2], products[i], slot_sums[i % 2]);
            }
          }
        }
      }
      if (tiles * row_tiles == 1) in = next;
      else in.load(inputs, first + 32, used);
    }
    if (Rows::pieces > stages) __syncthreads();
    staged.copy(Rows::pieces > stages ? number + stages : Rows::pieces);
  }
#pragma unroll
  for (int m = 0; m < row_tiles; m++) {
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        auto part = [&](int lane) { return parts[lane][m][tile][i]; };
        sums[m][tile][i] = (part(0) + part(2)) + (part(1) + part(3));
      }
    }
  }
}

// Computes the sums of a block's rows (those of `first`, and with two row tiles those of `last`) in all warps: in shared memory [row tile,
// warp, slot, row]. `begin` starts other loads, after those of the weights and before the inputs are complete.
template <int format, int cols, int tiles, int row_tiles, int stages, class Begin>
__device__ const float* slot_sums(const RowTile& first, const RowTile& last, const u8* inputs, int tokens, Begin begin) {
  u8* room = shared_memory<u8>();
  float sums[row_tiles][tiles][4] = {};
  int used = (tokens + 7) / 8;
  if constexpr (format == BF16) {
    if (warp_index() == 0 && lane_index() < min(slot_rows, first.rows - first.first)) {
      prefetch(first.weights + (long long)(first.first + lane_index()) * (2 * cols), 2 * cols);
    }
    wait_for_dependencies();
    launch_dependents();
    sums_of_parts<cols, tiles>(first, reinterpret_cast<const u16*>(inputs), used, sums);
  } else {
    StagedRows<format, cols, row_tiles, stages> staged = {first, last, room};
    for (int number = 0; number < stages; number++) staged.copy(number);
    begin();
    wait_for_dependencies();
    launch_dependents();
    sums_of_codes<format, cols, tiles>(staged, reinterpret_cast<const SlotUnit*>(inputs), used, sums);
    // The sums overwrite the weights.
    __syncthreads();
  }
  int g = lane_index() / 4, t = lane_index() % 4;
  float* shared = reinterpret_cast<float*>(room);
#pragma unroll
  for (int m = 0; m < row_tiles; m++) {
    float* own = shared + (m * slot_warps + warp_index()) * (8 * tiles * slot_rows);
#pragma unroll
    for (int tile = 0; tile < tiles; tile++) {
      for (int i = 0; i < 4; i++) own[(8 * tile + 2 * t + i % 2) * slot_rows + g + i / 2 * 8] = sums[m][tile][i];
    }
  }
  __syncthreads();
  return shared;
}

// Returns one product of row `row`: the sum over warps, multiplied, with its bias. `place` is the index in [slot, row].
template <int tiles>
__device__ float slot_product(const Linear& linear, const float* sums_of_warps, int place, int row) {
  float sums[slot_warps];
#pragma unroll
  for (int warp = 0; warp < slot_warps; warp++) sums[warp] = sums_of_warps[warp * (8 * tiles * slot_rows) + place];
#pragma unroll
  for (int distance = slot_warps / 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int i = 0; i < distance; i++) sums[i] += sums[i + distance];
  }
  float product = linear.multiplier * sums[0];
  return linear.bias ? product + linear.bias[row] : product;
}

// Multiplies matrices of `format` on tensor cores, `row_tiles` tiles of rows per block, and after them matrices of `formats`, which have
// few rows, on plain cores, one row per block.
template <int format, int cols, int tiles, int row_tiles, int stages, u64 formats>
__device__ void gemm_slots_tensor(const u8* inputs, const float* floats, const u8* codes, const Linears& linears, Rows output, int tokens) {
  const Linear& linear = linear_of(linears, blockIdx.x);
  if constexpr (formats != 0) {
    if (linear.format != format) {
      wait_for_dependencies();
      launch_dependents();
      return multiply_row<formats, cols>(floats, codes, linear, (int)blockIdx.x - linear.first, linears.add, output, tokens);
    }
  }
  int first = ((int)blockIdx.x - linear.first) * row_tiles * slot_rows;
  const float* sums = slot_sums<format, cols, tiles, row_tiles, stages>(
      {linear, first}, {linear, first + slot_rows}, inputs, tokens, [] {});
#pragma unroll
  for (int m = 0; m < row_tiles; m++) {
    const float* own = sums + m * slot_warps * (8 * tiles * slot_rows);
    for (int i = threadIdx.x; i < tokens * slot_rows; i += blockDim.x) {
      int row = first + m * slot_rows + i % slot_rows;
      if (row >= linear.rows) continue;
      float product = slot_product<tiles>(linear, own, i, row);
      float* place = output.token(i / slot_rows) + linear.column + row;
      *place = linears.add ? *place + product : product;
    }
  }
}

// `output = function(gate x) * up x` of two matrices of the same shape, with 8-bit inputs.
template <int format, int cols, int tiles, int stages, int function>
__device__ void gemm_gated_slots_tensor(const u8* inputs, const Linears& linears, Rows output, int tokens) {
  int first = blockIdx.x * slot_rows;
  const Linear &gate = linears.at[0], &up = linears.at[1];
  const float* sums = slot_sums<format, cols, tiles, 2, stages>({gate, first}, {up, first}, inputs, tokens, [] {});
  const float* other = sums + slot_warps * (8 * tiles * slot_rows);
  for (int i = threadIdx.x; i < tokens * slot_rows; i += blockDim.x) {
    int row = first + i % slot_rows;
    if (row >= gate.rows) continue;
    float gate_value = slot_product<tiles>(gate, sums, i, row), product = slot_product<tiles>(up, other, i, row);
    output.token(i / slot_rows)[row] = activate(function, gate_value) * product;
  }
}
