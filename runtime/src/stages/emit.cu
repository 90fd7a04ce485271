// The steps between a mixer's output and the output matrix, one token a block, in place.

struct FinishStep {
  const float* weight;
  const float* bias;
  Rows columns;
  float eps;
  int kind;
  int groups;
  int function;
};

enum { FINISH_NORM, FINISH_ADD, FINISH_MAP, FINISH_GATE };

constexpr int most_steps = 6;

struct FinishSteps {
  int count;
  int pad;
  FinishStep at[most_steps];
};

// Norms each group of the row; a warp takes a group. `span` values share the gains.
__device__ inline void norm_groups(const FinishStep& step, float* x, int width, int span, bool centred) {
  int size = span / step.groups;
  for (int group = warp_index(); group < width / size; group += blockDim.x / 32) {
    float* part = x + group * size;
    const float* weight = step.weight + group * size % span;
    float mean = 0.0f, squares = 0.0f;
    if (centred) {
      for (int i = lane_index(); i < size; i += 32) mean += part[i];
      mean = warp_sum(mean) / size;
    }
    for (int i = lane_index(); i < size; i += 32) squares += (part[i] - mean) * (part[i] - mean);
    float inverse = 1.0f / sqrtf(warp_sum(squares) / size + step.eps);
    for (int i = lane_index(); i < size; i += 32) {
      float bias = step.bias ? step.bias[group * size % span + i] : 0.0f;
      part[i] = (part[i] - mean) * inverse * weight[i] + bias;
    }
  }
}

// Copies the input, then applies the steps. Of a norm, `columns.width` is the span of its gains and `function` whether it
// is centred.
template <int width>
__device__ void finish(Rows input, FinishSteps steps, Rows output) {
  int t = blockIdx.x;
  float* x = output.token(t);
  for (int i = threadIdx.x; i < width; i += blockDim.x) x[i] = input.token(t)[i];
  __syncthreads();
  for (int s = 0; s < steps.count; s++) {
    const FinishStep& step = steps.at[s];
    if (step.kind == FINISH_NORM) {
      norm_groups(step, x, width, step.columns.width, step.function != 0);
    } else {
      for (int i = threadIdx.x; i < width; i += blockDim.x) {
        float other = step.kind == FINISH_MAP ? 0.0f : step.columns.token(t)[i];
        if (step.kind == FINISH_ADD) x[i] += step.weight[i] * other;
        if (step.kind == FINISH_MAP) x[i] = activate(step.function, x[i]);
        if (step.kind == FINISH_GATE) x[i] *= activate(step.function, other);
      }
    }
    __syncthreads();
  }
}

// residual += product.
template <int width>
__device__ void add_rows(Rows product, Rows residual) {
  int t = blockIdx.x;
  for (int i = threadIdx.x; i < width; i += blockDim.x) residual.token(t)[i] += product.token(t)[i];
}
