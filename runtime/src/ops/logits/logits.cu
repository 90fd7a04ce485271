// Bounds the logits of one row: `cap tanh(x / cap)`.
__device__ void cap_logits(Rows logits, float cap) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < logits.width) logits.first[i] = cap * tanhf(logits.first[i] / cap);
}
