// One token of a recurrence as an op of the decode kernel. All threads of a thread block share some columns of one state, so
// that a warp loads and stores whole sectors. Inputs come from buffers or from mailboxes. `RecurStep` is in launch/step.rs.

#ifdef WATERLINE_DECODE

// The first column of a head.
__device__ inline int StepInput::column(int number) const { return (int)(number * shares >> 16) * width; }

// The scalars of a head in shared memory, followed by a read gate for each query.
enum { STEP_BETA, STEP_DECAY, STEP_WRITE_GATE, STEP_READ_GATES };

// With the state S before the token, its decay d, the key k and the written value w, the query reads q (d S + k^T w) = d (q S) +
// (q k) w. Where d is one number per head, the sums over the rows of S need only q, k and S. Values and the head's scalars are
// loaded once per thread block, into shared memory. There are two barriers: after the sums of each warp, and after the sums over
// all warps.
template <int mailboxes, int dk, int dv, int columns, int queries, int decay_kind, bool complement, int write, int finish>
struct RecurrenceStep {
  // Columns per thread, threads of a warp across the columns, and threads down the rows.
  static constexpr int own = dv % 2 == 0 ? 2 : 1;
  static constexpr int across = columns / own;
  static constexpr int down = 32 / across;
  static constexpr int warps = consumer_threads / 32;
  // Rows per thread and per warp.
  static constexpr int rows = (dk + warps * down - 1) / (warps * down);
  static constexpr int warp_rows = rows * down;
  static constexpr int groups = (dv + columns - 1) / columns;
  static_assert(across <= 32 && STEP_READ_GATES + queries <= 32, "one warp loads the scalars");

  static constexpr bool row_decays = decay_kind == DECAY_ROWS;
  static constexpr bool reads = write != WRITE_ADD;
  static constexpr bool measures = write == WRITE_DELTA;
  // Whether a key other than the written one reads the state.
  static constexpr bool removes = write == WRITE_REPLACE || write == WRITE_ERASE;
  // Sums over the rows: the value read by the key, each query's output and its product with the key, the squares of the key and
  // of each query, each query's product with the removal key.
  static constexpr int out_at = reads ? own : 0;
  static constexpr int overlap_at = out_at + queries * own;
  static constexpr int squares_at = overlap_at + queries;
  static constexpr int removed_at = squares_at + (measures ? 1 + queries : 0);
  static constexpr int count = removed_at + (write == WRITE_REPLACE ? queries : 0);
  // Offsets in shared memory, in floats: the sums of each warp, the totals, the values, the head's scalars.
  static constexpr int sums = count * across;
  static constexpr int totals_at = sums * warps;
  static constexpr int values_at = totals_at + sums;
  static constexpr int weights_at = values_at + columns;

  const RecurStep* in;
  float* room;
  int head;
  int first_column;
  int pair;
  int place;
  int lane;
  float state[rows][own];
  float query[queries][rows];
  float key[rows];
  float decays[rows];
  float removal[rows];
  float rate[rows];
  // For the outputs that this thread writes. The gates may be the last rows of a GEMV, so the thread waits for them where they
  // are used.
  float gain[own];
  float gate[own];

  __device__ RecurrenceStep(const RecurStep& of, int index, int group)
      : in(&of), room(shared_memory<float>()), head(index * queries), first_column(group * columns) {
    lane = lane_index();
    pair = lane % across;
    place = lane / across;
  }

  __device__ int column() const { return first_column + pair * own; }
  __device__ int row(int r) const { return warp_index() * warp_rows + r * down + place; }
  __device__ bool has(int r) const { return dk == warps * warp_rows || row(r) < dk; }

  __device__ void load_state(const float* from) {
#pragma unroll
    for (int r = 0; r < rows; r++) {
      const float* x = from + row(r) * dv + column();
      bool inside = has(r) && column() < dv;
      if constexpr (own == 2) {
        float2 both = {0.0f, 0.0f};
        if (inside) both = *reinterpret_cast<const float2*>(x);
        state[r][0] = both.x, state[r][1] = both.y;
      } else {
        state[r][0] = inside ? *x : 0.0f;
      }
    }
  }

  __device__ void store_state(float* to) const {
#pragma unroll
    for (int r = 0; r < rows; r++) {
      float* x = to + row(r) * dv + column();
      if (!has(r) || column() >= dv) continue;
      if constexpr (own == 2) {
        *reinterpret_cast<float2*>(x) = {state[r][0], state[r][1]};
      } else {
        *x = state[r][0];
      }
    }
  }

  // One value of an input, if the input exists.
  template <bool from_mailbox>
  struct Source {
    Mailbox from;
    const float* plain;
    bool exists;

    Source() = default;
    __device__ Source(const StepInput& input, int number, int at, bool exists) : exists(exists) {
      int column = input.column(number) + at;
      from.first = input.from + column;
      plain = input.plain + column;
    }
    __device__ void try_load(float* value) const {
      if (!exists) return;
      if constexpr (from_mailbox) {
        from.try_load<1>(from.entry(0), value);
      } else {
        *value = *plain;
      }
    }
    __device__ bool is_ready(const float* value) const { return !from_mailbox || !exists || Mailbox::is_ready<1>(value); }
  };

  // Whether this thread writes outputs: warp n writes the outputs of query n.
  __device__ bool writes_outputs() const { return warp_index() < queries && place == 0 && column() < dv; }

  __device__ void load_gains() {
#pragma unroll
    for (int c = 0; c < own; c++) gain[c] = writes_outputs() ? in->gains[(head + warp_index()) * dv + column() + c] : 0.0f;
  }

  // Starts to load the gates.
  __device__ void try_load_gates() {
    constexpr bool from_mailbox = (mailboxes & MAILBOX_INPUT) != 0;
#pragma unroll
    for (int c = 0; c < own; c++) {
      gate[c] = 0.0f;
      Source<from_mailbox>(in->input[STEP_GATES], head + warp_index(), column() + c, writes_outputs()).try_load(gate + c);
    }
  }
  __device__ void await_gates() {
    if constexpr ((mailboxes & MAILBOX_INPUT) != 0) {
      while (!Mailbox::is_ready<own>(gate) && !deadline_passed(WAIT_MAILBOX)) {
        backoff();
        try_load_gates();
      }
    }
  }

  // The input of vector number `vector` after the queries, counting only the vectors that the step has.
  __device__ static int vector_input(int vector) {
    if (complement) vector++;
    if (vector == 0) return STEP_K;
    if (row_decays && vector == 1) return STEP_DECAYS;
    return vector - row_decays == 1 ? STEP_REMOVAL : STEP_RATE;
  }

  // Loads all inputs, with all loads in flight together: vectors over rows into registers, all others into shared memory.
  template <bool from_mailbox>
  __device__ void load_inputs() {
    // Each lane loads different values of its warp's rows; shuffles distribute them.
    constexpr int vectors = queries + !complement + row_decays + removes + (write == WRITE_REPLACE);
    constexpr int loads = (vectors * warp_rows + 31) / 32;
    using One = Source<from_mailbox>;
    auto own_source = [&](int l) {
      int item = l * 32 + lane, vector = item / warp_rows, at = warp_index() * warp_rows + item % warp_rows;
      int which = vector < queries ? (int)STEP_Q : vector_input(vector - queries);
      return One(in->input[which], head + (vector < queries ? vector : 0), at, vector < vectors && at < dk);
    };
    float numbers[loads] = {};
    // The first threads load values, the last warp loads scalars. An absent scalar is 1.
    int which = STEP_Q, number = head, at = 0, to = -1;
    if (threadIdx.x < columns && first_column + (int)threadIdx.x < dv) {
      which = STEP_V, at = first_column + threadIdx.x, to = values_at + threadIdx.x;
    }
    if (warp_index() == warps - 1 && lane < STEP_READ_GATES + queries) {
      constexpr bool decays_by_input = decay_kind == DECAY_HEAD || decay_kind == DECAY_STEP;
      int wanted = lane == STEP_BETA ? STEP_BETAS : lane == STEP_DECAY ? STEP_DECAYS : lane == STEP_WRITE_GATE ? STEP_WRITE_GATES : STEP_READS;
      bool exists = in->input[wanted].plain && (decays_by_input || lane != STEP_DECAY);
      if (exists) which = wanted, number += max(lane - STEP_READ_GATES, 0), to = weights_at + lane;
      if (!exists) room[weights_at + lane] = 1.0f;
    }
    One other(in->input[which], number, at, to >= 0);
    float others;
    One source[loads];
#pragma unroll
    for (int l = 0; l < loads; l++) source[l] = own_source(l);
    bool all, again = false, late = false;
    do {
      if (again) backoff();
      other.try_load(&others);
#pragma unroll
      for (int l = 0; l < loads; l++) source[l].try_load(numbers + l);
      // The clock is read while the loads are in flight.
      if (again) late = deadline_passed(WAIT_MAILBOX);
      all = other.is_ready(&others);
#pragma unroll
      for (int l = 0; l < loads; l++) all &= source[l].is_ready(numbers + l);
      again = true;
    } while (!all && !late);
    if (to >= 0) room[to] = others;
    auto vector = [&](int vector, int r) {
      int item = vector * warp_rows + r * down;
      return __shfl_sync(all_lanes, numbers[item / 32], item % 32 + place);
    };
#pragma unroll
    for (int r = 0; r < rows; r++) {
      int next = queries;
#pragma unroll
      for (int i = 0; i < queries; i++) query[i][r] = vector(i, r);
      if (!complement) key[r] = vector(next++, r);
      if (row_decays) decays[r] = vector(next++, r);
      if (removes) removal[r] = vector(next, r);
      if (write == WRITE_REPLACE) rate[r] = vector(next + 1, r);
    }
  }

  // The factor of MAP_L2_NORM, with the approximate reciprocal square root.
  __device__ static float unit_factor(float squares) { return rsqrtf(squares + 1e-6f); }

  // One of the sums over all rows, for this thread's columns.
  __device__ float total(int index) const { return room[totals_at + index * across + pair]; }

  // Writes the sums over each warp's rows to shared memory, without a head's decay. A decay per row is applied here.
  __device__ void sum_rows() {
    float part[count] = {};
#pragma unroll
    for (int r = 0; r < rows; r++) {
      float decay = row_decays ? expf(decays[r]) : 1.0f;
      if (complement) key[r] = has(r) ? 1.0f - decay : 0.0f;
#pragma unroll
      for (int c = 0; c < own; c++) {
        float& s = state[r][c];
        if (write == WRITE_REPLACE) part[c] += removal[r] * s;
        if (row_decays) s *= decay;
        if (write == WRITE_DELTA) part[c] += key[r] * s;
        if (write == WRITE_ERASE) part[c] += removal[r] * s;
        for (int i = 0; i < queries; i++) part[out_at + i * own + c] += query[i][r] * s;
      }
      if (measures) part[squares_at] += key[r] * key[r];
      for (int i = 0; i < queries; i++) {
        part[overlap_at + i] += query[i][r] * key[r];
        if (measures) part[squares_at + 1 + i] += query[i][r] * query[i][r];
        if (write == WRITE_REPLACE) part[removed_at + i] += query[i][r] * removal[r] * rate[r];
      }
    }
#pragma unroll
    for (int distance = across; distance < 32; distance *= 2) {
#pragma unroll
      for (int i = 0; i < count; i++) part[i] += __shfl_xor_sync(all_lanes, part[i], distance);
    }
    if (lane_index() >= across) return;
#pragma unroll
    for (int i = 0; i < count; i++) room[warp_index() * sums + i * across + pair] = part[i];
  }

  // Adds the sums of all warps; one thread computes each total.
  __device__ void sum_warps() {
    for (int first = 0; first < sums; first += consumer_threads) {
      int i = first + threadIdx.x;
      if (i >= sums) return;
      float part[4] = {};
#pragma unroll
      for (int warp = 0; warp < warps; warp++) part[warp % 4] += room[warp * sums + i];
      room[totals_at + i] = (part[0] + part[1]) + (part[2] + part[3]);
    }
  }

  // The head's scalar decay.
  __device__ float scalar() const {
    float constant = 1.0f;
    if constexpr (decay_kind == DECAY_FIXED || decay_kind == DECAY_STEP) constant = in->constants[head * in->constant_shares >> 16];
    if constexpr (decay_kind == DECAY_FIXED) return expf(constant);
    if constexpr (decay_kind == DECAY_HEAD || decay_kind == DECAY_STEP) return expf(constant * room[weights_at + STEP_DECAY]);
    return 1.0f;
  }

  // Writes the outputs and updates the state.
  __device__ void emit_and_update() {
    const float* weights = room + weights_at;
    float decay = scalar(), read[own] = {}, written[own];
#pragma unroll
    for (int c = 0; c < own; c++) written[c] = weights[STEP_WRITE_GATE] * room[values_at + pair * own + c];
    // An additive write needs no sums; only the outputs do.
    if (reads || warp_index() < queries) {
      // The norms of keys and queries become factors of the values read and written.
      float key_factor = measures && in->unit ? unit_factor(total(squares_at)) : 1.0f;
#pragma unroll
      for (int c = 0; c < own; c++) {
        if (reads) read[c] = (write == WRITE_REPLACE ? 1.0f : decay) * total(c);
        if (write == WRITE_ERASE) written[c] -= read[c];
        if (write == WRITE_DELTA) written[c] = key_factor * weights[STEP_BETA] * (written[c] - key_factor * read[c]);
      }
#pragma unroll
      for (int i = 0; i < queries; i++) emit(i, decay, read, written);
    }
#pragma unroll
    for (int r = 0; r < rows; r++) {
#pragma unroll
      for (int c = 0; c < own; c++) {
        state[r][c] = decay * state[r][c] + key[r] * written[c];
        if (write == WRITE_REPLACE) state[r][c] -= removal[r] * rate[r] * read[c];
      }
    }
  }

  // Writes the outputs of query `number`, in the warp of that number.
  __device__ void emit(int number, float decay, const float (&read)[own], const float (&written)[own]) {
    if (warp_index() != number) return;
    float factor = in->scale * room[weights_at + STEP_READ_GATES + number];
    if (measures && in->unit) factor *= unit_factor(total(squares_at + 1 + number));
    float overlap = total(overlap_at + number);
    float removed = write == WRITE_REPLACE ? total(removed_at + number) : 0.0f;
    if constexpr (has_gate(finish)) await_gates();
#pragma unroll
    for (int c = 0; c < own; c++) {
      float out = decay * total(out_at + number * own + c) + overlap * written[c] - removed * read[c];
      int at = (head + number) * dv + column() + c;
      if (place != 0 || column() >= dv) continue;
      // Not fused with the sum: every form of the op rounds here.
      out = finished<finish>(__fmul_rn(factor, out), gain[c], room[values_at + pair * own + c], gate[c]);
      if constexpr ((mailboxes & MAILBOX_OUTPUT) != 0) Mailbox{this_op().output}.publish(at, out);
      if (this_op().stores) in->out[at] = out;
    }
  }
  // Reads the token whose inputs are loaded.
  __device__ void read_token() {
    if constexpr (has_gate(finish)) try_load_gates();
    sum_rows();
    __syncthreads();
    sum_warps();
    __syncthreads();
    emit_and_update();
  }
};

template <int mailboxes, int dk, int dv, int columns, int queries, int decay_kind, bool complement, int write, int finish>
__device__ void recur_step(const RecurStep& in) {
  using Step = RecurrenceStep<mailboxes, dk, dv, columns, queries, decay_kind, complement, write, finish>;
  int index = blockIdx.x / Step::groups;
  Step step(in, index, blockIdx.x % Step::groups);
  float* matrix = in.states + (long long)index * dk * dv;
  // The previous token wrote the state, so loading it needs no wait.
  step.load_state(matrix);
  if constexpr (has_skip(finish)) step.load_gains();
  if constexpr ((mailboxes & MAILBOX_INPUT) != 0) {
    u64* const clocks = cta().clocks;
    // Rows of the preceding GEMV finish at different times. With a backoff (400 ns when measured), GDN 1.3B in Q4_0 took 419 us
    // per token on an H200 instead of 424, and 7B took 1414 instead of 1421; BF16 took the same.
    backoff<first_poll_ns>();
    step.template load_inputs<true>();
    input_is_ready(clocks);
  } else {
    wait_for_dependencies();
    step.template load_inputs<false>();
  }
  step.read_token();
  if constexpr ((mailboxes & MAILBOX_OUTPUT) == 0) {
    __syncthreads();
    arrive_early();
  }
  step.store_state(matrix);
}

#ifdef WATERLINE_SLOTS
// Steps of the tokens of all slots in use, whose arguments are `bytes` apart. The state stays in registers.
template <int mailboxes, int dk, int dv, int columns, int queries, int decay_kind, bool complement, int write, int finish>
__device__ void recur_step_slots(const RecurStep& first, int bytes) {
  using Step = RecurrenceStep<mailboxes, dk, dv, columns, queries, decay_kind, complement, write, finish>;
  int index = blockIdx.x / Step::groups;
  Step step(first, index, blockIdx.x % Step::groups);
  float* matrix = first.states + (long long)index * dk * dv;
  step.load_state(matrix);
  if constexpr (has_skip(finish)) step.load_gains();
  wait_for_dependencies();
#pragma unroll 1
  for (u32 slot = 0; slot < cta().slots; slot++) {
    step.in = reinterpret_cast<const RecurStep*>(reinterpret_cast<const u8*>(&first) + slot * bytes);
    step.template load_inputs<false>();
    step.read_token();
    // The next token's inputs take the place of this one's.
    __syncthreads();
  }
  step.store_state(matrix);
}
#endif

#endif
