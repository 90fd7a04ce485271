// The weights of a persistent program. Some warps of a block, the copiers, bring the weights of the block's segments into shared
// memory in the order of their use, as far ahead as there is room: they wait for no phase, so that the memory is never idle.
// An entry of the ring is a tile: a part of the columns of eight or sixteen rows, their codes, then their scales. Its rows begin in
// other banks, so that lanes which read two of them at once meet all banks.

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
  // The number of its first entry.
  u32 entry;
  // Multiplies its rows' products.
  float multiplier;
  // Bytes of an entry's row, and from row to row in shared memory: of codes, and of scales. Where scales cannot be copied row by
  // row, their part is 0, and every entry has those of whole rows as they lie.
  u16 code_part;
  u16 code_pitch;
  u16 scale_part;
  u16 scale_pitch;
  u16 format;
  // Entries that the rows of one take.
  u16 parts;
  // Where the sums of its rows begin.
  u16 sums;
  // The task that its rows go through before they are stored, or less than none.
  i8 task;
  // Whether the rows before it are finished before its sums are made.
  i8 begins;
};

static_assert(sizeof(Segment) == segment_bytes, "as the program was laid out");

// The list of the block's segments, where shared memory has room for it.
__device__ inline Segment* listed_segments() { return reinterpret_cast<Segment*>(whole_shared_memory() + list_at); }

// This phase's.
__device__ inline const Segment* these_segments() {
  return (list_bytes > 0 ? listed_segments() : turn().list) + this_phase().segment;
}

// Rows of an entry, in bands of eight.
__device__ constexpr int bands_of_entry(int format) { return (double_entries >> format & 1) + 1; }
__device__ constexpr int rows_of_entry(int format) { return 8 * bands_of_entry(format); }

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
struct RingPlace {
  u32 slot;
  u32 round;

  __device__ explicit RingPlace(u32 entry) : slot(entry % ring_slots), round(entry / ring_slots) {}
  __device__ u8* bytes() const { return whole_shared_memory() + ring_at + slot * slot_bytes; }
};

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
      empty[i].init(all_lanes_release ? 32 * ring_warps : ring_warps);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  // By a copier: the place of an entry, once the one before it there has been read.
  __device__ u8* claim(RingPlace place) {
    if (place.round > 0) empty[place.slot].wait(place.round - 1 & 1);
    return place.bytes();
  }

  // Returns when an entry has come.
  __device__ void await(RingPlace place) { full[place.slot].wait(place.round & 1); }
};

static_assert(sizeof(Ring) == slots_bytes, "as the program was laid out");
static_assert(ring_at % 32 == 0 && slot_bytes % 32 == 0, "bulk copies to other places take longer");

// Where a warp reads.
struct Reader {
  u8* memory;
  u32 slot;
  // Of the number of times that the ring was gone round.
  u32 parity;

  __device__ explicit Reader(RingPlace place) : memory(whole_shared_memory()), slot(place.slot), parity(place.round & 1) {
#ifndef WATERLINE_EMULATOR
    // The compiler would else make this address anew for every entry, from a register that takes long to read.
    u32 address = shared_address(memory);
    asm volatile("mov.u32 %0, %0;" : "+r"(address));
    memory = static_cast<u8*>(__cvta_shared_to_generic(address));
#endif
  }
  __device__ Ring& ring() const { return *reinterpret_cast<Ring*>(memory + slots_at); }

  // The entry, once it has come.
  __device__ const u8* await() const {
    ring().full[slot].wait(parity);
    return memory + ring_at + slot * slot_bytes;
  }
  // By all lanes, when the whole warp has read the entry.
  __device__ void release() const {
    if (all_lanes_release || lane_index() == 0) ring().empty[slot].arrive();
  }
  __device__ void advance() {
    bool last = slot == ring_slots - 1;
    slot = last ? 0 : slot + 1;
    parity ^= last;
  }
};

// Whether this lane is the one of its warp that copies; all lanes come here together. The compiler knows that there is one: where
// several lanes may copy, each copy takes a turn of a loop over them, 78 cycles.
__device__ inline bool elected() {
#if __CUDA_ARCH__ >= 900
  u32 is;
  asm volatile("{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.u32 %0, 1, 0, p;\n}" : "=r"(is));
  return is != 0;
#else
  return lane_index() == 0;
#endif
}

// Bytes to copy: runs of `bytes`, a multiple of 16, so far apart.
struct Runs {
  const u8* from;
  u32 from_pitch;
  u32 to_pitch;
  u32 bytes;

  // Begins to copy run number `run`: by one thread where there are bulk copies, else by a warp.
  __device__ void copy(u8* to, u32 run, Signal& full) const {
    to += run * to_pitch;
    const u8* first = from + (u64)run * from_pitch;
#if defined(WATERLINE_EMULATOR)
    memcpy(to, first, bytes);
#elif __CUDA_ARCH__ >= 900
    // Nobody else will want them: what else is in the second cache shall stay.
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

  // All `runs` of them, `together` of which are made ready at once.
  template <int together>
  __device__ void copy_all(u8* to, u32 runs, Signal& full) const {
#pragma unroll together
    for (u32 run = 0; run < runs; run++) copy(to, run, full);
  }
};

// Large entries that are under way at once, also while the block waits for its phase's input: what phases pass one another comes
// behind them. Three of 16 KB are as many as the memory's latency times its rate. Small ones would hold back all behind them. A
// copier waits for entries that it brought itself: others might have gone round the ring since, and a barrier tells only every
// second of its phases from those between.
constexpr u32 most_while_waiting = copiers;
constexpr u32 most_under_way = ring_slots < 2 * copiers ? ring_slots : 2 * copiers;
static_assert(ring_slots % copiers == 0 && ring_slots > 0, "a slot is one copier's");

// By one warp: begins to copy an entry of a segment to its place.
__device__ inline void bring_entry(const Segment& segment, int number) {
  int tile = number / segment.parts, part = number - tile * segment.parts, first = tile * rows_of_entry(segment.format);
  u32 rows = min(rows_of_entry(segment.format), segment.rows - first);
  u32 code = part * segment.code_part, scale = part * segment.scale_part;
  Runs codes = {segment.codes + (u64)first * segment.code_row + code, segment.code_row, segment.code_pitch,
                min((u32)segment.code_part, segment.code_row - code)};
  Runs scales = {segment.scales + (u64)first * segment.scale_row + scale, segment.scale_row, segment.scale_pitch,
                 min((u32)segment.scale_part, segment.scale_row - scale)};
  u32 scale_runs = rows;
  if (segment.scale_part == 0) scales.bytes = (rows * segment.scale_row + 15) & ~15u, scale_runs = 1;
  if (scales.bytes == 0) scale_runs = 0;

  Ring& ring = Ring::get();
  u32 entry = segment.entry + number;
  bool large = rows * codes.bytes > slot_bytes / 2;
  u32 most = turn_waits() ? most_while_waiting : most_under_way;
  if (large && entry >= most) ring.await(RingPlace(entry - most));
  RingPlace place(entry);
  u8* to = ring.claim(place);
  u8* to_scales = to + rows_of_entry(segment.format) * segment.code_pitch;
  Signal& full = ring.full[place.slot];
  __syncwarp();
#if __CUDA_ARCH__ >= 900 || defined(WATERLINE_EMULATOR)
  if (elected()) {
#ifndef WATERLINE_EMULATOR
    expect_bytes(&full.bits, rows * codes.bytes + scale_runs * scales.bytes);
#endif
    // Scales are as many copies again, of few bytes. What has none is copied no faster than the memory is: on an H200, GDN 1.3B
    // takes 787 us a token in BF16 one by one and 810 by fours, since what is passed comes later, but in Q4_0 454 and 441.
    if (scale_runs > 0) {
      codes.copy_all<4>(to, rows, full);
      scales.copy_all<4>(to_scales, scale_runs, full);
    } else {
      codes.copy_all<1>(to, rows, full);
    }
#ifdef WATERLINE_EMULATOR
    full.arrive();
#endif
  }
#else
  codes.copy_all<1>(to, rows, full);
  scales.copy_all<1>(to_scales, scale_runs, full);
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
    int tile = rows_of_entry(segment.format), entries = (segment.rows + tile - 1) / tile * segment.parts;
    for (; entry < entries; entry += copiers) bring_entry(segment, entry);
    entry -= entries;
  }
}
