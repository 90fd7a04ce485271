// Streams slices through a ring of `slots` buffers in shared memory.
template <int slots>
struct ChunkRing {
  u16* room;
  int slot_size;
  u64* arrived;
  int number;

  __device__ void begin() {
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0) {
      for (int i = 0; i < slots; i++) mbarrier_init(arrived + i, 1);
      fence_async_proxy();
    }
    __syncthreads();
#endif
  }
  // Starts to copy slice `which`, of `size` numbers, which may be 0.
  __device__ void load(int which, const u16* from, int size) {
    u16* slot = room + which % slots * slot_size;
#if __CUDA_ARCH__ >= 900
    if (threadIdx.x == 0 && size > 0) bulk_copy(slot, from, size * sizeof(u16), arrived + which % slots);
#else
    for (int i = threadIdx.x * 8; i < size; i += blockDim.x * 8) copy_or_clear(slot + i, from + i);
    commit_copies();
#endif
  }
  // Waits for the next slice; `refill` starts to load the replacement of the previous one.
  template <class Refill>
  __device__ const u16* next(Refill refill) {
    int now = number++;
#if __CUDA_ARCH__ >= 900
    __syncthreads();
    refill(now + slots - 1);
    mbarrier_wait(arrived + now % slots, now / slots % 2);
#else
    wait_for_copies<slots - 2>();
    __syncthreads();
    refill(now + slots - 1);
#endif
    return room + now % slots * slot_size;
  }
};

// Passes `columns` columns of a state through the token blocks. They stay in registers; a copy of them in shared memory is the
// operand of products with the ring's slices. A warp takes 16 of every 64 rows. If there are 32 columns it takes half of them,
// otherwise half of the panels and of the slices. If partitions have `heads` states each, `firsts` holds the first block of each
// partition, followed by the end of the last one.
template <int dk, int dv, int queries, int decay_kind, int write, int columns, int slots, int finish, int parts>
__device__ void recur_states(RecurInputs in, u16* scratch, int tokens, const int* firsts, int heads) {
  using Block = ChunkBlock<dk, dv, queries, decay_kind, write, parts>;
  constexpr int image_size = Block::image_size;
  constexpr int writes = Block::writes, key_images = writes * Block::slices;
  constexpr bool wide = columns == 32;
  constexpr int groups = (dv + columns - 1) / columns, panels = Block::panels, state_pitch = columns + 8;
  // The slices of the panels, then the key images, `panels` of them at a time.
  constexpr int key_slots = (key_images + panels - 1) / panels, steps = Block::slices + key_slots;
  constexpr int own_panels = wide ? panels : (panels + 1) / 2, own_slices = wide ? Block::slices : (Block::slices + 1) / 2;
  __shared__ u64 arrived[slots];
  u16* room = shared_memory<u16>();
  ChunkRing<slots> ring = {room, panels * image_size, arrived, 0};
  SplitTile<parts> copy = {room + slots * panels * image_size, Block::slices * chunk_block * state_pitch, state_pitch};
  auto written = [&](int number) {
    constexpr int part = chunk_block * state_pitch;
    return SplitTile<parts>{copy.first + parts * (copy.distance + number * part), part, state_pitch};
  };

  int index = blockIdx.x / groups, first_column = blockIdx.x % groups * columns, head = index % heads;
  int warp_row = warp_index() % 4 * 16, half_of = warp_index() / 4, warp_column = wide ? half_of * 16 : 0;
  int begin = firsts ? firsts[index / heads] : 0;
  int end = firsts ? firsts[index / heads + 1] : (tokens + chunk_block - 1) / chunk_block;
  if (begin == end) return;
  float* matrix = in.states + (long long)index * dk * dv;
  auto block_at = [&](int n) { return Block{scratch + ((long long)n * heads + head) * Block::size}; };
  // The index of this warp's panel or slice number `i`.
  auto own = [&](int i) { return wide ? i : 2 * i + half_of; };
  auto load = [&](int which) {
    int n = begin + which / steps, step = which % steps, keys = step - Block::slices;
    const u16* from = step < Block::slices ? block_at(n).panel(step, 0) : block_at(n).keys(0, keys * panels);
    int images = step < Block::slices ? panels : min(panels, key_images - keys * panels);
    ring.load(which, from, n < end ? images * image_size : 0);
  };
  ring.begin();
  for (int i = 0; i < slots - 1; i++) load(i);

  float state[own_slices][2][4] = {};
#pragma unroll
  for (int i = 0; i < own_slices; i++) {
    if (own(i) >= Block::slices) continue;
    each_pair<2>(own(i) * chunk_block + warp_row, warp_column, [&](int tile, int j, int row, int column) {
      const float* from = matrix + (long long)row * dv + first_column + column;
      float* x = state[i][tile] + j;
      x[0] = row < dk && first_column + column < dv ? from[0] : 0.0f;
      x[1] = row < dk && first_column + column + 1 < dv ? from[1] : 0.0f;
      copy.store(row, column, SplitPair<parts>(x[0], x[1]));
    });
  }

  for (int n = begin; n < end; n++) {
    Block block = block_at(n);
    int first = n * chunk_block, count = min(chunk_block, tokens - first);
    // These loads overlap with the products.
    float2 values[writes][2][2], reach[2][2], outs[own_panels][2][2], skips[own_panels][2][2], gates[own_panels][2][2];
    float row_decays[own_slices][2], column_decays[2][2];
#pragma unroll
    for (int i = 0; i < own_slices; i++) {
      int row = own(i) * chunk_block + warp_row + lane_index() / 4;
      if (Block::column_decays || own(i) >= Block::slices) continue;
      row_decays[i][0] = block.decay(row), row_decays[i][1] = block.decay(row + 8);
    }
    float* out = in.out.first + (long long)first * in.out.stride + head * queries * dv;
    each_pair<2>(warp_row, first_column + warp_column, [&](int tile, int j, int t, int column) {
#pragma unroll
      for (int i = 0; i < writes; i++) {
        values[i][tile][j / 2] = *reinterpret_cast<const float2*>(block.values(i, t) + column);
      }
      if (Block::column_decays) {
        reach[tile][j / 2] = *reinterpret_cast<const float2*>(block.reach(t) + column);
        column_decays[tile][0] = block.decay(column), column_decays[tile][1] = block.decay(column + 1);
      }
#pragma unroll
      for (int i = 0; i < own_panels; i++) {
        int query = own(i) - Block::solves;
        bool reads = query >= 0 && query < queries && t < count;
        const float* from = out + (long long)t * in.out.stride + query * dv + column;
        auto pair = [&](const float* from) -> float2 {
          return {reads && column < dv ? from[0] : 0.0f, reads && column + 1 < dv ? from[1] : 0.0f};
        };
        outs[i][tile][j / 2] = pair(from);
        if constexpr (has_skip(finish)) skips[i][tile][j / 2] = pair(in.v.at(first + t, head * queries, dv, 0) + column);
        if constexpr (has_gate(finish)) gates[i][tile][j / 2] = pair(in.gates.token(first + t) + (head * queries + query) * dv + column);
      }
    });

    // The products of a single panel would depend on each other, so two accumulators alternate.
    constexpr int turns = panels == 1 ? 2 : 1;
    float sums[own_panels][2][4] = {}, others[2][4] = {};
    for (int slice = 0; slice < Block::slices; slice++) {
      const u16* slot = ring.next(load);
#pragma unroll
      for (int k = 0; k < chunk_block; k += 16) {
        SplitOperand<parts> a, b;
        load_right<true>(b, copy.at(slice * chunk_block + k, warp_column));
#pragma unroll
        for (int i = 0; i < own_panels; i++) {
          if (own(i) >= panels) continue;
          load_left_of_image<false>(a, slot + own(i) * image_size, warp_row, k);
          multiply_add(k / 16 % turns == 0 ? sums[i] : others, a, b);
        }
      }
    }
#pragma unroll
    for (int i = 0; i < 8; i++) {
      if (turns == 2) sums[0][i / 4][i % 4] += others[i / 4][i % 4];
    }
    each_pair<2>(warp_row, warp_column, [&](int tile, int j, int t, int column) {
#pragma unroll
      for (int i = 0; i < writes; i++) {
        float2 x = values[i][tile][j / 2];
        if (Block::solves && i == writes - 1) x = {x.x + sums[0][tile][j], x.y + sums[0][tile][j + 1]};
        if (wide || half_of == 0) written(i).store(t, column, SplitPair<parts>(x.x, x.y));
      }
#pragma unroll
      for (int i = 0; i < own_panels; i++) {
        int query = own(i) - Block::solves;
        if (query < 0 || query >= queries || t >= count) continue;
        float* to = out + (long long)t * in.out.stride + query * dv + first_column + column;
        float2 before = outs[i][tile][j / 2], sum = {sums[i][tile][j], sums[i][tile][j + 1]};
        if (Block::column_decays) sum = times(sum, reach[tile][j / 2]);
        float2 value = skips[i][tile][j / 2], gate = gates[i][tile][j / 2];
        int at = (head * queries + query) * dv + first_column + column;
        auto put = [&](int k, float x, float value, float gate) {
          if (first_column + column + k >= dv) return;
          to[k] = finished<finish>(x, has_skip(finish) ? in.gains[at + k] : 0.0f, value, gate);
        };
        put(0, before.x + sum.x, value.x, gate.x);
        put(1, before.y + sum.y, value.y, gate.y);
      }
    });
    __syncthreads();
    SplitOperand<parts> b[writes][chunk_block / 16];
#pragma unroll
    for (int i = 0; i < writes; i++) {
#pragma unroll
      for (int k = 0; k < chunk_block / 16; k++) load_right<true>(b[i][k], written(i).at(16 * k, warp_column));
    }
#pragma unroll
    for (int step = 0; step < key_slots; step++) {
      const u16* slot = ring.next(load);
#pragma unroll
      for (int number = 0; number < panels; number++) {
        constexpr int most = key_images;
        int image = step * panels + number, slice = image % Block::slices, of = image / Block::slices;
        if (image >= most || (!wide && slice % 2 != half_of)) continue;
        float(&part)[2][4] = state[wide ? slice : slice / 2];
        const float(&decays)[2] = row_decays[wide ? slice : slice / 2];
#pragma unroll
        for (int i = 0; i < 8; i++) {
          if (of == 0) part[i / 4][i % 4] *= Block::column_decays ? column_decays[i / 4][i % 2] : decays[i % 4 / 2];
        }
#pragma unroll
        for (int k = 0; k < chunk_block / 16; k++) {
          SplitOperand<parts> a;
          load_left_of_image<true>(a, slot + number * image_size, 16 * k, warp_row);
          multiply_add(part, a, b[of][k]);
        }
        if (of < writes - 1) continue;
        each_pair<2>(slice * chunk_block + warp_row, warp_column, [&](int tile, int j, int row, int column) {
          copy.store(row, column, SplitPair<parts>(part[tile][j], part[tile][j + 1]));
        });
      }
    }
  }
#pragma unroll
  for (int i = 0; i < own_slices; i++) {
    if (own(i) >= Block::slices) continue;
    each_pair<2>(own(i) * chunk_block + warp_row, first_column + warp_column, [&](int tile, int j, int row, int column) {
      float* to = matrix + (long long)row * dv + column;
      if (row < dk && column < dv) to[0] = state[i][tile][j];
      if (row < dk && column + 1 < dv) to[1] = state[i][tile][j + 1];
    });
  }
}
