// Epilogue of a streaming GEMV: stores a row, adds it to the output or gates it. Row ops are applied first: the parts of the following
// `prepare` that need no other row, such as short convolutions and activations.

// Applies a row op to a value whose output is at `address`. Not inlined: otherwise every GEMV would contain a copy.
__device__ __noinline__ float apply_row_op(const PrepareTasks& row_ops, int row_op, const float* address, float value) {
  if (row_op >= most_groups) {
    const PrepareGate& gate = row_ops.gate[row_op - most_groups];
    return gate_value(gate, (int)(address - gate.columns.first), value);
  }
#pragma unroll 1
  for (int m = 0; m < row_ops.group[row_op].maps; m++) value = activate(row_ops.group[row_op].at[m].function, value);
  return value;
}

// One row of a batch, which four lanes finish together. They load all operands before the sums are complete. Where no row has a row op,
// `row_ops` is null at compile time and costs nothing.
template <int mailboxes, int epilogue, int function, int cols>
struct EpilogueRow {
  // The gated row's segment follows the gate's.
  static constexpr int products = epilogue == EPILOGUE_GATED ? 2 : 1;

  const Segment* segment;
  int row;
  bool exists;
  // The convolution that the row goes through, or null.
  const PrepareGroup* convolution;
  // With a convolution, this lane's past input and weight. In an added row, `held` is the output's old value.
  float held;
  float weight;
  // Factor and bias of the product; in a gated GEMV, of the gate's product.
  float multiplier;
  float bias;
  // Factor and bias of the gated row.
  float gated_multiplier;
  float gated_bias;

  // Finds this thread's row in the first batch of the segments.
  __device__ EpilogueRow(const Segment* segments, int count)
      : held(0.0f), weight(0.0f), multiplier(1.0f), bias(0.0f), gated_multiplier(1.0f), gated_bias(0.0f) {
    int s = 0;
    row = warp_index() * 8 + lane_index() / 4;
    exists = true;
#pragma unroll 1
    while (exists && row >= max(segments[s].rows, 0)) {
      row -= max(segments[s].rows, 0);
      s += products;
      exists = s < count && !segments[s].new_batch;
    }
    segment = segments + (exists ? s : 0);
    row = exists ? row : 0;
  }

  __device__ float* address(const Rows& output) const { return output.first + segment->column + row; }

  // Returns this lane's tap of the convolution; the tap of the last lane is for the new value.
  __device__ static int tap(const PrepareGroup& group) { return group.taps - 4 + lane_index() % 4; }

  // Loads operands that no earlier op writes.
  __device__ void load(const PrepareTasks* row_ops, const Rows& output) {
    convolution = nullptr;
    if (!exists) return;
    multiplier = segment->multiplier;
    if (segment->bias) bias = segment->bias[row];
    if constexpr (epilogue == EPILOGUE_GATED) {
      gated_multiplier = segment[1].multiplier;
      if (segment[1].bias) gated_bias = segment[1].bias[row];
    }
    if (!row_ops || segment->row_op < 0 || segment->row_op >= most_groups) return;
    const PrepareGroup& group = row_ops->group[segment->row_op];
    if (!group.weight) return;
    convolution = &group;
    if (tap(group) < 0) return;
    int channels = group.columns.width, at = tap(group) * channels + (int)(address(output) - group.columns.first);
    weight = group.weight[at];
    if (lane_index() % 4 < 3) held = group.past[at];
  }

  // Loads the value that the product is added to.
  __device__ void load_sum(const Rows& output) {
    if (epilogue != EPILOGUE_ADD || !exists) return;
    held = (mailboxes & MAILBOX_SUM) != 0 ? Mailbox{this_op().sum}.load(segment->column + row) : *address(output);
  }
  // Returns the value of slot `slot` that its product is added to.
  __device__ float sum_of(const Rows& output, int slot) const {
    return epilogue == EPILOGUE_ADD && exists ? address(output)[(long long)slot * output.stride] : 0.0f;
  }
  // Makes `value`, the last input of the convolution, a past one.
  __device__ void shift(float value) {
    float next = __shfl_down_sync(all_lanes, held, 1);
    held = lane_index() % 4 == 2 ? value : next;
  }

  // Adds up the partial sums of the row, and of the gated row: four lanes together, both sums at once.
  __device__ void add_parts(const float* sums, float (&sum)[products]) const {
    // Only the warps of the row's group have partial sums of it. No unit has more than 32 columns.
    constexpr bool grouped = groups_of_tile(cols / 32) > 1;
    int warps = grouped ? consumer_warps / segment->row_groups : consumer_warps;
    const float* parts[products];
#pragma unroll
    for (int p = 0; p < products; p++) {
      parts[p] = sums + segment[p].sums + row * sums_pitch + lane_index() % 4;
      sum[p] = parts[p][0];
    }
#pragma unroll(grouped ? 1 : consumer_warps / 4)
    for (int i = 4; i < warps; i += 4) {
#pragma unroll
      for (int p = 0; p < products; p++) sum[p] += parts[p][i];
    }
#pragma unroll
    for (int distance = 2; distance > 0; distance /= 2) {
#pragma unroll
      for (int p = 0; p < products; p++) sum[p] += __shfl_xor_sync(all_lanes, sum[p], distance);
    }
  }

  // Finishes the row of slot `slot`, whose output is that many rows after the first, and returns the product. `factor` is the factor of a
  // late norm, or 1. All lanes of a warp call this together.
  __device__ float store(const Rows& output, int slot, float factor, const PrepareTasks* row_ops, const float* sums) const {
    if (!__any_sync(all_lanes, exists)) return 0.0f;
    int j = lane_index() % 4;
    float sum[products];
    add_parts(sums, sum);
    float value = factor * multiplier * sum[0] + bias;
    if constexpr (products == 2) value = activate(function, value) * (factor * gated_multiplier * sum[1] + gated_bias);
    float part = weight * (j == 3 ? value : held);
    if (row_ops) {
      part += __shfl_xor_sync(all_lanes, part, 2);
      part += __shfl_xor_sync(all_lanes, part, 1);
    }
    if (!exists) return 0.0f;
    const float product = value;
    if constexpr (epilogue == EPILOGUE_ADD) {
      if constexpr ((mailboxes & MAILBOX_SUM) != 0) Mailbox::check(held);
      value += held;
    }
    if (row_ops && convolution) {
      const PrepareGroup& group = *convolution;
      int channels = group.columns.width, channel = (int)(address(output) - group.columns.first), t = tap(group);
      if (t > 0) group.past[(t - 1) * channels + channel] = j == 3 ? value : held;
      value = part + (group.bias ? group.bias[channel] : 0.0f);
    }
    if (j != 0) return product;
    if (row_ops && segment->row_op >= 0) value = apply_row_op(*row_ops, segment->row_op, address(output), value);
    if constexpr ((mailboxes & MAILBOX_OUTPUT) != 0) Mailbox{this_op().output}.publish(segment->column + row, value);
    if (this_op().stores) address(output)[(long long)slot * output.stride] = value;
    return product;
  }
};
