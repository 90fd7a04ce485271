// Bounds the logits of token `blockIdx.y`: `cap tanh(x / cap)`.
__device__ void cap_logits(Rows logits, float cap) {
  int i = blockIdx.x * blockDim.x + threadIdx.x;
  float* row = logits.token(blockIdx.y);
  if (i < logits.width) row[i] = cap * tanhf(row[i] / cap);
}
