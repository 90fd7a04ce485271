// Attention over slots is two recurrences of recur.cu with a softmax over each head's slots between them. A warp takes a
// head of a token.

template <int heads, int slots>
__device__ void softmax_slots(Rows scores) {
  int head = blockIdx.x * (blockDim.x / 32) + warp_index();
  if (head < heads) warp_softmax(scores.token(blockIdx.y) + head * slots, slots);
}
