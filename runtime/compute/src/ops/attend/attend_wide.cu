// Attention of chunks whose keys are also their values, and are wider than attend_tiles.cu supports, as in latent attention. A
// thread block takes one query head of 32 tokens, and 32 keys at a time. Warps split the depth of the scores, then the columns
// of the values.

constexpr int wide_rows = 32;
constexpr int wide_warps = 8;
// The row pitch of the scores, in floats.
constexpr int wide_pitch = wide_rows + 4;

template <class E, int dim, bool aligned>
__device__ void attend_wide(Attended a, const u64* position, int tokens) {
  static_assert(dim % 32 == 0, "two halves of whole depths");
  constexpr int pitch = dim + 8, part = wide_rows * pitch, pieces = wide_rows * dim / 8;
  constexpr int column_tiles = dim / 16, own_tiles = (column_tiles + wide_warps - 1) / wide_warps;
  __shared__ int seen_from[wide_rows], seen_until[wide_rows];
  u16* room = shared_memory<u16>();
  SplitTile<2> queries = {room, part, pitch}, keys = {room + 2 * part, part, pitch};
  // Partial scores of each half of the depth.
  float* half_scores = reinterpret_cast<float*>(room + 4 * part);
  int head = blockIdx.x, kv_head = head / (a.heads / a.kv_heads), warp = warp_index();
  int first_token = blockIdx.y * wide_rows, last_token = min(first_token + wide_rows, tokens) - 1;
  SeenKeys<E, dim, false, aligned> seen(a, *position, tokens, kv_head, first_token, last_token);
  store_queries<dim, dim, wide_rows>(queries, a, head, first_token, last_token);

  // This warp's scores: 16 tokens, 16 keys, and half of the depth.
  int score_row = warp % 2 * 16, score_key = warp / 2 % 2 * 16, half_of = warp / 4;
  // A lane has rows of two tiles of tokens; every warp computes the same softmax.
  int row = lane_index() / 4, pair = lane_index() % 4 * 2;
  float weighted[2][2 * own_tiles][4] = {}, largest[2][2] = {{no_score, no_score}, {no_score, no_score}}, sum[2][2] = {};
  for (int first = 0; first < seen.total; first += wide_rows) {
    __syncthreads();
    seen.store_seeing(first, wide_rows, seen_from, seen_until);
#pragma unroll 3
    for (int i = threadIdx.x; i < pieces; i += blockDim.x) {
      int key = i / (dim / 8), column = i % (dim / 8) * 8;
      float x[8] = {};
      if (first + key < seen.total) seen.load(0, first + key, column, x);
      store_eight(keys, key, column, x);
    }
    __syncthreads();

    float products[2][4] = {};
#pragma unroll 2
    for (int k = half_of * (dim / 2); k < (half_of + 1) * (dim / 2); k += 16) {
      SplitOperand<2> q, b;
      load_left<false>(q, queries.at(score_row, k));
      load_right<false>(b, keys.at(score_key, k));
      multiply_add(products, q, b);
    }
#pragma unroll
    for (int n = 0; n < 2; n++) {
#pragma unroll
      for (int i = 0; i < 4; i += 2) {
        float* to = half_scores + (half_of * wide_rows + score_row + row + i * 4) * wide_pitch + score_key + 8 * n + pair;
        *reinterpret_cast<float2*>(to) = {products[n][i], products[n][i + 1]};
      }
    }
    __syncthreads();

    float scores[2][wide_rows / 8][4];
#pragma unroll
    for (int m = 0; m < 2; m++) {
      float highest[2] = {largest[m][0], largest[m][1]};
#pragma unroll
      for (int n = 0; n < wide_rows / 8; n++) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          int key = 8 * n + pair + i % 2, of = 16 * m + row + i / 2 * 8, t = first_token + of;
          const float* half = half_scores + of * wide_pitch + key;
          bool sees = seen_from[key] <= t && t < seen_until[key];
          scores[m][n][i] = sees ? log2_e * a.scale * (half[0] + half[wide_rows * wide_pitch]) : -infinity;
          highest[i / 2] = fmaxf(highest[i / 2], scores[m][n][i]);
        }
      }
      raise_largest(largest[m], highest, sum[m], weighted[m]);
    }
#pragma unroll
    for (int k = 0; k < wide_rows / 16; k++) {
      SplitOperand<2> b, upper = softmax_weights(scores[0] + 2 * k, largest[0], sum[0]);
      SplitOperand<2> lower = softmax_weights(scores[1] + 2 * k, largest[1], sum[1]);
#pragma unroll
      for (int n = 0; n < own_tiles; n++) {
        int tile = warp + wide_warps * n;
        if (tile >= column_tiles) continue;
        load_right<true>(b, keys.at(16 * k, 16 * tile));
        multiply_add(weighted[0] + 2 * n, upper, b);
        multiply_add(weighted[1] + 2 * n, lower, b);
      }
    }
  }
#pragma unroll
  for (int i = 0; i < 4; i++) {
    int m = i / 2, which = i % 2, t = first_token + 16 * m + row + 8 * which;
    float all = sum[m][which];
    for (int distance = 1; distance < 4; distance *= 2) all += __shfl_xor_sync(all_lanes, all, distance);
    if (t > last_token) continue;
    if (a.sinks) all += exp2f(log2_e * a.sinks[head] - largest[m][which]);
    float* out = a.out.token(t) + head * dim;
#pragma unroll
    for (int n = 0; n < 2 * own_tiles; n++) {
      int column = 16 * (warp + wide_warps * (n / 2)) + n % 2 * 8 + pair;
      if (column >= dim) continue;
      out[column] = weighted[m][n][2 * which] / all;
      out[column + 1] = weighted[m][n][2 * which + 1] / all;
    }
  }
}
