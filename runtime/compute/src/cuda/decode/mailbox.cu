// Mailboxes: values that one op of the decode kernel hands to the next, without a grid barrier. A mailbox is an array in global
// memory, which stays in L2. Each entry carries its own ready flag: a reserved NaN means empty. Stores and loads are relaxed, so
// that neither side waits for other memory traffic of its SM.
//
// Two buffers alternate from token to token, `mailbox_floats` apart. The producer of an entry clears the entry of the other buffer.
// Every token writes every entry of its buffer, so that the next token finds all its entries empty. Between the clearing and the
// next token's store to the same entry lies at least one grid barrier.

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;

// The bits of an empty entry, a NaN that no arithmetic produces.
constexpr u32 mailbox_empty = 0xffffffff;

// Defined in cta.cu: floats from a mailbox's first buffer to this token's buffer, and the report of a failed wait.
__device__ inline u32 mailbox_offset();
__device__ inline void note_failure(Wait wait);

struct Mailbox {
  // The first buffer; null if there is no mailbox.
  float* first;

  __device__ void publish(int column, float value) const;
  // Returns the address of this token's entry of a column.
  __device__ const float* entry(int column) const { return first + mailbox_offset() + column; }
  // Loads `count` entries (1 or 4) at `from + further`, which may still be empty. Four entries must be aligned to 16 bytes.
  template <int count, int further = 0>
  __device__ static void try_load(const float* from, float* values);
  // Whether none of the loaded entries was empty.
  template <int count>
  __device__ static bool is_ready(const float* values);
  // Loads an entry that this block has read in an earlier op. `check` verifies the value where it is used: here it would
  // wait for the load.
  __device__ float load(int column) const {
    float value;
    try_load<1>(entry(column), &value);
    return value;
  }
  __device__ static void check(float value) {
    if (__float_as_uint(value) == mailbox_empty) note_failure(WAIT_MAILBOX);
  }
};

template <int count, int further>
__device__ void Mailbox::try_load(const float* from, float* values) {
#ifdef WATERLINE_EMULATOR
  memcpy(values, from + further, count * sizeof(float));
#else
  if constexpr (count == 4) {
    asm volatile("ld.relaxed.gpu.global.v4.f32 {%0, %1, %2, %3}, [%4 + %5];"
                 : "=f"(values[0]), "=f"(values[1]), "=f"(values[2]), "=f"(values[3])
                 : "l"(from), "n"(further * sizeof(float))
                 : "memory");
  } else {
    asm volatile("ld.relaxed.gpu.global.f32 %0, [%1 + %2];"
                 : "=f"(values[0])
                 : "l"(from), "n"(further * sizeof(float))
                 : "memory");
  }
#endif
}

template <int count>
__device__ bool Mailbox::is_ready(const float* values) {
  bool all = true;
  for (int i = 0; i < count; i++) all &= __float_as_uint(values[i]) != mailbox_empty;
  return all;
}

// Called before the first poll, or between two polls. All blocks poll the same entries. A poll that comes too early costs a second one,
// whose loads queue after all other polls and weight copies.
template <int nanoseconds>
__device__ void backoff() {
#ifndef WATERLINE_EMULATOR
  asm volatile("nanosleep.u32 %0;" ::"n"(nanoseconds));
#endif
}
__device__ inline void backoff() { backoff<poll_ns>(); }
