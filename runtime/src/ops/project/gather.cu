// Inputs of matrix products, made of the columns of a buffer: norms, gates, functions, by one block for a row.

// What happens to an input on its way: a norm of each of `groups` parts of `span` values, a function, other columns.
struct GatherStep {
  const float* weight;
  const float* bias;
  Rows columns;
  float eps;
  int kind;
  int span;
  int groups;
  // Values of a part.
  int size;
  int function;
};

enum { STEP_NORM, STEP_LAYER_NORM, STEP_ADD, STEP_MAP, STEP_GATE };

constexpr int most_steps = 4;

// What kinds of steps a gather has, so that others cost no instructions: see `Gather::kinds` in products.rs.
enum {
  WHOLE_NORM = 1,
  PART_NORM = 2,
  ODD_PART_NORM = 4,
  CENTRED_NORM = 8,
  ADDED_COLUMNS = 16,
  MAPPED = 32,
  GATED_BY_COLUMNS = 64,
  // All rows begin at multiples of four numbers, and have such a number of them.
  QUADS = 256,
  // The last step is the only norm, an RMS norm of the whole row without a bias: its factor may come behind the product.
  LATE_NORM = 512,
  // At most one norm, one that adds other columns and one that gates by others: what they read is asked for with the input.
  NEAR = 1024,
  // Gates go through SILU, which then needs no call.
  SILU_GATES = 2048,
  // Norms of parts have gains of one part, which repeat; else of the whole row. Only where the size of parts is known.
  REPEATED_GAINS = 4096
};

// The size of all normed parts, if that is one power of two: its logarithm stands in the bits from this one on.
constexpr int part_bits = 13;
__device__ constexpr int part_size(int kinds) { return kinds >> part_bits > 0 ? 1 << (kinds >> part_bits) : 0; }

// How an input is made of a buffer's columns.
struct Gather {
  Rows input;
  int steps;
  GatherStep step[most_steps];
};

#ifdef WATERLINE_PHASES
constexpr int gather_threads = phase_threads;
#else
constexpr int gather_threads = 256;
#endif

// This thread's values of a row: runs of one or of four, `gather_threads` runs apart. All loads are under way at once.
template <int cols, int kinds>
struct Share {
  static constexpr int run = (kinds & QUADS) != 0 ? 4 : 1;
  static constexpr int least_runs = (cols + run * gather_threads - 1) / (run * gather_threads);
  // Whether two runs follow one another, eight values: fewer lanes then share 32 numbers, or a warp has a whole part of a norm.
  static constexpr bool norms_parts = (kinds & (PART_NORM | ODD_PART_NORM)) != 0;
  static constexpr bool paired =
      run == 4 && cols % 8 == 0 && least_runs > 1 && (!norms_parts || part_size(kinds) == 64 * run);
  // Runs that follow one another, and values.
  static constexpr int together = paired ? 2 : 1, in_a_row = run * together;
  static constexpr int runs = (least_runs + together - 1) / together * together;
  static constexpr int count = runs * run;
  float value[count];

  // Columns from the first run to run number r.
  static constexpr __device__ int behind(int r) {
    return r / together * gather_threads * in_a_row + r % together * run;
  }
  // The first column of run number r, and whether there is one.
  static __device__ int column(int r) { return threadIdx.x * in_a_row + behind(r); }
  static __device__ bool has(int r) {
    return cols % (in_a_row * gather_threads) == 0 || r < runs - together || column(r) < cols;
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
#ifdef WATERLINE_PHASES
  // Asks for what is passed.
  __device__ void ask(const Passed& from) { ask_from<0>(from.place(column(0))); }
  template <int r>
  __device__ void ask_from(const float* place) {
    if constexpr (r < runs) {
      if (has(r)) Passed::ask<run, behind(r)>(place, value + r * run);
      ask_from<r + 1>(place);
    }
  }
  // Whether all of it had been passed.
  __device__ bool came() const {
    bool all = true;
#pragma unroll
    for (int r = 0; r < runs; r++) all &= !has(r) || Passed::came<run>(value + r * run);
    return all;
  }
  // Nothing, for those past the last column.
  __device__ void clear() {
#pragma unroll
    for (int k = 0; k < count; k++) value[k] = 0.0f;
  }
#endif
  // Brings them near, for a load that comes later.
  __device__ static void announce(const float* row) {
#ifndef WATERLINE_EMULATOR
#pragma unroll
    for (int r = 0; r < runs; r++) {
      if (has(r) && lane_index() % (8 / run) == 0) asm volatile("prefetch.global.L1 [%0];" ::"l"(row + column(r)));
    }
#endif
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

// The gain of a norm of parts. Parts of one group follow one another; each may have a gain of its own.
template <int cols, int kinds>
__device__ void load_gain(const float* weight, const GatherStep& step, Share<cols, kinds>& gain) {
#pragma unroll
  for (int r = 0; r < gain.runs; r++) {
    int column = gain.column(r);
    if constexpr (part_size(kinds) == 0) {
      column %= step.groups > 1 ? step.span : step.size;
    } else if constexpr ((kinds & REPEATED_GAINS) != 0) {
      column %= part_size(kinds);
    }
    gain.load_run(r, weight + column);
  }
}

// What the steps of a row read besides it, where there are few.
template <int cols, int kinds>
struct Near {
  // Those of a norm of parts, and of what is added.
  Share<cols, kinds> gain;
  Share<cols, kinds> added_gain;
  Share<cols, kinds> added;
  Share<cols, kinds> gates;

  // Asks for it, or where there is more, brings it near; but for columns that come with the input.
  __device__ void load(const Gather& gather, int t, bool added_come = false, bool gates_come = false) {
    constexpr bool adds = (kinds & ADDED_COLUMNS) != 0, is_gated = (kinds & GATED_BY_COLUMNS) != 0;
    if constexpr (adds || is_gated || (kinds & PART_NORM) != 0) {
      int norm = 0, add = 0, gate = 0;
#pragma unroll 1
      for (int s = 0; s < gather.steps; s++) {
        int kind = gather.step[s].kind;
        if (kind == STEP_ADD) add = s;
        if (kind == STEP_GATE) gate = s;
        if (kind <= STEP_LAYER_NORM) norm = s;
        if ((kinds & NEAR) == 0 && (kind == STEP_ADD || kind == STEP_GATE)) {
          Share<cols, kinds>::announce(gather.step[s].columns.token(t));
        }
      }
      if constexpr ((kinds & NEAR) != 0) {
        if constexpr ((kinds & PART_NORM) != 0) load_gain(gather.step[norm].weight, gather.step[norm], gain);
        if constexpr (adds) added_gain.load(gather.step[add].weight);
        if (adds && !added_come) added.load(gather.step[add].columns.token(t));
        if (is_gated && !gates_come) gates.load(gather.step[gate].columns.token(t));
      }
    }
  }
};

// Norms of a row's parts. A part is what a warp has of several runs, or lanes of a warp have of one.
template <int cols, int kinds>
__device__ void norm_parts(const GatherStep& step, int size, const Share<cols, kinds>& gain, Share<cols, kinds>& share) {
  using Own = Share<cols, kinds>;
  constexpr int run = Own::in_a_row, runs = Own::count / run;
  constexpr int warps = gather_threads / 32, of_warp = 32 * run;
  __shared__ float sums[runs * warps];
  int warps_of_part = size / of_warp;
  // Where there is one norm, nobody has used the room before.
  bool used = (kinds & NEAR) == 0;
  // The sum over the part of each run; every thread gets the one of its own part.
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
    if (part_size(kinds) == of_warp) {
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
      // The numbers are small, so that half a unit keeps the quotient exact.
      int first = (part_size(kinds) > 0 ? place / warps_of_part : (int)((place + 0.5f) * per_part)) * warps_of_part;
      x[r] = sums[first];
#pragma unroll 1
      for (int i = 1; i < warps_of_part; i++) x[r] += sums[first + i];
    }
  };
  Own bias;
  if (step.bias) load_gain(step.bias, step, bias);
  float x[runs];
  if ((kinds & CENTRED_NORM) != 0 && step.kind == STEP_LAYER_NORM) {
#pragma unroll
    for (int r = 0; r < runs; r++) {
      x[r] = 0.0f;
      for (int i = 0; i < run; i++) x[r] += share.value[r * run + i];
    }
    over_part(x);
#pragma unroll
    for (int k = 0; k < Own::count; k++) share.value[k] -= Own::has(k / Own::run) ? x[k / run] / size : 0.0f;
  }
#pragma unroll
  for (int r = 0; r < runs; r++) {
    x[r] = 0.0f;
    for (int i = 0; i < run; i++) x[r] += share.value[r * run + i] * share.value[r * run + i];
  }
  over_part(x);
#pragma unroll
  for (int k = 0; k < Own::count; k++) {
    float inverse = 1.0f / sqrtf(x[k / run] / size + step.eps);
    share.value[k] = share.value[k] * inverse * gain.value[k] + (step.bias ? bias.value[k] : 0.0f);
  }
}

// The norm of one part of any size, by one warp.
__device__ inline void norm_part(const GatherStep& step, float* part, int size, int first) {
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
template <int cols, int kinds>
__device__ void norm_row(const GatherStep& step, Share<cols, kinds>& share) {
  Share<cols, kinds> gain, bias;
  gain.load(step.weight);
  if (step.bias) bias.load(step.bias);
  float mean = 0.0f, squares = 0.0f;
  if ((kinds & CENTRED_NORM) != 0 && step.kind == STEP_LAYER_NORM) {
#pragma unroll
    for (int k = 0; k < Share<cols, kinds>::count; k++) mean += share.value[k];
    mean = block_sum(mean) / cols;
  }
#pragma unroll
  for (int k = 0; k < Share<cols, kinds>::count; k++) {
    float difference = Share<cols, kinds>::has(k / Share<cols, kinds>::run) ? share.value[k] - mean : 0.0f;
    squares += difference * difference;
  }
  float inverse = 1.0f / sqrtf(block_sum(squares) / cols + step.eps);
#pragma unroll
  for (int k = 0; k < Share<cols, kinds>::count; k++) {
    share.value[k] = (share.value[k] - mean) * inverse * gain.value[k] + (step.bias ? bias.value[k] : 0.0f);
  }
}

// Applies one step to the row whose share this thread holds. Shares stay as they are, or pass through `x`.
template <int cols, int kinds>
__device__ void gather_step(const GatherStep& step, int t, Near<cols, kinds>& near, Share<cols, kinds>& share, float* x) {
  if ((kinds & MAPPED) != 0 && step.kind == STEP_MAP) return activate_all(step.function, share.value);
  if ((kinds & ADDED_COLUMNS) != 0 && step.kind == STEP_ADD) {
    if ((kinds & NEAR) == 0) near.added_gain.load(step.weight), near.added.load(step.columns.token(t));
#pragma unroll
    for (int k = 0; k < share.count; k++) share.value[k] += near.added_gain.value[k] * near.added.value[k];
    return;
  }
  if ((kinds & GATED_BY_COLUMNS) != 0 && step.kind == STEP_GATE) {
    if ((kinds & NEAR) == 0) near.gates.load(step.columns.token(t));
    if constexpr ((kinds & SILU_GATES) != 0) {
#pragma unroll
      for (int k = 0; k < share.count; k++) near.gates.value[k] = silu(near.gates.value[k]);
    } else {
      activate_all(step.function, near.gates.value);
    }
#pragma unroll
    for (int k = 0; k < share.count; k++) share.value[k] *= near.gates.value[k];
    return;
  }
  int size = part_size(kinds) > 0 ? part_size(kinds) : step.size;
  if ((kinds & (WHOLE_NORM | LATE_NORM)) == WHOLE_NORM && step.size == cols) return norm_row<cols, kinds>(step, share);
  if ((kinds & PART_NORM) != 0 && size % 32 == 0) {
    if ((kinds & NEAR) == 0) load_gain(step.weight, step, near.gain);
    return norm_parts<cols, kinds>(step, size, near.gain, share);
  }
  if constexpr ((kinds & ODD_PART_NORM) != 0) {
    share.store(x);
    __syncthreads();
    for (int part = warp_index(); part < cols / size; part += gather_threads / 32) {
      norm_part(step, x + part * size, size, part * size % step.span);
    }
    __syncthreads();
    share.load(x);
    __syncthreads();
  }
}

// Makes this thread's values of the input of token t from those of its own columns, and what is `near`, but for a norm whose
// factor comes late. `x` is room for a row; it may be the token's own columns.
template <int cols, int kinds>
__device__ void gather_steps(const Gather& gather, int t, Near<cols, kinds>& near, Share<cols, kinds>& share, float* x) {
  constexpr int of_late_norm = WHOLE_NORM | LATE_NORM | QUADS | NEAR;
  constexpr bool late = (kinds & LATE_NORM) != 0, has_steps = late ? (kinds & ~of_late_norm) != 0 : kinds != 0;
  if constexpr (has_steps) {
#pragma unroll 1
    for (int s = 0; s < gather.steps - late; s++) gather_step<cols, kinds>(gather.step[s], t, near, share, x);
  }
}

// This thread's values of the input of token t.
template <int cols, int kinds>
__device__ Share<cols, kinds> gathered_row(const Gather& gather, int t, float* x) {
  Share<cols, kinds> share;
  Near<cols, kinds> near;
  share.load(gather.input.token(t));
  near.load(gather, t);
  gather_steps<cols, kinds>(gather, t, near, share, x);
  return share;
}

// Writes the input of token t to x, which is complete after a barrier.
template <int cols, int kinds>
__device__ void gather_row(const Gather& gather, int t, float* x) {
  gathered_row<cols, kinds>(gather, t, x).store(x);
}
