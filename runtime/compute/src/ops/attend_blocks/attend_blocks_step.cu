// A step of native sparse attention, with each part divided among thread blocks: `means_of_step` over the means,
// `importance_of_step` for the choice, `tokens_of_step` over the chosen blocks and the window, `combine_branches`. A thread
// block takes some heads of a group and one of `splits` parts of the keys; its softmaxes are `b.parts[branch][head][split]`,
// entries of `dim + 2` numbers.

template <int dim, int splits>
__device__ float* step_part(const Blocks& b, int branch, int head, int split) {
  return b.parts + (((long long)branch * b.heads + head) * splits + split) * (dim + 2);
}

// The first key of part `split` of `count` keys.
template <int splits>
__device__ int split_at(int count, int split) {
  return (int)((long long)count * split / splits);
}

// A thread block's share of a step.
template <int heads, int splits>
struct StepShare {
  int split = blockIdx.x % splits;
  int first_head = blockIdx.x / splits * heads;
  int kv_head;
  __device__ StepShare(const Blocks& b) : kv_head(first_head / (b.heads / b.kv_heads)) {}
};

// Computes the softmaxes over this thread block's part of the `count` entries of a list, and writes them.
template <int splits, class Queries, class E, int heads, int dim>
__device__ void split_branch(const Blocks& b, const StepShare<heads, splits>& share, int branch, const Listed<E>& keys,
                             int count, float* merged) {
  Queries queries;
  queries.clear();
#pragma unroll
  for (int g = 0; g < heads; g++) queries.load_query(g, b.q.token(0) + (share.first_head + g) * dim);
  queries.add(split_at<splits>(count, share.split), split_at<splits>(count, share.split + 1), keys, b.scale,
              [&](int i, int) { return keys.sees(i); });
  queries.merge(merged, [&](int g, int i, float largest, float sum, float weighted) {
    float* part = step_part<dim, splits>(b, branch, share.first_head + g, share.split);
    part[2 + i] = weighted;
    if (i == 0) part[0] = largest, part[1] = sum;
  });
}

template <class E, int dim, int unit, int heads, int splits>
__device__ void means_of_step(Blocks b, const u64* position) {
  StepShare<heads, splits> share(b);
  InView view = in_view(b, *position, 0);
  auto means = listed_means<E, dim>(b, share.kv_head, *position, view);
  split_branch<splits, Softmaxes<E, dim, unit, heads>, E, heads, dim>(b, share, 0, means, view.complete,
                                                                      shared_memory<float>());
}

// A thread block takes some token blocks for all heads of a group.
template <class E, int dim, int unit, int heads, int splits>
__device__ void importance_of_step(Blocks b, const u64* position) {
  int split = blockIdx.x % splits, kv_head = blockIdx.x / splits, group = b.heads / b.kv_heads;
  float* totals = shared_memory<float>();
  for (int g = threadIdx.x; g < group; g += blockDim.x) {
    float* parts = step_part<dim, splits>(b, 0, kv_head * group + g, 0);
    auto keep = [&](float largest, float sum, float) { totals[2 * g] = largest, totals[2 * g + 1] = sum; };
    Softmaxes<E, dim, unit, heads>::merge_entries(parts, splits, dim + 2, 0, keep);
  }
  __syncthreads();
  InView view = in_view(b, *position, 0);
  auto means = listed_means<E, dim>(b, kv_head, *position, view);
  find_importance<Softmaxes<E, dim, unit, heads>, dim, heads>(
      b, 0, kv_head, means, totals, split_at<splits>(view.count, split), split_at<splits>(view.count, split + 1),
      view.count, b.importance + (long long)kv_head * (b.blocks + 2));
}

// Shared memory: the data of `merge`, and the chosen blocks.
template <class E, int dim, int unit, int heads, int splits>
__device__ void tokens_of_step(Blocks b, const u64* position) {
  using Queries = Softmaxes<E, dim, unit, heads>;
  StepShare<heads, splits> share(b);
  float* merged = shared_memory<float>();
  int* chosen = reinterpret_cast<int*>(merged + blockDim.x / 32 * heads * (dim + 2));
  InView view = in_view(b, *position, 0);
  int taken = choose_highest(b.importance + (long long)share.kv_head * (b.blocks + 2), view.count, b.chosen, chosen);
  auto tokens = listed_tokens<E, dim>(b, share.kv_head, *position, view);
  auto blocks = tokens.of_blocks(view, chosen);
  split_branch<splits, Queries, E, heads, dim>(b, share, 1, blocks, taken * b.block, merged);
  __syncthreads();
  auto window = tokens.of_window(view, b.window);
  split_branch<splits, Queries, E, heads, dim>(b, share, 2, window, (int)(view.end - window.first), merged);
}

template <int dim, int splits>
__device__ void combine_branches(Blocks b, const u64*) {
  int head = blockIdx.x;
  for (int i = threadIdx.x; i < dim; i += blockDim.x) {
    float out = 0.0f;
    for (int branch = 0; branch < 3; branch++) {
      auto add = [&](float, float sum, float weighted) {
        // A sum of zero means that no key was added. A NaN passes the test and shows in the output.
        if (sum != 0.0f) out += b.gates.token(0)[head * 3 + branch] / sum * weighted;
      };
      float* parts = step_part<dim, splits>(b, branch, head, 0);
      Softmaxes<float, dim, 1, 1>::merge_entries(parts, splits, dim + 2, i, add);
    }
    b.out.token(0)[head * dim + i] = out;
  }
}
