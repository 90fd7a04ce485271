// Token blocks of recurrences whose state rows decay separately, with the levels of recur_levels.cu: L_ij = beta_i sum_d F_ij,d
// k_id k_jd, A_ij = sum_d F_ij,d q_id k_jd, and so on. Removals read before the state decays: with r_{i+1} as the reader of
// token i, the same products give the next row.

// Sums 32 values over the lanes; lane n returns the sum of value n.
__device__ inline float spread_sums(float (&x)[32]) {
#pragma unroll
  for (int half = 16; half > 0; half /= 2) {
    bool upper = lane_index() & half;
#pragma unroll
    for (int i = 0; i < 16; i++) {
      if (i >= half) continue;
      float low = x[i], high = x[i + half];
      x[i] = (upper ? high : low) + __shfl_xor_sync(all_lanes, upper ? low : high, half);
    }
  }
  return x[0];
}

// `complement`: keys are one minus the decay of their row.
template <int dk, int dv, int queries, int decay_kind, bool complement, int write, bool aligned, int parts>
__device__ void recur_row_blocks(RecurInputs in, u16* scratch, int tokens) {
  using Maker = ChunkMaker<dk, dv, queries, decay_kind, write, aligned, parts>;
  using Block = typename Maker::Block;
  Maker maker(in, scratch, tokens);
  Block block = maker.block;
  int head = maker.head, first = maker.first, count = maker.count, group = warp_index();
  // Operands of all levels: the readers and the keys.
  SplitTile<parts> readers = {maker.room, level_part, block_pitch}, read = {maker.room + parts * level_part, level_part, block_pitch};
  // The decays of the rows over each group.
  float2* totals = reinterpret_cast<float2*>(maker.rest);
  // This warp's product: its level, and 16 rows of each operand.
  int own_level = group < 4 ? 2 : group < 6 ? 1 : 0;
  int own_row = (group < 4 ? group / 2 : group % 2) * 16, own_column = group % 2 * 16;

  maker.load_gates();
  // The weights of each panel for each write.
#pragma unroll 1
  for (int pass = 0; pass < Block::panels * Block::writes; pass++) {
    int panel = pass / Block::writes, number = pass % Block::writes, query = panel - Block::solves;
    bool solving = Block::solves && panel == 0, reads_keys = write == WRITE_DELTA && solving;
    bool removed = write == WRITE_REPLACE && number == 1;
    int shift = write == WRITE_REPLACE && solving ? 1 : 0;
    const float* factors = maker.factors + query * chunk_block + group * chunk_group;
    SplitTile<parts> weights = maker.weights(panel, number);
    for (int i = threadIdx.x; i < Maker::tile_size / 8; i += blockDim.x) reinterpret_cast<uint4*>(weights.first)[i] = {0, 0, 0, 0};
    GroupShare keys = {}, rates = {}, decays = {}, asked = {};
    auto load = [&](int slice) {
      auto fill = [&](GroupShare& share, const RecurInput& input, int head, int shift) {
        share.load<aligned>(input.at(first + shift, head, dk, 0), input.rows.stride, count - shift, slice * chunk_block, dk);
      };
      if (removed) {
        fill(keys, in.removal, head, 0);
        fill(rates, in.rate, head, 0);
      } else if (!complement) {
        fill(keys, in.k, head, 0);
      }
      if (decay_kind == DECAY_ROWS) fill(decays, in.decay, head, 0);
      if (shift == 1) fill(asked, in.removal, head, 1);
      else if (write == WRITE_ERASE && solving) fill(asked, in.removal, head, 0);
      else if (!reads_keys) fill(asked, in.q, head + query, 0);
    };
    // Sums of the group's own triangle, and of the products of groups.
    float near[2][32] = {}, sums[2][4] = {};
    load(0);
#pragma unroll 1
    for (int slice = 0; slice < Block::slices; slice++) {
      int column = GroupShare::column();
      float2 decayed[chunk_group], key[chunk_group], reader[chunk_group], total = {1.0f, 1.0f};
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        key[i] = removed ? times(keys.x[i], rates.x[i]) : keys.x[i];
        if (decay_kind == DECAY_ROWS) decayed[i] = {expf(decays.x[i].x), expf(decays.x[i].y)};
        if (decay_kind == DECAY_BY_KEY) decayed[i] = {1.0f - key[i].x, 1.0f - key[i].y};
        if (complement) key[i] = {1.0f - decayed[i].x, 1.0f - decayed[i].y};
        reader[i] = reads_keys ? key[i] : asked.x[i];
        total = times(total, decayed[i]);
      }
      totals[group * 32 + lane_index()] = total;
      if (slice + 1 < Block::slices) load(slice + 1);
#pragma unroll
      for (int j = 0; j < chunk_group; j++) {
        float2 x = key[j];
#pragma unroll
        for (int i = 0; i < chunk_group; i++) {
          if (i < j) continue;
          if (i > j) x = times(x, decayed[i]);
          near[i / 4][i % 4 * chunk_group + j] += reader[i].x * x.x + reader[i].y * x.y;
        }
      }
      // The decays since the group's start, and until its end.
      float2 since = {1.0f, 1.0f}, until = {1.0f, 1.0f};
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        since = times(since, decayed[i]);
        reader[i] = times(reader[i], since);
        key[chunk_group - 1 - i] = times(key[chunk_group - 1 - i], until);
        until = times(until, decayed[chunk_group - 1 - i]);
      }
      __syncthreads();
      float2 front, back;
      each_level(totals, front, back, [&](int, int row, bool after, float2 front, float2 back) {
        SplitTile<parts> tile = readers;
        if (!after) tile = read;
#pragma unroll
        for (int i = 0; i < chunk_group; i++) {
          float2 x = after ? times(reader[i], front) : times(key[i], back);
          tile.store(row + i, column, SplitPair<parts>(x.x, x.y));
        }
      });
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        int t = group * chunk_group + i;
        float factor = solving ? 1.0f : factors[i];
        float2 reach = {factor * front.x, factor * front.y};
        if (number == 0 && t + shift < chunk_block) {
          store_pair<parts>(block.panel(slice, panel), t + shift, column, times(reader[i], reach));
        }
        if (panel == 0) store_pair<parts>(block.keys(number, slice), t, column, times(key[i], back));
      }
      if (group == 0 && pass == 0) {
        *reinterpret_cast<float2*>(&block.decay(slice * chunk_block + column)) = times(total, back);
        if (write == WRITE_REPLACE) {
          const float* r = in.removal.at(first, head, dk, 0);
          int c = slice * chunk_block + column;
          store_pair<parts>(block.panel(slice, 0), 0, column, {c < dk ? r[c] : 0.0f, c + 1 < dk ? r[c + 1] : 0.0f});
        }
      }
      __syncthreads();
      int above = own_level * level_rows;
      multiply_tiles<1, false>(sums, readers.at(above + own_row, 0), read.at(above + own_column, 0), chunk_block);
    }

    auto store = [&](int reading, int column, float x) {
      int row = reading + shift;
      if (row >= chunk_block) return;
      if (solving && number == Maker::last) maker.transposed()[column * square_pitch + row] = maker.betas[row] * x;
      else weights.store(row, column, x);
    };
    each_pair<2>(own_row, own_column, [&](int tile, int i, int row, int column) {
      // At the lowest level one product holds two pairs of groups.
      if (own_level == 0 && row / chunk_group != column / chunk_group) return;
      int reading = token_of_level(own_level, row, true), first_read = token_of_level(own_level, column, false);
      store(reading, first_read, sums[tile][i]);
      store(reading, first_read + 1, sums[tile][i + 1]);
    });
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = half * 4 + lane_index() / 8, column = lane_index() % 8;
      store(group * chunk_group + row, group * chunk_group + column, spread_sums(near[half]));
    }
  }
  maker.finish();
}
