// The end of a chunk: its tokens go to the log, the position moves on.
template <int log_length>
__device__ void advance(const u32* ids, u32* log, u64* position, int tokens) {
  u64 before = *position;
  // A chunk longer than the log leaves its last tokens there.
  int first = tokens > log_length ? tokens - log_length : 0;
  for (int t = first + threadIdx.x; t < tokens; t += blockDim.x) log[(before + t) % log_length] = ids[t];
  __syncthreads();
  if (threadIdx.x == 0) *position = before + tokens;
}
