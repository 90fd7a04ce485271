// The end of a persistent program: what goes through its phases.

// The phases first..count of the table, by the threads of a block but its copiers. Block 0 writes three `clocks` of each phase,
// if there is room.
__device__ void go_through_phases(const u8* table, const Segment* list, int first, int count, u32* arrived, u64* clocks) {
  constexpr int words = parameter_bytes / 16;
  static_assert(words <= phase_threads, "a thread for each word");
  int thread = threadIdx.x;
  u8* memory = whole_shared_memory() + phases_at;
  // This thread's word of a phase's parameters.
  auto word = [&](int number) {
    return reinterpret_cast<const uint4*>(table + (long long)number * parameter_bytes)[thread];
  };
  if (thread < words) reinterpret_cast<uint4*>(memory)[thread] = word(first);
  if (thread == 0) {
    turn().arrived = arrived;
    turn().arrivals = turn().waited = 0;
    turn().clocks = real_block() == 0 ? clocks : nullptr;
    begin_phase(memory);
  }
  whole_barrier();
  for (int number = first; number < count; number++) {
    u8* phase = memory + (number - first) % 2 * parameter_bytes;
    u8* other = memory + (number - first + 1) % 2 * parameter_bytes;
    // The next phase's parameters are under way while this one runs.
    bool more = number + 1 < count && thread < words;
    uint4 next;
    if (more) next = word(number + 1);
    if (turn().index < turn().grid.x * turn().grid.y && thread < turn().threads.x) run_phase(phase, list);
    list += reinterpret_cast<const Phase*>(phase)->segments;
    if (more) reinterpret_cast<uint4*>(other)[thread] = next;
    whole_barrier();
    if (thread == 0) {
      wait_for_arrivals();
      arrive();
      turn().arrivals += real_blocks();
      if (turn().clocks) turn().clocks += 3;
      if (number + 1 < count) begin_phase(other);
    }
    whole_barrier();
  }
  if (real_block() == 0 && thread == 0) {
    wait_for_arrivals();
    *arrived = 0;
  }
}

// Every block has a list of segments, `stride` long, of which the phases from `first` on use all; an empty one ends it.
// `arrived` is zero before and after.
__device__ void persist(const u8* table, const Segment* lists, int stride, int first, int count, u32* arrived, u64* clocks) {
  const Segment* list = lists + (long long)real_block() * stride;
  if constexpr (list_bytes > 0) {
    uint4* room = reinterpret_cast<uint4*>(whole_shared_memory() + list_at);
    for (int i = threadIdx.x; i < list_bytes / 16; i += persistent_threads) room[i] = reinterpret_cast<const uint4*>(list)[i];
    list = reinterpret_cast<const Segment*>(room);
  }
  if (threadIdx.x == 0) Ring::get().init();
  real_barrier();
  if (threadIdx.x >= phase_threads) {
    bring_weights(list);
  } else {
    go_through_phases(table, list, first, count, arrived, clocks);
  }
}

#ifndef WATERLINE_EMULATOR
extern "C" __global__ void __launch_bounds__(persistent_threads, 1)
    persistent(const u8* table, const Segment* lists, int stride, int first, int count, u32* arrived, u64* clocks) {
  persist(table, lists, stride, first, count, arrived, clocks);
}
#else
extern "C" void persistent(const unsigned* grid, unsigned threads, unsigned shared, void** a) {
  emulator::run(grid, threads, shared, [=] {
    persist(*(const u8**)a[0], *(const Segment**)a[1], *(int*)a[2], *(int*)a[3], *(int*)a[4], *(u32**)a[5],
                      *(u64**)a[6]);
  });
}
#endif
