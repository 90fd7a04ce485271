// A product of a batch's slots on tensor cores with the work on single values that follows it: short convolutions, activations and gates,
// with the bits of `prepare`.

// The work on one value of a slot: a group's convolution and activations, a gate, or nothing.
struct SlotFinish {
  const PrepareGroup* group = nullptr;
  const PrepareGate* gate = nullptr;
  int column = 0;

  // Finds the slot's task for the value at `place`.
  __device__ SlotFinish(const PrepareTasks& tasks, const float* place) {
#pragma unroll 1
    for (int i = 0; i < tasks.groups; i++) {
      if (find(tasks.group[i].columns, place)) group = tasks.group + i;
    }
#pragma unroll 1
    for (int i = 0; i < tasks.gates; i++) {
      if (find(tasks.gate[i].columns, place)) gate = tasks.gate + i;
    }
  }

  __device__ bool find(const Rows& columns, const float* place) {
    bool inside = place >= columns.first && place < columns.first + columns.width;
    if (inside) column = (int)(place - columns.first);
    return inside;
  }

  // Starts copying the value's operands to `room`, whose floats are `pitch` apart: inputs of the convolution, its weights, its bias.
  __device__ void begin(float* room, int pitch) const {
    if (gate && column % 4 == 0 && gate->columns.width % 4 == 0) {
      if (gate->rate) prefetch(gate->rate + column, 4 * sizeof(float));
      if (gate->bias) prefetch(gate->bias + column, 4 * sizeof(float));
    }
    if (!group || !group->weight) return;
    int channels = group->columns.width, last = group->taps - 1;
#pragma unroll 1
    for (int j = 0; j < last; j++) {
      copy_async<4>(room + j * pitch, group->past + j * channels + column);
      copy_async<4>(room + (short_past + j) * pitch, group->weight + j * channels + column);
    }
    copy_async<4>(room + 2 * short_past * pitch, group->weight + last * channels + column);
    if (group->bias) copy_async<4>(room + (2 * short_past + 1) * pitch, group->bias + column);
  }

  // Returns the finished value.
  __device__ float apply(float value, const float* room, int pitch) const {
    if (gate) return gate_value(*gate, column, value);
    if (!group) return value;
    if (group->weight) {
      int last = group->taps - 1;
      float kept[short_past], weights[short_past];
#pragma unroll
      for (int j = 0; j < short_past; j++) {
        kept[j] = j < last ? room[j * pitch] : 0.0f;
        weights[j] = j < last ? room[(short_past + j) * pitch] : 0.0f;
      }
      float sum = (group->bias ? room[(2 * short_past + 1) * pitch] : 0.0f) + room[2 * short_past * pitch] * value;
      keep_short(*group, column, kept, value);
      value = convolve_short(sum, weights, kept);
    }
#pragma unroll 1
    for (int m = 0; m < group->maps; m++) value = activate(group->at[m].function, value);
    return value;
  }
};

// Like `gemm_slots_tensor`, for matrices of `format` only. The slots' `PrepareTasks` are `stride` bytes apart; their operands, which no
// other kernel of this pass writes, are copied to `room_at` in shared memory with the weights. A thread reads what it has copied.
template <int format, int cols, int tiles, int row_tiles, int stages, int room_at>
__device__ void gemm_finished_slots_tensor(const u8* inputs, const Linears& linears, Rows output, int tokens, const u8* tasks, int stride) {
  constexpr int rows = row_tiles * slot_rows, pitch = rows * 8 * tiles;
  const Linear& linear = linear_of(linears, blockIdx.x);
  int first = ((int)blockIdx.x - linear.first) * rows;
  float* room = reinterpret_cast<float*>(shared_memory<u8>() + room_at);
  auto place = [&](int i) { return output.token(i / rows) + linear.column + first + i % rows; };
  auto finish = [&](int i) { return SlotFinish(*reinterpret_cast<const PrepareTasks*>(tasks + (long long)(i / rows) * stride), place(i)); };
  auto begin = [&] {
#pragma unroll 1
    for (int i = threadIdx.x; i < tokens * rows; i += blockDim.x) {
      if (first + i % rows < linear.rows) finish(i).begin(room + i, pitch);
    }
  };
  const float* sums = slot_sums<format, cols, tiles, row_tiles, stages>(
      {linear, first}, {linear, first + slot_rows}, inputs, tokens, begin);
  wait_for_copies<0>();
#pragma unroll 1
  for (int i = threadIdx.x; i < tokens * rows; i += blockDim.x) {
    int row = i % rows;
    if (first + row >= linear.rows) continue;
    const float* own = sums + row / slot_rows * (slot_warps * 8 * tiles * slot_rows);
    float product = slot_product<tiles>(linear, own, i / rows * slot_rows + row % slot_rows, first + row);
    *place(i) = finish(i).apply(product, room + i, pitch);
  }
}
