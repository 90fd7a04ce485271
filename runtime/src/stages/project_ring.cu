// Matrix products of a persistent program. Weights come through a ring in shared memory that every warp has for itself: it
// asks for those of later phases while it waits for the inputs of this one, so that the memory is never idle. A place of the
// ring holds one piece of two rows: 32 units, one for each lane. As many groups of copies as there are places are always
// under way, some of them empty at the end.

// Rows of one matrix that a block takes; fewer than none fill a list up, and none end it. A warp takes a part of its pieces, those of the same columns together, so that a
// lane reads its inputs once for many rows.
struct __align__(16) Segment {
  const u8* codes;
  const u8* scales;
  const float* bias;
  // Bytes from row to row.
  u32 code_row;
  u32 scale_row;
  int rows;
  int format;
  // The first row's column in the output.
  int column;
  // Where the sums of the pieces begin.
  int sums;
  int pad[4];
};

// How a format's piece lies in the ring: as a matrix of 32 units.
template <int format>
struct RingPiece {
  static constexpr int cols = 256 * Format<format, 256>::unit;
  static constexpr int codes = Format<format, cols>::row_bytes / 8;
  static constexpr int scales = Format<format, cols>::scale_row_bytes / 8;
  static constexpr int bytes = (codes + scales + 15) / 16 * 16;
};

template <int format = 0>
__device__ void piece_of(int wanted, int& codes, int& scales, int& bytes) {
  if constexpr (format <= Q4_0) {
    if (wanted != format) return piece_of<format + 1>(wanted, codes, scales, bytes);
    codes = RingPiece<format>::codes;
    scales = RingPiece<format>::scales;
    bytes = RingPiece<format>::bytes;
  }
}

// Numbers of pairs of rows and pieces that this warp takes of a segment.
struct WarpShare {
  int pairs, pieces, first, last;

  __device__ WarpShare(const Segment& segment, int piece_codes) {
    pairs = (segment.rows + 1) / 2;
    pieces = (segment.code_row + piece_codes - 1) / piece_codes;
    first = pairs * pieces * warp_index() / ring_warps;
    last = pairs * pieces * (warp_index() + 1) / ring_warps;
  }
};

// What a warp has asked for. Between products it lies in shared memory, since other phases need the registers.
struct __align__(16) Ring {
  // The rest of the segment that is being asked for: where its next piece lies and how its rows go on.
  const u8* codes;
  const u8* scales;
  u32 code_row;
  u32 scale_row;
  int rows;
  int format;
  // Pairs of rows, the next one, its piece, and how many pairs are left to this warp.
  int pairs;
  int pair;
  int piece;
  int left;
  // The place that is read and filled next.
  int place;
  // Of the segment after it each lane holds a word, read long before it is needed.
  const u32* next;

  __device__ static Ring& of_warp() { return reinterpret_cast<Ring*>(whole_shared_memory() + rings_at)[warp_index()]; }
};

static_assert(sizeof(Ring) == ring_bytes, "as the program was laid out");

// A ring in a warp's registers.
struct RingInUse {
  Ring ring;
  u32 upcoming;
  int codes, scales, bytes;

  __device__ RingInUse() : ring(Ring::of_warp()) {
    read_ahead();
    piece_of(ring.format, codes, scales, bytes);
  }

  __device__ void keep() const {
    __syncwarp();
    if (lane_index() == 0) Ring::of_warp() = ring;
  }

  __device__ u8* at(int place) const {
    return whole_shared_memory() + ring_at + (warp_index() * ring_places + place) * place_bytes;
  }

  __device__ void read_ahead() { upcoming = lane_index() < sizeof(Segment) / 4 ? ring.next[lane_index()] : 0; }

  // Goes on to the next segment of which this warp takes anything.
  __device__ void open() {
    while (ring.left == 0 && ring.rows != 0) {
      u32 words[sizeof(Segment) / 4];
#pragma unroll
      for (int i = 0; i < sizeof(Segment) / 4; i++) words[i] = __shfl_sync(all_lanes, upcoming, i);
      Segment segment;
      memcpy(&segment, words, sizeof(Segment));
      ring.rows = segment.rows;
      if (ring.rows == 0) return;
      ring.next += sizeof(Segment) / 4;
      read_ahead();
      if (ring.rows < 0) continue;
      ring.format = segment.format;
      piece_of(ring.format, codes, scales, bytes);
      WarpShare share(segment, codes);
      ring.pairs = share.pairs;
      ring.left = share.last - share.first;
      ring.piece = share.first / share.pairs;
      ring.pair = share.first % share.pairs;
      ring.codes = segment.codes;
      ring.scales = segment.scales;
      ring.code_row = segment.code_row;
      ring.scale_row = segment.scale_row;
    }
  }

  // Begins to copy the next pair of rows' piece into the place that was read last, and ends a group of copies.
  __device__ void ask() {
    open();
    if (ring.left > 0) {
      u8* to = at(ring.place);
      int code_count = min(codes, (int)ring.code_row - ring.piece * codes);
      int scale_count = min(scales, (int)ring.scale_row - ring.piece * scales);
      for (int row = 2 * ring.pair; row < min(2 * ring.pair + 2, ring.rows); row++) {
        const u8* from = ring.codes + (long long)row * ring.code_row + ring.piece * codes;
        for (int i = lane_index() * 16; i < code_count; i += 512) copy_async<16>(to + i, from + i);
        from = ring.scales + (long long)row * ring.scale_row + ring.piece * scales;
        if (lane_index() * 4 < scale_count) copy_async<4>(to + codes + lane_index() * 4, from + lane_index() * 4);
        to += bytes;
      }
      ring.left--;
      if (++ring.pair == ring.pairs) {
        ring.pair = 0;
        ring.piece++;
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
    Ring& ring = Ring::of_warp();
    ring.rows = -1;
    ring.format = ring.left = ring.place = 0;
    ring.next = reinterpret_cast<const u32*>(list);
  }
  __syncwarp();
  RingInUse ring;
  for (int i = 0; i < ring_places; i++) ring.ask();
  ring.keep();
}

// Inputs in 8 bits: codes, four in a word, then a scale and a sum for each 32.
struct RoundedInput {
  int* packed;
  float* scales;
  int* sums;

  __device__ RoundedInput(float* after, int cols)
      : packed(reinterpret_cast<int*>(after)),
        scales(reinterpret_cast<float*>(packed + cols / 4)),
        sums(reinterpret_cast<int*>(scales + cols / 32)) {}

  // Eight lanes for each 32 inputs.
  __device__ void load(const float* x, int cols) {
    for (int four = warp_index() * 32 + lane_index(); four < (cols / 4 + 31) / 32 * 32; four += gather_threads) {
      float4 values = {0.0f, 0.0f, 0.0f, 0.0f};
      if (four < cols / 4) values = reinterpret_cast<const float4*>(x)[four];
      float largest = fmaxf(fmaxf(fabsf(values.x), fabsf(values.y)), fmaxf(fabsf(values.z), fabsf(values.w)));
      for (int distance = 4; distance > 0; distance /= 2) {
        largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, distance));
      }
      float scale = largest / 127.0f;
      float value[4] = {values.x, values.y, values.z, values.w};
      u32 word = 0;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        word |= (__float2int_rn(scale > 0.0f ? value[i] / scale : 0.0f) & 255) << 8 * i;
      }
      int sum = __dp4a(0x01010101, (int)word, 0);
      for (int distance = 4; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
      if (four >= cols / 4) continue;
      packed[four] = (int)word;
      if (lane_index() % 8 == 0) {
        scales[four / 8] = scale;
        sums[four / 8] = sum;
      }
    }
  }

  __device__ Codes unit(int index) const {
    Codes codes;
#pragma unroll
    for (int i = 0; i < 8; i++) codes.packed[i] = packed[index * 8 + i];
    codes.scale = scales[index];
    codes.sum = sums[index];
    return codes;
  }
};

// The sums over a segment's columns, one for each row and piece.
template <int format>
__device__ void segment_sums(const Segment& segment, RingInUse& ring, const float* x, const RoundedInput& rounded, int cols,
                             float* sums) {
  using Weights = Format<format, RingPiece<format>::cols>;
  if (segment.rows < 0) return;
  WarpShare share(segment, RingPiece<format>::codes);
  int units = cols / Weights::unit, stride = share.pieces | 1;
  int piece = share.first / share.pairs, pair = share.first % share.pairs;
  for (int i = share.first; i < share.last; piece++, pair = 0) {
    int unit = piece * 32 + lane_index();
    bool inside = unit < units;
    Codes codes;
    float inputs[Weights::integer ? 1 : Weights::unit];
    if constexpr (Weights::integer) {
      codes = rounded.unit(inside ? unit : 0);
    } else {
#pragma unroll
      for (int j = 0; j < Weights::unit; j++) inputs[j] = inside ? x[unit * Weights::unit + j] : 0.0f;
    }
    for (int end = min(share.last, (piece + 1) * share.pairs); i < end; i++, pair++) {
      const u8* rows = ring.take();
      float products[2] = {};
#pragma unroll
      for (int r = 0; r < 2; r++) {
        const u8* row = rows + r * RingPiece<format>::bytes;
        if constexpr (Weights::integer) {
          if (inside) products[r] = Weights::dot(row, 32, lane_index(), codes);
        } else {
          float values[Weights::unit];
          Weights::values(row, 32, lane_index(), values);
#pragma unroll
          for (int j = 0; j < Weights::unit; j++) products[r] += values[j] * inputs[j];
          if (!inside) products[r] = 0.0f;
        }
      }
      // Both sums in one tree: the first row's in the lower half of the warp, the second's in the upper.
      bool upper = lane_index() >= 16;
      float sum = upper ? products[1] : products[0];
      sum += __shfl_xor_sync(all_lanes, upper ? products[0] : products[1], 16);
#pragma unroll
      for (int distance = 8; distance > 0; distance /= 2) sum += __shfl_xor_sync(all_lanes, sum, distance);
      int row = 2 * pair + upper;
      if (lane_index() % 16 == 0 && row < segment.rows) sums[segment.sums + row * stride + piece] = sum;
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
  // Whether a format wants the input in 8 bits.
  int rounded;
  int pad;
};

// The product of one row of a segment.
__device__ inline float row_sum(const Segment& segment, const float* sums, int row) {
  int codes = 1, scales, bytes;
  piece_of(segment.format, codes, scales, bytes);
  int pieces = (segment.code_row + codes - 1) / codes;
  const float* parts = sums + segment.sums + row * (pieces | 1);
  float sum = segment.bias ? segment.bias[row] : 0.0f;
  for (int i = 0; i < pieces; i++) sum += parts[i];
  return sum;
}

// Makes the input of a product's phase.
template <int cols>
__device__ void product_input(const Gather& gather) {
  await_previous();
  gather_row<cols>(gather, 0, shared_memory<float>());
}

// A phase behind its input: this block's rows of matrices with a common input. Of a gated product, the first segment is the
// gate's and the second has the same rows.
__device__ inline void product(const ProductEnd& end, const Segment* segments, int count) {
  float* x = shared_memory<float>();
  float* sums = x + sums_at / 4;
  RoundedInput rounded(x + (end.cols + 31) / 32 * 32, end.cols);
  RingInUse ring;
  __syncthreads();
  if (end.rounded) {
    rounded.load(x, end.cols);
    __syncthreads();
  }
  for (int s = 0; s < count; s++) sums_by_format(segments[s], ring, x, rounded, end.cols, sums);
  ring.keep();
  __syncthreads();
  if (end.kind == PRODUCT_GATED) {
    for (int row = threadIdx.x; row < segments[0].rows; row += gather_threads) {
      float gate = row_sum(segments[0], sums, row);
      end.output.first[segments[0].column + row] = silu(gate) * row_sum(segments[1], sums, row);
    }
    return;
  }
  for (int s = 0; s < count; s++) {
    for (int row = threadIdx.x; row < segments[s].rows; row += gather_threads) {
      float sum = row_sum(segments[s], sums, row);
      float* place = end.output.first + segments[s].column + row;
      *place = end.kind == PRODUCT_ADD ? *place + sum : sum;
    }
  }
}
