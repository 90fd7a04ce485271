// Softmax over keys, distributed over a thread block. Some lanes share a key, a warp takes several keys at a time, and each
// accumulates a partial softmax; `merge` combines them. Several queries share each loaded key: the queries of a warp or, for a
// single token, one query in each of `sharing` consecutive warps, since code for all heads would be long.

// Turns scores into base-two scores.
constexpr float log2_e = 1.44269504f;

// On tensor cores four lanes share two rows of base-two scores, laid out as in instructions.cu. Raises the rows' largest scores
// so far to the highest of all four lanes, and shrinks sums and weighted values accordingly.
template <int count>
__device__ inline void raise_largest(float (&largest)[2], float (&highest)[2], float (&sum)[2], float (&weighted)[count][4]) {
#pragma unroll
  for (int row = 0; row < 2; row++) {
    for (int distance = 1; distance < 4; distance *= 2) {
      highest[row] = fmaxf(highest[row], __shfl_xor_sync(all_lanes, highest[row], distance));
    }
    float shrink = power_of_two(largest[row] - highest[row]);
    largest[row] = highest[row];
    sum[row] *= shrink;
#pragma unroll
    for (int i = 0; i < count; i++) weighted[i][2 * row] *= shrink, weighted[i][2 * row + 1] *= shrink;
  }
}

// The weights of 16 keys as a left operand, from the scores of two tiles of eight keys, which have the same layout.
__device__ inline SplitOperand<2> softmax_weights(float (*scores)[4], const float (&largest)[2], float (&sum)[2]) {
  SplitOperand<2> weights;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    float* x = scores[i / 2] + i % 2 * 2;
    x[0] = power_of_two(x[0] - largest[i % 2]);
    x[1] = power_of_two(x[1] - largest[i % 2]);
    sum[i % 2] += x[0] + x[1];
    SplitPair<2> pair(x[0], x[1]);
    weights.part[0][i] = pair.part[0];
    weights.part[1][i] = pair.part[1];
  }
  return weights;
}

// Consecutive values of a cached key or value, in their stored type.
template <class E, int unit>
struct Piece {
  E values[unit];
  __device__ void load(const E* from) {
    constexpr int bytes = sizeof(E) * unit;
    if constexpr (bytes % 16 == 0) {
#pragma unroll
      for (int i = 0; i < bytes / 16; i++) {
        uint4 words = reinterpret_cast<const uint4*>(from)[i];
        memcpy(reinterpret_cast<u8*>(values) + 16 * i, &words, 16);
      }
    } else if constexpr (bytes == 8) {
      uint2 words = *reinterpret_cast<const uint2*>(from);
      memcpy(values, &words, 8);
    } else {
      for (int i = 0; i < unit; i++) values[i] = from[i];
    }
  }
  __device__ void store(E* to) const {
    if constexpr (sizeof(values) % 16 == 0) {
#pragma unroll
      for (int i = 0; i < (int)sizeof(values) / 16; i++) {
        uint4 words;
        memcpy(&words, reinterpret_cast<const u8*>(values) + 16 * i, 16);
        reinterpret_cast<uint4*>(to)[i] = words;
      }
    } else {
#pragma unroll
      for (int i = 0; i < unit; i++) to[i] = values[i];
    }
  }
};

// Keys and values in rows of the cache: entry i is in row `(first + i) % rows`.
template <class E>
struct CachedRows {
  using Value = E;
  const E* keys;
  const E* values;
  int dim;
  int rows;
  int first;
  __device__ long long place(int i) const {
    int row = first + i;
    return (long long)(row >= rows ? row - rows : row) * dim;
  }
  __device__ const E* key(int i) const { return keys + place(i); }
  __device__ const E* value(int i) const { return values + place(i); }
};

// Keys and values of the chunk's tokens, in the columns of a head: entry i is token i.
struct ChunkRows {
  using Value = float;
  Rows keys;
  Rows values;
  int column;
  __device__ const float* key(int i) const { return keys.token(i) + column; }
  __device__ const float* value(int i) const { return values.token(i) + column; }
};

// Initial value of `largest`.
constexpr float no_score = -1e30f;

__device__ constexpr int lanes_of_key(int dim, int unit) {
  int lanes = 1;
  while (lanes < 32 && lanes * (unit < 8 ? 8 : unit) < dim) lanes *= 2;
  return lanes;
}

// The softmaxes of `queries` queries of a warp over keys of `dim` values, cached as E; columns are read `unit` at a time. Each of
// `sharing` consecutive warps has different queries and reads the same keys.
template <class E, int dim, int unit, int queries, int sharing = 1>
struct Softmaxes {
  static constexpr int lanes = lanes_of_key(dim, unit);
  static constexpr int pieces = (dim + lanes * unit - 1) / (lanes * unit);
  static constexpr int keys_of_warp = 32 / lanes;
  // Keys that are read at once, so that their loads overlap. A long key fills the registers alone.
  static constexpr int keys_at_once = pieces * unit > 8 ? 1 : sizeof(E) == 2 && queries <= 4 ? 4 : 2;

  using Key = Piece<E, unit>;

  float query[queries][pieces * unit];
  float weighted[queries][pieces * unit];
  float largest[queries];
  float sum[queries];

  // The index of the warp's first query within the block.
  __device__ static int first_query() { return warp_index() % sharing * queries; }

  __device__ static int column(int piece) { return (piece * lanes + lane_index() % lanes) * unit; }

  __device__ void clear() {
#pragma unroll
    for (int g = 0; g < queries; g++) {
      largest[g] = no_score;
      sum[g] = 0.0f;
#pragma unroll
      for (int i = 0; i < pieces * unit; i++) weighted[g][i] = 0.0f;
    }
  }

  __device__ void load_query(int g, const float* from) {
#pragma unroll
    for (int i = 0; i < pieces * unit; i++) {
      int c = column(i / unit) + i % unit;
      query[g][i] = c < dim ? from[c] : 0.0f;
    }
  }

  // The value, rounded as in the cache.
  template <class T>
  __device__ static float rounded(T x) {
    if constexpr (sizeof(T) == sizeof(E)) return float_of(x);
    return float_of(E(float_of(x)));
  }

  // This lane's part of query g times a key; `key` holds the lane's columns.
  template <class T>
  __device__ float product(int g, const Piece<T, unit>* key) const {
    float x = 0.0f;
#pragma unroll
    for (int i = 0; i < pieces * unit; i++) {
      if (column(i / unit) < dim) x += query[g][i] * rounded(key[i / unit].values[i % unit]);
    }
    return x;
  }

  __device__ static float over_lanes(float x) {
#pragma unroll
    for (int distance = lanes / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(all_lanes, x, distance);
    return x;
  }

  template <class T>
  __device__ static void load(const T* row, Piece<T, unit>* to) {
#pragma unroll
    for (int piece = 0; piece < pieces; piece++) {
      if (column(piece) < dim) to[piece].load(row + column(piece));
    }
  }

  // Adds entries from..to of `source`; `sees(i, g)` returns whether query g of the block sees entry i. All threads of the block
  // take part.
  template <int keys_at_once = Softmaxes::keys_at_once, class Source, class Sees>
  __device__ void add(int from, int to, const Source& source, float scale, Sees sees) {
    using T = typename Source::Value;
    int own = warp_index() / sharing * keys_of_warp + lane_index() / lanes;
    int side_by_side = blockDim.x / 32 / sharing * keys_of_warp;
    for (int first = from; first < to; first += side_by_side * keys_at_once) {
      Piece<T, unit> keys[keys_at_once][pieces], values[keys_at_once][pieces];
#pragma unroll
      for (int u = 0; u < keys_at_once; u++) {
        int i = min(first + u * side_by_side + own, to - 1);
        load(source.key(i), keys[u]);
        load(source.value(i), values[u]);
      }
      // The visibility of a key may be a load too.
      bool seen[queries][keys_at_once];
#pragma unroll
      for (int g = 0; g < queries; g++) {
#pragma unroll
        for (int u = 0; u < keys_at_once; u++) {
          int i = first + u * side_by_side + own;
          seen[g][u] = sees(min(i, to - 1), first_query() + g) & (i < to);
        }
      }
#pragma unroll
      for (int g = 0; g < queries; g++) {
        float scores[keys_at_once];
        float highest = largest[g];
#pragma unroll
        for (int u = 0; u < keys_at_once; u++) {
          scores[u] = scale * over_lanes(product(g, keys[u]));
          if (seen[g][u]) highest = fmaxf(highest, scores[u]);
        }
        float shrink = expf(largest[g] - highest);
        largest[g] = highest;
        sum[g] *= shrink;
#pragma unroll
        for (int i = 0; i < pieces * unit; i++) weighted[g][i] *= shrink;
#pragma unroll
        for (int u = 0; u < keys_at_once; u++) {
          // A hidden value may not even be finite.
          if (!seen[g][u]) continue;
          float weight = expf(scores[u] - highest);
          sum[g] += weight;
#pragma unroll
          for (int i = 0; i < pieces * unit; i++) {
            if (column(i / unit) < dim) weighted[g][i] += weight * rounded(values[u][i / unit].values[i % unit]);
          }
        }
      }
    }
  }

  // Merges the softmaxes of the warps: calls `emit(g, i, largest, sum, weighted)` for each value i of the block's query g, each
  // in one thread. `shared` has room for `queries * (dim + 2)` floats per warp. Begins with a barrier.
  template <class Emit>
  __device__ void merge(float* shared, Emit emit) {
#pragma unroll
    for (int g = 0; g < queries; g++) {
#pragma unroll
      for (int distance = lanes; distance < 32; distance *= 2) {
        float other = __shfl_xor_sync(all_lanes, largest[g], distance);
        float highest = fmaxf(largest[g], other);
        float shrink = expf(largest[g] - highest), other_shrink = expf(other - highest);
        largest[g] = highest;
        sum[g] = sum[g] * shrink + __shfl_xor_sync(all_lanes, sum[g], distance) * other_shrink;
#pragma unroll
        for (int i = 0; i < pieces * unit; i++) {
          float x = __shfl_xor_sync(all_lanes, weighted[g][i], distance);
          weighted[g][i] = weighted[g][i] * shrink + x * other_shrink;
        }
      }
    }
    __syncthreads();
    if (lane_index() < lanes) {
#pragma unroll
      for (int g = 0; g < queries; g++) {
        float* entry = shared + (warp_index() * queries + g) * (dim + 2);
        if (lane_index() == 0) {
          entry[0] = largest[g];
          entry[1] = sum[g];
        }
#pragma unroll
        for (int i = 0; i < pieces * unit; i++) {
          int c = column(i / unit) + i % unit;
          if (c < dim) entry[2 + c] = weighted[g][i];
        }
      }
    }
    __syncthreads();
    constexpr int all = sharing * queries;
    for (int index = threadIdx.x; index < all * dim; index += blockDim.x) {
      int g = index / dim, i = index % dim;
      merge_entries(shared + g * (dim + 2), blockDim.x / 32 / sharing, all * (dim + 2), i,
                    [&](float highest, float total, float x) { emit(g, i, highest, total, x); });
    }
  }

  // Computes value i of the softmax that combines `count` entries, which are `stride` floats apart.
  template <class Emit>
  __device__ static void merge_entries(const float* entries, int count, int stride, int i, Emit emit) {
    float highest = no_score, total = 0.0f, x = 0.0f;
    for (int n = 0; n < count; n++) highest = fmaxf(highest, entries[n * stride]);
    for (int n = 0; n < count; n++) {
      const float* entry = entries + n * stride;
      float shrink = expf(entry[0] - highest);
      total += entry[1] * shrink;
      x += entry[2 + i] * shrink;
    }
    emit(highest, total, x);
  }
};
