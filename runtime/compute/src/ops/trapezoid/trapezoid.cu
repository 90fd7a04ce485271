// Inputs of Mamba-3's recurrence. A warp takes a head of a token, and leaves its key, value and weight to the next token. In a
// chunk, angles are summed first.

__device__ inline float turned(float angle, float turn, float step) {
  constexpr float pi = 3.14159265f;
  angle += pi * turn * step;
  return angle - 2.0f * pi * floorf(angle / (2.0f * pi));
}

// The weight of a token's own part of its step.
__device__ inline float own_weight(const TrapezoidInputs& in, int t, int head) {
  return in.share.token(t)[head] * in.step.token(t)[head];
}

// Writes the angles of a chunk to the places of the query pairs, and the state as the first token's previous key, value and
// weight. A thread block takes a head.
template <int dk, int dv, int pairs>
__device__ void trapezoid_angles(const TrapezoidInputs& in, int tokens) {
  // Loads in flight per thread.
  constexpr int batch = 16;
  int head = blockIdx.x;
  for (int i = threadIdx.x; i < dk; i += blockDim.x) in.key.token(0)[head * dk + i] = in.last_key[head * dk + i];
  for (int i = threadIdx.x; i < dv; i += blockDim.x) in.value.token(0)[head * dv + i] = in.last_value[head * dv + i];
  if (threadIdx.x == 0) in.write.token(0)[head] = in.last_weight[head];
  for (int pair = threadIdx.x; pair < pairs; pair += blockDim.x) {
    float angle = in.last_angle[head * pairs + pair];
    for (int first = 0; first < tokens; first += batch) {
      float turn[batch], step[batch];
#pragma unroll
      for (int i = 0; i < batch; i++) {
        int t = min(first + i, tokens - 1);
        turn[i] = in.turn.token(t)[pair];
        step[i] = in.step.token(t)[head];
      }
#pragma unroll
      for (int i = 0; i < batch; i++) {
        if (first + i >= tokens) break;
        angle = turned(angle, turn[i], step[i]);
        in.q.token(first + i)[head * dk + 2 * pair] = angle;
      }
    }
    in.last_angle[head * pairs + pair] = angle;
  }
}

// `alone`: there is only one token, and the state holds the previous one.
template <int heads, int groups, int dk, int dv, int pairs, bool alone>
__device__ void trapezoid(const TrapezoidInputs& in, int tokens) {
  constexpr int halves = dk / 2, parts = (halves + 31) / 32;
  int head = blockIdx.x * (blockDim.x / 32) + warp_index(), t = blockIdx.y, lane = lane_index();
  if (head >= heads) return;
  const float* c = in.c.token(t) + head / (heads / groups) * dk;
  const float* b = in.b.token(t) + head / (heads / groups) * dk;
  float2 q[parts], k[parts];
  float c_squares = 0.0f, b_squares = 0.0f;
#pragma unroll
  for (int part = 0; part < parts; part++) {
    int i = 2 * (part * 32 + lane);
    q[part] = i < dk ? float2{c[i], c[i + 1]} : float2{0.0f, 0.0f};
    k[part] = i < dk ? float2{b[i], b[i + 1]} : float2{0.0f, 0.0f};
    c_squares += q[part].x * q[part].x + q[part].y * q[part].y;
    b_squares += k[part].x * k[part].x + k[part].y * k[part].y;
  }
  float c_scale = 1.0f / sqrtf(warp_sum(c_squares) / dk + in.c_eps);
  float b_scale = 1.0f / sqrtf(warp_sum(b_squares) / dk + in.b_eps);

  // The next token's previous key and value.
  bool is_last = t + 1 == tokens;
  float* key = is_last ? in.last_key : in.key.token(t + 1);
  float* value = is_last ? in.last_value : in.value.token(t + 1);
  float overlap = 0.0f;
#pragma unroll
  for (int part = 0; part < parts; part++) {
    int pair = part * 32 + lane, i = 2 * pair, at = head * dk + i;
    if (i >= dk) continue;
    q[part].x = q[part].x * c_scale * in.c_gain[i] + in.c_bias[at];
    q[part].y = q[part].y * c_scale * in.c_gain[i + 1] + in.c_bias[at + 1];
    k[part].x = k[part].x * b_scale * in.b_gain[i] + in.b_bias[at];
    k[part].y = k[part].y * b_scale * in.b_gain[i + 1] + in.b_bias[at + 1];
    float* query = in.q.token(t) + at;
    if (pair < pairs) {
      float angle;
      if constexpr (alone) {
        float* last = in.last_angle + head * pairs + pair;
        angle = turned(*last, in.turn.token(t)[pair], in.step.token(t)[head]);
        *last = angle;
      } else {
        angle = query[0];
      }
      float sine, cosine;
      sincosf(angle, &sine, &cosine);
      q[part] = {q[part].x * cosine - q[part].y * sine, q[part].y * cosine + q[part].x * sine};
      k[part] = {k[part].x * cosine - k[part].y * sine, k[part].y * cosine + k[part].x * sine};
    }
    overlap += q[part].x * k[part].x + q[part].y * k[part].y;
    if constexpr (alone) {
      in.key.token(t)[at] = in.last_key[at];
      in.key.token(t)[at + 1] = in.last_key[at + 1];
    }
    query[0] = q[part].x, query[1] = q[part].y;
    key[at] = k[part].x, key[at + 1] = k[part].y;
  }
  float weight = own_weight(in, t, head), gain = in.skip[head] + weight * warp_sum(overlap);
  for (int i = lane; i < dv; i += 32) {
    int at = head * dv + i;
    float v = in.v.token(t)[at];
    if constexpr (alone) in.value.token(t)[at] = in.last_value[at];
    value[at] = v;
    in.bonus.token(t)[at] = gain * v;
  }
  if (lane == 0) {
    float step = in.step.token(t)[head], decay = fminf(in.rate.token(t)[head], -in.least_rate) * step;
    float before = alone ? in.last_weight[head] : t == 0 ? in.write.token(0)[head] : own_weight(in, t - 1, head);
    in.decay.token(t)[head] = decay;
    in.write.token(t)[head] = expf(decay) * (before + (1.0f - in.share.token(t)[head]) * step);
    if (is_last) in.last_weight[head] = weight;
  }
}
