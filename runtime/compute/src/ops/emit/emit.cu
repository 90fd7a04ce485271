// residual += product.
template <int width>
__device__ void add_rows(Rows product, Rows residual) {
  int t = blockIdx.x;
  for (int i = threadIdx.x; i < width; i += blockDim.x) residual.token(t)[i] += product.token(t)[i];
}
