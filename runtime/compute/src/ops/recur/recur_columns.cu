// The last part of token blocks whose state columns decay separately, each by one minus the written value, with the levels of
// recur_levels.cu: with A_ij = q_i . k_j up to the diagonal, o_i = F_i0 q_i S + sum_j A_ij F_ij v_j for each column.

// On entry the weights are A of each query, the panels are Q, and the images of the keys are complete.
template <int dk, int dv, int queries, bool aligned, int parts>
__device__ void finish_columns(const ChunkMaker<dk, dv, queries, DECAY_BY_VALUE, WRITE_ADD, aligned, parts>& maker) {
  using Block = ChunkBlock<dk, dv, queries, DECAY_BY_VALUE, WRITE_ADD, parts>;
  Block block = maker.block;
  int first = maker.first, count = maker.count, group = warp_index();
  // `read`: values that products of all levels read. After them, the sums of each level for the tokens after its borders.
  SplitTile<parts> read = {maker.room, level_part, block_pitch};
  float* sums_room = reinterpret_cast<float*>(maker.room + parts * level_part);
  float2* totals = reinterpret_cast<float2*>(maker.rest);
  // This warp's product at its level: the weights of 16 tokens after a border, for the `depth` tokens before it.
  int level = group < 2 ? 2 : group < 4 ? 1 : 0, part = group < 4 ? group % 2 : group - 4;
  int own_row = level == 2 ? 32 + 16 * part : level == 1 ? 32 * part + 16 : 16 * part;
  int own_column = level == 2 ? 0 : level == 1 ? 32 * part : 16 * part;
  int depth = level == 2 ? 32 : 16, level_row = level * level_rows;
  int first_read = level_row + (level == 2 ? 0 : level == 1 ? 16 * part : chunk_group * part);
  // The lowest level has pairs of groups: eight tokens read the eight before them.
  int first_sum = level == 0 ? chunk_group * (part - 1) : level_row + 16 * part;

  const float* value_rows = maker.in.v.at(first, maker.head, dv, 0);
  GroupShare values;
  values.load<aligned>(value_rows, maker.in.v.rows.stride, count, 0, dv);
  __syncthreads();
#pragma unroll 1
  for (int column = 0; column < Block::width; column += chunk_block) {
    // Per token: the written value, its decay factor, the value decayed to the group's end, and the decay since the group's start.
    float2 value[chunk_group], decayed[chunk_group], left[chunk_group], since[chunk_group];
    float2 total = {1.0f, 1.0f}, until = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < chunk_group; i++) {
      value[i] = values.x[i];
      decayed[i] = {1.0f - value[i].x, 1.0f - value[i].y};
      since[i] = total = times(total, decayed[i]);
    }
#pragma unroll
    for (int i = chunk_group - 1; i >= 0; i--) {
      left[i] = times(value[i], until);
      until = times(until, decayed[i]);
    }
    totals[group * 32 + lane_index()] = total;
    if (column + chunk_block < Block::width) {
      values.load<aligned>(value_rows, maker.in.v.rows.stride, count, column + chunk_block, dv);
    }
    __syncthreads();
    float2 front, back, fronts[chunk_levels];
    int rows[chunk_levels];
    each_level(totals, front, back, [&](int level, int row, bool after, float2 front, float2 back) {
      fronts[level] = front;
      rows[level] = row;
      if (after) return;
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        float2 x = times(left[i], back);
        read.store(row + i, GroupShare::column(), SplitPair<parts>(x.x, x.y));
      }
    });
    int own = column + GroupShare::column();
#pragma unroll
    for (int i = 0; i < chunk_group; i++) {
      int t = group * chunk_group + i;
      *reinterpret_cast<float2*>(block.values(0, t) + own) = times(left[i], back);
      *reinterpret_cast<float2*>(block.reach(t) + own) = times(since[i], front);
    }
    if (group == 0) *reinterpret_cast<float2*>(&block.decay(own)) = times(total, back);
#pragma unroll 1
    for (int query = 0; query < queries; query++) {
      __syncthreads();
      SplitTile<parts> weights = maker.weights(query, 0);
      float sums[8][4] = {};
      for (int k = 0; k < depth; k += 16) {
        SplitOperand<parts> a, b;
        load_left<false>(a, weights.at(own_row, own_column + k));
#pragma unroll
        for (int n = 0; n < parts; n++) {
          if (level == 0) a.part[n][2] = a.part[n][3] = 0;
        }
#pragma unroll
        for (int n = 0; n < 4; n++) {
          load_right<true>(b, read.at(first_read + k, 16 * n));
          multiply_add(sums + 2 * n, a, b);
        }
      }
      each_pair<8>(0, 0, [&](int n, int i, int row, int column) {
        if (level == 0 && row < chunk_group) return;
        *reinterpret_cast<float2*>(sums_room + (first_sum + row) * block_pitch + column) = {sums[n][i], sums[n][i + 1]};
      });
      __syncthreads();
      const u16* own_weights = weights.at(group * chunk_group, group * chunk_group).first;
      float2 out[chunk_group] = {};
#pragma unroll
      for (int j = 0; j < chunk_group; j++) {
        float2 x = value[j];
#pragma unroll
        for (int i = 0; i < chunk_group; i++) {
          if (i < j) continue;
          if (i > j) x = times(x, decayed[i]);
          const u16* place = own_weights + i * block_pitch + j;
          float weight = 0.0f;
#pragma unroll
          for (int n = parts - 1; n >= 0; n--) weight += first_of(place[n * weights.distance]);
          out[i] = {out[i].x + weight * x.x, out[i].y + weight * x.y};
        }
      }
#pragma unroll
      for (int level = 0; level < chunk_levels; level++) {
        if ((group >> level) % 2 == 0) continue;
#pragma unroll
        for (int i = 0; i < chunk_group; i++) {
          float2 decay = times(since[i], fronts[level]);
          const float* sum = sums_room + (rows[level] + i) * block_pitch + GroupShare::column();
          out[i] = {out[i].x + decay.x * sum[0], out[i].y + decay.y * sum[1]};
        }
      }
#pragma unroll
      for (int i = 0; i < chunk_group; i++) {
        int t = group * chunk_group + i;
        if (t >= count) continue;
        float factor = maker.factors[query * chunk_block + t];
        float* to = maker.in.out.token(first + t) + (maker.head + query) * dv + own;
        if (own < dv) to[0] = factor * out[i].x;
        if (own + 1 < dv) to[1] = factor * out[i].y;
      }
    }
  }
}
