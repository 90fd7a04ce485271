// Attention over slots consists of two recurrences of recur.cu with a softmax over each head's slots between them, or a function
// of each score. A warp takes a head of a token.

template <int heads, int slots>
__device__ void softmax_slots(Rows scores) {
  int head = blockIdx.x * (blockDim.x / 32) + warp_index();
  if (head < heads) warp_softmax(scores.token(blockIdx.y) + head * slots, slots);
}

template <int width, int function>
__device__ void map_slots(Rows scores) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float* p = scores.token(blockIdx.y);
  if (i < width) p[i] = activate(function, p[i]);
}
