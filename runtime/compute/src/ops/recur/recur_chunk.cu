// Token blocks of recurrences whose states decay uniformly: the decays are factors outside the products of the triangles. If
// each column decays separately, the triangles have no decays.

template <int dk, int dv, int queries, int decay_kind, int write, bool aligned, int parts>
__device__ void recur_blocks(RecurInputs in, u16* scratch, int tokens) {
  static_assert(write == WRITE_ADD || write == WRITE_DELTA, "removals are for rows that decay by themselves");
  constexpr bool delta = write == WRITE_DELTA;
  using Maker = ChunkMaker<dk, dv, queries, decay_kind, write, aligned, parts>;
  using Block = typename Maker::Block;
  Maker maker(in, scratch, tokens);
  Block block = maker.block;
  int head = maker.head, first = maker.first, count = maker.count, warp_row = maker.warp_row, half_of = maker.half_of;
  // Slices of the queries and of the keys.
  SplitTile<parts> left = {maker.room, tile_part, block_pitch}, right = {maker.room + Maker::tile_size, tile_part, block_pitch};
  // Per token: the sum of the log decays, its exponential, and the decay to the block's end.
  float *sums_of_logs = maker.rest, *reach = sums_of_logs + chunk_block, *to_end = reach + chunk_block;

  maker.load_gates();
  if (threadIdx.x < chunk_block) {
    bool inside = threadIdx.x < count;
    int t = first + threadIdx.x;
    float constant = decay_kind == DECAY_FIXED || decay_kind == DECAY_STEP ? in.constants[head / in.constant_sharing] : 0.0f;
    float log = 0.0f;
    if (decay_kind == DECAY_FIXED) log = constant;
    if (decay_kind == DECAY_HEAD && inside) log = *in.decay.at(t, head, 1, 0);
    if (decay_kind == DECAY_STEP && inside) log = constant * *in.decay.at(t, head, 1, 0);
    // Below this a decay is zero in f32; the clamp keeps the sums small, so that their differences are exact enough.
    if (log < -110.0f) log = -110.0f;
    to_end[threadIdx.x] = inside ? log : 0.0f;
  }
  __syncthreads();
  float sum = 0.0f;
  if (threadIdx.x < chunk_block) {
#pragma unroll 16
    for (int i = 0; i < chunk_block; i++) sum += i <= threadIdx.x ? to_end[i] : 0.0f;
    sums_of_logs[threadIdx.x] = sum;
    reach[threadIdx.x] = expf(sum);
  }
  __syncthreads();
  if (threadIdx.x < chunk_block) to_end[threadIdx.x] = expf(sums_of_logs[chunk_block - 1] - sum);
  if (decay_kind != DECAY_BY_VALUE && threadIdx.x == 0) block.decay(0) = reach[chunk_block - 1];

  const float* key_rows = in.k.at(first, head, dk, 0);
  ChunkShare ahead, asked;
  for (int query = 0; query < queries; query++) {
    bool keys_too = delta && query == 0;
    const float* query_rows = in.q.at(first, head + query, dk, 0);
    const float* factors = maker.factors + query * chunk_block;
    float sums[2][4][4] = {};
    ahead.load<aligned>(key_rows, in.k.rows.stride, count, 0, dk);
    asked.load<aligned>(query_rows, in.q.rows.stride, count, 0, dk);
#pragma unroll 1
    for (int slice = 0; slice < Block::slices; slice++) {
      __syncthreads();
#pragma unroll
      for (int i = 0; i < ChunkShare::count; i++) {
        int t = ChunkShare::token(i), c = ChunkShare::column(), place = image_place(t, c);
        store_split(right, t, c, ahead.x[i]);
        store_split(left, t, c, asked.x[i]);
        if (query == 0) store_split<parts>(block.keys(0, slice) + place, image_part, scaled(ahead.x[i], to_end[t]));
        if (keys_too) store_split<parts>(block.panel(slice, 0) + place, image_part, scaled(ahead.x[i], reach[t]));
        store_split<parts>(block.panel(slice, query + delta) + place, image_part, scaled(asked.x[i], factors[t] * reach[t]));
      }
      if (slice + 1 < Block::slices) {
        ahead.load<aligned>(key_rows, in.k.rows.stride, count, (slice + 1) * chunk_block, dk);
        asked.load<aligned>(query_rows, in.q.rows.stride, count, (slice + 1) * chunk_block, dk);
      }
      __syncthreads();
      // Tiles above the diagonal are zero.
      if (32 * half_of >= warp_row + 16) continue;
      if (keys_too) multiply_tiles<2, false>(sums[0], right.at(warp_row, 0), right.at(32 * half_of, 0), chunk_block);
      multiply_tiles<2, false>(sums[1], left.at(warp_row, 0), right.at(32 * half_of, 0), chunk_block);
    }
    each_pair<4>(warp_row, 32 * half_of, [&](int n, int i, int row, int column) {
      float decayed[2];
#pragma unroll
      for (int j = 0; j < 2; j++) {
        float factor = column + j <= row ? expf(sums_of_logs[row] - sums_of_logs[column + j]) : 0.0f;
        decayed[j] = factor * sums[1][n][i + j];
        if (keys_too) {
          float weight = column + j < row ? maker.betas[row] * factor * sums[0][n][i + j] : 0.0f;
          maker.transposed()[(column + j) * square_pitch + row] = weight;
        }
      }
      maker.weights(query + delta, 0).store(row, column, SplitPair<parts>(decayed[0], decayed[1]));
    });
  }
  if constexpr (decay_kind == DECAY_BY_VALUE) finish_columns(maker);
  else maker.finish();
}
