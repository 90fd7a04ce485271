// Prologue of a streaming GEMV: every block computes the whole input vector into its shared memory, in the forms that the weight formats
// need.

// Each warp's sum of squares of the input.
__device__ inline float* warp_squares() {
  __shared__ __align__(16) float squares[consumer_warps];
  return squares;
}

// The factor of a late RMS norm and its inverse, in all lanes.
struct LateNorm {
  float factor = 1.0f;
  float inverse = 1.0f;

  LateNorm() = default;
  // Four adjacent lanes add up the warps' sums; `own` points to the four sums of a lane.
  __device__ LateNorm(const float4* own, int cols, float eps) {
    float4 four = *own;
    float squares = four.x + four.y + four.z + four.w;
    squares += __shfl_xor_sync(all_lanes, squares, 2);
    squares += __shfl_xor_sync(all_lanes, squares, 1);
    float mean = squares / cols + eps;
    factor = inverse_root(mean);
    inverse = mean * factor;
  }
};

// The input in 8 bits, in units of 32 values: the first sixteen codes of every unit, then the other sixteen, then a scale per unit.
// `late`: scales are rounded when a unit is loaded, with the factor of a late norm.
template <bool late>
struct RoundedInput {
  u8* codes;
  float* scales;
  int units;
  LateNorm norm;

  __device__ RoundedInput(u8* at, int cols)
      : codes(at), scales(reinterpret_cast<float*>(codes + cols)), units(cols / 32) {}

  // Returns the address of a column's code.
  __device__ u8* place(int column) const { return codes + (column / 16 % 2 * units + column / 32) * 16 + column % 16; }

  // The codes of four values.
  template <class Scale>
  __device__ static u32 pack(const Scale& scale, const float* x) {
    u32 packed = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) packed |= (u32)(u8)scale.code(x[i]) << 8 * i;
    return packed;
  }

  // A lane holds one, four or eight consecutive values of a unit.
  template <int rounding, int cols, int flags>
  __device__ void store(const Fragment<cols, flags>& fragment) const {
    using Own = Fragment<cols, flags>;
    constexpr int lanes = 32 / Own::in_a_row, count = Own::runs / Own::runs_of_lane;
    constexpr bool in_warp = Own::in_a_row == 1 || Own::in_a_row == units_of_scale(rounding);
    // A thread's runs are a whole number of units apart.
    u8* first = place(Own::column(0));
    float* first_scale = scales + Own::column(0) / 32;
    bool has_scale = Own::column(0) % 32 == 0;
    u32 largest[count];
#pragma unroll
    for (int i = 0; i < count; i++) {
      const float* x = fragment.value + Own::in_a_row * i;
      largest[i] = magnitude(x[0]);
#pragma unroll
      for (int k = 1; k < Own::in_a_row; k++) largest[i] = max(largest[i], magnitude(x[k]));
      if constexpr (in_warp) {
        largest[i] = warp_max_of_bits(largest[i]);
      } else {
#pragma unroll
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
          largest[i] = max(largest[i], __shfl_xor_sync(all_lanes, largest[i], distance));
        }
      }
    }
    if constexpr (rounding == IN_SUPER_BLOCKS && Own::in_a_row != 8) share_largest<Own>(largest);
#pragma unroll
    for (int i = 0; i < count; i++) {
      if (!Own::has(i * Own::runs_of_lane)) return;
      int offset = Own::offset(i * Own::runs_of_lane);
      u8* at = first + offset / 32 * 16;
      const float* x = fragment.value + Own::in_a_row * i;
      Scale<rounding> scale(largest[i]);
      if constexpr (Own::in_a_row == 1) {
        *at = (u8)scale.code(*x);
      } else if constexpr (Own::in_a_row == 8) {
        *reinterpret_cast<uint2*>(at) = {pack(scale, x), pack(scale, x + 4)};
      } else {
        *reinterpret_cast<u32*>(at) = pack(scale, x);
      }
      if (has_scale) first_scale[offset / 32] = late ? scale.exact : scale.rounded();
    }
  }

  // Finds the largest value over all units with a common scale, where more than one warp holds their values.
  template <class Own>
  __device__ void share_largest(u32* largest) const {
    u32* all = reinterpret_cast<u32*>(scales);
    constexpr int count = Own::runs / Own::runs_of_lane;
#pragma unroll
    for (int i = 0; i < count; i++) {
      int column = Own::column(i * Own::runs_of_lane);
      if (Own::has(i * Own::runs_of_lane) && column % 32 == 0) all[column / 32] = largest[i];
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < count; i++) {
      int column = Own::column(i * Own::runs_of_lane);
      if (!Own::has(i * Own::runs_of_lane)) continue;
#pragma unroll
      for (int k = 0; k < 8; k++) largest[i] = max(largest[i], all[column / 256 * 8 + k]);
    }
    // The scales are stored in the same memory later.
    __syncthreads();
  }

  __device__ Codes unit(int index) const {
    Codes read;
    int4 a = reinterpret_cast<const int4*>(codes)[index], b = reinterpret_cast<const int4*>(codes)[units + index];
    read.packed[0] = a.x, read.packed[1] = a.y, read.packed[2] = a.z, read.packed[3] = a.w;
    read.packed[4] = b.x, read.packed[5] = b.y, read.packed[6] = b.z, read.packed[7] = b.w;
    read.scale = late ? short_scale(scales[index] * norm.factor) * norm.inverse : scales[index];
    // Dead code where no format uses the sum.
    read.sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) read.sum = __dp4a(read.packed[i], 0x01010101, read.sum);
    return read;
  }
};

// The input as sums of three bf16 numbers, which hold all 24 bits of the fraction. Each part has a row.
struct SplitInput {
  u16* first;
  // Numbers from one row to the next. Eight lanes that read two rows use all banks.
  int pitch;

  __device__ SplitInput(u8* at, int cols)
      : first(reinterpret_cast<u16*>(at)), pitch((cols + 63) / 64 * 64 + 32) {}

  template <int cols, int flags>
  __device__ void store(const Fragment<cols, flags>& fragment) const {
    using Own = Fragment<cols, flags>;
#pragma unroll
    for (int r = 0; r < Own::runs; r++) {
      if (!Own::has(r)) return;
      float left[Own::run];
#pragma unroll
      for (int i = 0; i < Own::run; i++) left[i] = fragment.value[r * Own::run + i];
#pragma unroll
      for (int part = 0; part < 3; part++) {
        u16* place = first + part * pitch + Own::column(r);
        if constexpr (Own::run == 4) {
          uint2 pairs = {pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3])};
          *reinterpret_cast<uint2*>(place) = pairs;
          left[0] -= first_of(pairs.x), left[1] -= second_of(pairs.x);
          left[2] -= first_of(pairs.y), left[3] -= second_of(pairs.y);
        } else {
          u32 number = pack_bf16(left[0], 0.0f);
          *place = (u16)number;
          left[0] -= first_of(number);
        }
      }
    }
  }
};

// The input in all three forms; `store_input` fills the forms in use.
template <bool late>
struct ProductInput {
  const float* x;
  RoundedInput<late> rounded;
  SplitInput split;

  __device__ ProductInput(u8* room, int codes_at, int parts_at, int cols)
      : x(reinterpret_cast<const float*>(room)), rounded(room + codes_at, cols), split(room + parts_at, cols) {}
};

// The columns from which the input is computed and the operands of its steps, while they are loaded into registers.
template <int mailboxes, int cols, int flags>
struct PendingInput {
  // Whether these operands are also read from mailboxes.
  static constexpr bool added_by_mailbox = (mailboxes & MAILBOX_ADDED) != 0, gates_by_mailbox = (mailboxes & MAILBOX_GATES) != 0;
  Fragment<cols, flags> fragment;
  // Gain of a late norm.
  Fragment<cols, flags> gain;
  StepOperands<cols, flags> operands;

  __device__ void try_load_all() {
    fragment.try_load(Mailbox{this_op().input});
    if constexpr (added_by_mailbox) operands.added.try_load(Mailbox{this_op().added});
    if constexpr (gates_by_mailbox) operands.gates.try_load(Mailbox{this_op().gates});
  }

  // Starts all loads that do not depend on earlier ops.
  __device__ void prefetch(const Prologue& prologue) {
    fragment.clear();
    if constexpr ((mailboxes & MAILBOX_INPUT) != 0) {
      if constexpr (added_by_mailbox) operands.added.clear();
      if constexpr (gates_by_mailbox) operands.gates.clear();
      operands.load(prologue, 0, added_by_mailbox, gates_by_mailbox);
    }
    if constexpr ((flags & LATE_NORM) != 0) gain.load(prologue.step[prologue.steps - 1].weight);
  }

  // Polls the mailboxes, or waits at the grid barrier.
  __device__ void wait(const Prologue& prologue) {
    if constexpr ((mailboxes & MAILBOX_INPUT) != 0) {
      Polls polls;
      // The first poll is outside of the loop, although the code is longer: GDN 1.3B in Q8_0 takes 546 us on an H200 instead of 562.
      try_load_all();
      while (!(fragment.is_ready() & (!added_by_mailbox || operands.added.is_ready()) & (!gates_by_mailbox || operands.gates.is_ready()))) {
        backoff();
        try_load_all();
        // The clock is read while the loads are in flight.
        if (polls.give_up(WAIT_MAILBOX)) break;
      }
    } else {
      wait_for_dependencies();
      load(prologue, 0);
    }
  }

  // Loads the columns of token t from buffers.
  __device__ void load(const Prologue& prologue, int t) {
    fragment.load(prologue.input.token(t));
    operands.load(prologue, t);
  }
};

// Stores the input of token t in f32, in 8 bits and in bf16 in `room`, each where the layout has room for it. The factor of a late RMS norm
// is left to the epilogue, so that no warp waits for the others: `warps_squares` gets each warp's sum of squares. The input is complete after
// a barrier.
template <int rounding, int cols, int flags, int codes_at, int parts_at, int bytes, class Pending, class Input>
__device__ void store_input(const Prologue& prologue, int t, Pending& pending, const Input& input, float* room, float* warps_squares) {
  Fragment<cols, flags>& fragment = pending.fragment;
  apply_steps<cols, flags>(prologue, t, pending.operands, fragment, room);
  if constexpr ((flags & LATE_NORM) != 0) {
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < fragment.count; k++) {
      squares += fragment.value[k] * fragment.value[k];
      fragment.value[k] *= pending.gain.value[k];
    }
    squares = warp_sum(squares);
    if (lane_index() == 0) warps_squares[warp_index()] = squares;
  }
  fragment.template round_short<rounding>();
  if constexpr (codes_at > 0) fragment.store(room);
  if constexpr (parts_at > codes_at) input.rounded.template store<rounding>(fragment);
  if constexpr (bytes > parts_at) input.split.store(fragment);
}
