// Blocks of recurrences each row of whose states fades by itself, by the levels of recur_levels.cu:
// L_ij = beta_i sum_d F_ij,d k_id k_jd and A_ij = sum_d F_ij,d q_id k_jd.

// Sums 32 values over the lanes; lane n returns that of value n.
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

// `complement`: keys are one minus the fade of their row.
template <int dk, int dv, int queries, int fade, bool complement, bool delta, bool aligned>
__device__ void recur_row_blocks(RecurInputs in, u16* scratch, int tokens) {
  using Maker = ChunkMaker<dk, dv, queries, fade, delta, aligned>;
  using Block = typename Maker::Block;
  Maker maker(in, scratch, tokens);
  Block block = maker.block;
  int head = maker.head, first = maker.first, count = maker.count, group = warp_index();
  // Of all levels: what reads, and the keys.
  SplitTile readers = {maker.room, level_part, block_pitch}, read = {maker.room + 2 * level_part, level_part, block_pitch};
  // By which the rows fade over each group.
  float2* totals = reinterpret_cast<float2*>(maker.rest);
  // What this warp multiplies: 16 rows of each, of this level.
  int own_level = group < 4 ? 2 : group < 6 ? 1 : 0;
  int own_row = (group < 4 ? group / 2 : group % 2) * 16, own_column = group % 2 * 16;

  maker.load_gates();
#pragma unroll 1
  for (int panel = 0; panel < Block::panels; panel++) {
    bool of_keys = delta && panel == 0;
    int query = panel - delta;
    const float* factors = maker.factors + query * chunk_block + group * chunk_group;
    GroupShare keys = {}, fades = {}, asked = {};
    auto load = [&](int slice) {
      int column = slice * chunk_block;
      if (!complement) keys.load<aligned>(in.k.at(first, head, dk, 0), in.k.rows.stride, count, column, dk);
      if (fade == FADE_ROWS) fades.load<aligned>(in.decay.at(first, head, dk, 0), in.decay.rows.stride, count, column, dk);
      if (!of_keys) asked.load<aligned>(in.q.at(first, head + query, dk, 0), in.q.rows.stride, count, column, dk);
    };
    // Of the group's own triangle, and of the products.
    float near[2][32] = {}, sums[2][4] = {};
    load(0);
#pragma unroll 1
    for (int slice = 0; slice < Block::slices; slice++) {
      float2 faded[chunk_group], key[chunk_group], reader[chunk_group], total = {1.0f, 1.0f};
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        key[i] = keys.x[i];
        if (fade == FADE_ROWS) faded[i] = {expf(fades.x[i].x), expf(fades.x[i].y)};
        if (fade == FADE_BY_KEY) faded[i] = {1.0f - key[i].x, 1.0f - key[i].y};
        if (complement) key[i] = {1.0f - faded[i].x, 1.0f - faded[i].y};
        reader[i] = of_keys ? key[i] : asked.x[i];
        total = times(total, faded[i]);
      }
      totals[group * 32 + lane_index()] = total;
      if (slice + 1 < Block::slices) load(slice + 1);
#pragma unroll
      for (int j = 0; j < chunk_group; j++) {
        float2 x = key[j];
#pragma unroll
        for (int i = 0; i < chunk_group; i++) {
          if (i < j) continue;
          if (i > j) x = times(x, faded[i]);
          near[i / 4][i % 4 * chunk_group + j] += reader[i].x * x.x + reader[i].y * x.y;
        }
      }
      // From the group's begin on, and to its end.
      float2 since = {1.0f, 1.0f}, until = {1.0f, 1.0f};
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        since = times(since, faded[i]);
        reader[i] = times(reader[i], since);
        key[chunk_group - 1 - i] = times(key[chunk_group - 1 - i], until);
        until = times(until, faded[chunk_group - 1 - i]);
      }
      __syncthreads();
      float2 front, back;
      each_level(totals, front, back, [&](int, int row, bool behind, float2 front, float2 back) {
        SplitTile tile = readers;
        if (!behind) tile = read;
#pragma unroll
        for (int i = 0; i < chunk_group; i++) {
          float2 x = behind ? times(reader[i], front) : times(key[i], back);
          tile.store(row + i, GroupShare::column(), SplitPair(x.x, x.y));
        }
      });
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        int t = group * chunk_group + i;
        float factor = of_keys ? 1.0f : factors[i];
        float2 reach = {factor * front.x, factor * front.y};
        store_pair(block.panel(slice, panel), t, GroupShare::column(), times(reader[i], reach));
        if (panel == 0) store_pair(block.keys(slice), t, GroupShare::column(), times(key[i], back));
      }
      if (panel == 0 && group == 0) {
        float2 all = times(total, back);
        *reinterpret_cast<float2*>(&block.fade(slice * chunk_block + GroupShare::column())) = all;
      }
      __syncthreads();
      int above = own_level * level_rows;
      multiply_tiles<1, false>(sums, readers.at(above + own_row, 0), read.at(above + own_column, 0), chunk_block);
    }

    SplitTile weights = maker.weights(panel);
    auto store = [&](int row, int column, float x) {
      if (of_keys) maker.transposed()[column * square_pitch + row] = maker.betas[row] * x;
      else weights.store(row, column, x);
    };
    each_pair<2>(own_row, own_column, [&](int tile, int i, int row, int column) {
      // Of the lowest level two pairs of groups came into one product.
      if (own_level == 0 && row / chunk_group != column / chunk_group) return;
      int reading = token_of_level(own_level, row, true), first_read = token_of_level(own_level, column, false);
      store(reading, first_read, sums[tile][i]);
      store(reading, first_read + 1, sums[tile][i + 1]);
    });
    // The group's own triangle, and zeros beside it where its pair's product reads them.
#pragma unroll
    for (int half = 0; half < 2; half++) {
      int row = group * chunk_group + half * 4 + lane_index() / 8, column = group * chunk_group + lane_index() % 8;
      store(row, column, spread_sums(near[half]));
      if (group % 2 == 0) store(row, column + chunk_group, 0.0f);
    }
  }
  maker.finish();
}
