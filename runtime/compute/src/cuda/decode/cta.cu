// A thread block of the decode kernel: one cooperative block per SM, which walks the ops of a token. An op corresponds to a kernel of a
// recorded graph. This file precedes the ops' files: at its end, `blockIdx`, `gridDim`, `blockDim` and `__syncthreads` are redefined for
// the op, so that the same text serves as a kernel and as an op.
// `OpRecord` is in record.rs, `ControlWords` in control.rs, `MailboxBit` in mailbox.rs.

#define WATERLINE_DECODE 1

struct Dim3 {
  u32 x, y, z;
};

// Concurrent ops (the ops of one dependency level) run on separate blocks. A block runs the ops that it has a part of, without waiting
// between them, and arrives at the grid barrier after the last. Its row of `next_ops` holds the first op, then the successor of every op;
// an entry has this bit if the block arrives after the entry's op.
constexpr u32 arrives_after = 1u << 31;
// The successor of the last op.
constexpr u32 no_op = 0xffffffff;

// The part of the state that all threads read when an op begins: its successor (an entry of `next_ops`), the number of threads that run it
// (0 if the block has no part of it), its function and its number.
struct __align__(16) OpHeader {
  u32 next;
  u32 threads;
  int function;
  u32 op;
};

// State of a thread block, in shared memory so that ops can use all registers. Thread 0 writes it between barriers.
struct __align__(16) CtaState {
  OpHeader header;
  Dim3 block, grid, threads;
  // Index of the op's block that this thread block is running.
  u32 index;
  // Grid barrier arrivals that the op waits for, and the number that the last wait reached.
  u32 arrivals;
  u32 arrivals_seen;
  // Whether the block arrives at the grid barrier after this op, and whether it already has.
  u32 arrives;
  u32 arrived_early;
  // Floats from a mailbox's first buffer to this token's buffer.
  u32 mailbox_offset;
  // Whether the op still waits for its input: a hint to the producer warps.
  u32 waiting;
  ControlWords* control;
  // The successor of the next op, once its copy has arrived.
  u32 op_after_next;
  // `coarse_time` at the start of the token.
  u32 start_time;
  // The block's segments in global memory, where shared memory has no room for them.
  const struct Segment* list;
  // The op's three clocks (start, end of its wait, end), or null.
  u64* clocks;
  // For `wait_shared_barrier`.
  u64 barrier;
  // The last wait that passed its deadline, or 0, and the op in which the first one did.
  u32 failure;
  u32 failed_op;
#ifdef WATERLINE_SLOTS
  // Slots in use.
  u32 slots;
#endif
};

static_assert(sizeof(CtaState) == cta_state_bytes, "as layout.rs has it");

// Dynamic shared memory: the state, the records of this op and the next, the barriers of the pipeline, the block's segments unless there
// are too many, the op's workspace, and the pipeline's stages at `stages_at`.
constexpr int consumer_warps = consumer_threads / 32;
constexpr int cta_threads = consumer_threads + 32 * producer_warps;
constexpr int records_at = sizeof(CtaState);
constexpr int barriers_at = records_at + 2 * record_bytes;
constexpr int segments_at = barriers_at + barrier_bytes;
constexpr int workspace_at = segments_at + segments_bytes;

#ifndef WATERLINE_EMULATOR
__device__ inline u8* cta_shared_memory() {
  extern __shared__ __align__(128) u8 dynamic_shared_memory[];
  return dynamic_shared_memory;
}
#else
static u8* cta_shared_memory() { return emulator::shared; }
#endif

__device__ inline CtaState& cta() { return *reinterpret_cast<CtaState*>(cta_shared_memory()); }
__device__ inline u32 mailbox_offset() { return cta().mailbox_offset; }

// WATERLINE_RACECHECK=1 makes a kernel that compute-sanitizer's racecheck can follow: the hint to the producer warps is atomic, and
// barriers of a part of the warps are mbarriers. Racecheck loses track of a named barrier while other warps wait at `bar.sync 0`.
#ifdef WATERLINE_RACECHECK
constexpr bool all_lanes_release = true;

__device__ inline void set_waiting(bool waiting) { atomicExch(&cta().waiting, (u32)waiting); }
__device__ inline bool is_waiting() { return atomicOr(&cta().waiting, 0) != 0; }

__device__ inline u32 shared_barrier() { return (u32)__cvta_generic_to_shared(&cta().barrier); }
__device__ inline void init_shared_barrier(u32 threads) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_barrier()), "r"(threads) : "memory");
}
__device__ inline void wait_shared_barrier() {
  u64 phase;
  u32 is_over = 0;
  asm volatile("mbarrier.arrive.shared.b64 %0, [%1];" : "=l"(phase) : "r"(shared_barrier()) : "memory");
  while (is_over == 0) {
    asm volatile("{\n .reg .pred p;\n mbarrier.test_wait.shared.b64 p, [%1], %2;\n selp.u32 %0, 1, 0, p;\n}"
                 : "=r"(is_over)
                 : "r"(shared_barrier()), "l"(phase)
                 : "memory");
  }
}
#else
constexpr bool all_lanes_release = false;

// Called by thread 0; a producer warp may read the hint late.
__device__ inline void set_waiting(bool waiting) { cta().waiting = waiting; }
__device__ inline bool is_waiting() { return *const_cast<volatile u32*>(&cta().waiting) != 0; }
#endif

__device__ inline u32 cta_index() { return blockIdx.x; }
__device__ inline u32 cta_count() { return gridDim.x; }

// A barrier of all threads of the block.
__device__ inline void cta_barrier() {
#ifdef WATERLINE_EMULATOR
  emulator::yield(emulator::AT_BLOCK);
#else
  asm volatile("bar.sync 0;" ::: "memory");
#endif
}

// A barrier of all consumer threads.
__device__ inline void consumer_barrier() {
#ifdef WATERLINE_EMULATOR
  emulator::members = consumer_threads;
  emulator::yield(emulator::AT_BLOCK);
#else
  asm volatile("bar.sync 2, %0;" ::"n"(consumer_threads) : "memory");
#endif
}

// A barrier of the op's threads, the first of the consumer threads.
__device__ inline void op_barrier() {
#if defined(WATERLINE_EMULATOR)
  emulator::partial_barrier(cta().threads.x);
#elif defined(WATERLINE_RACECHECK)
  wait_shared_barrier();
#else
  asm volatile("bar.sync 1, %0;" ::"r"(cta().threads.x) : "memory");
#endif
}

// A clock common to all SMs, in units of 2^32 ns: one instruction reads one register.
__device__ inline u32 coarse_time() {
#ifdef WATERLINE_EMULATOR
  return 0;
#else
  u32 time;
  asm volatile("mov.u32 %0, %globaltimer_hi;" : "=r"(time));
  return time;
#endif
}

// Called by any thread. `advance` records the first failure's op and `report_failure` reports it: reports from polls would slow polling.
__device__ inline void note_failure(Wait wait) { *const_cast<volatile u32*>(&cta().failure) = wait; }

// Called by thread 0 after the last op. The first failed block to get here writes the report for the host.
__device__ inline void report_failure() {
  const CtaState& now = cta();
  if (now.failure == 0 || atomicCAS(&now.control->failure, 0u, now.failure) != 0) return;
  now.control->op = now.failed_op == no_op ? now.header.op : now.failed_op;
  now.control->block = cta_index();
}

// Every poll for another block's work ends at the token's deadline, so that no kernel hangs. The host reads the failure, and the session is
// lost. The rest of the token computes garbage and ends: every later wait ends when it next reads the clock. Waits inside a block depend
// only on these polls. The emulator runs a single block, which never waits for another.
__device__ inline bool deadline_passed(Wait wait) {
#if defined(WATERLINE_RACECHECK)
  return false;
#elif !defined(WATERLINE_EMULATOR)
  if (coarse_time() - cta().start_time <= deadline) return false;
#endif
  note_failure(wait);
  return true;
}

// The polls of one wait. The clock is slow to read, so it is read once in 64 polls; a recurrence reads it at every poll, as measured.
struct Polls {
  u32 count = 0;

  // Counts a poll and returns whether the wait has to end.
  __device__ bool give_up(Wait wait) { return ++count % 64 == 0 && deadline_passed(wait); }
};

__device__ inline void Mailbox::publish(int column, float value) const {
  u32 at = cta().mailbox_offset, bits = __float_as_uint(value);
  // A NaN with these bits is published with other bits.
  if (bits == mailbox_empty) bits = 0x7fffffff;
  u32* entry = reinterpret_cast<u32*>(first) + column;
#ifdef WATERLINE_FAULT
  // For tests: one value is never published.
  if (cta().header.op == WATERLINE_FAULT && column == 0) return;
#endif
#ifdef WATERLINE_EMULATOR
  entry[at] = bits;
#else
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(entry + at), "r"(bits) : "memory");
#endif
  entry[mailbox_floats - at] = mailbox_empty;
}

// Called when the op's input is complete. `clocks` is `CtaState::clocks`, read before the wait.
__device__ inline void input_is_ready(u64* clocks) {
  if (threadIdx.x != 0) return;
  set_waiting(false);
  if (clocks) clocks[1] = clock64();
}

// Called by thread 0: waits until every block has arrived after the previous level, and acquires the blocks' writes.
__device__ inline void grid_barrier_wait() {
  CtaState& now = cta();
  if (now.arrivals_seen == now.arrivals) {
    set_waiting(false);
    return;
  }
#ifndef WATERLINE_EMULATOR
  u32 seen;
  Polls polls;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&now.control->arrivals) : "memory");
  } while (seen < now.arrivals && !polls.give_up(WAIT_BARRIER));
#endif
  now.arrivals_seen = now.arrivals;
  input_is_ready(now.clocks);
}

// Called by thread 0 after a barrier of the op's threads: releases the block's writes.
__device__ inline void grid_barrier_arrive() {
  if (cta().clocks) cta().clocks[2] = clock64();
#ifdef WATERLINE_FAULT
  if (cta().header.op == WATERLINE_FAULT && cta_index() == 0) return;
#endif
#ifndef WATERLINE_EMULATOR
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&cta().control->arrivals) : "memory");
#endif
}

// Called after a barrier of the op's threads: arrives before the op ends. Only the next token reads what the block writes later, such as a
// state. With slots, that token may be the next op's.
__device__ inline void arrive_early() {
#ifndef WATERLINE_SLOTS
  CtaState& now = cta();
  if (threadIdx.x != 0 || !now.arrives || now.index + cta_count() < now.grid.x * now.grid.y) return;
  grid_barrier_arrive();
  now.arrived_early = 1;
#endif
}

// Called by thread 0: sets `blockIdx` to the op's block `index`, in a grid of this width.
__device__ inline void set_block(u32 index, u32 width) {
  CtaState& now = cta();
  now.index = index;
  now.block = {index, 0, 0};
  // A division costs more than the rest of the function.
  if (index >= width) now.block = {index % width, index / width, 0};
}

// Advances to the next of the op's blocks that this thread block runs, if any; returns whether it did.
__device__ inline bool next_block() {
  CtaState& now = cta();
  if (now.index + cta_count() >= now.grid.x * now.grid.y) return false;
  op_barrier();
  if (threadIdx.x == 0) set_block(now.index + cta_count(), now.grid.x);
  op_barrier();
  return true;
}

// The records of this op and of the next.
__device__ inline u8* this_record() { return cta_shared_memory() + records_at; }
__device__ inline u8* next_record() { return this_record() + record_bytes; }
__device__ inline const OpRecord& this_op() { return *reinterpret_cast<const OpRecord*>(this_record()); }

// Called by thread 0: sets the state for the start of an op.
__device__ inline void begin_op(const OpRecord& op, u32 number, u32 next) {
  CtaState& now = cta();
  int function = op.function;
  u32 width = op.grid[0], height = op.grid[1], threads = op.threads;
  u32 shifted = cta_index() + op.shift, index = shifted < cta_count() ? shifted : shifted - cta_count();
  now.header = {next, index < width * height ? threads : 0, function, number};
  now.grid = {width, height, 1};
  now.threads = {threads, 1, 1};
#ifdef WATERLINE_SLOTS
  if (op.slot >= now.slots) now.header.threads = 0;
#endif
#ifdef WATERLINE_RACECHECK
  init_shared_barrier(threads);
#endif
  now.arrived_early = 0;
  set_block(index, width);
}

// Called between two consumer barriers: advances to the next of `count` ops. All blocks wait for the last block to arrive, and thread 0 is
// on the critical path, so it loads the whole state at once.
__device__ inline void advance(u32 count) {
  constexpr int words = record_bytes / 16;
  static_assert(words < consumer_threads, "a thread copies a word, and one more the successor");
  const OpRecord& next = *reinterpret_cast<const OpRecord*>(next_record());
  if (threadIdx.x < words) {
    reinterpret_cast<uint4*>(this_record())[threadIdx.x] = reinterpret_cast<const uint4*>(next_record())[threadIdx.x];
  }
  if (threadIdx.x != 0) return;
  CtaState& now = cta();
  const CtaState before = now;
  if (before.arrivals_seen != before.arrivals) grid_barrier_wait();
  if (before.failure != 0 && before.failed_op == no_op) now.failed_op = before.header.op;
  if (before.arrives) {
    if (!before.arrived_early) grid_barrier_arrive();
    now.arrivals = before.arrivals + cta_count();
  }
  u32 next_op = before.header.next, op = next_op & ~arrives_after;
  if (before.clocks) {
    if (!before.arrives) before.clocks[2] = clock64();
    // Every op has three clocks, including ops that the block has no part of.
    now.clocks = before.clocks + 3 * (op - before.header.op);
    now.clocks[0] = now.clocks[1] = clock64();
  }
  set_waiting(true);
  now.arrives = next_op >> 31;
  begin_op(next, op, op < count ? before.op_after_next : no_op);
}

// Returns a parameter of this op.
template <class T>
__device__ T const& parameter(int offset) {
  return *reinterpret_cast<T const*>(this_record() + sizeof(OpRecord) + offset);
}

// From here on these names refer to the op.
#define blockIdx (cta().block)
#define gridDim (cta().grid)
#define blockDim (cta().threads)
#define __syncthreads() op_barrier()
