// The weights of a persistent program. Some warps of a block, the copiers, bring the weights of the block's segments into shared
// memory in the order of their use, as far ahead as there is room: they wait for no phase, so that the memory is never idle.
// An entry of the ring is some whole rows of a segment: their codes, then their scales, as a matrix lies on the device. What tensor
// cores multiply comes in tiles instead: a part of the columns of eight rows, so many bytes apart that they lie in other banks.

// Rows of one matrix that a block takes; fewer than none fill a list up, and none end it.
struct __align__(16) Segment {
  const u8* codes;
  const u8* scales;
  const float* bias;
  // Bytes from row to row.
  u32 code_row;
  u32 scale_row;
  int rows;
  // The first row's column in the output.
  int column;
  // Where the sums of the pieces begin.
  int sums;
  // The number of its first entry, and rows of one.
  u32 entry;
  u16 entry_rows;
  u16 format;
  // 32 units of a row are a piece: how many, how many of a tile or 0 for whole rows, and one divided by the pieces.
  u16 pieces;
  u16 tile_pieces;
  float per_piece;
  // The task that its rows go through before they are stored, or less than none.
  int task;
};

static_assert(sizeof(Segment) == segment_bytes, "as the program was laid out");

// Bytes from row to row of a tile.
__device__ inline u32 tile_pitch(const Segment& segment) { return segment.tile_pieces * piece_bytes + tile_gap; }

// A barrier in shared memory that some threads arrive at and others wait for; it has a phase, counted modulo 2.
struct Signal {
#ifdef WATERLINE_EMULATOR
  u16 count, missing, phase, unused;

  void init(int arrivals) { *this = {(u16)arrivals, (u16)arrivals, 0, 0}; }
  void arrive() {
    if (--missing == 0) missing = count, phase++;
  }
  void wait(u32 parity) {
    while ((phase & 1) == parity) emulator::yield(emulator::WAITING);
  }
#else
  u64 bits;

  __device__ void init(int arrivals) { begin_barrier(&bits, arrivals); }
  __device__ void arrive() { ::arrive(&bits); }
  // Returns when the phase of this parity is over.
  __device__ void wait(u32 parity) { wait_for_phase(&bits, parity); }
#endif
};

static_assert(sizeof(Signal) == 8, "as a barrier in shared memory");

// Entry number n stands in slot n modulo `ring_slots`.
struct Ring {
  Signal full[ring_slots];
  Signal empty[ring_slots];

  __device__ static Ring& get() { return *reinterpret_cast<Ring*>(whole_shared_memory() + slots_at); }

  // By one thread.
  __device__ void init() {
    for (int i = 0; i < ring_slots; i++) {
#if __CUDA_ARCH__ >= 900 || defined(WATERLINE_EMULATOR)
      full[i].init(1);
#else
      full[i].init(32);
#endif
      empty[i].init(ring_warps);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  __device__ static u8* place(u32 entry) { return whole_shared_memory() + ring_at + entry % ring_slots * slot_bytes; }

  // By a copier: the place of an entry, once the one before it there has been read.
  __device__ u8* claim(u32 entry) {
    if (entry >= ring_slots) empty[entry % ring_slots].wait(entry / ring_slots - 1 & 1);
    return place(entry);
  }

  // The entry, once it has come.
  __device__ const u8* await(u32 entry) {
    full[entry % ring_slots].wait(entry / ring_slots & 1);
    return place(entry);
  }

  // By a whole warp: it has read the entry.
  __device__ void release(u32 entry) {
    __syncwarp();
    if (lane_index() == 0) empty[entry % ring_slots].arrive();
  }
};

static_assert(sizeof(Ring) == slots_bytes, "as the program was laid out");

// Bytes to copy: `count` runs of `bytes`, a multiple of 16, so far apart.
struct Runs {
  const u8* from;
  u64 from_pitch;
  u32 to_pitch;
  u32 bytes;
  u32 count;

  // Begins to copy them, by one warp.
  __device__ void copy(u8* to, Signal& full) const {
#if defined(WATERLINE_EMULATOR)
    if (lane_index() < count) memcpy(to + lane_index() * to_pitch, from + lane_index() * from_pitch, bytes);
#elif __CUDA_ARCH__ >= 900
    if (lane_index() >= count) return;
    // Nobody else will want them: what else is in the second cache shall stay.
    u64 policy;
    asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], [%1], %2, [%3], %4;" ::"r"(
                     shared_address(to + lane_index() * to_pitch)),
                 "l"(from + lane_index() * from_pitch), "r"(bytes), "r"(shared_address(&full)), "l"(policy)
                 : "memory");
#else
    for (u32 run = 0; run < count; run++) {
      for (u32 i = lane_index() * 16; i < bytes; i += 512) {
        copy_async_once(to + run * to_pitch + i, from + run * from_pitch + i);
      }
    }
#endif
  }
};

// By one warp: begins to copy an entry to its place, codes, then scales, if there are any.
__device__ inline void bring_entry(u32 entry, const Runs& codes, const Runs& scales) {
  Ring& ring = Ring::get();
  u8* to = ring.claim(entry);
  Signal& full = ring.full[entry % ring_slots];
  __syncwarp();
#if __CUDA_ARCH__ >= 900
  if (lane_index() == 0) expect_bytes(&full.bits, codes.count * codes.bytes + scales.bytes);
  __syncwarp();
#endif
  codes.copy(to, full);
  if (scales.bytes > 0) scales.copy(to + codes.bytes, full);
#if defined(WATERLINE_EMULATOR)
  __syncwarp();
  if (lane_index() == 0) full.arrive();
#elif __CUDA_ARCH__ < 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(shared_address(&full)) : "memory");
#endif
}

// What a copier does: brings its entries of every segment of the list.
__device__ inline void bring_weights(const Segment* list) {
  // The entry, counted from the segment's first one.
  int entry = warp_index() - ring_warps;
  for (; list->rows != 0; list++) {
    const Segment segment = *list;
    if (segment.rows < 0) continue;
    int tiles = segment.tile_pieces > 0 ? (segment.pieces + segment.tile_pieces - 1) / segment.tile_pieces : 1;
    u32 tile_bytes = segment.tile_pieces * piece_bytes;
    int entries = (segment.rows + segment.entry_rows - 1) / segment.entry_rows * tiles;
    for (; entry < entries; entry += copiers) {
      int first = entry / tiles * segment.entry_rows;
      u32 rows = min((int)segment.entry_rows, segment.rows - first);
      const u8* codes = segment.codes + (u64)first * segment.code_row;
      if (tile_bytes == 0) {
        u32 scales = (rows * segment.scale_row + 15) & ~15u;
        bring_entry(segment.entry + entry, {codes, 0, 0, rows * segment.code_row, 1},
                    {segment.scales + (u64)first * segment.scale_row, 0, 0, scales, 1});
      } else {
        u32 at = entry % tiles * tile_bytes, bytes = min((int)tile_bytes, (int)(segment.code_row - at));
        bring_entry(segment.entry + entry, {codes + at, segment.code_row, tile_pitch(segment), bytes, rows},
                    {nullptr, 0, 0, 0, 0});
      }
    }
    entry -= entries;
  }
}
