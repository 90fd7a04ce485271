// Matrix products of a persistent program. Weights come through a ring in shared memory that every warp has for itself: it
// asks for those of later phases while it waits for the inputs of this one, so that the memory is never idle. A place of the
// ring holds one piece of a group of rows: 32 units of each, one for each lane. As many groups of copies as there are places are
// always under way, some of them empty at the end.

// Rows of a group: fewer of formats with large pieces.
constexpr int most_rows = 4;

// Rows of one matrix that a block takes; fewer than none fill a list up, and none end it. A warp takes a part of its pieces,
// those of the same columns together, so that a lane reads its inputs once for many rows.
struct __align__(16) Segment {
  const u8* codes;
  const u8* scales;
  const float* bias;
  // Bytes from row to row.
  u32 code_row;
  u32 scale_row;
  int rows;
  u16 format;
  u16 group_rows;
  // The first row's column in the output.
  int column;
  // Where the sums of the pieces begin.
  int sums;
  // Pieces of a row, and bytes of one.
  int pieces;
  int piece_codes;
  int piece_scales;
  // One divided by the number of groups of rows.
  float per_group;
};

static_assert(sizeof(Segment) == segment_bytes, "as the program was laid out");

// How a format's piece lies in the ring: as a matrix of 32 units.
template <int format>
struct RingPiece {
  static constexpr int cols = 256 * Format<format, 256>::unit;
  static constexpr int codes = Format<format, cols>::row_bytes / 8;
  static constexpr int scales = Format<format, cols>::scale_row_bytes / 8;
  static constexpr int bytes = (codes + scales + 15) / 16 * 16;
  static constexpr int rows = place_bytes / bytes < most_rows ? place_bytes / bytes : most_rows;
};

// The most 512 bytes that a piece of these formats has.
template <int formats, int format = 0>
__device__ constexpr int most_chunks() {
  if constexpr (format > Q4_0) {
    return 1;
  } else {
    constexpr int others = most_chunks<formats, format + 1>();
    constexpr int chunks = (formats >> format & 1) != 0 ? (RingPiece<format>::codes + 511) / 512 : 1;
    return chunks > others ? chunks : others;
  }
}

// Whether any of the formats has scales that stand apart.
constexpr bool ring_scales = (ring_formats & (1 << Q8_0 | 1 << Q6_K | 1 << Q4_0)) != 0;

// Groups of rows and pieces that this warp takes of a segment.
struct WarpShare {
  int groups, first, last;
  // Where it begins.
  int piece, group;

  __device__ WarpShare(const Segment& segment) {
    // One to four rows: a division costs more.
    int shift = segment.group_rows / 2;
    groups = segment.group_rows == 3 ? (segment.rows + 2) / 3 : (segment.rows + segment.group_rows - 1) >> shift;
    u32 all = groups * segment.pieces;
    first = all * warp_index() / ring_warps;
    last = all * (warp_index() + 1) / ring_warps;
    // The numbers are small, so that half a unit keeps the quotient exact.
    piece = (int)((first + 0.5f) * segment.per_group);
    group = first - piece * groups;
  }
};

// What a warp has asked for. Between products it lies in shared memory, since other phases need the registers.
struct __align__(16) Ring {
  // The segment that is being asked for.
  const u8* codes;
  const u8* scales;
  u32 code_row;
  u32 scale_row;
  int rows;
  int piece_codes;
  int piece_scales;
  // The next group of its rows, the piece, and how many are left to this warp.
  int group_rows;
  int groups;
  int group;
  int piece;
  int left;
  // The place that is read and filled next.
  int place;
  // The segment after it.
  const Segment* next;

  __device__ static Ring& of_warp() { return reinterpret_cast<Ring*>(whole_shared_memory() + rings_at)[warp_index()]; }
};

static_assert(sizeof(Ring) == ring_bytes, "as the program was laid out");

// A ring in a warp's registers.
struct RingInUse {
  static constexpr int chunks = most_chunks<ring_formats>();

  Ring ring;
  // What this lane copies of the next group's first row, and whether it copies anything.
  const u8* from;
  const u8* scales_from;
  bool copies[chunks];
  bool copies_scales;

  __device__ RingInUse() : ring(Ring::of_warp()) { locate(); }

  __device__ void keep() const {
    __syncwarp();
    if (lane_index() == 0) Ring::of_warp() = ring;
  }

  __device__ u8* at(int place) const {
    return whole_shared_memory() + ring_at + (warp_index() * ring_places + place) * place_bytes;
  }

  __device__ void locate() {
    u32 code = ring.piece * ring.piece_codes, scale = ring.piece * ring.piece_scales;
    // A block's part of a matrix is smaller than 4 GiB.
    u32 row = ring.group_rows * ring.group;
    from = ring.codes + (row * ring.code_row + code + lane_index() * 16);
    scales_from = ring.scales + (row * ring.scale_row + scale + lane_index() * 4);
#pragma unroll
    for (int c = 0; c < chunks; c++) {
      copies[c] = c * 512 + lane_index() * 16 < min(ring.piece_codes, (int)(ring.code_row - code));
    }
    copies_scales = lane_index() * 4 < min(ring.piece_scales, (int)(ring.scale_row - scale));
  }

  // Goes on to the next segment of which this warp takes anything.
  __device__ void open() {
    while (ring.left == 0 && ring.rows != 0) {
      const Segment& segment = *ring.next;
      ring.rows = segment.rows;
      if (ring.rows == 0) return;
      ring.next++;
      if (ring.rows < 0) continue;
      WarpShare share(segment);
      ring.group_rows = segment.group_rows;
      ring.groups = share.groups;
      ring.left = share.last - share.first;
      ring.piece = share.piece;
      ring.group = share.group;
      ring.codes = segment.codes;
      ring.scales = segment.scales;
      ring.code_row = segment.code_row;
      ring.scale_row = segment.scale_row;
      ring.piece_codes = segment.piece_codes;
      ring.piece_scales = segment.piece_scales;
      locate();
    }
  }

  // Begins to copy the next group's piece into the place that was read last, and ends a group of copies.
  __device__ void ask() {
    if (ring.left == 0) open();
    if (ring.left > 0) {
      u8* to = at(ring.place) + lane_index() * 16;
      u8* scales_to = at(ring.place) + ring.piece_codes + lane_index() * 4;
      int bytes = (ring.piece_codes + ring.piece_scales + 15) & ~15;
      int rows = min(ring.group_rows, ring.rows - ring.group_rows * ring.group);
#pragma unroll
      for (int r = 0; r < most_rows; r++) {
#pragma unroll
        for (int c = 0; c < chunks; c++) {
          if (r < rows && copies[c]) copy_async_once(to + r * bytes + c * 512, from + c * 512);
        }
        if (r < ring.group_rows) from += ring.code_row;
        if constexpr (ring_scales) {
          if (r < rows && copies_scales) copy_async<4>(scales_to + r * bytes, scales_from);
          if (r < ring.group_rows) scales_from += ring.scale_row;
        }
      }
      ring.left--;
      if (++ring.group == ring.groups) {
        ring.group = 0;
        ring.piece++;
        locate();
      }
    }
    commit_copies();
    ring.place = ring.place + 1 == ring_places ? 0 : ring.place + 1;
  }

  // The oldest place, once its copies have come.
  __device__ const u8* take() const {
    wait_for_copies<ring_places - 1>();
    __syncwarp();
    return at(ring.place);
  }
};

// Asks for the first segments of a list.
__device__ void fill_ring(const Segment* list) {
  if (lane_index() == 0) {
    Ring none = {};
    none.rows = -1;
    none.next = list;
    Ring::of_warp() = none;
  }
  __syncwarp();
  RingInUse ring;
  for (int i = 0; i < ring_places; i++) ring.ask();
  ring.keep();
}

// Inputs in 8 bits: of each 32 the first sixteen codes, behind all of these the other sixteen; then a scale and a sum for each.
struct RoundedInput {
  u8* codes;
  float* scales;
  int* sums;
  int units;

  __device__ RoundedInput(float* after, int cols)
      : codes(reinterpret_cast<u8*>(after)),
        scales(reinterpret_cast<float*>(codes + cols)),
        sums(reinterpret_cast<int*>(scales + cols / 32)),
        units(cols / 32) {}

  // What each warp holds of a row: 32 numbers that follow one another for each value of a share.
  template <int cols>
  __device__ void store(const Share<cols>& share) const {
#pragma unroll
    for (int k = 0; k < Share<cols>::count; k++) {
      int unit = k * ring_warps + warp_index();
      if (unit >= units) return;
      float largest = warp_max_of_positive(fabsf(share.value[k]));
      int code = __float2int_rn(largest > 0.0f ? share.value[k] * (127.0f / largest) : 0.0f);
      int sum = warp_sum(code), lane = lane_index();
      codes[(lane / 16 * units + unit) * 16 + lane % 16] = (u8)code;
      if (lane == 0) {
        scales[unit] = largest / 127.0f;
        sums[unit] = sum;
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

// The sums over a segment's columns, one for each row and piece.
template <int format>
__device__ void segment_sums(const Segment& segment, RingInUse& ring, const float* x, const RoundedInput& rounded, int cols,
                             float* sums) {
  using Weights = Format<format, RingPiece<format>::cols>;
  int rows = segment.rows, stride = segment.pieces | 1;
  if (rows < 0) return;
  WarpShare share(segment);
  int units = cols / Weights::unit, piece = share.piece, group = share.group;
  sums += segment.sums + lane_index() / 8 * stride;
  for (int i = share.first; i < share.last; piece++, group = 0) {
    int unit = piece * 32 + lane_index();
    bool inside = unit < units;
    Codes codes;
    float inputs[Weights::integer ? 1 : Weights::unit];
    if constexpr (Weights::integer) {
      codes = rounded.unit(inside ? unit : 0);
    } else {
#pragma unroll
      for (int j = 0; j < Weights::unit; j += 4) {
        float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
        if (inside) four = *reinterpret_cast<const float4*>(x + unit * Weights::unit + j);
        inputs[j] = four.x, inputs[j + 1] = four.y, inputs[j + 2] = four.z, inputs[j + 3] = four.w;
      }
    }
    for (int end = min(share.last, (piece + 1) * share.groups); i < end; i++, group++) {
      const u8* place = ring.take();
      float products[most_rows] = {};
#pragma unroll
      for (int r = 0; r < RingPiece<format>::rows; r++) {
        const u8* row = place + r * RingPiece<format>::bytes;
        if constexpr (Weights::integer) {
          products[r] = Weights::dot(row, 32, lane_index(), codes);
        } else {
          float values[Weights::unit];
          Weights::values(row, 32, lane_index(), values);
#pragma unroll
          for (int j = 0; j < Weights::unit; j++) products[r] += values[j] * inputs[j];
        }
        // What lies beyond the row's end may be anything.
        if (!inside) products[r] = 0.0f;
      }
      float sum = four_sums(products);
      int row = RingPiece<format>::rows * group;
      bool writes = lane_index() % 8 == 0 && lane_index() / 8 < RingPiece<format>::rows;
      if (writes && row + lane_index() / 8 < rows) sums[row * stride + piece] = sum;
      // Every lane has read the place.
      __syncwarp();
      ring.ask();
    }
  }
}

template <int format = 0>
__device__ void sums_by_format(const Segment& segment, RingInUse& ring, const float* x, const RoundedInput& rounded,
                               int cols, float* sums) {
  if constexpr (format <= Q4_0) {
    if constexpr ((ring_formats >> format & 1) != 0) {
      if (segment.format == format) return segment_sums<format>(segment, ring, x, rounded, cols, sums);
    }
    sums_by_format<format + 1>(segment, ring, x, rounded, cols, sums);
  }
}

// In the order of `Kind` in products.rs.
enum { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_GATED };

// What becomes of a product.
struct ProductEnd {
  Rows output;
  int kind;
  int cols;
};

// The product of one row of a segment, by four lanes together.
__device__ inline float row_sum(const Segment& segment, const float* sums, int row) {
  const float* parts = sums + segment.sums + row * (segment.pieces | 1);
  float sum = 0.0f;
#pragma unroll 1
  for (int i = lane_index() % 4; i < segment.pieces; i += 4) sum += parts[i];
  sum += __shfl_xor_sync(all_lanes, sum, 2);
  return sum + __shfl_xor_sync(all_lanes, sum, 1);
}

// Makes the input of a product's phase; `rounds` if a format wants it in 8 bits.
template <int cols, int kinds, bool rounds>
__device__ void product_input(const Gather& gather) {
  float* x = shared_memory<float>();
  await_previous();
  Share<cols> share = gathered_row<cols, kinds>(gather, 0, x);
  share.store(x);
  if constexpr (rounds) RoundedInput(x + (cols + 31) / 32 * 32, cols).store(share);
}

// A phase behind its input: this block's rows of matrices with a common input. Of a gated product, the first segment is the
// gate's and the second has the same rows.
__device__ inline void product(const ProductEnd& end, const Segment* segments, int count) {
  float* x = shared_memory<float>();
  float* sums = x + sums_at / 4;
  RoundedInput rounded(x + (end.cols + 31) / 32 * 32, end.cols);
  RingInUse ring;
  bool gated = end.kind == PRODUCT_GATED;
  bool adds = end.kind == PRODUCT_ADD && lane_index() % 4 == 0;
  // What is added to is read while the sums are made.
  int first_row = warp_index() * 8 + lane_index() / 4;
  float held = adds && first_row < segments[0].rows ? end.output.first[segments[0].column + first_row] : 0.0f;
  __syncthreads();
#pragma unroll 1
  for (int s = 0; s < count; s++) sums_by_format(segments[s], ring, x, rounded, end.cols, sums);
  ring.keep();
  __syncthreads();
#pragma unroll 1
  for (int s = 0; s < count; s += gated ? 2 : 1) {
    const Segment& segment = segments[s];
    float* output = end.output.first + segment.column;
    // All lanes of a warp go on as long as one of them has a row.
#pragma unroll 1
    for (int first = warp_index() * 8; first < segment.rows; first += ring_warps * 8) {
      int row = first + lane_index() / 4;
      bool writes = row < segment.rows && lane_index() % 4 == 0;
      row = min(row, segment.rows - 1);
      float before = s == 0 && row == first_row ? held : adds && writes ? output[row] : 0.0f;
      float sum = row_sum(segment, sums, row);
      if (gated) sum = silu(sum) * row_sum(segments[s + 1], sums, row);
      if (segment.bias) sum += segment.bias[row];
      if (writes) output[row] = before + sum;
    }
  }
}
