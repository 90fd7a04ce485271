// Prologue of a matrix product: a thread block computes a row of its input from columns of a buffer, by norms, gates and functions.
// `Prologue`, its steps and its flags are in prologue.rs.

// The flags hold the logarithm of the common size of all normed parts from this bit on; 0 if there is no common power of two.
constexpr int part_bits = 13;
__device__ constexpr int part_size(int flags) { return flags >> part_bits > 0 ? 1 << (flags >> part_bits) : 0; }

#ifdef WATERLINE_DECODE
constexpr int prologue_threads = consumer_threads;
#else
constexpr int prologue_threads = 256;
#endif

// This thread's values of a row: runs of one or four values, `prologue_threads` runs apart. All loads are in flight at once.
template <int cols, int flags>
struct Fragment {
  static constexpr int run = (flags & QUADS) != 0 ? 4 : 1;
  static constexpr int least_runs = (cols + run * prologue_threads - 1) / (run * prologue_threads);
  // Whether two runs are adjacent (eight values): fewer lanes then share 32 values, or a warp holds a complete part of a norm.
  static constexpr bool norms_parts = (flags & (PART_NORM | ODD_PART_NORM)) != 0;
  static constexpr bool paired =
      (flags & WARP_HAS_SUPER_BLOCK) != 0 ||
      (run == 4 && cols % 8 == 0 && least_runs > 1 && (!norms_parts || part_size(flags) == 64 * run));
  // Adjacent runs of a lane, and the number of their values.
  static constexpr int runs_of_lane = paired ? 2 : 1, in_a_row = run * runs_of_lane;
  static constexpr int runs = (least_runs + runs_of_lane - 1) / runs_of_lane * runs_of_lane;
  static constexpr int count = runs * run;
  float value[count];

  // Columns from the first run to run number r.
  static constexpr __device__ int offset(int r) {
    return r / runs_of_lane * prologue_threads * in_a_row + r % runs_of_lane * run;
  }
  // The first column of run number r, and whether the run exists.
  static __device__ int column(int r) { return threadIdx.x * in_a_row + offset(r); }
  static __device__ bool has(int r) {
    return cols % (in_a_row * prologue_threads) == 0 || r < runs - runs_of_lane || column(r) < cols;
  }
  __device__ void load(const float* row) {
#pragma unroll
    for (int r = 0; r < runs; r++) load_run(r, row + column(r));
  }
  __device__ void load_run(int r, const float* from) {
    if constexpr (run == 4) {
      float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
      if (has(r)) four = *reinterpret_cast<const float4*>(from);
      value[4 * r] = four.x, value[4 * r + 1] = four.y, value[4 * r + 2] = four.z, value[4 * r + 3] = four.w;
    } else {
      value[r] = has(r) ? *from : 0.0f;
    }
  }
#ifdef WATERLINE_DECODE
  // Loads entries of a mailbox, which may be empty.
  __device__ void try_load(const Mailbox& from) { try_load_from<0>(from.entry(column(0))); }
  template <int r>
  __device__ void try_load_from(const float* entry) {
    if constexpr (r < runs) {
      if (has(r)) Mailbox::try_load<run, offset(r)>(entry, value + r * run);
      try_load_from<r + 1>(entry);
    }
  }
  // Whether none of the loaded entries was empty.
  __device__ bool is_ready() const {
    bool all = true;
#pragma unroll
    for (int r = 0; r < runs; r++) all &= !has(r) || Mailbox::is_ready<run>(value + r * run);
    return all;
  }
  // Clears the values, for the threads past the last column.
  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < count; k++) value[k] = 0.0f;
  }
#endif
  // Prefetches a row into L1 for a later load.
  __device__ static void prefetch_l1(const float* row) {
#ifndef WATERLINE_EMULATOR
#pragma unroll
    for (int r = 0; r < runs; r++) {
      if (has(r) && lane_index() % (8 / run) == 0) asm volatile("prefetch.global.L1 [%0];" ::"l"(row + column(r)));
    }
#endif
  }
  // Rounds the values to 16 bits, if products read 16-bit inputs.
  template <int rounding>
  __device__ void round_short() {
    if constexpr (rounding == TO_BF16 || rounding == TO_F16) {
#pragma unroll
      for (int k = 0; k < count; k++) value[k] = ::round_short<rounding>(value[k]);
    }
  }
  __device__ void store(float* row) const {
#pragma unroll
    for (int r = 0; r < runs; r++) {
      if (!has(r)) continue;
      if constexpr (run == 4) {
        *reinterpret_cast<float4*>(row + column(r)) = {value[4 * r], value[4 * r + 1], value[4 * r + 2], value[4 * r + 3]};
      } else {
        row[column(r)] = value[r];
      }
    }
  }
};

// Loads the gain of a norm of parts.
template <int cols, int flags>
__device__ void load_gain(const float* weight, const PrologueStep& step, Fragment<cols, flags>& gain) {
#pragma unroll
  for (int r = 0; r < gain.runs; r++) {
    int column = gain.column(r);
    if constexpr (part_size(flags) == 0) {
      column %= step.groups > 1 ? step.span : step.size;
    } else if constexpr ((flags & REPEATED_GAINS) != 0) {
      column %= part_size(flags);
    }
    gain.load_run(r, weight + column);
  }
}

// Operands of a row's steps apart from the row, held in registers where `FEW_STEPS`.
template <int cols, int flags>
struct StepOperands {
  // Gain of a norm of parts, gain of the added columns, added columns, gates.
  Fragment<cols, flags> gain;
  Fragment<cols, flags> added_gain;
  Fragment<cols, flags> added;
  Fragment<cols, flags> gates;

  // Loads the operands, or prefetches them where there are more steps; columns from mailboxes are not loaded.
  __device__ void load(const Prologue& prologue, int t, bool added_by_mailbox = false, bool gates_by_mailbox = false) {
    constexpr bool adds = (flags & ADDED_COLUMNS) != 0, is_gated = (flags & GATED_BY_COLUMNS) != 0;
    if constexpr (adds || is_gated || (flags & PART_NORM) != 0) {
      int norm = 0, add = 0, gate = 0;
#pragma unroll 1
      for (int s = 0; s < prologue.steps; s++) {
        int kind = prologue.step[s].kind;
        if (kind == STEP_ADD) add = s;
        if (kind == STEP_GATE) gate = s;
        if (kind <= STEP_LAYER_NORM) norm = s;
        if ((flags & FEW_STEPS) == 0 && (kind == STEP_ADD || kind == STEP_GATE)) {
          Fragment<cols, flags>::prefetch_l1(prologue.step[s].columns.token(t));
        }
      }
      if constexpr ((flags & FEW_STEPS) != 0) {
        if constexpr ((flags & PART_NORM) != 0) load_gain(prologue.step[norm].weight, prologue.step[norm], gain);
        if constexpr (adds) added_gain.load(prologue.step[add].weight);
        if (adds && !added_by_mailbox) added.load(prologue.step[add].columns.token(t));
        if (is_gated && !gates_by_mailbox) gates.load(prologue.step[gate].columns.token(t));
      }
    }
  }
};

// Norms of a row's parts. A part spans several warps, one warp, or some lanes of a warp.
template <int cols, int flags>
__device__ void norm_parts(const PrologueStep& step, int size, const Fragment<cols, flags>& gain, Fragment<cols, flags>& fragment) {
  using Own = Fragment<cols, flags>;
  constexpr int run = Own::in_a_row, runs = Own::count / run;
  constexpr int warps = prologue_threads / 32, of_warp = 32 * run;
  __shared__ float sums[runs * warps];
  int warps_of_part = size / of_warp;
  // With one norm the array has no earlier readers.
  bool used = (flags & FEW_STEPS) == 0;
  // Sums over parts; every thread gets the sums of its parts.
  auto over_part = [&](float (&x)[runs]) {
    if (warps_of_part == 0) {
#pragma unroll
      for (int r = 0; r < runs; r++) {
        for (int distance = size / run / 2; distance > 0; distance /= 2) {
          x[r] += __shfl_xor_sync(all_lanes, x[r], distance);
        }
      }
      return;
    }
    if (part_size(flags) == of_warp) {
#pragma unroll
      for (int r = 0; r < runs; r++) x[r] = warp_sum(x[r]);
      return;
    }
    if (used) __syncthreads();
    used = true;
#pragma unroll
    for (int r = 0; r < runs; r++) {
      x[r] = warp_sum(x[r]);
      if (lane_index() == 0) sums[r * warps + warp_index()] = x[r];
    }
    __syncthreads();
    float per_part = 1.0f / warps_of_part;
#pragma unroll
    for (int r = 0; r < runs; r++) {
      u32 place = r * warps + warp_index();
      // Exact: the numbers are small.
      int first = (part_size(flags) > 0 ? place / warps_of_part : (int)((place + 0.5f) * per_part)) * warps_of_part;
      x[r] = sums[first];
#pragma unroll 1
      for (int i = 1; i < warps_of_part; i++) x[r] += sums[first + i];
    }
  };
  Own bias;
  if (step.bias) load_gain(step.bias, step, bias);
  float x[runs];
  if ((flags & CENTRED_NORM) != 0 && step.kind == STEP_LAYER_NORM) {
#pragma unroll
    for (int r = 0; r < runs; r++) {
      x[r] = 0.0f;
      for (int i = 0; i < run; i++) x[r] += fragment.value[r * run + i];
    }
    over_part(x);
#pragma unroll
    for (int k = 0; k < Own::count; k++) fragment.value[k] -= Own::has(k / Own::run) ? x[k / run] / size : 0.0f;
  }
#pragma unroll
  for (int r = 0; r < runs; r++) {
    x[r] = 0.0f;
    for (int i = 0; i < run; i++) x[r] += fragment.value[r * run + i] * fragment.value[r * run + i];
  }
  over_part(x);
#pragma unroll
  for (int k = 0; k < Own::count; k++) {
    float inverse = 1.0f / sqrtf(x[k / run] / size + step.eps);
    fragment.value[k] = fragment.value[k] * inverse * gain.value[k] + (step.bias ? bias.value[k] : 0.0f);
  }
}

// The norm of one part of any size, by one warp.
__device__ inline void norm_part(const PrologueStep& step, float* part, int size, int first) {
  float mean = 0.0f, squares = 0.0f;
  if (step.kind == STEP_LAYER_NORM) {
    for (int i = lane_index(); i < size; i += 32) mean += part[i];
    mean = warp_sum(mean) / size;
  }
  for (int i = lane_index(); i < size; i += 32) squares += (part[i] - mean) * (part[i] - mean);
  float inverse = 1.0f / sqrtf(warp_sum(squares) / size + step.eps);
  for (int i = lane_index(); i < size; i += 32) {
    float bias = step.bias ? step.bias[first + i] : 0.0f;
    part[i] = (part[i] - mean) * inverse * step.weight[first + i] + bias;
  }
}

// The norm of a whole row.
template <int cols, int flags>
__device__ void norm_row(const PrologueStep& step, Fragment<cols, flags>& fragment) {
  Fragment<cols, flags> gain, bias;
  gain.load(step.weight);
  if (step.bias) bias.load(step.bias);
  float mean = 0.0f, squares = 0.0f;
  if ((flags & CENTRED_NORM) != 0 && step.kind == STEP_LAYER_NORM) {
#pragma unroll
    for (int k = 0; k < Fragment<cols, flags>::count; k++) mean += fragment.value[k];
    mean = block_sum(mean) / cols;
  }
#pragma unroll
  for (int k = 0; k < Fragment<cols, flags>::count; k++) {
    float difference = Fragment<cols, flags>::has(k / Fragment<cols, flags>::run) ? fragment.value[k] - mean : 0.0f;
    squares += difference * difference;
  }
  float inverse = 1.0f / sqrtf(block_sum(squares) / cols + step.eps);
#pragma unroll
  for (int k = 0; k < Fragment<cols, flags>::count; k++) {
    fragment.value[k] = (fragment.value[k] - mean) * inverse * gain.value[k] + (step.bias ? bias.value[k] : 0.0f);
  }
}

// Applies one step to the row, in fragments or through the row `x` in shared memory.
template <int cols, int flags>
__device__ void apply_step(const PrologueStep& step, int t, StepOperands<cols, flags>& operands, Fragment<cols, flags>& fragment, float* x) {
  if ((flags & MAPPED) != 0 && step.kind == STEP_MAP) return activate_all(step.function, fragment.value);
  if ((flags & ADDED_COLUMNS) != 0 && step.kind == STEP_ADD) {
    if ((flags & FEW_STEPS) == 0) operands.added_gain.load(step.weight), operands.added.load(step.columns.token(t));
#pragma unroll
    for (int k = 0; k < fragment.count; k++) fragment.value[k] += operands.added_gain.value[k] * operands.added.value[k];
    return;
  }
  if ((flags & GATED_BY_COLUMNS) != 0 && step.kind == STEP_GATE) {
    if ((flags & FEW_STEPS) == 0) operands.gates.load(step.columns.token(t));
    if constexpr ((flags & SILU_GATES) != 0) {
#pragma unroll
      for (int k = 0; k < fragment.count; k++) operands.gates.value[k] = silu(operands.gates.value[k]);
    } else {
      activate_all(step.function, operands.gates.value);
    }
#pragma unroll
    for (int k = 0; k < fragment.count; k++) fragment.value[k] *= operands.gates.value[k];
    return;
  }
  int size = part_size(flags) > 0 ? part_size(flags) : step.size;
  if ((flags & (WHOLE_NORM | LATE_NORM)) == WHOLE_NORM && step.size == cols) return norm_row<cols, flags>(step, fragment);
  if ((flags & PART_NORM) != 0 && size % 32 == 0) {
    if ((flags & FEW_STEPS) == 0) load_gain(step.weight, step, operands.gain);
    return norm_parts<cols, flags>(step, size, operands.gain, fragment);
  }
  if constexpr ((flags & ODD_PART_NORM) != 0) {
    fragment.store(x);
    __syncthreads();
    for (int part = warp_index(); part < cols / size; part += prologue_threads / 32) {
      norm_part(step, x + part * size, size, part * size % step.span);
    }
    __syncthreads();
    fragment.load(x);
    __syncthreads();
  }
}

// Applies all steps to token t's row, without the factor of a late norm. `x` has room for a row; it may be the token's own columns.
template <int cols, int flags>
__device__ void apply_steps(const Prologue& prologue, int t, StepOperands<cols, flags>& operands, Fragment<cols, flags>& fragment, float* x) {
  constexpr int of_late_norm = WHOLE_NORM | LATE_NORM | QUADS | FEW_STEPS | WARP_HAS_SUPER_BLOCK;
  constexpr bool late = (flags & LATE_NORM) != 0, has_steps = late ? (flags & ~of_late_norm) != 0 : flags != 0;
  if constexpr (has_steps) {
#pragma unroll 1
    for (int s = 0; s < prologue.steps - late; s++) apply_step<cols, flags>(prologue.step[s], t, operands, fragment, x);
  }
}

// Returns this thread's fragment of the input of token t.
template <int cols, int flags>
__device__ Fragment<cols, flags> prologue_row(const Prologue& prologue, int t, float* x) {
  Fragment<cols, flags> fragment;
  StepOperands<cols, flags> operands;
  fragment.load(prologue.input.token(t));
  operands.load(prologue, t);
  apply_steps<cols, flags>(prologue, t, operands, fragment, x);
  return fragment;
}

// Stores the input of token t in x; complete after a barrier.
template <int cols, int flags>
__device__ void store_prologue_row(const Prologue& prologue, int t, float* x) {
  prologue_row<cols, flags>(prologue, t, x).store(x);
}
