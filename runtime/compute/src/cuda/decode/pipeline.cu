// The weight pipeline: stages of shared memory in a ring. Producer warps fill them with tiles of the block's weights in the order of their
// use, as far ahead as there are free stages. They depend on no op, so that DRAM is never idle. Consumer warps multiply.
//
// A tile is a part of the columns of eight or sixteen rows, or all columns of several such row groups: their codes, then their scales.
// Rows are padded so that lanes that read two rows at once use all banks.
// `Segment` is in pipeline.rs.

static_assert(sizeof(Segment) == segment_bytes, "as pipeline.rs has it");

// The block's segments, where shared memory has room for them.
__device__ inline Segment* shared_segments() { return reinterpret_cast<Segment*>(cta_shared_memory() + segments_at); }

// The segments of this op.
__device__ inline const Segment* op_segments() {
  return (segments_bytes > 0 ? shared_segments() : cta().list) + this_op().segment;
}

// Rows of a row group, in bands of eight.
__device__ constexpr int bands_of_tile(int format) { return (sixteen_row_formats >> format & 1) + 1; }
__device__ constexpr int rows_of_group(int format) { return 8 * bands_of_tile(format); }
// Row groups of a tile of rows with this many units. A row of few units occupies some of the warps; the others multiply more
// rows.
__device__ constexpr int groups_of_tile(int units) {
  int groups = 1;
  while (groups < most_row_groups && 2 * groups * units <= step_units) groups *= 2;
  return groups;
}
__device__ inline int rows_of_tile(const Segment& segment) { return rows_of_group(segment.format) * segment.row_groups; }

// An mbarrier in shared memory. Its phases are counted modulo 2.
struct Mbarrier {
#ifdef WATERLINE_EMULATOR
  u16 count, missing, phase, unused;

  void init(int arrivals) { *this = {(u16)arrivals, (u16)arrivals, 0, 0}; }
  void arrive() {
    if (--missing == 0) missing = count, phase++;
  }
  void wait(u32 parity) {
    while ((phase & 1) == parity) emulator::yield(emulator::WAITING);
  }
  void spin(u32 parity) { wait(parity); }
#else
  u64 bits;

  __device__ void init(int arrivals) { mbarrier_init(&bits, arrivals); }
  __device__ void arrive() { mbarrier_arrive(&bits); }
  // Waits for the end of the phase of this parity.
  __device__ void wait(u32 parity) { mbarrier_wait(&bits, parity); }
  __device__ void spin(u32 parity) { mbarrier_spin(&bits, parity); }
#endif
};

static_assert(sizeof(Mbarrier) == 8, "as an mbarrier");

// Tile n lies in stage n % stage_count.
struct StageIndex {
  u32 stage;
  u32 round;

  __device__ explicit StageIndex(u32 tile) : stage(tile % stage_count), round(tile / stage_count) {}
  __device__ u8* bytes() const { return cta_shared_memory() + stages_at + stage * stage_bytes; }
};

struct Pipeline {
  Mbarrier full[stage_count];
  Mbarrier empty[stage_count];
  // Completes when the block's ops are finished; see `wait_until_finished`.
  Mbarrier finished, unused;

  __device__ static Pipeline& get() { return *reinterpret_cast<Pipeline*>(cta_shared_memory() + barriers_at); }

  // Called by one thread.
  __device__ void init() {
    finished.init(1);
    for (int i = 0; i < stage_count; i++) {
#if __CUDA_ARCH__ >= 900 || defined(WATERLINE_EMULATOR)
      full[i].init(1);
#else
      full[i].init(32);
#endif
      empty[i].init(all_lanes_release ? 32 * consumer_warps : consumer_warps);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  // Called by a producer warp: returns the memory of a stage once all consumers have released its previous tile.
  __device__ u8* producer_acquire(StageIndex at) {
    if (at.round > 0) empty[at.stage].wait(at.round - 1 & 1);
    return at.bytes();
  }

  // Waits for a tile.
  __device__ void wait_full(StageIndex at) { full[at.stage].wait(at.round & 1); }
};

static_assert(sizeof(Pipeline) == barrier_bytes, "as layout.rs has it");
static_assert(stages_at % 32 == 0 && stage_bytes % 32 == 0, "bulk copies to other addresses are slower");

// A consumer warp's place in the ring.
struct ConsumerState {
  u8* memory;
  u32 stage;
  // Parity of the round.
  u32 parity;
  u32 lane;

  __device__ explicit ConsumerState(StageIndex at)
      : memory(held_pointer(cta_shared_memory())), stage(at.stage), parity(at.round & 1), lane(in_register(lane_index())) {}
  __device__ Pipeline& pipeline() const { return *reinterpret_cast<Pipeline*>(memory + barriers_at); }

  // Waits for the tile and returns it.
  __device__ const u8* consumer_wait() const {
    pipeline().full[stage].spin(parity);
    return memory + stages_at + stage * stage_bytes;
  }
  // Called by all lanes, after the whole warp has read the tile.
  __device__ void consumer_release() const {
    if (all_lanes_release || lane == 0) pipeline().empty[stage].arrive();
  }
  __device__ void advance() {
    bool last = stage == stage_count - 1;
    stage = last ? 0 : stage + 1;
    parity ^= last;
  }
};

// Returns true in one lane of the warp; all lanes call it together. The compiler then generates code for a single lane: otherwise copies
// become a loop over the lanes, at 78 cycles per lane.
__device__ inline bool elect_one() {
#if __CUDA_ARCH__ >= 900
  u32 is;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
#else
  return lane_index() == 0;
#endif
}

// Copies of rows of `bytes` bytes, a multiple of 16.
struct RowCopies {
  const u8* from;
  u32 from_pitch;
  u32 to_pitch;
  u32 bytes;

  // Starts copying a row: called by one thread where bulk copies exist, else by a warp.
  __device__ void copy(u8* to, u32 row, Mbarrier& full) const {
    to += row * to_pitch;
    const u8* first = from + (u64)row * from_pitch;
#if defined(WATERLINE_EMULATOR)
    memcpy(to, first, bytes);
#elif __CUDA_ARCH__ >= 900
    // Weights are read once a token: they must not evict the rest of L2.
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(to)),
                 "l"(first), "r"(bytes), "r"(shared_address(&full)), "l"(policy)
                 : "memory");
#else
    for (u32 i = lane_index() * 16; i < bytes; i += 512) copy_async_once(to + i, first + i);
#endif
  }

  // Starts copying `rows` rows; the address arithmetic of `unrolled` of them overlaps.
  template <int unrolled>
  __device__ void copy_all(u8* to, u32 rows, Mbarrier& full) const {
#pragma unroll unrolled
    for (u32 row = 0; row < rows; row++) copy(to, row, full);
  }
};

// Limit of large tiles in flight while the op waits for its input; otherwise the limit is `tiles_in_flight`, from tuning.rs. Mailbox loads
// queue after these tiles in the SM's port. Small tiles are not limited. A producer warp waits only for tiles that it loaded itself:
// another warp's stage may be a full round ahead, and an mbarrier distinguishes only adjacent phases.
constexpr u32 tiles_in_flight_waiting = producer_warps;
static_assert(stage_count % producer_warps == 0 && stage_count > 0, "a stage belongs to one producer warp");

// Called by one warp: starts loading tile `number` of a segment into its stage.
__device__ inline void load_tile(const Segment& segment, int number) {
  int row_group = number / segment.tiles_per_row, part = number - row_group * segment.tiles_per_row, first = row_group * rows_of_tile(segment);
  u32 rows = min(rows_of_tile(segment), segment.rows - first);
  u32 code = part * segment.tile_code_bytes, scale = part * segment.tile_scale_bytes;
  RowCopies codes = {segment.codes + (u64)first * segment.code_row + code, segment.code_row, segment.code_pitch,
                min((u32)segment.tile_code_bytes, segment.code_row - code)};
  RowCopies scales = {segment.scales + (u64)first * segment.scale_row + scale, segment.scale_row, segment.scale_pitch,
                 min((u32)segment.tile_scale_bytes, segment.scale_row - scale)};
  u32 scale_rows = rows;
  if (segment.tile_scale_bytes == 0) scales.bytes = (rows * segment.scale_row + 15) & ~15u, scale_rows = 1;
  if (scales.bytes == 0) scale_rows = 0;

  Pipeline& pipeline = Pipeline::get();
  u32 tile = segment.tile + number;
  bool large = rows * codes.bytes > stage_bytes / 2;
  u32 most = is_waiting() ? tiles_in_flight_waiting : tiles_in_flight;
  if (large && tile >= most) pipeline.wait_full(StageIndex(tile - most));
  StageIndex at(tile);
  u8* to = pipeline.producer_acquire(at);
  u8* to_scales = to + rows_of_tile(segment) * segment.code_pitch;
  Mbarrier& full = pipeline.full[at.stage];
  __syncwarp();
#if __CUDA_ARCH__ >= 900 || defined(WATERLINE_EMULATOR)
  if (elect_one()) {
#ifndef WATERLINE_EMULATOR
    mbarrier_expect_bytes(&full.bits, rows * codes.bytes + scale_rows * scales.bytes);
#endif
    // Scales double the number of copies. Without scales, faster issue only delays mailbox loads: GDN 1.3B on an H200 takes 787 us per
    // token in BF16 with copies one by one and 810 us by fours; in Q4_0, with scales, 454 and 441.
    if (scale_rows > 0) {
      codes.copy_all<4>(to, rows, full);
      scales.copy_all<4>(to_scales, scale_rows, full);
    } else {
      codes.copy_all<1>(to, rows, full);
    }
#ifdef WATERLINE_EMULATOR
    full.arrive();
#endif
  }
#else
  codes.copy_all<1>(to, rows, full);
  scales.copy_all<1>(to_scales, scale_rows, full);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&full)) : "memory");
#endif
}

// Called by a producer warp: loads the warp's tiles of every segment of the list.
__device__ inline void stream_weights(const Segment* list) {
  // Counted from the segment's first tile.
  int tile = warp_index() - consumer_warps;
  for (; list->rows != 0; list++) {
    const Segment segment = *list;
    if (segment.rows < 0) continue;
    int rows = rows_of_tile(segment), tiles = (segment.rows + rows - 1) / rows * segment.tiles_per_row;
    for (; tile < tiles; tile += producer_warps) load_tile(segment, tile);
    tile -= tiles;
  }
}
