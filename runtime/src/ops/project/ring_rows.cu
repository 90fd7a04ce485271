// What becomes of the rows of a persistent program's products: they are stored, added, gated, and go through the tasks of the
// stage behind the product that need no other row.

// In the order of `Kind` in ring_products.rs.
enum { PRODUCT_STORE, PRODUCT_ADD, PRODUCT_GATED };

// What a task makes of a value that is to stand at `place`. It has a place of its own in the machine code, since every product
// has such rows.
__device__ __noinline__ float finished_by(const PrepareTasks& tasks, int task, const float* place, float value) {
  if (task >= most_lanes) {
    const PrepareGate& gate = tasks.gate[task - most_lanes];
    return gate_value(gate, (int)(place - gate.columns.first), value);
  }
#pragma unroll 1
  for (int m = 0; m < tasks.lane[task].maps; m++) value = activate(tasks.lane[task].at[m].function, value);
  return value;
}

// One row of a phase, which four lanes finish together: each holds what it will need besides the sums. Where no row goes through
// a task, `tasks` is null in the text, so that what tasks need costs nothing.
template <int passes, int kind, int function>
struct FinishedRow {
  const Segment* segment;
  int row;
  bool exists;
  // The convolution that its value goes through, or null.
  const PrepareLane* convolution;
  // Of a row with a convolution, each lane's kept input and its weight; of one that is added to, what is there.
  float held;
  float weight;
  // What multiplies the product, and what is added; of a gated one the gate's.
  float multiplier;
  float bias;
  // Those of what is gated.
  float gated_multiplier;
  float gated_bias;

  // This thread's one of the first rows of the list, up to a segment that begins others.
  __device__ FinishedRow(const Segment* segments, int count)
      : held(0.0f), weight(0.0f), multiplier(1.0f), bias(0.0f), gated_multiplier(1.0f), gated_bias(0.0f) {
    // Of a gated product every second segment has rows of its own.
    constexpr int step = kind == PRODUCT_GATED ? 2 : 1;
    int s = 0;
    row = warp_index() * 8 + lane_index() / 4;
    exists = true;
#pragma unroll 1
    while (exists && row >= max(segments[s].rows, 0)) {
      row -= max(segments[s].rows, 0);
      s += step;
      exists = s < count && !segments[s].begins;
    }
    segment = segments + (exists ? s : 0);
    row = exists ? row : 0;
  }

  __device__ float* place(const Rows& output) const { return output.first + segment->column + row; }

  // This lane's tap of a convolution: the last one's is the new value.
  __device__ static int tap(const PrepareLane& lane) { return lane.taps - 4 + lane_index() % 4; }

  // Asks for what no earlier phase changes.
  __device__ void load(const PrepareTasks* tasks, const Rows& output) {
    convolution = nullptr;
    if (!exists) return;
    multiplier = segment->multiplier;
    if (segment->bias) bias = segment->bias[row];
    if constexpr (kind == PRODUCT_GATED) {
      gated_multiplier = segment[1].multiplier;
      if (segment[1].bias) gated_bias = segment[1].bias[row];
    }
    if (!tasks || segment->task < 0 || segment->task >= most_lanes) return;
    const PrepareLane& lane = tasks->lane[segment->task];
    if (!lane.weight) return;
    convolution = &lane;
    if (tap(lane) < 0) return;
    int channels = lane.columns.width, at = tap(lane) * channels + (int)(place(output) - lane.columns.first);
    weight = lane.weight[at];
    if (lane_index() % 4 < 3) held = lane.past[at];
  }

  // Asks for what its product is added to.
  __device__ void load_sum(const Rows& output) {
    if (kind != PRODUCT_ADD || !exists) return;
    held = (passes & PASSED_SUM) != 0 ? this_phase().sum.taken(segment->column + row) : *place(output);
  }

  // The product of one row of a segment, by four lanes together.
  __device__ static float product(const Segment& segment, const float* sums, int row) {
    const float* parts = sums + segment.sums + row * sums_pitch + lane_index() % 4;
    float sum = parts[0];
#pragma unroll
    for (int i = 4; i < ring_warps; i += 4) sum += parts[i];
    sum += __shfl_xor_sync(all_lanes, sum, 2);
    return sum + __shfl_xor_sync(all_lanes, sum, 1);
  }

  // Finishes it: `factor` is the one of a norm that was left behind, or one. All lanes of a warp come here.
  __device__ void store(const Rows& output, float factor, const PrepareTasks* tasks, const float* sums) const {
    if (!__any_sync(all_lanes, exists)) return;
    int j = lane_index() % 4;
    float value = factor * multiplier * product(*segment, sums, row) + bias;
    if constexpr (kind == PRODUCT_GATED) {
      value = activate(function, value) * (factor * gated_multiplier * product(segment[1], sums, row) + gated_bias);
    }
    float part = weight * (j == 3 ? value : held);
    if (tasks) {
      part += __shfl_xor_sync(all_lanes, part, 2);
      part += __shfl_xor_sync(all_lanes, part, 1);
    }
    if (!exists) return;
    if constexpr (kind == PRODUCT_ADD) {
      if constexpr ((passes & PASSED_SUM) != 0) Passed::expect(held);
      value += held;
    }
    if (tasks && convolution) {
      const PrepareLane& lane = *convolution;
      int channels = lane.columns.width, channel = (int)(place(output) - lane.columns.first), t = tap(lane);
      if (t > 0) lane.past[(t - 1) * channels + channel] = j == 3 ? value : held;
      value = part + (lane.bias ? lane.bias[channel] : 0.0f);
    }
    if (j != 0) return;
    if (tasks && segment->task >= 0) value = finished_by(*tasks, segment->task, place(output), value);
    if constexpr ((passes & PASSES_OUTPUT) != 0) this_phase().output.pass(segment->column + row, value);
    if (this_phase().stores) *place(output) = value;
  }
};
