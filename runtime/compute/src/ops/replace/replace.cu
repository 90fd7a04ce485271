// Removal and write of RWKV-7, with one warp per head of a token. `ReplaceInputs` is in launch.rs.

// `keep`: this is the first layer, and its values are stored.
template <int heads, int dk, int dv, bool keep>
__device__ void replace(ReplaceInputs in) {
  int head = blockIdx.x * (blockDim.x / 32) + warp_index(), t = blockIdx.y;
  if (head >= heads) return;
  int keys = head * dk, values = head * dv;
  float* k = in.k.token(t) + keys;
  float* v = in.v.token(t) + values;
  float* removal = in.removal.token(t) + keys;
  const float* r = in.r.token(t) + keys;
  const float* rate = in.rate.token(t) + keys;
  float squares = 0.0f, overlap = 0.0f;
  for (int i = lane_index(); i < dk; i += 32) {
    float removed = k[i] * in.key_gain[keys + i];
    squares += removed * removed;
  }
  float factor = 1.0f / sqrtf(warp_sum(squares) + in.eps);
  for (int i = lane_index(); i < dk; i += 32) {
    float key = k[i];
    removal[i] = key * in.key_gain[keys + i] * factor;
    key *= 1.0f + in.rate_gain[keys + i] * (rate[i] - 1.0f);
    overlap += r[i] * key * in.bonus_gain[keys + i];
    k[i] = key;
  }
  overlap = warp_sum(overlap);
  for (int i = lane_index(); i < dv; i += 32) {
    float value = v[i];
    if (keep) {
      in.first.token(t)[values + i] = value;
    } else {
      value += in.mix.token(t)[values + i] * (in.first.token(t)[values + i] - value);
      v[i] = value;
    }
    in.bonus.token(t)[values + i] = overlap * value;
  }
}
