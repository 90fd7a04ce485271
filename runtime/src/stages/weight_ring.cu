// The weights of a persistent program. One warp of a block, the copier, brings the weights of the block's segments into shared
// memory in the order of their use, as far ahead as there is room: it waits for no phase, so that the memory is never idle.
// An entry of the ring is some whole rows of a segment: their codes, then their scales, as a matrix lies on the device.

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
  // 32 units of a row are a piece: how many, and one divided by that.
  int pieces;
  float per_piece;
  // The task that its rows go through before they are stored, or less than none.
  int task;
};

static_assert(sizeof(Segment) == segment_bytes, "as the program was laid out");

// A barrier in shared memory that some threads arrive at and others wait for; it has a phase, counted modulo 2.
struct Signal {
#ifdef WATERLINE_EMULATOR
  u16 count, missing, phase, unused;

  void init(int arrivals) { *this = {(u16)arrivals, (u16)arrivals, 0, 0}; }
  void arrive() {
    if (--missing == 0) missing = count, phase++;
  }
  void wait(u32 parity) const {
    while ((phase & 1) == parity) emulator::yield(emulator::WAITING);
  }
#else
  u64 bits;

  __device__ u32 address() const { return (u32)__cvta_generic_to_shared(this); }
  __device__ void init(int arrivals) {
    asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(address()), "r"(arrivals) : "memory");
  }
  __device__ void arrive() { asm volatile("mbarrier.arrive.shared.b64 _, [%0];" ::"r"(address()) : "memory"); }
  // Returns when the phase of this parity is over.
  __device__ void wait(u32 parity) const {
    u32 over;
    do {
#if __CUDA_ARCH__ >= 900
      asm volatile(
          "{ .reg .pred p; mbarrier.try_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(over)
          : "r"(address()), "r"(parity)
          : "memory");
#else
      asm volatile(
          "{ .reg .pred p; mbarrier.test_wait.parity.shared.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
          : "=r"(over)
          : "r"(address()), "r"(parity)
          : "memory");
#endif
    } while (!over);
  }
#endif
};

static_assert(sizeof(Signal) == 8, "as a barrier in shared memory");

// Entry number n stands in slot n modulo `ring_slots`.
struct Ring {
  Signal full[ring_slots];
  Signal empty[ring_slots];
  // Where an entry begins, and the bytes of the ring that it takes, with those left free before it.
  u32 start[ring_slots];
  u32 taken[ring_slots];

  __device__ static Ring& get() { return *reinterpret_cast<Ring*>(whole_shared_memory() + slots_at); }
  __device__ static u8* at(u32 start) { return whole_shared_memory() + ring_at + start; }

  // By one thread.
  __device__ void init() {
    for (int i = 0; i < ring_slots; i++) {
#if __CUDA_ARCH__ >= 900 || defined(WATERLINE_EMULATOR)
      full[i].init(1);
#else
      full[i].init(33);
#endif
      empty[i].init(ring_warps);
    }
#if __CUDA_ARCH__ >= 900
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
#endif
  }

  // The entry, once it has come.
  __device__ const u8* await(u32 entry) const {
    full[entry % ring_slots].wait(entry / ring_slots & 1);
    return at(start[entry % ring_slots]);
  }

  // By a whole warp: it has read the entry.
  __device__ void release(u32 entry) {
    __syncwarp();
    if (lane_index() == 0) empty[entry % ring_slots].arrive();
  }
};

static_assert(sizeof(Ring) == slots_bytes, "as the program was laid out");

// Begins to copy bytes, a multiple of 16, by one warp.
__device__ inline void copy_to_ring(u8* to, const u8* from, u32 bytes, Signal& full) {
#if defined(WATERLINE_EMULATOR)
  if (lane_index() == 0) memcpy(to, from, bytes);
#elif __CUDA_ARCH__ >= 900
  if (lane_index() != 0) return;
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(
                   (u32)__cvta_generic_to_shared(to)),
               "l"(from), "r"(bytes), "r"(full.address())
               : "memory");
#else
  for (u32 i = lane_index() * 16; i < bytes; i += 512) copy_async_once(to + i, from + i);
#endif
}

// By one warp, for an entry whose place is said: `full` is over when its copies have come.
__device__ inline void copy_entry(u8* to, const u8* codes, u32 code_bytes, const u8* scales, u32 scale_bytes, Signal& full) {
#if __CUDA_ARCH__ >= 900
  if (lane_index() == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(full.address()), "r"(code_bytes + scale_bytes)
                 : "memory");
  }
#endif
  copy_to_ring(to, codes, code_bytes, full);
  if (scale_bytes > 0) copy_to_ring(to + code_bytes, scales, scale_bytes, full);
#if defined(WATERLINE_EMULATOR)
  if (lane_index() == 0) full.arrive();
#elif __CUDA_ARCH__ < 900
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(full.address()) : "memory");
  if (lane_index() == 0) full.arrive();
#endif
}

// What the copier does: brings every segment of the list.
__device__ inline void bring_weights(const Segment* list) {
  Ring& ring = Ring::get();
  // The next entry and the oldest whose bytes are not free yet, the next byte, and how many are free.
  u32 next = 0, oldest = 0, head = 0, room = ring_bytes;
  for (; list->rows != 0; list++) {
    const Segment segment = *list;
    for (int first = 0; first < segment.rows; first += segment.entry_rows) {
      u32 rows = min((int)segment.entry_rows, segment.rows - first);
      u32 codes = rows * segment.code_row, scales = (rows * segment.scale_row + 15) & ~15u;
      u32 taken = (codes + scales + 127) & ~127u, slot = next % ring_slots;
      u32 start = head + taken <= ring_bytes ? head : 0;
      // An entry does not go over the ring's end.
      if (start != head) taken += ring_bytes - head;
      while (room < taken || next - oldest == ring_slots) {
        ring.empty[oldest % ring_slots].wait(oldest / ring_slots & 1);
        room += ring.taken[oldest % ring_slots];
        oldest++;
      }
      __syncwarp();
      if (lane_index() == 0) {
        ring.start[slot] = start;
        ring.taken[slot] = taken;
      }
      __syncwarp();
      copy_entry(Ring::at(start), segment.codes + (u64)first * segment.code_row, codes,
                 segment.scales + (u64)first * segment.scale_row, scales, ring.full[slot]);
      head = start + ((codes + scales + 127) & ~127u);
      room -= taken;
      next++;
    }
  }
}
