// The end of a persistent program: what goes through its phases.

// Begins to copy a phase's parameters to the place of the next one's, and what follows it.
__device__ inline void bring_phase(const u8* from, const u32* follower) {
  constexpr int words = parameter_bytes / 16;
  if (threadIdx.x < words) copy_async<16>(next_place() + threadIdx.x * 16, from + threadIdx.x * 16);
  if (threadIdx.x == words) copy_async<4>(&turn().after, follower);
  commit_copies();
}

// The phases from number `first` of the `count` ones of `table` on that this block has a part of, by its threads but the copiers. Block
// 0 writes three `clocks` of each phase, if there is room: for one before the first too, and behind the last. What is known from phase
// to phase stands in shared memory, so that the phases have all registers.
__device__ void go_through_phases(const u8* table, const u32* followers, const Segment* list, u32 first, u32 count, u64* clocks) {
  Turn& now = turn();
  if (threadIdx.x == 0) {
    now.passed_at = now.control->token % 2 * passed_floats;
    now.arrivals = now.waited = now.arrives = now.published = now.failure = 0;
    now.failed_phase = no_phase;
    now.clocks = real_block() == 0 ? clocks : nullptr;
    // Before the first comes one that does nothing.
    now.beginning = {followers[first], 0, 0, first - 1};
    now.list = list;
  }
  whole_barrier();
  for (;;) {
    const Beginning here = now.beginning;
    if (here.next == no_phase) break;
    // The next phase's parameters are under way while this one runs.
    u32 next = here.next & ~arrives_there;
    if (next < count) bring_phase(table + (u64)next * parameter_bytes, followers + next + 1);
    if (threadIdx.x < here.threads) run_phase(here.function);
    wait_for_copies<0>();
    whole_barrier();
    turn_to_next_phase(count);
    whole_barrier();
  }
  if (real_block() == 0 && threadIdx.x == 0) {
    wait_for_arrivals();
    now.control->arrivals = 0;
    now.control->token++;
  }
  if (threadIdx.x == 0) report_failure();
}

// Every block has its followers, one more than there are phases, and a list of segments, `stride` long, of which the phases from
// `first` on use all; an empty one ends it.
__device__ void persist(const u8* table, const u32* followers, const Segment* lists, int stride, int first, int count,
                        Control* control, u64* clocks) {
  // A launch without phases shows whether the device holds all blocks.
  if (count == 0) return;
  const Segment* list = lists + (long long)real_block() * stride;
  if constexpr (list_bytes > 0) {
    uint4* room = reinterpret_cast<uint4*>(listed_segments());
    for (int i = threadIdx.x; i < list_bytes / 16; i += persistent_threads) room[i] = reinterpret_cast<const uint4*>(list)[i];
    list = listed_segments();
  }
  // What copiers read.
  if (threadIdx.x == 0) {
    Ring::get().init(), set_waits(false);
    turn().control = control;
    turn().begun = coarse_time();
  }
  real_barrier();
  if (threadIdx.x >= phase_threads) {
    bring_weights(list);
  } else {
    go_through_phases(table, followers + (long long)real_block() * (count + 1), list, first, count, clocks);
  }
}

#ifndef WATERLINE_EMULATOR
extern "C" __global__ void __launch_bounds__(persistent_threads, 1)
    persistent(const u8* table, const u32* followers, const Segment* lists, int stride, int first, int count, Control* control,
               u64* clocks) {
  persist(table, followers, lists, stride, first, count, control, clocks);
}
#else
extern "C" void persistent(const unsigned* grid, unsigned threads, unsigned shared, void** a) {
  emulator::run(grid, threads, shared, [=] {
    persist(*(const u8**)a[0], *(const u32**)a[1], *(const Segment**)a[2], *(int*)a[3], *(int*)a[4], *(int*)a[5], *(Control**)a[6],
            *(u64**)a[7]);
  });
}
#endif
