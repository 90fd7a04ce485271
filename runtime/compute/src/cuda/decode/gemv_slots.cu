// The streaming GEMV for the tokens of several slots: a tile of weights is multiplied with the inputs of all slots while it is in shared
// memory. A slot's sums are in the order of `streaming_gemv`, so that its token has the same bits as in a step.
// Each slot has a workspace of `slot_bytes`: its input, and its partial sums from `sums_at` on.

// The warps' sums of squares of each slot's input.
__device__ inline float* slot_squares(int slot) {
  __shared__ __align__(16) float squares[most_slots * consumer_warps];
  return squares + slot * consumer_warps;
}

// Returns a slot's value of an array that stays in registers.
__device__ inline float of_slot(const float (&values)[most_slots], int slot) {
  float value = values[0];
#pragma unroll
  for (int other = 1; other < most_slots; other++) value = slot == other ? values[other] : value;
  return value;
}

// The inputs of all slots.
template <bool late>
struct SlotInputs {
  u8* room;
  int codes_at, parts_at, cols;
  LateNorm norm[most_slots];

  // A slot's input, without and with the factor of a late norm.
  __device__ ProductInput<late> stored(int slot) const { return ProductInput<late>(room + slot * slot_bytes, codes_at, parts_at, cols); }
  __device__ ProductInput<late> slot(int slot) const {
    ProductInput<late> input = stored(slot);
    input.rounded.norm = norm[slot];
    return input;
  }
};

// Adds a warp's lanes and stores the partial sums of every slot.
template <int bands>
__device__ void store_slot_sums(float (&sum)[most_slots][bands], float* sums, int first, int rows, int slots) {
#pragma unroll
  for (int slot = 0; slot < most_slots; slot++) {
    if (slot >= slots) break;
    store_sums(sum[slot], sums + slot * slot_bytes / 4, first, rows);
  }
}

// Loads a lane's inputs of all slots. An unused slot's workspace holds old bytes.
template <class Row, class Inputs, int count>
__device__ void hold_codes(const Inputs& inputs, Codes (&codes)[count]) {
#pragma unroll
  for (int slot = 0; slot < most_slots; slot++) {
#pragma unroll
    for (int i = 0; i < Row::count; i++) {
      codes[slot * Row::count + i] = inputs.slot(slot).rounded.unit(Row::has(i) ? Row::first_unit() + i * step_units : 0);
    }
  }
}

// Partial sums of a segment: see `unit_sums`.
template <int format, int cols, class Inputs>
__device__ void unit_slot_sums(const Segment& segment, const Inputs& inputs, int slots, float* sums) {
  using Weights = Format<format, 256>;
  using Row = Steps<cols / Weights::unit>;
  constexpr int steps = Row::count, bands = bands_of_tile(format);
  constexpr int scale_step = Format<format, step_units * Weights::unit>::scale_row_bytes;
  int row = Row::row(bands), rows = segment.rows - row;
  u32 code_pitch = segment.code_pitch, scale_pitch = segment.scale_pitch;
  int next_scales = in_register(segment.tile_scale_bytes == 0 ? scale_step : 0);
  int first_unit = Row::first_unit();
  constexpr bool held = Weights::integer && steps * most_slots * (int)(sizeof(Codes) / 4) <= most_held;
  Codes codes[held ? most_slots * steps : 1];
  if constexpr (held) hold_codes<Row>(inputs, codes);
  ConsumerState next(StageIndex(segment.tile));
  sums = held_pointer(sums + segment.sums + row * sums_pitch + Row::warp());
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += Row::groups * 8 * bands) {
    float sum[most_slots][bands] = {};
#pragma unroll(held ? steps : 1)
    for (int i = 0; i < steps; i++, next.advance()) {
      const u8* tile = next.consumer_wait();
      if (Row::has(i)) {
        const u8* of_codes = tile + row * code_pitch;
        const u8* of_scales = tile + Row::groups * 8 * bands * code_pitch + row * scale_pitch + i * next_scales;
        int unit = first_unit + i * step_units;
#pragma unroll
        for (int band = 0; band < bands; band++) {
          Units weights = {of_codes + 8 * band * code_pitch, of_scales + 8 * band * scale_pitch};
          if constexpr (Weights::integer) {
#pragma unroll
            for (int slot = 0; slot < most_slots; slot++) {
              if (slot >= slots) break;
              const Codes x = held ? codes[held ? slot * steps + i : 0] : inputs.slot(slot).rounded.unit(unit);
              sum[slot][band] += Weights::dot(weights, first_unit, x);
            }
          } else {
            float values[Weights::unit];
            Weights::values(weights, first_unit, values);
#pragma unroll
            for (int slot = 0; slot < most_slots; slot++) {
              if (slot >= slots) break;
              const float* x = inputs.slot(slot).x + unit * Weights::unit;
#pragma unroll
              for (int j = 0; j < Weights::unit; j += 4) {
                float4 four = *reinterpret_cast<const float4*>(x + j);
                sum[slot][band] += values[j] * four.x + values[j + 1] * four.y + values[j + 2] * four.z + values[j + 3] * four.w;
              }
            }
          }
        }
      }
      __syncwarp();
      next.consumer_release();
    }
    store_slot_sums(sum, sums, first, rows, slots);
  }
}

// Partial sums of a segment with contiguous units: see `run_sums`.
template <int format, int cols, class Inputs>
__device__ void run_slot_sums(const Segment& segment, const Inputs& inputs, int slots, float* sums) {
  using Tile = TileUnits<format>;
  using Row = Steps<cols / 32>;
  constexpr int steps = Row::count, bands = Tile::bands;
  constexpr bool held = steps * most_slots * (int)(sizeof(Codes) / 4) <= most_held;
  constexpr int scale_step = Format<format, step_units * 32>::scale_row_bytes;
  int row = Row::row(bands), rows = segment.rows - row, all_rows = segment.rows;
  int unit = Row::has(0) ? Row::first_unit() : 0;
  u32 code_pitch = segment.code_pitch, scale_pitch = segment.scale_pitch;
  u32 code_at = row * code_pitch + unit * Tile::unit_bytes;
  u32 scale_at = Row::groups * 8 * bands * code_pitch + row * scale_pitch + unit * Tile::scale_bytes;
  int next_scales = in_register(segment.tile_scale_bytes == 0 ? scale_step : 0);
  Codes codes[held ? most_slots * steps : 1];
  if constexpr (held) hold_codes<Row>(inputs, codes);
  ConsumerState next(StageIndex(segment.tile));
  sums = held_pointer(sums + segment.sums + row * sums_pitch + Row::warp());
#pragma unroll 1
  for (int first = 0; first < all_rows; first += Row::groups * 8 * bands) {
    float sum[most_slots][bands] = {};
#pragma unroll(held ? steps : 1)
    for (int i = 0; i < steps; i++, next.advance()) {
      const u8* from = next.consumer_wait();
      const Tile tile(from + code_at, from + scale_at + (Row::has(i) ? i : 0) * next_scales, 8 * code_pitch, 8 * scale_pitch);
      __syncwarp();
      next.consumer_release();
      if (!Row::has(i)) continue;
#pragma unroll
      for (int slot = 0; slot < most_slots; slot++) {
        if (slot >= slots) break;
        const Codes x = held ? codes[held ? slot * steps + i : 0] : inputs.slot(slot).rounded.unit(Row::first_unit() + i * step_units);
#pragma unroll
        for (int band = 0; band < bands; band++) sum[slot][band] += tile.dot(band, x);
      }
    }
    store_slot_sums(sum, sums, first, rows, slots);
  }
}

// Partial sums of a BF16 segment on tensor cores: see `tile_sums`.
template <int cols, class Inputs>
__device__ void tile_slot_sums(const Segment& segment, const Inputs& inputs, int slots, float* sums) {
  using Row = Steps<cols / 8>;
  constexpr int steps = Row::count, bands = bands_of_tile(BF16);
  int lane = lane_index(), row = Row::row(bands), first_bytes = 16 * Row::first_unit(), rows = segment.rows - row;
  u32 pitch = segment.code_pitch;
  const SplitInput split = inputs.slot(0).split;
  const u8* parts = reinterpret_cast<const u8*>(split.first + min(lane / 4, 2) * split.pitch) + first_bytes;
  ConsumerState next(StageIndex(segment.tile));
  sums = held_pointer(sums + segment.sums + row * sums_pitch + Row::warp());
#pragma unroll 1
  for (int first = 0; first < rows + row; first += Row::groups * 8 * bands) {
    float even[most_slots][4] = {}, odd[most_slots][4] = {};
#pragma unroll 1
    for (int i = 0; i < steps; i++, next.advance()) {
      const u8* tile = next.consumer_wait() + row * pitch + first_bytes;
      uint4 upper, lower;
      if (Row::has(i)) {
        upper = *reinterpret_cast<const uint4*>(tile);
        lower = bands == 2 ? *reinterpret_cast<const uint4*>(tile + 8 * pitch) : uint4{0, 0, 0, 0};
      }
      __syncwarp();
      next.consumer_release();
      if (!Row::has(i)) continue;
      u32 a[4] = {upper.x, lower.x, upper.y, lower.y}, c[4] = {upper.z, lower.z, upper.w, lower.w};
#pragma unroll
      for (int slot = 0; slot < most_slots; slot++) {
        if (slot >= slots) break;
        const uint4 right = *reinterpret_cast<const uint4*>(parts + slot * slot_bytes + i * 64 * consumer_warps);
        u32 b[2] = {right.x, right.y}, d[2] = {right.z, right.w};
        multiply_add(even[slot], a, b);
        multiply_add(odd[slot], c, d);
      }
    }
#pragma unroll
    for (int slot = 0; slot < most_slots; slot++) {
      if (slot >= slots) break;
      store_part_sums<bands>(even[slot], odd[slot], sums + slot * slot_bytes / 4, first, rows);
    }
  }
}

// Partial sums of a segment whose format is one of `formats`.
template <int cols, u64 formats, bool split, int format = 0, class Inputs>
__device__ void segment_slot_sums(const Segment& segment, const Inputs& inputs, int slots, float* sums) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      if (formats == 1 << format || segment.format == format) {
        if constexpr (format == BF16 && split) {
          return tile_slot_sums<cols>(segment, inputs, slots, sums);
        } else if constexpr (in_runs(format)) {
          return run_slot_sums<format, cols>(segment, inputs, slots, sums);
        } else {
          return unit_slot_sums<format, cols>(segment, inputs, slots, sums);
        }
      }
    }
    segment_slot_sums<cols, formats, split, format + 1>(segment, inputs, slots, sums);
  }
}

// The op: see `streaming_gemv`.
template <int mailboxes, int epilogue, int function, int cols, int flags, u64 formats, int rounding, int codes_at, int parts_at, int bytes>
__device__ void streaming_gemv_slots(const Rows& output, float eps, const Prologue& prologue, const PrepareTasks* row_ops,
                                     const Segment* segments, int count) {
  static_assert(mailboxes == 0, "values of several slots are in buffers");
  constexpr bool late = (flags & LATE_NORM) != 0, late_scales = late && rounding == IN_BLOCKS;
  using Pending = PendingInput<mailboxes, cols, flags>;
  const int slots = cta().slots;
  EpilogueRow<mailboxes, epilogue, function, cols> row(segments, count);
  row.load(row_ops, output);
  SlotInputs<late_scales> inputs = {shared_memory<u8>(), codes_at, parts_at, cols};
  // Long loops over slots are not unrolled: they would not fit into the instruction caches.
  constexpr bool norms_share_memory = (flags & (PART_NORM | ODD_PART_NORM)) != 0 || (!late && (flags & (WHOLE_NORM | CENTRED_NORM)) != 0);
  Pending next;
  next.prefetch(prologue);
  wait_for_dependencies();
  next.load(prologue, 0);
#pragma unroll 1
  for (int slot = 0; slot < slots; slot++) {
    Pending pending = next;
    if (slot + 1 < slots) next.load(prologue, slot + 1);
    if (slot > 0 && (norms_share_memory || rounding == IN_SUPER_BLOCKS)) consumer_barrier();
    const ProductInput<late_scales> input = inputs.stored(slot);
    float* room = reinterpret_cast<float*>(inputs.room + slot * slot_bytes);
    store_input<rounding, cols, flags, codes_at, parts_at, bytes>(prologue, slot, pending, input, room, slot_squares(slot));
  }
  float* sums = shared_memory<float>() + sums_at / 4;
  consumer_barrier();
  if constexpr (late) {
#pragma unroll
    for (int slot = 0; slot < most_slots; slot++) {
      inputs.norm[slot] = LateNorm(reinterpret_cast<const float4*>(slot_squares(slot)) + lane_index() % 4, cols, eps);
    }
  }
  for (int s = 0; s < count;) {
    float before[most_slots];
#pragma unroll
    for (int slot = 0; slot < most_slots; slot++) before[slot] = slot < slots ? row.sum_of(output, slot) : 0.0f;
    do {
      if (segments[s].rows > 0) segment_slot_sums<cols, formats, (bytes > parts_at)>(segments[s], inputs, slots, sums);
      s++;
    } while (s < count && !segments[s].new_batch);
    consumer_barrier();
    auto finish = [&](int slot, float factor) { return row.store(output, slot, factor, row_ops, sums + slot * slot_bytes / 4); };
    if (row_ops) {
      float factors[most_slots];
#pragma unroll
      for (int slot = 0; slot < most_slots; slot++) factors[slot] = inputs.norm[slot].factor;
#pragma unroll 1
      for (int slot = 0; slot < slots; slot++) row.shift(finish(slot, of_slot(factors, slot)));
    } else {
#pragma unroll
      for (int slot = 0; slot < most_slots; slot++) {
        if (slot >= slots) break;
        if constexpr (epilogue == EPILOGUE_ADD) row.held = before[slot];
        finish(slot, inputs.norm[slot].factor);
      }
    }
    if (s == count) break;
    row = EpilogueRow<mailboxes, epilogue, function, cols>(segments + s, count - s);
    row.load(row_ops, output);
  }
}
