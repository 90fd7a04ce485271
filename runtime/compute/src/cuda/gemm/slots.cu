// Matrix products of several tokens (slots), which may belong to several sessions. Each slot gets the bits of `gemv`. The inputs are made
// once, and a warp reads its rows of the weights once for all slots.

// Bytes from one token's codes to the next.
template <int cols>
constexpr int codes_pitch = (cols + cols / 32 * 8 + 15) / 16 * 16;
// Values from one token's floats to the next.
template <int cols>
constexpr int floats_pitch = (cols + 31) / 32 * 32;

// Columns `first` to `first + span - 1` of an input, in full and in 8 bits.
template <int span>
struct InputSpan {
  int first;
  const float* values;
  const Rounded<span>& codes;
};

// Makes `span` columns of the input of token `blockIdx.y`, from column `span * blockIdx.x` on, as `gemv` does. With a norm, every block
// reads the whole row. The kernel is short, so the next one may start at once; gains are prefetched while this kernel waits.
template <int rounding, int cols, int flags, int span>
__device__ InputSpan<span> load_span(const Prologue& prologue) {
  launch_dependents();
  int first = span * blockIdx.x;
  for (int s = threadIdx.x; s < prologue.steps; s += blockDim.x) {
    const PrologueStep& step = prologue.step[s];
    bool is_aligned = (reinterpret_cast<u64>(step.weight) & 15) == 0;
    if (is_aligned && first + span <= step.span) prefetch(step.weight + first, span * sizeof(float) & ~15);
  }
  wait_for_dependencies();
  float* x = shared_memory<float>();
  if constexpr ((flags & ~FEW_STEPS) == 0) {
    Fragment<span, flags> part;
    part.load(prologue.input.token(blockIdx.y) + first);
    part.template round_short<rounding>();
    part.store(x);
    __syncthreads();
  } else {
    load_values<rounding, cols, flags>(prologue, blockIdx.y, x);
    x += first;
  }
  const int* rounded = round_input<rounding, span>(x);
  if constexpr (to_codes(rounding)) __syncthreads();
  return {first, x, *reinterpret_cast<const Rounded<span>*>(rounded)};
}

// Stores a part of the input of token `blockIdx.y` in the forms that products on plain cores read: as floats, and in 8 bits where one of
// the formats needs that.
template <u64 formats, int rounding, int cols, int span>
__device__ void store_slots(const InputSpan<span>& in, float* floats, u8* codes) {
  if constexpr ((formats & ~integer_formats) != 0) {
    float* to = floats + (long long)blockIdx.y * floats_pitch<cols> + in.first;
    for (int i = threadIdx.x; i < span; i += blockDim.x) to[i] = in.values[i];
  }
  if constexpr ((formats & integer_formats) != 0 && to_codes(rounding)) {
    Rounded<cols>& to = *reinterpret_cast<Rounded<cols>*>(codes + (long long)blockIdx.y * codes_pitch<cols>);
    for (int i = threadIdx.x; i < span / 4; i += blockDim.x) to.packed[in.first / 4 + i] = in.codes.packed[i];
    for (int i = threadIdx.x; i < span / 32; i += blockDim.x) {
      to.scales[in.first / 32 + i] = in.codes.scales[i];
      to.sums[in.first / 32 + i] = in.codes.sums[i];
    }
  }
}

// Makes the inputs of products on plain cores.
template <u64 formats, int rounding, int cols, int flags, int span>
__device__ void slots_prologue(const Prologue& prologue, float* floats, u8* codes) {
  store_slots<formats, rounding, cols>(load_span<rounding, cols, flags, span>(prologue), floats, codes);
}

// The inputs of the slots that a block multiplies. All slots of a tile have inputs, even if the last ones are unused: a branch per slot
// would keep its loads from overlapping with those of other slots.
struct SlotInputs {
  const float* floats;
  const u8* codes;

  template <int cols>
  __device__ const Rounded<cols>& rounded(int c) const {
    return *reinterpret_cast<const Rounded<cols>*>(codes + c * codes_pitch<cols>);
  }
  template <int cols>
  __device__ const float* values(int c) const {
    return floats + c * floats_pitch<cols>;
  }
};

// Computes the products of a warp's rows with each slot, as `warp_products` does; each lane has its part of every sum. `In` provides the
// inputs like `SlotInputs`.
template <int format, int cols, int rows, int slots, class In>
__device__ void slot_products(const Linear& linear, int row, const In& in, float (&sums)[rows * slots]) {
  using Weights = Format<format, cols>;
  constexpr int units = cols / Weights::unit;
  Units matrix = all_units<Weights>(linear.weights, linear.rows);
  constexpr int unrolled = rows * slots == 1 ? 8 : 2;
#pragma unroll(unrolled)
  for (int unit = lane_index(); unit < units; unit += 32) {
    long long index[rows];
#pragma unroll
    for (int r = 0; r < rows; r++) index[r] = (long long)min(row + r, linear.rows - 1) * units + unit;
    if constexpr (Weights::integer) {
#pragma unroll
      for (int c = 0; c < slots; c++) {
        Codes codes = in.template rounded<cols>(c).unit(unit);
#pragma unroll
        for (int r = 0; r < rows; r++) sums[r * slots + c] += Weights::dot(matrix, index[r], codes);
      }
    } else {
      float values[rows][Weights::unit];
#pragma unroll
      for (int r = 0; r < rows; r++) Weights::values(matrix, index[r], values[r]);
#pragma unroll
      for (int c = 0; c < slots; c++) {
        const float* place = in.template values<cols>(c) + unit * Weights::unit;
        float x[Weights::unit];
        if constexpr (Weights::unit % 4 == 0) {
#pragma unroll
          for (int i = 0; i < Weights::unit; i += 4) {
            float4 four = *reinterpret_cast<const float4*>(place + i);
            x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
          }
        } else {
          x[0] = *place;
        }
#pragma unroll
        for (int r = 0; r < rows; r++) {
#pragma unroll
          for (int i = 0; i < Weights::unit; i++) sums[r * slots + c] += values[r][i] * x[i];
        }
      }
    }
  }
}

// Adds up the lanes in the order of `warp_sum`; of `count` sums, a lane has number lane / (32 / count) in the first place.
template <int count, int distance = 16>
__device__ void sum_lanes(float* sums) {
  if constexpr (distance > 0) {
    if constexpr (count == 1) {
      sums[0] += __shfl_xor_sync(all_lanes, sums[0], distance);
      sum_lanes<1, distance / 2>(sums);
    } else {
      bool upper = (lane_index() & distance) != 0;
#pragma unroll
      for (int i = 0; i < count / 2; i++) {
        float kept = upper ? sums[i + count / 2] : sums[i], given = upper ? sums[i] : sums[i + count / 2];
        sums[i] = kept + __shfl_xor_sync(all_lanes, given, distance);
      }
      sum_lanes<count / 2, distance / 2>(sums);
    }
  }
}

// Calls the instance for the matrix's format, one of `formats`, and returns the sum that this lane has.
template <u64 formats, int cols, int rows, int slots, int format = 0>
__device__ float slots_by_format(const Linear& linear, int row, const SlotInputs& in) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      if (linear.format == format) {
        float sums[rows * slots] = {};
        slot_products<format, cols, rows, slots>(linear, row, in, sums);
        sum_lanes<rows * slots>(sums);
        return sums[0];
      }
    }
    return slots_by_format<formats, cols, rows, slots, format + 1>(linear, row, in);
  }
  return 0.0f;
}

// Prefetches the codes of a warp's rows.
template <u64 formats, int cols, int rows, int format = 0>
__device__ void prefetch_row_codes(const Linear& linear, int row) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      constexpr u32 bytes = Format<format, cols>::row_bytes % 16 == 0 ? Format<format, cols>::row_bytes : 0;
      int r = row + lane_index();
      bool near = r * (long long)bytes < most_prefetched;
      if (bytes > 0 && linear.format == format && near && lane_index() < rows && r < linear.rows) {
        prefetch(linear.weights + (long long)r * bytes, bytes);
      }
    }
    prefetch_row_codes<formats, cols, rows, format + 1>(linear, row);
  }
}

// Multiplies one row of a matrix whose format is one of `formats`: a warp multiplies one slot after another.
template <u64 formats, int cols>
__device__ void multiply_row(const float* floats, const u8* codes, const Linear& linear, int row, bool add, Rows output, int tokens) {
  for (int slot = warp_index(); slot < tokens; slot += blockDim.x / 32) {
    SlotInputs in = {floats + (long long)slot * floats_pitch<cols>, codes + (long long)slot * codes_pitch<cols>};
    float product = linear.multiplier * slots_by_format<formats, cols, 1, 1>(linear, row, in);
    if (linear.bias) product += linear.bias[row];
    float* place = output.token(slot) + linear.column + row;
    if (lane_index() == 0) *place = add ? *place + product : product;
  }
}

// The rows and slots that a warp multiplies. Blocks with the same rows are consecutive, so that these rows are read once.
template <int cols, int rows, int slots>
struct SlotTile {
  static constexpr int pitch = floats_pitch<cols>;
  int tile;
  int first;

  __device__ SlotTile() {
    int block = blockIdx.y * gridDim.x + blockIdx.x;
    tile = block / gridDim.y, first = block % gridDim.y * slots;
  }
  __device__ int row(int tiles_before) const {
    return ((tile - tiles_before) * (int)(blockDim.x / 32) + warp_index()) * rows;
  }
  __device__ SlotInputs inputs(const float* floats, const u8* codes) const {
    return {floats + (long long)first * pitch, codes + (long long)first * codes_pitch<cols>};
  }
  // Adds the row of this lane's sum to `row` and sets its slot, both relative to the tile; returns true in one of the lanes with that sum.
  __device__ static bool place(int& row, int& slot) {
    constexpr int lanes = 32 / (rows * slots);
    int sum = lane_index() / lanes;
    row += sum / slots, slot = sum % slots;
    return lane_index() % lanes == 0;
  }
};

template <u64 formats, int cols, int rows, int slots>
__device__ void gemm_slots(const float* floats, const u8* codes, const Linears& linears, Rows output, int tokens) {
  using Tile = SlotTile<cols, rows, slots>;
  Tile tile;
  const Linear& linear = linear_of(linears, tile.tile);
  int row = tile.row(linear.first), slot = 0;
  prefetch_row_codes<formats, cols, rows>(linear, row);
  wait_for_dependencies();
  launch_dependents();
  if (row >= linear.rows) return;
  float product = slots_by_format<formats, cols, rows, slots>(linear, row, tile.inputs(floats, codes));
  bool mine = Tile::place(row, slot);
  if (!mine || row >= linear.rows || tile.first + slot >= tokens) return;
  product = linear.multiplier * product;
  if (linear.bias) product += linear.bias[row];
  float* place = output.token(tile.first + slot) + linear.column + row;
  *place = linears.add ? *place + product : product;
}

// `output = function(gate x) * up x`, like `gemv_gated`.
template <u64 formats, int cols, int rows, int slots, int function>
__device__ void gemm_gated_slots(const float* floats, const u8* codes, const Linears& linears, Rows output, int tokens) {
  using Tile = SlotTile<cols, rows, slots>;
  Tile tile;
  const Linear &gate = linears.at[0], &up = linears.at[1];
  int row = tile.row(0), slot = 0;
  prefetch_row_codes<formats, cols, rows>(gate, row);
  prefetch_row_codes<formats, cols, rows>(up, row);
  wait_for_dependencies();
  launch_dependents();
  if (row >= gate.rows) return;
  SlotInputs in = tile.inputs(floats, codes);
  float gate_value = slots_by_format<formats, cols, rows, slots>(gate, row, in);
  float product = slots_by_format<formats, cols, rows, slots>(up, row, in);
  bool mine = Tile::place(row, slot);
  if (!mine || row >= gate.rows || tile.first + slot >= tokens) return;
  gate_value = gate.multiplier * gate_value, product = up.multiplier * product;
  if (gate.bias) gate_value += gate.bias[row];
  if (up.bias) product += up.bias[row];
  output.token(tile.first + slot)[row] = activate(function, gate_value) * product;
}
