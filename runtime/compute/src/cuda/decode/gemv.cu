// The streaming GEMV, one for all formats: weights come through the pipeline in tiles of eight or sixteen rows. A warp multiplies the
// same columns of every tile, four of its 64 units, so that its part of the input stays in registers and all warps have equal work.

// Maximum number of registers per thread that hold inputs. Fewer on tensor cores, where unrolled steps are long.
constexpr int most_held = 48;
constexpr int most_held_parts = 24;

// The steps in which the warps multiply a row's units. The warps of a row group share its rows.
template <int units>
struct Steps {
  static constexpr int count = (units + step_units - 1) / step_units;
  static constexpr int groups = groups_of_tile(units);
  static constexpr int warps = consumer_warps / groups;

  // The warp's index within its row group.
  __device__ static int warp() { return groups == 1 ? warp_index() : warp_index() % warps; }
  // A lane's first unit of a row; it multiplies one unit per step.
  __device__ static int first_unit() { return 4 * warp() + lane_index() % 4; }
  // A lane's first row of a tile.
  __device__ static int row(int bands) { return lane_index() / 4 + (groups == 1 ? 0 : warp_index() / warps * 8 * bands); }

  // Whether this lane has a unit in a step: the last step may be short.
  __device__ static bool has(int step) {
    return units * groups % step_units == 0 || step < count - 1 || first_unit() + step * step_units < units;
  }
};

// Adds a warp's lanes and stores one partial sum per row and warp in shared memory.
template <int bands>
__device__ void store_sums(float (&sum)[bands], float* sums, int first, int rows) {
#pragma unroll
  for (int distance = 2; distance > 0; distance /= 2) {
#pragma unroll
    for (int band = 0; band < bands; band++) sum[band] += __shfl_xor_sync(all_lanes, sum[band], distance);
  }
#pragma unroll
  for (int band = 0; band < bands; band++) {
    if (lane_index() % 4 == 0 && first + 8 * band < rows) sums[(first + 8 * band) * sums_pitch] = sum[band];
  }
}

// Partial sums of a segment, for formats without a faster path. A lane multiplies a unit of one row, or of two rows.
template <int format, int cols, class Rounded>
__device__ void unit_sums(const Segment& segment, const float* x, const Rounded& rounded, float* sums) {
  using Weights = Format<format, 256>;
  using Row = Steps<cols / Weights::unit>;
  constexpr int steps = Row::count, bands = bands_of_tile(format);
  constexpr int scale_step = Format<format, step_units * Weights::unit>::scale_row_bytes;
  constexpr int of_step = Weights::integer ? sizeof(Codes) / 4 : Weights::unit;
  constexpr bool held = steps * of_step <= most_held, holds_codes = held && Weights::integer, holds_numbers = held && !Weights::integer;
  int row = Row::row(bands), rows = segment.rows - row;
  u32 code_pitch = segment.code_pitch, scale_pitch = segment.scale_pitch;
  // Where a tile holds the scales of whole rows, the scales of each step lie further on.
  int next_scales = in_register(segment.tile_scale_bytes == 0 ? scale_step : 0);
  int first_unit = Row::first_unit();
  Codes codes[holds_codes ? steps : 1];
  float4 numbers[holds_numbers ? steps * Weights::unit / 4 : 1];
#pragma unroll
  for (int i = 0; i < (held ? steps : 0); i++) {
    int unit = Row::has(i) ? first_unit + i * step_units : 0;
    if constexpr (holds_codes) codes[i] = rounded.unit(unit);
    if constexpr (holds_numbers) {
#pragma unroll
      for (int j = 0; j < Weights::unit / 4; j++) {
        numbers[i * Weights::unit / 4 + j] = reinterpret_cast<const float4*>(x + unit * Weights::unit)[j];
      }
    }
  }
  ConsumerState next(StageIndex(segment.tile));
  sums = held_pointer(sums + segment.sums + row * sums_pitch + Row::warp());
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += Row::groups * 8 * bands) {
    float sum[bands] = {};
#pragma unroll(held ? steps : 2)
    for (int i = 0; i < steps; i++, next.advance()) {
      const u8* tile = next.consumer_wait();
      if (Row::has(i)) {
        const u8* of_codes = tile + row * code_pitch;
        const u8* of_scales = tile + Row::groups * 8 * bands * code_pitch + row * scale_pitch + i * next_scales;
#pragma unroll
        for (int band = 0; band < bands; band++) {
          Units weights = {of_codes + 8 * band * code_pitch, of_scales + 8 * band * scale_pitch};
          if constexpr (Weights::integer) {
            sum[band] += Weights::dot(weights, first_unit, held ? codes[i] : rounded.unit(first_unit + i * step_units));
          } else {
            float values[Weights::unit];
            Weights::values(weights, first_unit, values);
            const float* inputs = x + (first_unit + i * step_units) * Weights::unit;
#pragma unroll
            for (int j = 0; j < Weights::unit; j += 4) {
              float4 four = held ? numbers[(i * Weights::unit + j) / 4] : *reinterpret_cast<const float4*>(inputs + j);
              sum[band] += values[j] * four.x + values[j + 1] * four.y + values[j + 2] * four.z + values[j + 3] * four.w;
            }
          }
        }
      }
      __syncwarp();
      next.consumer_release();
    }
    store_sums(sum, sums, first, rows);
  }
}

// Whether the codes and the scales of a format's units are each contiguous, so that a lane loads its units of a tile at once.
__device__ constexpr bool in_runs(int format) { return contiguous_formats >> format & 1; }

// The word type that loads this many bytes of scales.
template <int bytes>
struct ScaleWord {
  using Type = u16;
};
template <>
struct ScaleWord<1> {
  using Type = u8;
};
template <>
struct ScaleWord<4> {
  using Type = u32;
};
template <>
struct ScaleWord<8> {
  using Type = u32;
};

// A lane's units of a tile, in registers.
template <int format>
struct TileUnits {
  static constexpr int bands = bands_of_tile(format), unit_bytes = Format<format, 32>::row_bytes;
  static constexpr int scale_bytes = Format<format, 32>::scale_row_bytes;
  using Word = typename ScaleWord<scale_bytes>::Type;
  static constexpr int scale_words = scale_bytes / sizeof(Word);
  uint4 codes[bands][unit_bytes / 16];
  Word scales[bands][scale_words];

  // Loads from the first row's unit; other bands are `code_band` and `scale_band` bytes further on.
  __device__ TileUnits(const u8* from, const u8* scale, u32 code_band, u32 scale_band) {
#pragma unroll
    for (int band = 0; band < bands; band++) {
#pragma unroll
      for (int i = 0; i < unit_bytes / 16; i++) codes[band][i] = reinterpret_cast<const uint4*>(from + band * code_band)[i];
#pragma unroll
      for (int i = 0; i < scale_words; i++) scales[band][i] = reinterpret_cast<const Word*>(scale + band * scale_band)[i];
    }
  }
  __device__ float dot(int band, const Codes& x) const {
    Units units = {reinterpret_cast<const u8*>(codes[band]), reinterpret_cast<const u8*>(scales[band])};
    return Format<format, 32>::dot(units, 0, x);
  }
};

// Partial sums of a segment with contiguous units. Two tiles are loaded before either is multiplied, and both are released together: a tile
// of Q4_0 then takes a warp 75 instructions, instead of 105 one tile at a time.
template <int format, int cols, class Rounded>
__device__ void run_sums(const Segment& segment, const Rounded& rounded, float* sums) {
  using Tile = TileUnits<format>;
  using Row = Steps<cols / 32>;
  constexpr int steps = Row::count, bands = Tile::bands;
  // With few stages, a pair would leave no stage to fill while it is read.
  constexpr bool pairs = stage_count >= 4;
  constexpr bool held = steps * (int)(sizeof(Codes) / 4) <= most_held;
  constexpr int scale_step = Format<format, step_units * 32>::scale_row_bytes;
  int row = Row::row(bands), rows = segment.rows - row, all_rows = segment.rows;
  // Lanes without a unit load the first unit.
  int unit = Row::has(0) ? Row::first_unit() : 0;
  u32 code_pitch = segment.code_pitch, scale_pitch = segment.scale_pitch;
  u32 code_at = row * code_pitch + unit * Tile::unit_bytes;
  u32 scale_at = Row::groups * 8 * bands * code_pitch + row * scale_pitch + unit * Tile::scale_bytes;
  // Where a tile holds the scales of whole rows, the scales of each step lie further on.
  int next_scales = in_register(segment.tile_scale_bytes == 0 ? scale_step : 0);
  Codes codes[held ? steps : 1];
  if constexpr (held) {
#pragma unroll
    for (int i = 0; i < steps; i++) codes[i] = rounded.unit(Row::has(i) ? Row::first_unit() + i * step_units : 0);
  }
  auto load = [&](const u8* tile, int step) {
    const u8* scale = tile + scale_at + (Row::has(step) ? step : 0) * next_scales;
    return Tile(tile + code_at, scale, 8 * code_pitch, 8 * scale_pitch);
  };
  float sum[bands];
  auto multiply = [&](const Tile& tile, int step) {
    if (!Row::has(step)) return;
    const Codes x = held ? codes[held ? step : 0] : rounded.unit(Row::first_unit() + step * step_units);
#pragma unroll
    for (int band = 0; band < bands; band++) sum[band] += tile.dot(band, x);
  };
  ConsumerState next(StageIndex(segment.tile));
  sums = held_pointer(sums + segment.sums + row * sums_pitch + Row::warp());
#pragma unroll 1
  for (int first = 0; first < all_rows; first += Row::groups * 8 * bands) {
#pragma unroll
    for (int band = 0; band < bands; band++) sum[band] = 0.0f;
#pragma unroll(held ? steps : 1)
    for (int i = 0; i < steps; i += pairs ? 2 : 1) {
      ConsumerState here = next;
      const Tile tile = load(next.consumer_wait(), i);
      next.advance();
      if (!pairs || i + 1 == steps) {
        multiply(tile, i);
        __syncwarp();
      } else {
        ConsumerState behind = next;
        const Tile other = load(next.consumer_wait(), i + 1);
        next.advance();
        multiply(tile, i);
        multiply(other, i + 1);
        __syncwarp();
        behind.consumer_release();
      }
      here.consumer_release();
    }
    store_sums(sum, sums, first, rows);
  }
}

// Stores a BF16 tile's sums. A lane has a row's sums with the first and second part of the input; the next lane has the sum with the third.
template <int bands>
__device__ void store_part_sums(const float (&even)[4], const float (&odd)[4], float* sums, int first, int rows) {
#pragma unroll
  for (int band = 0; band < bands; band++) {
    float first_part = even[2 * band] + odd[2 * band], second_part = even[2 * band + 1] + odd[2 * band + 1];
    float sum = first_part + second_part + __shfl_down_sync(all_lanes, first_part, 1);
    if (lane_index() % 4 == 0 && first + 8 * band < rows) sums[(first + 8 * band) * sums_pitch] = sum;
  }
}

// Partial sums of a BF16 segment on tensor cores. Sixteen rows of weights are the left operand. The three parts of the input are three
// columns of the right operand, whose other columns may hold anything. The depth may be in any order as long as both sides agree: a lane
// loads eight consecutive columns of a row.
template <int cols>
__device__ void tile_sums(const Segment& segment, const SplitInput& input, float* sums) {
  // Either all lanes of a warp have columns, or no lane has.
  using Row = Steps<cols / 8>;
  constexpr int steps = Row::count;
  constexpr bool held = steps * 4 <= most_held_parts;
  constexpr int bands = bands_of_tile(BF16);
  int lane = lane_index(), row = Row::row(bands), first_bytes = 16 * Row::first_unit(), rows = segment.rows - row;
  u32 pitch = segment.code_pitch;
  const u8* parts = reinterpret_cast<const u8*>(input.first + min(lane / 4, 2) * input.pitch) + first_bytes;
  auto part = [&](int step) { return *reinterpret_cast<const uint4*>(parts + (Row::has(step) ? step * 64 * consumer_warps : 0)); };
  uint4 x[held ? steps : 1];
  if constexpr (held) {
#pragma unroll
    for (int i = 0; i < steps; i++) x[i] = part(i);
  }
  ConsumerState next(StageIndex(segment.tile));
  sums = held_pointer(sums + segment.sums + row * sums_pitch + Row::warp());
#pragma unroll 1
  for (int first = 0; first < rows + row; first += Row::groups * 8 * bands) {
    float even[4] = {}, odd[4] = {};
#pragma unroll(held ? steps : 2)
    for (int i = 0; i < steps; i++, next.advance()) {
      const u8* tile = next.consumer_wait() + row * pitch + first_bytes;
      uint4 upper, lower, right = held ? x[i] : part(i);
      if (Row::has(i)) {
        upper = *reinterpret_cast<const uint4*>(tile);
        // With a tile of eight rows, the lower half of the instruction's operand stays empty.
        lower = bands == 2 ? *reinterpret_cast<const uint4*>(tile + 8 * pitch) : uint4{0, 0, 0, 0};
      }
      __syncwarp();
      next.consumer_release();
      if (Row::has(i)) {
        u32 a[4] = {upper.x, lower.x, upper.y, lower.y}, b[2] = {right.x, right.y};
        multiply_add(even, a, b);
        u32 c[4] = {upper.z, lower.z, upper.w, lower.w}, d[2] = {right.z, right.w};
        multiply_add(odd, c, d);
      }
    }
    store_part_sums<bands>(even, odd, sums, first, rows);
  }
}

// Partial sums of a segment whose format is one of `formats`; BF16 runs on tensor cores if the input is `split`.
template <int cols, u64 formats, bool split, int format = 0, class Input>
__device__ void segment_sums(const Segment& segment, const Input& input, float* sums) {
  if constexpr (format < format_count) {
    if constexpr ((formats >> format & 1) != 0) {
      if (formats == 1 << format || segment.format == format) {
        if constexpr (format == BF16 && split) {
          return tile_sums<cols>(segment, input.split, sums);
        } else if constexpr (in_runs(format)) {
          return run_sums<format, cols>(segment, input.rounded, sums);
        } else {
          return unit_sums<format, cols>(segment, input.x, input.rounded, sums);
        }
      }
    }
    segment_sums<cols, formats, split, format + 1>(segment, input, sums);
  }
}

// The op: prologue, this block's rows of matrices in `formats` (a bit set) with a common input, epilogue. In a gated GEMV the segments
// alternate between rows of the gate and the same rows of the other matrix. The epilogue runs once per batch of rows, with four lanes per
// row; the partial sums of two batches alternate.
template <int mailboxes, int epilogue, int function, int cols, int flags, u64 formats, int rounding, int codes_at, int parts_at, int bytes>
__device__ void streaming_gemv(const Rows& output, float eps, const Prologue& prologue, const PrepareTasks* row_ops,
                        const Segment* segments, int count) {
  constexpr bool late = (flags & LATE_NORM) != 0;
  u64* const clocks = cta().clocks;
  const float4* squares = late ? held_pointer(reinterpret_cast<const float4*>(warp_squares()) + lane_index() % 4) : nullptr;
  // Loads that do not depend on earlier ops overlap the end of those ops. The first batch is loaded outside of the loop: moving its values
  // into the loop's registers would wait for the loads.
  PendingInput<mailboxes, cols, flags> pending;
  EpilogueRow<mailboxes, epilogue, function, cols> row(segments, count);
  row.load(row_ops, output);
  // Ops with few bytes of weights follow one another so fast that the first poll would usually come too early. With a backoff (400 ns at
  // the time) GDN 1.3B in Q4_0 took 476 us per token on an H200 instead of 493; in BF16 it would have taken 1 % longer.
  if constexpr ((mailboxes & MAILBOX_INPUT) != 0 && parts_at > codes_at) backoff<first_poll_ns>();
  pending.prefetch(prologue);
  pending.wait(prologue);
  // Only f16 does not commute with the factor of a late norm.
  constexpr bool late_scales = late && rounding == IN_BLOCKS;
  ProductInput<late_scales> input(shared_memory<u8>(), codes_at, parts_at, cols);
  store_input<rounding, cols, flags, codes_at, parts_at, bytes>(prologue, 0, pending, input, shared_memory<float>(), warp_squares());
  float* sums = shared_memory<float>() + sums_at / 4;
  row.load_sum(output);
  consumer_barrier();
  // After the barrier: if the producers were released when the first warp has its input, the polls of the other warps would queue after
  // more copies.
  if constexpr ((mailboxes & MAILBOX_INPUT) != 0) input_is_ready(clocks);
  // Computed here, the factor of a late norm is off the path from the last sum to the output.
  const LateNorm norm = late ? LateNorm(squares, cols, eps) : LateNorm();
  input.rounded.norm = norm;
  for (int s = 0; s < count;) {
    do {
      if (segments[s].rows > 0) segment_sums<cols, formats, (bytes > parts_at)>(segments[s], input, sums);
      s++;
    } while (s < count && !segments[s].new_batch);
    consumer_barrier();
    row.store(output, 0, norm.factor, row_ops, sums);
    if (s == count) break;
    row = EpilogueRow<mailboxes, epilogue, function, cols>(segments + s, count - s);
    row.load(row_ops, output);
    row.load_sum(output);
  }
}
