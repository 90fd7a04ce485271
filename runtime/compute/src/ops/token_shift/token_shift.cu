// Mixes each normed token with the previous one, whose norm is recomputed so that tokens are independent. `TokenMixes` is in launch.rs.

// `step`: there is only one token, which is stored in the state at once.
template <int hidden, int flags, int mixes, bool step>
__device__ void token_shift(const Prologue& prologue, TokenMixes weights, float* last, Rows out) {
  float* now = shared_memory<float>();
  float* before = now + hidden;
  int t = blockIdx.x;
  store_prologue_row<hidden, flags>(prologue, t, now);
  if (t == 0) {
    for (int i = threadIdx.x; i < hidden; i += blockDim.x) before[i] = last[i];
  } else {
    store_prologue_row<hidden, flags>(prologue, t - 1, before);
  }
  // Each thread reads its own writes.
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    for (int mix = 0; mix < mixes; mix++) {
      out.token(t)[mix * hidden + i] = now[i] + weights.at[mix][i] * (before[i] - now[i]);
    }
    if (step) last[i] = now[i];
  }
}

// Stores the last normed token of a chunk, once the first token has read the previous one.
template <int hidden, int flags>
__device__ void keep_token(const Prologue& prologue, float* last, int tokens) {
  store_prologue_row<hidden, flags>(prologue, tokens - 1, last);
}
