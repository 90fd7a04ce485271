// Recurrences on matrix states. A thread block takes some columns of one state, which are independent of the others, for all
// tokens of the chunk. The state is in registers: within a warp, `lanes` lanes share the rows of `columns` columns and add their
// partial sums by shuffles, once per token. The tokens' inputs are double-buffered in shared memory, `batch` tokens at a time.

// The columns of a head: head h reads head h / sharing of the view, in part `number` of equal parts of `part` columns. The types
// are in cuda/schedule/recurrence.rs.
__device__ inline const float* RecurInput::at(int t, int head, int width, int number) const {
  // A division costs more than everything else here, and most inputs are not shared.
  return rows.token(t) + number * part + (sharing == 1 ? head : head / sharing) * width;
}

// `finish` encodes the end of an output: bit 0 is set if its value times a gain is added; the other bits are the number, from 1
// on, of the activation of the gate that multiplies it, or 0 without a gate.
__device__ constexpr bool has_skip(int finish) { return finish % 2 != 0; }
__device__ constexpr bool has_gate(int finish) { return finish >= 2; }
template <int finish>
__device__ float finished(float out, float gain, float value, float gate) {
  if constexpr (has_skip(finish)) out += gain * value;
  if constexpr (has_gate(finish)) out *= activate(finish / 2 - 1, gate);
  return out;
}

// `complement`: keys are one minus the decay of their row.
template <int dk, int dv, int lanes, int columns, int warps, int queries, int decay_kind, bool complement, int write, int finish,
          int batch, bool aligned>
struct Recurrence {
  // Rows per thread, a multiple of four so that keys are read four at a time. Rows past dk are zero.
  static constexpr int rows = (dk + 4 * lanes - 1) / (4 * lanes) * 4;
  static constexpr int depth = rows * lanes;
  static constexpr int block_columns = 32 / lanes * columns * warps;
  static constexpr int groups = (dv + block_columns - 1) / block_columns;
  static constexpr bool row_decays = decay_kind == DECAY_ROWS;
  // Whether this kernel may have to normalize keys and queries (a step of the delta rule).
  static constexpr bool measures = write == WRITE_DELTA && batch == 1;
  // Whether a key other than the written one reads the state.
  static constexpr bool removes = write == WRITE_REPLACE || write == WRITE_ERASE;
  static_assert(!complement || row_decays, "a complement needs a decay for each row");

  // The layout of a token in shared memory, in floats.
  static constexpr int q_at = 0;
  static constexpr int k_at = q_at + queries * depth;
  static constexpr int decay_at = k_at + (complement ? 0 : depth);
  static constexpr int removal_at = decay_at + (row_decays ? depth : 0);
  static constexpr int rate_at = removal_at + (removes ? depth : 0);
  static constexpr int v_at = rate_at + (write == WRITE_REPLACE ? depth : 0);
  static constexpr int scalars_at = v_at + block_columns;
  enum { BETA, DECAY, WRITE_GATE, READ_GATES };
  static constexpr int token_floats = (scalars_at + READ_GATES + queries + 3) / 4 * 4;

  const RecurInputs& in;
  int head;
  int part;
  int first_column;
  // This thread's first column, and its index among the lanes that share its columns.
  int column;
  int place;
  float constant;
  float state[rows][columns];

  // For state number `index` of `in.states`, columns of group `group`; inputs from part `part`.
  __device__ Recurrence(const RecurInputs& in, int index, int part, int group)
      : in(in), head(index * queries), part(part), first_column(group * block_columns) {
    place = lane_index() % lanes;
    column = first_column + (warp_index() * (32 / lanes) + lane_index() / lanes) * columns;
    constant = decay_kind == DECAY_FIXED || decay_kind == DECAY_STEP ? in.constants[head / in.constant_sharing] : 0.0f;
  }

  __device__ int row(int r) const { return (r / 4 * lanes + place) * 4 + r % 4; }

  __device__ void load_state(const float* from) {
    const float* first = from + row(0) * dv + column;
    bool has_column = column < dv;
#pragma unroll
    for (int r = 0; r < rows; r++) {
      const float* x = first + (r / 4 * lanes * 4 + r % 4) * dv;
      bool inside = has_column && (dk == depth || row(r) < dk);
      if constexpr (columns == 2) {
        float2 pair = {0.0f, 0.0f};
        if (inside) pair = *reinterpret_cast<const float2*>(x);
        state[r][0] = pair.x;
        state[r][1] = pair.y;
      } else {
        state[r][0] = inside ? *x : 0.0f;
      }
    }
  }

  __device__ void store_state(float* to) const {
    if (column >= dv) return;
    float* first = to + row(0) * dv + column;
#pragma unroll
    for (int r = 0; r < rows; r++) {
      float* x = first + (r / 4 * lanes * 4 + r % 4) * dv;
      if (dk != depth && row(r) >= dk) continue;
      if constexpr (columns == 2) {
        *reinterpret_cast<float2*>(x) = {state[r][0], state[r][1]};
      } else {
        *x = state[r][0];
      }
    }
  }

  // Prefetches the gains of a state's first query.
  __device__ void prefetch_gains() const {
    int count = min(block_columns, dv - first_column);
    if (has_skip(finish) && threadIdx.x == 0 && dv % 4 == 0 && block_columns % 4 == 0) {
      prefetch(in.gains + head * dv + first_column, count * sizeof(float));
    }
  }

  // Fills the padding past dk in a buffer of `tokens` tokens.
  __device__ void clear(float* room, int tokens) const {
    if constexpr (dk != depth) {
      for (int i = threadIdx.x; i < tokens * token_floats; i += blockDim.x) {
        int at = i % token_floats;
        room[i] = row_decays && at >= decay_at && at < removal_at ? 1.0f : 0.0f;
      }
      __syncthreads();
    }
  }

  // Starts to copy token t; called by one warp.
  __device__ void load_token(float* x, int t) const {
    for (int query = 0; query < queries; query++) {
      copy_row<aligned>(x + q_at + query * depth, in.q.at(t, head + query, dk, part), dk);
    }
    if constexpr (!complement) copy_row<aligned>(x + k_at, in.k.at(t, head, dk, part), dk);
    if constexpr (row_decays) copy_row<aligned>(x + decay_at, in.decay.at(t, head, dk, part), dk);
    if constexpr (removes) copy_row<aligned>(x + removal_at, in.removal.at(t, head, dk, part), dk);
    if constexpr (write == WRITE_REPLACE) copy_row<aligned>(x + rate_at, in.rate.at(t, head, dk, part), dk);
    copy_row<aligned && block_columns % 4 == 0>(x + v_at, in.v.at(t, head, dv, part) + first_column,
                                                min(block_columns, dv - first_column));
    float* scalars = x + scalars_at;
    if (lane_index() == BETA && write == WRITE_DELTA) copy_async<4>(scalars + BETA, in.beta.at(t, head, 1, part));
    if (lane_index() == DECAY && (decay_kind == DECAY_HEAD || decay_kind == DECAY_STEP)) {
      copy_async<4>(scalars + DECAY, in.decay.at(t, head, 1, part));
    }
    if (lane_index() == WRITE_GATE && in.write_gate.rows.first) {
      copy_async<4>(scalars + WRITE_GATE, in.write_gate.at(t, head, 1, part));
    }
    if (in.read_gate.rows.first) {
      for (int query = lane_index(); query < queries; query += 32) {
        copy_async<4>(scalars + READ_GATES + query, in.read_gate.at(t, head + query, 1, part));
      }
    }
  }

  // Replaces the row decays of `tokens` loaded tokens by their exponentials.
  __device__ void decay_rows(float* room, int tokens) const {
    if constexpr (row_decays) {
      for (int i = threadIdx.x; i < tokens * dk; i += blockDim.x) {
        float* x = room + i / dk * token_floats + decay_at + i % dk;
        *x = expf(*x);
      }
      __syncthreads();
    }
  }

  __device__ float read_factor(const float* x, int query) const {
    return in.read_gate.rows.first ? in.scale * x[scalars_at + READ_GATES + query] : in.scale;
  }

  // Processes one token; `out` receives its sums for each query, in every lane that shares the columns.
  __device__ void step(const float* x, float (&out)[queries][columns]) {
    float value[columns], written[columns];
    float gate = in.write_gate.rows.first ? x[scalars_at + WRITE_GATE] : 1.0f;
    float scalar = 1.0f;
    if constexpr (decay_kind == DECAY_FIXED) scalar = expf(constant);
    if constexpr (decay_kind == DECAY_HEAD) scalar = expf(x[scalars_at + DECAY]);
    if constexpr (decay_kind == DECAY_STEP) scalar = expf(constant * x[scalars_at + DECAY]);
#pragma unroll
    for (int c = 0; c < columns; c++) {
      value[c] = x[v_at + column - first_column + c];
      written[c] = gate * value[c];
      for (int query = 0; query < queries; query++) out[query][c] = 0.0f;
    }
    float read[columns] = {}, overlap[queries] = {}, removed_overlap[queries] = {};
    float key_squares = 0.0f, query_squares[queries] = {};
#pragma unroll
    for (int r = 0; r < rows; r += 4) {
      int at = row(r);
      float decays[4], keys[4], removals[4], rates[4];
      four(x + decay_at + at, row_decays, decays);
      four(x + k_at + at, !complement, keys);
      four(x + removal_at + at, removes, removals);
      four(x + rate_at + at, write == WRITE_REPLACE, rates);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (complement) keys[i] = 1.0f - decays[i];
        if (decay_kind == DECAY_BY_KEY) decays[i] = 1.0f - keys[i];
        if (decay_kind != DECAY_BY_KEY && !row_decays) decays[i] = scalar;
#pragma unroll
        for (int c = 0; c < columns; c++) {
          float& s = state[r + i][c];
          if (write == WRITE_REPLACE) read[c] += removals[i] * s;
          if (decay_kind == DECAY_BY_VALUE) s *= 1.0f - value[c];
          if (decay_kind != DECAY_NONE && decay_kind != DECAY_BY_VALUE) s *= decays[i];
          if (write == WRITE_DELTA) read[c] += keys[i] * s;
          if (write == WRITE_ERASE) read[c] += removals[i] * s;
          if (write == WRITE_ADD) s += keys[i] * written[c];
        }
        if (measures) key_squares += keys[i] * keys[i];
      }
#pragma unroll
      for (int query = 0; query < queries; query++) {
        float q[4];
        four(x + q_at + query * depth + at, true, q);
#pragma unroll
        for (int i = 0; i < 4; i++) {
#pragma unroll
          for (int c = 0; c < columns; c++) out[query][c] += q[i] * state[r + i][c];
          if (write != WRITE_ADD) overlap[query] += q[i] * keys[i];
          if (measures) query_squares[query] += q[i] * q[i];
          if (write == WRITE_REPLACE) removed_overlap[query] += q[i] * removals[i] * rates[i];
        }
      }
    }
    // All sums are reduced together, so that their shuffles overlap: the effect of the write on a query follows from the query's
    // overlap with the key.
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int c = 0; c < columns; c++) {
        if (write != WRITE_ADD) read[c] += __shfl_xor_sync(all_lanes, read[c], distance);
#pragma unroll
        for (int query = 0; query < queries; query++) {
          out[query][c] += __shfl_xor_sync(all_lanes, out[query][c], distance);
        }
      }
      if (measures) key_squares += __shfl_xor_sync(all_lanes, key_squares, distance);
#pragma unroll
      for (int query = 0; query < queries; query++) {
        if (write != WRITE_ADD) overlap[query] += __shfl_xor_sync(all_lanes, overlap[query], distance);
        if (measures) query_squares[query] += __shfl_xor_sync(all_lanes, query_squares[query], distance);
        if (write == WRITE_REPLACE) {
          removed_overlap[query] += __shfl_xor_sync(all_lanes, removed_overlap[query], distance);
        }
      }
    }
    if (write == WRITE_ADD) return;
    // The norms of keys and queries become factors of the values read and written.
    float key_factor = measures && in.unit ? unit_factor(key_squares) : 1.0f;
    if (write == WRITE_DELTA) {
#pragma unroll
      for (int c = 0; c < columns; c++) {
        written[c] = key_factor * x[scalars_at + BETA] * (written[c] - key_factor * read[c]);
      }
    }
    if (write == WRITE_ERASE) {
#pragma unroll
      for (int c = 0; c < columns; c++) written[c] -= read[c];
    }
#pragma unroll
    for (int r = 0; r < rows; r += 4) {
      float decays[4], keys[4], removals[4], rates[4];
      four(x + decay_at + row(r), complement, decays);
      four(x + k_at + row(r), !complement, keys);
      four(x + removal_at + row(r), write == WRITE_REPLACE, removals);
      four(x + rate_at + row(r), write == WRITE_REPLACE, rates);
#pragma unroll
      for (int i = 0; i < 4; i++) {
        if (complement) keys[i] = 1.0f - decays[i];
#pragma unroll
        for (int c = 0; c < columns; c++) {
          state[r + i][c] += keys[i] * written[c];
          if (write == WRITE_REPLACE) state[r + i][c] -= removals[i] * rates[i] * read[c];
        }
      }
    }
#pragma unroll
    for (int query = 0; query < queries; query++) {
#pragma unroll
      for (int c = 0; c < columns; c++) {
        out[query][c] += overlap[query] * written[c];
        if (write == WRITE_REPLACE) out[query][c] -= removed_overlap[query] * read[c];
        if (measures && in.unit) out[query][c] *= unit_factor(query_squares[query]);
      }
    }
  }

  __device__ static void four(const float* from, bool wanted, float (&values)[4]) {
    if (!wanted) return;
    float4 x = *reinterpret_cast<const float4*>(from);
    values[0] = x.x, values[1] = x.y, values[2] = x.z, values[3] = x.w;
  }

  // Like MAP_L2_NORM.
  __device__ static float unit_factor(float squares) { return 1.0f / sqrtf(squares + 1e-6f); }

  // Writes the outputs of a token, where `row` holds the state's first query. Only a finish needs the token's number `t`.
  __device__ void emit(const float* x, const float (&out)[queries][columns], float* row, int t = 0) const {
#pragma unroll
    for (int query = 0; query < queries; query++) {
      if (place != query % lanes) continue;
      float factor = read_factor(x, query);
#pragma unroll
      for (int c = 0; c < columns; c++) {
        if (column + c >= dv) continue;
        int at = (head + query) * dv + column + c;
        float gain = has_skip(finish) ? in.gains[at] : 0.0f, gate = has_gate(finish) ? in.gates.token(t)[at] : 0.0f;
        // Not fused with the sum: every form of the op rounds here.
        float scaled = __fmul_rn(factor, out[query][c]);
        row[query * dv + column + c] = finished<finish>(scaled, gain, x[v_at + column - first_column + c], gate);
      }
    }
  }
};

template <int dk, int dv, int lanes, int columns, int warps, int queries, int decay_kind, bool complement, int write, int finish,
          int batch, bool aligned>
__device__ void recur(const RecurInputs& in, int tokens) {
  using State = Recurrence<dk, dv, lanes, columns, warps, queries, decay_kind, complement, write, finish, batch, aligned>;
  constexpr int buffers = batch == 1 ? 1 : 2;
  float* room = shared_memory<float>();
  int index = blockIdx.x / State::groups;
  State state(in, index, 0, blockIdx.x % State::groups);
  float* matrix = in.states + (long long)index * dk * dv;
  // The previous step, which has completed, wrote the state: these loads overlap with earlier kernels.
  if constexpr (batch == 1) {
    state.load_state(matrix);
    state.prefetch_gains();
  }
  wait_for_dependencies();
  launch_dependents();
  if constexpr (batch != 1) state.load_state(matrix);
  state.clear(room, buffers * batch);
  auto load = [&](int first) {
    float* to = room + first / batch % buffers * (batch * State::token_floats);
    for (int i = warp_index(); i < batch && first + i < tokens; i += warps) {
      state.load_token(to + i * State::token_floats, first + i);
    }
    commit_copies();
  };
  load(0);
  for (int first = 0; first < tokens; first += batch) {
    if constexpr (buffers == 2) {
      load(first + batch);
      wait_for_copies<1>();
    } else {
      wait_for_copies<0>();
    }
    __syncthreads();
    float* now = room + first / batch % buffers * (batch * State::token_floats);
    int count = min(batch, tokens - first);
    state.decay_rows(now, count);
    // With an additive write, the next token does not depend on this token's sums.
#pragma unroll(write == WRITE_ADD ? 2 : 1)
    for (int i = 0; i < count; i++) {
      float out[queries][columns];
      const float* x = now + i * State::token_floats;
      state.step(x, out);
      state.emit(x, out, in.out.token(first + i) + state.head * dv, first + i);
    }
    // The next copies overwrite this batch.
    __syncthreads();
    if constexpr (buffers == 1) {
      if (first + batch < tokens) load(first + batch);
    }
  }
  arrive_early();
  state.store_state(matrix);
}
