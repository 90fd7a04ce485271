// The decode kernel's entry: producer warps stream weights, consumer warps run the ops.

// Starts copying the next op's record and its successor.
__device__ inline void prefetch_record(const u8* from, const u32* next_op) {
  constexpr int words = record_bytes / 16;
  if (threadIdx.x < words) copy_async<16>(next_record() + threadIdx.x * 16, from + threadIdx.x * 16);
  if (threadIdx.x == words) copy_async<4>(&cta().op_after_next, next_op);
  commit_copies();
}

// Called by a producer warp after its last tile: waits until the block's ops are finished. Consumers spin for tiles without a limit, so the
// limit is here: some seconds after all other waits have ended with a report, the kernel traps.
__device__ inline void wait_until_finished() {
  Mbarrier& finished = Pipeline::get().finished;
#if defined(WATERLINE_EMULATOR) || defined(WATERLINE_RACECHECK)
  finished.wait(0);
#else
  for (u32 tries = 1; !mbarrier_try(&finished.bits, 0); tries++) {
    if (tries % 256 == 0 && coarse_time() - cta().start_time > deadline + 2) asm volatile("trap;");
  }
#endif
}

// Called by the consumer threads: runs the ops that this block has a part of, from op `first` of the `count` ops in `table` on. If `clocks`
// is not null, block 0 writes three clocks for each op, for the empty op before the first and for one after the last.
__device__ void run_ops(const u8* table, const u32* next_ops, const Segment* list, u32 first, u32 count, u64* clocks) {
  CtaState& now = cta();
  if (threadIdx.x == 0) {
    now.mailbox_offset = now.control->token % 2 * mailbox_floats;
    now.arrivals = now.arrivals_seen = now.arrives = now.arrived_early = now.failure = 0;
    now.failed_op = no_op;
    now.clocks = cta_index() == 0 ? clocks : nullptr;
    // An empty op before the first.
    now.header = {next_ops[first], 0, 0, first - 1};
    now.list = list;
  }
  consumer_barrier();
  for (;;) {
    const OpHeader here = now.header;
    if (here.next == no_op) break;
    // The copy of the next record overlaps this op.
    u32 next = here.next & ~arrives_after;
    if (next < count) prefetch_record(table + (u64)next * record_bytes, next_ops + next + 1);
    if (threadIdx.x < here.threads) run_op(here.function);
    wait_for_copies<0>();
    consumer_barrier();
    advance(count);
    consumer_barrier();
  }
  if (cta_index() == 0 && threadIdx.x == 0) {
    grid_barrier_wait();
    now.control->arrivals = 0;
    now.control->token++;
  }
  if (threadIdx.x == 0) report_failure(), Pipeline::get().finished.arrive();
}

// Each block has a row of `next_ops` (count + 1 entries) and a row of `lists` (`stride` segments, ended by an empty one). The ops from
// `first` on use all of the segments. In a kernel of several slots, the first `slots` hold a token each.
__device__ void decode_step(const u8* table, const u32* next_ops, const Segment* lists, int stride, int first, int count,
                        ControlWords* control, u64* clocks, int slots) {
  // A launch without ops tests whether the device holds all blocks.
  if (count == 0) return;
  const Segment* list = lists + (long long)cta_index() * stride;
  if constexpr (segments_bytes > 0) {
    uint4* room = reinterpret_cast<uint4*>(shared_segments());
    for (int i = threadIdx.x; i < segments_bytes / 16; i += cta_threads) room[i] = reinterpret_cast<const uint4*>(list)[i];
    list = shared_segments();
  }
  // Read by the producer warps.
  if (threadIdx.x == 0) {
    Pipeline::get().init(), set_waiting(false);
    cta().control = control;
    cta().start_time = coarse_time();
#ifdef WATERLINE_SLOTS
    cta().slots = slots;
#endif
  }
  cta_barrier();
  if (threadIdx.x >= consumer_threads) {
    stream_weights(list);
    wait_until_finished();
  } else {
    run_ops(table, next_ops + (long long)cta_index() * (count + 1), list, first, count, clocks);
  }
}

#ifndef WATERLINE_EMULATOR
extern "C" __global__ void __launch_bounds__(cta_threads, 1)
    decode_kernel(const u8* table, const u32* next_ops, const Segment* lists, int stride, int first, int count, ControlWords* control,
               u64* clocks, int slots) {
  decode_step(table, next_ops, lists, stride, first, count, control, clocks, slots);
}
#else
extern "C" void decode_kernel(const unsigned* grid, unsigned threads, unsigned shared, void** a) {
  emulator::run(grid, threads, shared, [=] {
    decode_step(*(const u8**)a[0], *(const u32**)a[1], *(const Segment**)a[2], *(int*)a[3], *(int*)a[4], *(int*)a[5], *(ControlWords**)a[6],
            *(u64**)a[7], *(int*)a[8]);
  });
}
#endif
