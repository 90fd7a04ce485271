// Matrix products of a persistent program, whose weights come through the ring. The warps of a block share out what comes: an
// item is a piece, 32 units, of `item_rows` rows.

// Inputs in 8 bits: of each 32 the first sixteen codes, behind all of these the other sixteen; then a scale and a sum for each.
struct RoundedInput {
  u8* codes;
  float* scales;
  int* sums;
  int units;

  __device__ RoundedInput(u8* at, int cols)
      : codes(at),
        scales(reinterpret_cast<float*>(codes + cols)),
        sums(reinterpret_cast<int*>(scales + cols / 32)),
        units(cols / 32) {}

  __device__ void store_scale(int unit, float largest, int sum) const {
    scales[unit] = largest / 127.0f;
    sums[unit] = sum;
  }

  // Eight lanes hold the runs of four of a unit, or a warp its numbers.
  template <int cols, int kinds>
  __device__ void store(const Share<cols, kinds>& share) const {
    using Own = Share<cols, kinds>;
#pragma unroll
    for (int r = 0; r < Own::runs; r++) {
      int column = Own::column(r), unit = column / 32;
      if constexpr (Own::run == 4) {
        const float* x = share.value + 4 * r;
        float largest = fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
        for (int distance = 4; distance > 0; distance /= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, distance));
        }
        float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
        u32 packed = 0;
#pragma unroll
        for (int i = 0; i < 4; i++) packed |= (u32)(u8)__float2int_rn(x[i] * factor) << 8 * i;
        int sum = __dp4a((int)packed, 0x01010101, 0);
        for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
        if (!Own::has(r)) return;
        *reinterpret_cast<u32*>(codes + (column / 16 % 2 * units + unit) * 16 + column % 16) = packed;
        if (column % 32 == 0) store_scale(unit, largest, sum);
      } else {
        if (unit >= units) return;
        float largest = warp_max_of_positive(fabsf(share.value[r]));
        int code = __float2int_rn(largest > 0.0f ? share.value[r] * (127.0f / largest) : 0.0f);
        int sum = warp_sum(code), lane = lane_index();
        codes[(lane / 16 * units + unit) * 16 + lane % 16] = (u8)code;
        if (lane == 0) store_scale(unit, largest, sum);
      }
    }
  }

  __device__ Codes unit(int index) const {
    Codes read;
    int4 a = reinterpret_cast<const int4*>(codes)[index], b = reinterpret_cast<const int4*>(codes)[units + index];
    read.packed[0] = a.x, read.packed[1] = a.y, read.packed[2] = a.z, read.packed[3] = a.w;
    read.packed[4] = b.x, read.packed[5] = b.y, read.packed[6] = b.z, read.packed[7] = b.w;
    read.scale = scales[index];
    read.sum = sums[index];
    return read;
  }
};

// Inputs as sums of three bf16 numbers, which together have all digits: three rows.
struct SplitInput {
  u16* first;
  // Numbers from row to row: eight lanes that read two rows meet all banks.
  int pitch;

  __device__ SplitInput(u8* at, int cols)
      : first(reinterpret_cast<u16*>(at)), pitch((cols + 63) / 64 * 64 + 32) {}

  template <int cols, int kinds>
  __device__ void store(const Share<cols, kinds>& share) const {
    using Own = Share<cols, kinds>;
#pragma unroll
    for (int r = 0; r < Own::runs; r++) {
      if (!Own::has(r)) return;
      float left[Own::run];
#pragma unroll
      for (int i = 0; i < Own::run; i++) left[i] = share.value[r * Own::run + i];
#pragma unroll
      for (int part = 0; part < 3; part++) {
        u16* place = first + part * pitch + Own::column(r);
        if constexpr (Own::run == 4) {
          uint2 pairs = {pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3])};
          *reinterpret_cast<uint2*>(place) = pairs;
          left[0] -= first_of(pairs.x), left[1] -= second_of(pairs.x);
          left[2] -= first_of(pairs.y), left[3] -= second_of(pairs.y);
        } else {
          u32 number = pack_bf16(left[0], 0.0f);
          *place = (u16)number;
          left[0] -= first_of(number);
        }
      }
    }
  }
};

// The sums of four values over a warp: lanes from 8 i on have the sum of value i.
__device__ inline float four_sums(const float (&x)[4]) {
  bool upper = (lane_index() & 16) != 0, odd = (lane_index() & 8) != 0;
  float a = upper ? x[2] : x[0], b = upper ? x[3] : x[1];
  a += __shfl_xor_sync(all_lanes, upper ? x[0] : x[2], 16);
  b += __shfl_xor_sync(all_lanes, upper ? x[1] : x[3], 16);
  float sum = odd ? b : a;
  sum += __shfl_xor_sync(all_lanes, odd ? a : b, 8);
  for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
  return sum;
}

// What becomes of a product. In the order of `Kind` in ring_products.rs.
enum { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_GATED };

struct ProductEnd {
  Rows output;
  int kind;
  int cols;
  // Where the input stands in 8 bits, and where in bf16.
  int codes_at;
  int parts_at;
  // Whether the factor of the input's norm is still to come, and the norm's epsilon.
  int normed;
  float eps;
};

// The input of a phase's products, in the forms that its formats want.
struct ProductInput {
  const float* x;
  RoundedInput rounded;
  SplitInput split;
  int cols;

  __device__ ProductInput(const ProductEnd& end)
      : x(shared_memory<float>()),
        rounded(shared_memory<u8>() + end.codes_at, end.cols),
        split(shared_memory<u8>() + end.parts_at, end.cols),
        cols(end.cols) {}
};

// The sums over a segment's columns, one for each row and piece. `item` is this warp's next one, from the segment's first on.
template <int format>
__device__ void segment_sums(const Segment& segment, const ProductInput& input, float* sums, int& item) {
  // The number of columns is of no concern to one unit.
  using Weights = Format<format, 256>;
  Ring& ring = Ring::get();
  int units = input.cols / Weights::unit, stride = segment.pieces | 1;
  sums += segment.sums;
  u32 entry = segment.entry;
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += segment.entry_rows, entry++) {
    int rows = min((int)segment.entry_rows, segment.rows - first);
    int items = (rows + item_rows - 1) / item_rows * segment.pieces;
    const u8* weights = ring.await(entry);
#pragma unroll 1
    for (; item < items; item += ring_warps) {
      // The numbers are small, so that half a unit keeps the quotient exact.
      int group = (int)((item + 0.5f) * segment.per_piece), piece = item - group * segment.pieces;
      int unit = piece * 32 + lane_index(), row = group * item_rows;
      bool inside = unit < units;
      unit = inside ? unit : 0;
      Codes codes;
      float inputs[Weights::integer ? 1 : Weights::unit];
      if constexpr (Weights::integer) {
        codes = input.rounded.unit(unit);
      } else {
#pragma unroll
        for (int j = 0; j < Weights::unit; j += 4) {
          float4 four = *reinterpret_cast<const float4*>(input.x + unit * Weights::unit + j);
          inputs[j] = four.x, inputs[j + 1] = four.y, inputs[j + 2] = four.z, inputs[j + 3] = four.w;
        }
      }
      float products[item_rows] = {};
#pragma unroll
      for (int r = 0; r < item_rows; r++) {
        // A whole warp has the row or not.
        if (row + r >= rows) break;
        int index = (row + r) * units + unit;
        if constexpr (Weights::integer) {
          products[r] = Weights::dot(weights, rows * units, index, codes);
        } else {
          float values[Weights::unit];
          Weights::values(weights, rows * units, index, values);
#pragma unroll
          for (int j = 0; j < Weights::unit; j++) products[r] += values[j] * inputs[j];
        }
        if (!inside) products[r] = 0.0f;
      }
      float sum = four_sums(products);
      row += lane_index() / 8;
      if (lane_index() % 8 == 0 && row < rows) sums[(first + row) * stride + piece] = sum;
    }
    item -= items;
    ring.release(entry);
  }
}

// The same of a segment in bf16 that comes in tiles, on tensor cores. The weights are the right operand, eight rows of them, and
// the three parts of the input three rows of the left one; what its other rows hold is of no concern. Both sides may have
// the columns in any order: a lane takes eight that follow one another.
__device__ inline void tile_sums(const Segment& segment, const ProductInput& input, float* sums, int& item) {
  Ring& ring = Ring::get();
  int stride = segment.pieces | 1, lane = lane_index();
  int of_weights = lane / 4 * tile_pitch(segment) + lane % 4 * 16;
  const u8* parts = reinterpret_cast<const u8*>(input.split.first + min(lane / 4, 2) * input.split.pitch) + lane % 4 * 16;
  sums += segment.sums;
  u32 entry = segment.entry;
#pragma unroll 1
  for (int first = 0; first < segment.rows; first += ring_tile_rows) {
#pragma unroll 1
    for (int piece = 0; piece < segment.pieces; piece += segment.tile_pieces, entry++) {
      int items = min((int)segment.tile_pieces, segment.pieces - piece);
      const u8* weights = ring.await(entry) + of_weights;
#pragma unroll 1
      for (; item < items; item += ring_warps) {
        const u8* left = parts + (piece + item) * piece_bytes;
        const u8* right = weights + item * piece_bytes;
        int depth = min(256, input.cols - (piece + item) * 256);
        float even[4] = {}, odd[4] = {};
#pragma unroll 4
        for (int k = 0; k < depth; k += 32) {
          uint4 x = *reinterpret_cast<const uint4*>(left + 2 * k), w = *reinterpret_cast<const uint4*>(right + 2 * k);
          u32 a[4] = {x.x, x.x, x.y, x.y}, b[2] = {w.x, w.y};
          multiply_add(even, a, b);
          u32 c[4] = {x.z, x.z, x.w, x.w}, d[2] = {w.z, w.w};
          multiply_add(odd, c, d);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float part = even[i] + odd[i];
          float sum = part + __shfl_down_sync(all_lanes, part, 4) + __shfl_down_sync(all_lanes, part, 8);
          int row = first + lane * 2 + i;
          if (lane < 4 && row < segment.rows) sums[row * stride + piece + item] = sum;
        }
      }
      item -= items;
      ring.release(entry);
    }
  }
}

template <int format = 0>
__device__ void sums_by_format(const Segment& segment, const ProductInput& input, float* sums, int& item) {
  if constexpr (format <= Q4_0) {
    if constexpr ((ring_formats >> format & 1) != 0) {
      if (segment.format == format) return segment_sums<format>(segment, input, sums, item);
    }
    sums_by_format<format + 1>(segment, input, sums, item);
  }
}

// The product of one row of a segment, by four lanes together.
__device__ inline float row_sum(const Segment& segment, const float* sums, int row) {
  const float* parts = sums + segment.sums + row * (segment.pieces | 1);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = lane_index() % 4; i < segment.pieces; i += 4) sum += parts[i];
  sum += __shfl_xor_sync(all_lanes, sum, 2);
  return sum + __shfl_xor_sync(all_lanes, sum, 1);
}

// The sum of squares of what each warp has of the input.
__device__ inline float* warp_squares() {
  __shared__ float squares[ring_warps];
  return squares;
}

// Makes the input of a product's phase: as it is, in 8 bits, and in bf16, each where there is room for it. The factor of an RMS
// norm is left to `product`, so that no warp waits for the others.
template <int cols, int kinds, int codes_at, int parts_at, int bytes>
__device__ void product_input(const Gather& gather) {
  u8* room = shared_memory<u8>();
  Share<cols, kinds> share;
  if constexpr ((kinds & LATE_NORM) != 0) {
    Share<cols, kinds> gain;
    gain.load(gather.step[0].weight);
    await_previous();
    share.load(gather.input.first);
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < share.count; k++) {
      squares += share.value[k] * share.value[k];
      share.value[k] *= gain.value[k];
    }
    squares = warp_sum(squares);
    if (lane_index() == 0) warp_squares()[warp_index()] = squares;
  } else {
    await_previous();
    share = gathered_row<cols, kinds>(gather, 0, reinterpret_cast<float*>(room));
  }
  if constexpr (codes_at > 0) share.store(reinterpret_cast<float*>(room));
  if constexpr (parts_at > codes_at) RoundedInput(room + codes_at, cols).store(share);
  if constexpr (bytes > parts_at) SplitInput(room + parts_at, cols).store(share);
}

// One row of a phase, which four lanes finish together: each holds what it will need besides the sums.
struct FinishedRow {
  const Segment* segment;
  int row;
  bool exists;
  // Of a row with a convolution, each lane's kept input and its weight; of one that is added to, what is there.
  float held;
  float weight;

  // Row number `index` of those of every `step`th segment.
  __device__ FinishedRow(const Segment* segments, int count, int step, int index) : held(0.0f), weight(0.0f) {
    int s = 0;
#pragma unroll 1
    while (s < count && index >= max(segments[s].rows, 0)) {
      index -= max(segments[s].rows, 0);
      s += step;
    }
    exists = s < count;
    segment = segments + (exists ? s : 0);
    row = exists ? index : 0;
  }

  __device__ float* place(const ProductEnd& end) const { return end.output.first + segment->column + row; }

  // The convolution that its value goes through, or null.
  __device__ const PrepareLane* convolution(const PrepareTasks* tasks) const {
    if (!exists || segment->task < 0 || segment->task >= most_lanes) return nullptr;
    return tasks->lane[segment->task].weight ? tasks->lane + segment->task : nullptr;
  }

  // This lane's tap of it: the last one's is the new value.
  __device__ static int tap(const PrepareLane& lane) { return lane.taps - 4 + lane_index() % 4; }

  // Asks for what it holds.
  __device__ void load(const ProductEnd& end, const PrepareTasks* tasks) {
    const PrepareLane* lane = convolution(tasks);
    if (lane && tap(*lane) >= 0) {
      int channels = lane->columns.width, at = tap(*lane) * channels + (int)(place(end) - lane->columns.first);
      weight = lane->weight[at];
      if (lane_index() % 4 < 3) held = lane->past[at];
    }
    if (end.kind == PRODUCT_ADD && exists && lane_index() % 4 == 0) held = *place(end);
  }

  // Finishes it, given its product in all four lanes. All lanes of a warp come here.
  __device__ void store(const ProductEnd& end, const PrepareTasks* tasks, float product) const {
    int j = lane_index() % 4;
    float part = weight * (j == 3 ? product : held);
    part += __shfl_xor_sync(all_lanes, part, 2);
    part += __shfl_xor_sync(all_lanes, part, 1);
    if (!exists) return;
    float value = end.kind == PRODUCT_ADD ? held + product : product;
    if (const PrepareLane* lane = convolution(tasks)) {
      int channels = lane->columns.width, channel = (int)(place(end) - lane->columns.first);
      value = part + (lane->bias ? lane->bias[channel] : 0.0f);
      int t = tap(*lane);
      if (t > 0) lane->past[(t - 1) * channels + channel] = j == 3 ? product : held;
    }
    if (j != 0) return;
    int task = segment->task;
    if (task >= most_lanes) {
      const PrepareGate& gate = tasks->gate[task - most_lanes];
      value = gate_value(gate, (int)(place(end) - gate.columns.first), value);
    } else if (task >= 0) {
#pragma unroll 1
      for (int m = 0; m < tasks->lane[task].maps; m++) value = activate(tasks->lane[task].at[m].function, value);
    }
    *place(end) = value;
  }
};

// A phase behind its input: this block's rows of matrices with a common input. Of a gated product, the first segment is the
// gate's and the second has the same rows. `tasks` are what rows go through before they are stored.
__device__ inline void product(const ProductEnd& end, const PrepareTasks* tasks, const Segment* segments, int count) {
  ProductInput input(end);
  float* sums = shared_memory<float>() + sums_at / 4;
  bool gated = end.kind == PRODUCT_GATED;
  int step = gated ? 2 : 1, first = warp_index() * 8 + lane_index() / 4;
  FinishedRow finished(segments, count, step, first);
  // It comes while the sums are made.
  finished.load(end, tasks);
  __syncthreads();
#pragma unroll 1
  for (int s = 0, item = warp_index(); s < count; s++) {
    if (ring_tiles && segments[s].tile_pieces > 0) {
      tile_sums(segments[s], input, sums, item);
    } else {
      sums_by_format(segments[s], input, sums, item);
    }
  }
  float factor = 1.0f;
  if (end.normed) {
    float squares = warp_sum(lane_index() < ring_warps ? warp_squares()[lane_index()] : 0.0f);
    factor = 1.0f / sqrtf(squares / end.cols + end.eps);
  }
  __syncthreads();
  // As long as any lane of the warp has a row.
#pragma unroll 1
  while (__any_sync(all_lanes, finished.exists)) {
    const Segment& segment = *finished.segment;
    float sum = factor * row_sum(segment, sums, finished.row);
    if (gated) sum = silu(sum) * factor * row_sum((&segment)[1], sums, finished.row);
    if (segment.bias) sum += segment.bias[finished.row];
    finished.store(end, tasks, sum);
    first += ring_warps * 8;
    finished = FinishedRow(segments, count, step, first);
    finished.load(end, tasks);
  }
}
