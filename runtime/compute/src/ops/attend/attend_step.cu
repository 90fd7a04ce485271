// Attention of a single token over a segment cached in f16, on tensor cores. A thread block takes up to eight query heads of one key head,
// and one of `splits` parts of the keys; a warp multiplies 16 keys at a time, then the values of 16 keys in 64 of the columns. Products are
// transposed, [keys, heads] and [columns, heads], so that rows of the cache are operands as they are loaded: the order of a row's columns
// differs from that of `mma`, but alike in both operands. Queries and weights are sums of two f16 numbers, all sums are f32.
// The code is short, since the decode kernel fetches it anew in every layer.

constexpr int step_heads = 8;

// Columns of values are divided among this many warps, a power of two.
__device__ constexpr int step_shares(int dim) { return dim > 128 ? 4 : dim > 64 ? 2 : 1; }

// Partial softmaxes of eight heads over a warp's keys, and the sums of 64 columns of values: a lane has two heads.
struct StepSoftmax {
  float weighted[4][4] = {};
  float largest[2] = {no_score, no_score};
  float sum[2] = {};

  // Adds 16 keys with these base-two scores, of which `seen` are seen. `value(i)` returns this lane's eight columns of key i.
  template <class Value>
  __device__ void add(float (&scores)[4], int seen, Value value) {
    int key = lane_index() / 4, pair = lane_index() % 4 * 2;
    uint4 words[4] = {value(pair), value(pair + 1), value(pair + 8), value(pair + 9)};
    u32 high[2], low[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
      if (key + 8 * i >= seen) scores[2 * i] = scores[2 * i + 1] = -infinity;
    }
#pragma unroll
    for (int head = 0; head < 2; head++) {
      float highest = fmaxf(largest[head], fmaxf(scores[head], scores[2 + head]));
      for (int distance = 4; distance < 32; distance *= 2) highest = fmaxf(highest, __shfl_xor_sync(all_lanes, highest, distance));
      float shrink = power_of_two(largest[head] - highest);
      largest[head] = highest;
#pragma unroll
      for (int i = 0; i < 2; i++) scores[2 * i + head] = power_of_two(scores[2 * i + head] - highest);
      sum[head] = sum[head] * shrink + (scores[head] + scores[2 + head]);
#pragma unroll
      for (int j = 0; j < 4; j++) weighted[j][head] *= shrink, weighted[j][2 + head] *= shrink;
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      SplitPair<2, F16> weights(scores[2 * i], scores[2 * i + 1]);
      high[i] = transposed(weights.part[0]), low[i] = transposed(weights.part[1]);
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      u32 of[4];
#pragma unroll
      for (int i = 0; i < 4; i++) of[i] = reinterpret_cast<const u32*>(&words[i])[j];
      // The lane's columns 2 j and 2 j + 1, as two rows of the transposed values.
      u32 a[4] = {permute(of[0], of[1], 0x5410), permute(of[0], of[1], 0x7632), permute(of[2], of[3], 0x5410), permute(of[2], of[3], 0x7632)};
      multiply_add<F16>(weighted[j], a, low);
      multiply_add<F16>(weighted[j], a, high);
    }
  }

  // Stores a head's largest score, sum and this warp's columns, from `first` on, if the head is this lane's.
  template <int dim>
  __device__ void store(int head, int first, float* entry) const {
    if (lane_index() % 4 != head / 2) return;
    bool second = head % 2;
    if (lane_index() / 4 == 0 && first == 0) {
      // Natural scores, as in all partial softmaxes.
      entry[0] = (second ? largest[1] : largest[0]) / log2_e;
      entry[1] = second ? sum[1] : sum[0];
    }
#pragma unroll
    for (int j = 0; j < 4; j++) {
      int column = first + lane_index() / 4 * 8 + 2 * j;
      if (column >= dim) continue;
      entry[2 + column] = second ? weighted[j][1] : weighted[j][0];
      entry[3 + column] = second ? weighted[j][3] : weighted[j][2];
    }
  }
};

// Stores a head's query as sums of two f16 numbers, times the power of two that brings its largest value near the end of the f16 range; the
// inverse power and the softmax scale turn a product into a score to base two.
template <int dim>
__device__ inline void store_step_query(u16* place, int part, float* factor, const float* query, float scale) {
  constexpr int pairs = (dim + 63) / 64;
  float2 x[pairs];
  float largest = 0.0f;
#pragma unroll
  for (int i = 0; i < pairs; i++) {
    int column = 2 * lane_index() + 64 * i;
    x[i] = column < dim ? float2{query[column], query[column + 1]} : float2{};
    largest = fmaxf(largest, fmaxf(fabsf(x[i].x), fabsf(x[i].y)));
  }
  int exponent = max((int)(__float_as_uint(warp_max(largest)) >> 23) - 127, -100);
  float raise = __uint_as_float((u32)(127 + 14 - exponent) << 23);
#pragma unroll
  for (int i = 0; i < pairs; i++) {
    int column = 2 * lane_index() + 64 * i;
    if (column < dim) SplitPair<2, F16>(raise * x[i].x, raise * x[i].y).store(place + column, part);
  }
  if (lane_index() == 0) *factor = log2_e * scale * __uint_as_float((u32)(127 - 14 + exponent) << 23);
}

// Eight columns of a row from `column` on, zeros beyond the last one.
template <int dim>
__device__ inline uint4 load_piece(const void* row, int column) {
  return column < dim ? *reinterpret_cast<const uint4*>(reinterpret_cast<const u16*>(row) + column) : uint4{};
}

// Attends `heads` heads. With `caches`, it also caches the token, in the row of a token that no query sees.
template <int dim, int heads, bool caches, int splits>
__device__ void attend_step(const Attended& a, const u64* position) {
  constexpr int pitch = dim + 8, part = heads * pitch, shares = step_shares(dim);
  int group = a.heads / a.kv_heads, warps = blockDim.x / 32;
  int split = blockIdx.x % splits, head_part = blockIdx.x / splits % (group / heads), kv_head = blockIdx.x / splits / (group / heads);
  int first_head = kv_head * group + head_part * heads;
  long long start = *position;
  int cached = start < a.rows - 1 ? (int)start : a.rows - 1, span = (cached + splits) / splits;
  int low = split * span, high = min(low + span, cached + 1);
  long long head_rows = (long long)kv_head * a.rows * dim;
  half *all_keys = reinterpret_cast<half*>(a.keys) + head_rows, *all_values = reinterpret_cast<half*>(a.values) + head_rows;
  CachedRows<half> segment = {all_keys, all_values, dim, a.rows, (int)((u64)(start - cached) % a.rows)};

  u16* queries = shared_memory<u16>();
  // The token's own key and value follow the cached ones.
  half *own_key = reinterpret_cast<half*>(queries + 2 * part), *own_value = own_key + dim;
  float *factors = reinterpret_cast<float*>(own_value + dim), *scores = factors + step_heads;
  if (warp_index() < heads) {
    int head = warp_index();
    store_step_query<dim>(queries + head * pitch, part, factors + head, a.q.token(0) + (first_head + head) * dim, a.scale);
  }
  if (high > cached) {
    long long place = (long long)((u64)start % a.rows) * dim;
    for (int i = threadIdx.x; i < dim; i += blockDim.x) {
      own_key[i] = half(a.k.token(0)[kv_head * dim + i]), own_value[i] = half(a.v.token(0)[kv_head * dim + i]);
      if (caches && head_part == 0) all_keys[place + i] = own_key[i], all_values[place + i] = own_value[i];
    }
  }
  __syncthreads();

  int query_head = lane_index() / 4, share = warp_index() % shares;
  float factor[2] = {factors[lane_index() % 4 * 2], factors[lane_index() % 4 * 2 + 1]};
  StepSoftmax softmax;
#pragma unroll 1
  for (int first = low; first < high; first += 16 * warps) {
    int own = first + 16 * warp_index();
    float sums[4] = {}, small[4] = {};
    if (own < high) {
      auto key_row = [&](int i) {
        i = min(i, high - 1);
        return i < cached ? segment.key(i) : own_key;
      };
      const half* rows[2] = {key_row(own + lane_index() / 4), key_row(own + lane_index() / 4 + 8)};
#pragma unroll 4
      for (int block = 0; block < (dim + 31) / 32; block++) {
        int column = 32 * block + lane_index() % 4 * 8;
        uint4 x = load_piece<dim>(rows[0], column), y = load_piece<dim>(rows[1], column), q = {}, rest = {};
        if (query_head < heads) {
          q = load_piece<dim>(queries + query_head * pitch, column);
          rest = load_piece<dim>(queries + query_head * pitch + part, column);
        }
        u32 left[4] = {x.x, y.x, x.y, y.y}, right[4] = {x.z, y.z, x.w, y.w};
        u32 words[4][2] = {{q.x, q.y}, {q.z, q.w}, {rest.x, rest.y}, {rest.z, rest.w}};
        multiply_add<F16>(sums, left, words[0]);
        multiply_add<F16>(small, left, words[2]);
        multiply_add<F16>(sums, right, words[1]);
        multiply_add<F16>(small, right, words[3]);
      }
#pragma unroll
      for (int i = 0; i < 4; i++) sums[i] = (sums[i] + small[i]) * factor[i % 2];
    }
    auto add = [&](int keys) {
      softmax.add(sums, high - keys, [&](int i) {
        i = min(keys + i, high - 1);
        return load_piece<dim>(i < cached ? segment.value(i) : own_value, 64 * share + lane_index() / 4 * 8);
      });
    };
    if constexpr (shares == 1) {
      if (own < high) add(own);
    } else {
      // The warps that share keys have the scores of `shares` warps.
      float2* own_scores = reinterpret_cast<float2*>(scores) + lane_index();
#pragma unroll
      for (int i = 0; i < 2; i++) own_scores[(2 * warp_index() + i) * 32] = {sums[2 * i], sums[2 * i + 1]};
      __syncthreads();
#pragma unroll 2
      for (int i = 0; i < shares; i++) {
        int of = warp_index() / shares * shares + i;
        if (first + 16 * of >= high) break;
        float2 lower = own_scores[2 * of * 32], upper = own_scores[(2 * of + 1) * 32];
        sums[0] = lower.x, sums[1] = lower.y, sums[2] = upper.x, sums[3] = upper.y;
        add(first + 16 * of);
      }
      __syncthreads();
    }
  }
#pragma unroll
  for (int head = 0; head < 2; head++) {
    for (int distance = 4; distance < 32; distance *= 2) softmax.sum[head] += __shfl_xor_sync(all_lanes, softmax.sum[head], distance);
  }
  __syncthreads();
  float* entries = shared_memory<float>();
#pragma unroll 1
  for (int head = 0; head < heads; head++) {
    softmax.template store<dim>(head, 64 * share, entries + (warp_index() / shares * heads + head) * (dim + 2));
  }
  __syncthreads();
  int with_keys = min(warps / shares, (high - low + 16 * shares - 1) / (16 * shares));
  for (int index = threadIdx.x; index < heads * dim; index += blockDim.x) {
    int head = index / dim, i = index % dim;
    Softmaxes<half, dim, 8, 1>::merge_entries(entries + head * (dim + 2), with_keys, heads * (dim + 2), i, [&](float largest, float sum, float x) {
      store_attended<dim, splits>(a, 0, first_head + head, split, i, largest, sum, x);
    });
  }
}

// A single token, on tensor cores if there are `many` keys or more.
template <class E, int dim, int unit, int heads, bool caches, int splits, int sharing, int many>
__device__ void attend_few_or_many(const Attended& a, const u64* position, int tokens) {
  if (*position < many) {
    attend<E, dim, unit, heads, 1, false, caches, splits, sharing>(a, position, tokens);
  } else {
    attend_step<dim, heads, caches, splits>(a, position);
  }
}
