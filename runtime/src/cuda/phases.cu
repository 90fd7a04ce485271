// A persistent program: one kernel whose blocks, as many as stay on the device together, go through the phases of a token.
// A phase is what would be a kernel of its own; its blocks are shared out among those that run. This part comes before
// everything else, so that ops see the phase's blocks and threads where they need a kernel's.

#define WATERLINE_PHASES 1

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

struct Three {
  u32 x, y, z;
};

// Columns of an output that other phases take as they come: whoever finds a value there has it, without a fence or an arrival,
// which would wait for all that is under way to the processor. A place holds no value before; whoever writes it empties the one
// that the next token will use, so that there are two of each, `passed_floats` apart, and every token writes all of its own.
struct Passed {
  float* first;

  __device__ void pass(int column, float value) const;
  // Where this token's value of a column comes.
  __device__ const float* place(int column) const;
  template <int count, int further = 0>
  __device__ static void ask(const float* place, float* values);
  template <int count>
  __device__ static bool came(const float* values);
  __device__ float taken(int column) const;
  __device__ static void expect(float value);
};

// What stands in front of a phase's parameters.
struct __align__(16) Phase {
  // Which function, its blocks and threads.
  int function;
  u32 grid[2];
  u32 threads;
  // The first of its segments of weights in each block's list, and how many they are; see weight_ring.cu.
  int segment;
  int segments;
  // Where the tasks stand that a product's rows go through, behind this.
  int tasks;
  // Whether its output is stored in its place.
  int stores;
  // What a product takes, columns that are added to its input and others that gate it, what the phase passes, and what of the
  // phases without arrivals before it is added to; each null where it has none. Phases behind one that passes nothing wait for
  // the arrivals of all blocks.
  Passed input, added, gates, output, sum;
  // How much further on a block of the phase is than the block that runs it.
  u32 shift;
  u32 unused;
};

// Which of these a phase has, as its function's template is told.
enum { PASSED_INPUT = 1, PASSED_ADDED = 2, PASSED_GATES = 4, PASSES_OUTPUT = 8, PASSED_SUM = 16 };

// Phases that need nothing of each other have a level in common, and each of them blocks of its own. A block goes through those that
// it has a part of, without waiting, and arrives behind the last of them. Its `followers` tell which phase comes first, then for each
// one which comes next, with this bit if the block arrives behind that.
constexpr u32 arrives_there = 1u << 31;
// What follows when all are done.
constexpr u32 no_phase = 0xffffffff;

// What all threads read at once when a phase begins: the phase behind it, as `followers` has it, how many threads run it, none if the
// block has no part of it, its function and its number.
struct __align__(16) Beginning {
  u32 next;
  u32 threads;
  int function;
  u32 phase;
};

// What the program and the host share, `Control` in control.rs.
struct Control {
  // Arrivals at grid barriers of this token, zero before and after.
  u32 arrivals;
  // The number of the token.
  u32 token;
  // The first spin that went on past its deadline: what it waited for, zero if there was none, its phase and its thread block.
  u32 failure;
  u32 phase;
  u32 block;
  // The token that was chosen.
  u32 chosen;
};

// What a spin waits for, as in control.rs.
enum Wait { WAIT_BARRIER = 1, WAIT_MAILBOX };

// Where a block stands. Thread 0 writes it between barriers.
struct __align__(16) Turn {
  Beginning beginning;
  Three block, grid, threads;
  // The block of the phase.
  u32 index;
  // Arrivals that the phase waits for; `waited` once they have come.
  u32 arrivals;
  u32 waited;
  // Whether the phases behind this one wait for the block's arrival, and whether it has arrived before its phase ends.
  u32 arrives;
  u32 published;
  // How much further on the places of passed values are than where `Passed` says.
  u32 passed_at;
  // See `set_waits`.
  u32 waits;
  Control* control;
  // What follows the phase behind this one, once it has come.
  u32 after;
  // When the token began, by `coarse_time`.
  u32 begun;
  // The block's list of segments, where it does not stand in shared memory.
  const struct Segment* list;
  // Where the phase's clocks go, or null: its beginning, the end of its wait, its end.
  u64* clocks;
  // See `await_shared_barrier`.
  u64 barrier;
  // What a spin waited for that passed its deadline, or zero, and the phase of the first one.
  u32 failure;
  u32 failed_phase;
};

static_assert(sizeof(Turn) == turn_bytes, "as the program was laid out");

// The dynamic shared memory: the turn, this phase's parameters and the next one's, the slots of the ring of weights, the block's
// list of segments unless it is too long, what a phase works in, and the ring at `ring_at`.
constexpr int ring_warps = phase_threads / 32;
constexpr int persistent_threads = phase_threads + 32 * copiers;
constexpr int phases_at = sizeof(Turn);
constexpr int slots_at = phases_at + 2 * parameter_bytes;
constexpr int list_at = slots_at + slots_bytes;
constexpr int room_at = list_at + list_bytes;

#ifndef WATERLINE_EMULATOR
__device__ inline u8* whole_shared_memory() {
  extern __shared__ __align__(128) u8 dynamic_shared_memory[];
  return dynamic_shared_memory;
}
#else
static u8* whole_shared_memory() { return emulator::shared; }
#endif

__device__ inline Turn& turn() { return *reinterpret_cast<Turn*>(whole_shared_memory()); }

// With WATERLINE_RACECHECK=1 compute-sanitizer's racecheck follows a program: that copiers see late whether a phase waits is meant, and
// barriers of some warps, which it loses track of while others wait at that of all, are in shared memory.
#ifdef WATERLINE_RACECHECK
constexpr bool all_lanes_release = true;

__device__ inline void set_waits(bool waits) { atomicExch(&turn().waits, (u32)waits); }
__device__ inline bool turn_waits() { return atomicOr(&turn().waits, 0) != 0; }

__device__ inline u32 shared_barrier() { return (u32)__cvta_generic_to_shared(&turn().barrier); }
__device__ inline void begin_shared_barrier(u32 threads) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;" ::"r"(shared_barrier()), "r"(threads) : "memory");
}
__device__ inline void await_shared_barrier() {
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

// Whether the phase still waits for its input: by thread 0, and as a copier sees it.
__device__ inline void set_waits(bool waits) { turn().waits = waits; }
__device__ inline bool turn_waits() { return *const_cast<volatile u32*>(&turn().waits) != 0; }
#endif

__device__ inline u32 real_block() { return blockIdx.x; }
__device__ inline u32 real_blocks() { return gridDim.x; }

// A barrier of all threads that run.
__device__ inline void real_barrier() {
#ifdef WATERLINE_EMULATOR
  emulator::yield(emulator::AT_BLOCK);
#else
  asm volatile("bar.sync 0;" ::: "memory");
#endif
}

// A barrier of all threads that go through the phases.
__device__ inline void whole_barrier() {
#ifdef WATERLINE_EMULATOR
  emulator::members = phase_threads;
  emulator::yield(emulator::AT_BLOCK);
#else
  asm volatile("bar.sync 2, %0;" ::"n"(phase_threads) : "memory");
#endif
}

// A barrier of the phase's threads, the first of those that run.
__device__ inline void phase_barrier() {
#if defined(WATERLINE_EMULATOR)
  emulator::partial_barrier(turn().threads.x);
#elif defined(WATERLINE_RACECHECK)
  await_shared_barrier();
#else
  asm volatile("bar.sync 1, %0;" ::"r"(turn().threads.x) : "memory");
#endif
}

// A clock that all blocks share, in units of 2^32 ns: one register, read by one instruction.
__device__ inline u32 coarse_time() {
#ifdef WATERLINE_EMULATOR
  return 0;
#else
  u32 time;
  asm volatile("mov.u32 %0, %globaltimer_hi;" : "=r"(time));
  return time;
#endif
}

// By any thread. Thread 0 keeps the first one between two phases, and the last phase reports it: code at every spin would make it
// slower.
__device__ inline void note_failure(Wait wait) { *const_cast<volatile u32*>(&turn().failure) = wait; }

// By thread 0, behind the last phase: the first block that failed tells the host.
__device__ inline void report_failure() {
  const Turn& now = turn();
  if (now.failure == 0 || atomicCAS(&now.control->failure, 0u, now.failure) != 0) return;
  now.control->phase = now.failed_phase == no_phase ? now.beginning.phase : now.failed_phase;
  now.control->block = real_block();
}

// Every spin on another block ends at the token's deadline, so that no kernel hangs: the host reads the failure, and the session is
// lost. What the rest of the token computes is of no concern; it goes through all phases, since every later spin ends at its first
// try. Waits inside a block depend on these spins only. Under the emulator a block has nothing to wait for.
__device__ inline bool is_late(Wait wait) {
#if defined(WATERLINE_RACECHECK)
  return false;
#elif !defined(WATERLINE_EMULATOR)
  if (coarse_time() - turn().begun <= deadline) return false;
#endif
  note_failure(wait);
  return true;
}

// Before a look for what has not been passed yet. All blocks look for the same, and who looks too early waits for one more look,
// which comes behind all others and behind the copies of weights.
template <int nanoseconds>
__device__ void rest() {
#ifndef WATERLINE_EMULATOR
  asm volatile("nanosleep.u32 %0;" ::"n"(nanoseconds));
#endif
}

// Between two looks.
__device__ inline void rest() { rest<100>(); }

// What no value is.
constexpr u32 not_passed = 0xffffffff;

__device__ inline void Passed::pass(int column, float value) const {
  u32 at = turn().passed_at, bits = __float_as_uint(value);
  // A number that is none has other bits here.
  if (bits == not_passed) bits = 0x7fffffff;
  u32* place = reinterpret_cast<u32*>(first) + column;
#ifdef WATERLINE_FAULT
  // For tests: one value is never published.
  if (turn().beginning.phase == WATERLINE_FAULT && column == 0) return;
#endif
#ifdef WATERLINE_EMULATOR
  place[at] = bits;
#else
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(place + at), "r"(bits) : "memory");
#endif
  place[passed_floats - at] = not_passed;
}

__device__ inline const float* Passed::place(int column) const { return first + turn().passed_at + column; }

// Asks for one or four values that follow one another, at a multiple of their number, `further` values behind a place.
template <int count, int further>
__device__ void Passed::ask(const float* place, float* values) {
#ifdef WATERLINE_EMULATOR
  memcpy(values, place + further, count * sizeof(float));
#else
  if constexpr (count == 4) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4 + %5];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "l"(place), "n"(further * sizeof(float))
                 : "memory");
  } else {
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1 + %2];"
                 : "=f"(values[0])
                 : "l"(place), "n"(further * sizeof(float))
                 : "memory");
  }
#endif
}

// Whether all of these values had been passed.
template <int count>
__device__ bool Passed::came(const float* values) {
  bool all = true;
  for (int i = 0; i < count; i++) all &= __float_as_uint(values[i]) != not_passed;
  return all;
}

// A value that the block has taken in a phase before, so that it is there: `expect` checks that where it is used, since a check here
// would wait for the load.
__device__ inline float Passed::taken(int column) const {
  float value;
  ask<1>(place(column), &value);
  return value;
}

__device__ inline void Passed::expect(float value) {
  if (__float_as_uint(value) == not_passed) note_failure(WAIT_MAILBOX);
}

// The phase's input has come.
__device__ inline void note_input() {
  if (threadIdx.x != 0) return;
  set_waits(false);
  if (turn().clocks) turn().clocks[1] = clock64();
}

// By thread 0: waits until every block has gone through the phases before this one, and shows what they wrote.
__device__ inline void wait_for_arrivals() {
  Turn& now = turn();
  if (now.waited == now.arrivals) {
    set_waits(false);
    return;
  }
#ifndef WATERLINE_EMULATOR
  u32 seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(&now.control->arrivals) : "memory");
  } while (seen < now.arrivals && !is_late(WAIT_BARRIER));
#endif
  now.waited = now.arrivals;
  note_input();
}

// By thread 0, after a barrier of the block: the block has gone through its phase.
__device__ inline void arrive() {
  if (turn().clocks) turn().clocks[2] = clock64();
#ifdef WATERLINE_FAULT
  if (turn().beginning.phase == WATERLINE_FAULT && real_block() == 0) return;
#endif
#ifndef WATERLINE_EMULATOR
  asm volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(&turn().control->arrivals) : "memory");
#endif
}

// After a barrier of the phase's threads: what others will read of the phase is written. What the block writes from here on,
// nobody reads before the next token.
__device__ inline void publish() {
  Turn& now = turn();
  if (threadIdx.x != 0 || !now.arrives || now.index + real_blocks() < now.grid.x * now.grid.y) return;
  arrive();
  now.published = 1;
}

// By thread 0: makes the phase's block `index` this one's, of a grid of this width.
__device__ inline void take_block(u32 index, u32 width) {
  Turn& now = turn();
  now.index = index;
  now.block = {index, 0, 0};
  // A division costs more than all else here.
  if (index >= width) now.block = {index % width, index / width, 0};
}

// Goes on to the phase's next block that is this one's; whether there is one.
__device__ inline bool next_block() {
  Turn& now = turn();
  if (now.index + real_blocks() >= now.grid.x * now.grid.y) return false;
  phase_barrier();
  if (threadIdx.x == 0) take_block(now.index + real_blocks(), now.grid.x);
  phase_barrier();
  return true;
}

// This phase and the next one, each with its parameters behind it.
__device__ inline u8* this_place() { return whole_shared_memory() + phases_at; }
__device__ inline u8* next_place() { return this_place() + parameter_bytes; }
__device__ inline const Phase& this_phase() { return *reinterpret_cast<const Phase*>(this_place()); }

// By thread 0: makes a phase this block's turn.
__device__ inline void begin_phase(const Phase& phase, u32 number, u32 next) {
  Turn& now = turn();
  int function = phase.function;
  u32 width = phase.grid[0], height = phase.grid[1], threads = phase.threads;
  u32 shifted = real_block() + phase.shift, index = shifted < real_blocks() ? shifted : shifted - real_blocks();
  now.beginning = {next, index < width * height ? threads : 0, function, number};
  now.grid = {width, height, 1};
  now.threads = {threads, 1, 1};
#ifdef WATERLINE_RACECHECK
  begin_shared_barrier(threads);
#endif
  now.published = 0;
  take_block(index, width);
}

// Between two barriers of the block: the next one of `count` phases becomes this one. All blocks wait for the last of them, so that
// thread 0 asks for everything at once.
__device__ inline void turn_to_next_phase(u32 count) {
  constexpr int words = parameter_bytes / 16;
  static_assert(words < phase_threads, "a thread for each word, and one for the follower");
  const Phase& next = *reinterpret_cast<const Phase*>(next_place());
  if (threadIdx.x < words) {
    reinterpret_cast<uint4*>(this_place())[threadIdx.x] = reinterpret_cast<const uint4*>(next_place())[threadIdx.x];
  }
  if (threadIdx.x != 0) return;
  Turn& now = turn();
  const Turn before = now;
  if (before.waited != before.arrivals) wait_for_arrivals();
  if (before.failure != 0 && before.failed_phase == no_phase) now.failed_phase = before.beginning.phase;
  if (before.arrives) {
    if (!before.published) arrive();
    now.arrivals = before.arrivals + real_blocks();
  }
  u32 follower = before.beginning.next, phase = follower & ~arrives_there;
  if (before.clocks) {
    if (!before.arrives) before.clocks[2] = clock64();
    // Each phase has three, whether the block goes through it or not.
    now.clocks = before.clocks + 3 * (phase - before.beginning.phase);
    now.clocks[0] = now.clocks[1] = clock64();
  }
  set_waits(true);
  now.arrives = follower >> 31;
  begin_phase(next, phase, phase < count ? before.after : no_phase);
}

// A parameter of this phase.
template <class T>
__device__ T const& parameter(int offset) {
  return *reinterpret_cast<T const*>(this_place() + sizeof(Phase) + offset);
}

// From here on a block is a phase's.
#define blockIdx (turn().block)
#define gridDim (turn().grid)
#define blockDim (turn().threads)
#define __syncthreads() phase_barrier()
