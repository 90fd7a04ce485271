// The matrix form where decays differ within a state: the decays are inside the products of the triangles, and e^-G_j may
// overflow. So every decay is a product of factors, as in the recurrence itself:
// - Each warp has a group of eight tokens. Within the group, a write decays from token to token while these tokens read it.
// - At each level, groups, pairs of groups, or fours of groups face each other at a border. Writes before the border decay up to
//   it, reads after it decay from it on, and tensor cores multiply the two. Two groups face each other at exactly one level.

constexpr int chunk_group = chunk_block / chunk_warps;
constexpr int chunk_levels = 3;
// The rows of a level that read. As many rows are read.
constexpr int level_rows = chunk_block / 2;
constexpr int level_part = chunk_levels * level_rows * block_pitch;
static_assert(chunk_group << chunk_levels == chunk_block, "levels join groups to a block");
static_assert(2 * level_part == 3 * tile_part, "two matrices of all levels have room");

// The token at row `row` of a level, among the tokens before its borders or after them.
__device__ inline int token_of_level(int level, int row, bool after) {
  int group = row / chunk_group, low = group % (1 << level);
  return ((group - low) * 2 + (after << level) + low) * chunk_group + row % chunk_group;
}

__device__ inline float2 times(float2 a, float2 b) { return {a.x * b.x, a.y * b.y}; }

// Two columns of the tokens of this warp's group.
struct GroupShare {
  float2 x[chunk_group];

  __device__ static int column() { return 2 * lane_index(); }

  // Loads from rows of `tokens` tokens and `width` columns; zeros beyond.
  template <bool aligned>
  __device__ void load(const float* rows, int stride, int tokens, int first, int width) {
    int c = first + column();
#pragma unroll
    for (int i = 0; i < chunk_group; i++) {
      int t = warp_index() * chunk_group + i;
      const float* from = rows + (long long)t * stride + c;
      x[i] = {0.0f, 0.0f};
      if (t >= tokens) continue;
      if constexpr (aligned) {
        if (c < width) x[i] = *reinterpret_cast<const float2*>(from);
      } else {
        if (c < width) x[i].x = from[0];
        if (c + 1 < width) x[i].y = from[1];
      }
    }
  }
};

// Calls `task(level, row, after, front, back)` for this warp's group at each level: `row` is the group's first row among those
// after the borders or before them, `front` the columns' decay from the border to the group, `back` from the group to the
// border. Returns in `front` and `back` the decay from the block's start to the group and from the group to the block's end.
// `totals` [group, lane] is the decay over each group.
template <class Task>
__device__ inline void each_level(const float2* totals, float2& front, float2& back, Task task) {
  int group = warp_index();
  front = {1.0f, 1.0f}, back = {1.0f, 1.0f};
#pragma unroll
  for (int level = 0; level < chunk_levels; level++) {
    int size = 1 << level, low = group % size;
    bool after = group & size;
    task(level, level * level_rows + ((group - low - (after ? size : 0)) / 2 + low) * chunk_group, after, front, back);
    float2 facing = {1.0f, 1.0f};
#pragma unroll
    for (int i = 0; i < size; i++) {
      facing = times(facing, totals[(group - low + (after ? -size : size) + i) * 32 + lane_index()]);
    }
    if (after) front = times(front, facing);
    else back = times(back, facing);
  }
}
