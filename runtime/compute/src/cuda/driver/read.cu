// Reads `count` times sixteen bytes and keeps nothing. The write never happens, but the compiler cannot prove that.
__device__ void read_all(const u8* bytes, u64 count, u32* never) {
  u32 sum = 0;
  u64 step = (u64)gridDim.x * blockDim.x;
#pragma unroll 8
  for (u64 i = (u64)blockIdx.x * blockDim.x + threadIdx.x; i < count; i += step) {
    uint4 words = load_once(bytes + 16 * i);
    sum += words.x ^ words.y ^ words.z ^ words.w;
  }
  if (sum == 0x9e3779b9) *never = sum;
}
