// The input of a persistent program's products, which every block makes for itself in shared memory, in the forms that formats
// want.

// Inputs in 8 bits: of each 32 the first sixteen codes, behind all of these the other sixteen; then a scale for each.
struct RoundedInput {
  u8* codes;
  float* scales;
  int units;

  __device__ RoundedInput(u8* at, int cols)
      : codes(at), scales(reinterpret_cast<float*>(codes + cols)), units(cols / 32) {}

  // A column's code.
  __device__ u8* place(int column) const { return codes + (column / 16 % 2 * units + column / 32) * 16 + column % 16; }

  // The codes of four values.
  __device__ static u32 pack(const float* x, float factor) {
    u32 packed = 0;
#pragma unroll
    for (int i = 0; i < 4; i++) packed |= (u32)(u8)__float2int_rn(x[i] * factor) << 8 * i;
    return packed;
  }
  __device__ static float largest_of(const float* x) {
    return fmaxf(fmaxf(fabsf(x[0]), fabsf(x[1])), fmaxf(fabsf(x[2]), fabsf(x[3])));
  }

  // Lanes hold four or eight values of a unit that follow one another, or one.
  template <int cols, int kinds>
  __device__ void store(const Share<cols, kinds>& share) const {
    using Own = Share<cols, kinds>;
    constexpr int lanes = 32 / Own::in_a_row;
    // A whole number of units lies between the runs of a thread.
    u8* first = place(Own::column(0));
    float* first_scale = scales + Own::column(0) / 32;
#pragma unroll
    for (int r = 0; r < Own::runs; r += Own::together) {
      u8* at = first + Own::behind(r) / 32 * 16;
      const float* x = share.value + Own::run * r;
      float largest;
      if constexpr (Own::run == 1) {
        largest = warp_max_of_positive(fabsf(*x));
      } else {
        largest = largest_of(x);
        if constexpr (Own::paired) largest = fmaxf(largest, largest_of(x + 4));
#pragma unroll
        for (int distance = lanes / 2; distance > 0; distance /= 2) {
          largest = fmaxf(largest, __shfl_xor_sync(all_lanes, largest, distance));
        }
      }
      if (!Own::has(r)) return;
      float factor = largest > 0.0f ? 127.0f / largest : 0.0f;
      if constexpr (Own::run == 1) {
        *at = (u8)__float2int_rn(*x * factor);
      } else if constexpr (Own::paired) {
        *reinterpret_cast<uint2*>(at) = {pack(x, factor), pack(x + 4, factor)};
      } else {
        *reinterpret_cast<u32*>(at) = pack(x, factor);
      }
      if (Own::column(0) % 32 == 0) first_scale[Own::behind(r) / 32] = largest / 127.0f;
    }
  }

  __device__ Codes unit(int index) const {
    Codes read;
    int4 a = reinterpret_cast<const int4*>(codes)[index], b = reinterpret_cast<const int4*>(codes)[units + index];
    read.packed[0] = a.x, read.packed[1] = a.y, read.packed[2] = a.z, read.packed[3] = a.w;
    read.packed[4] = b.x, read.packed[5] = b.y, read.packed[6] = b.z, read.packed[7] = b.w;
    read.scale = scales[index];
    // Where no format asks for it, it is not made.
    read.sum = 0;
#pragma unroll
    for (int i = 0; i < 8; i++) read.sum = __dp4a(read.packed[i], 0x01010101, read.sum);
    return read;
  }
};

// Inputs as sums of three bf16 numbers, which together have all digits: three rows.
struct SplitInput {
  u16* first;
  // Numbers from row to row: eight lanes that read two rows meet all banks.
  int pitch;

  __device__ SplitInput(u8* at, int cols)
      : first(reinterpret_cast<u16*>(at)), pitch((cols + 63) / 64 * 64 + 32) {}

  template <int cols, int kinds>
  __device__ void store(const Share<cols, kinds>& share) const {
    using Own = Share<cols, kinds>;
#pragma unroll
    for (int r = 0; r < Own::runs; r++) {
      if (!Own::has(r)) return;
      float left[Own::run];
#pragma unroll
      for (int i = 0; i < Own::run; i++) left[i] = share.value[r * Own::run + i];
#pragma unroll
      for (int part = 0; part < 3; part++) {
        u16* place = first + part * pitch + Own::column(r);
        if constexpr (Own::run == 4) {
          uint2 pairs = {pack_bf16(left[0], left[1]), pack_bf16(left[2], left[3])};
          *reinterpret_cast<uint2*>(place) = pairs;
          left[0] -= first_of(pairs.x), left[1] -= second_of(pairs.x);
          left[2] -= first_of(pairs.y), left[3] -= second_of(pairs.y);
        } else {
          u32 number = pack_bf16(left[0], 0.0f);
          *place = (u16)number;
          left[0] -= first_of(number);
        }
      }
    }
  }
};

// The input of a phase's products, in the forms that its formats want.
struct ProductInput {
  const float* x;
  RoundedInput rounded;
  SplitInput split;

  __device__ ProductInput(u8* room, int codes_at, int parts_at, int cols)
      : x(reinterpret_cast<const float*>(room)), rounded(room + codes_at, cols), split(room + parts_at, cols) {}
};

// The sum of squares of what each warp has of the input.
__device__ inline float* warp_squares() {
  __shared__ __align__(16) float squares[ring_warps];
  return squares;
}

// The factor of an RMS norm that was left behind, in all lanes; four that follow one another make it together.
__device__ inline float late_factor(int cols, float eps) {
  float4 four = reinterpret_cast<const float4*>(warp_squares())[lane_index() % 4];
  float squares = four.x + four.y + four.z + four.w;
  squares += __shfl_xor_sync(all_lanes, squares, 2);
  squares += __shfl_xor_sync(all_lanes, squares, 1);
  return 1.0f / sqrtf(squares / cols + eps);
}

// The columns that a phase's input is made of, and what its steps read besides.
template <int passes, int cols, int kinds>
struct ComingInput {
  // What comes with it.
  static constexpr bool added_come = (passes & PASSED_ADDED) != 0, gates_come = (passes & PASSED_GATES) != 0;
  Share<cols, kinds> share;
  // The gain of a norm whose factor comes late.
  Share<cols, kinds> gain;
  Near<cols, kinds> near;

  __device__ void ask_passed() {
    share.ask(this_phase().input);
    if constexpr (added_come) near.added.ask(this_phase().added);
    if constexpr (gates_come) near.gates.ask(this_phase().gates);
  }

  // Asks for what can be asked for before all phases before are over.
  __device__ void ask(const Gather& gather) {
    share.clear();
    if constexpr ((passes & PASSED_INPUT) != 0) {
      if constexpr (added_come) near.added.clear();
      if constexpr (gates_come) near.gates.clear();
      near.load(gather, 0, added_come, gates_come);
    }
    if constexpr ((kinds & LATE_NORM) != 0) gain.load(gather.step[gather.steps - 1].weight);
  }

  // Waits until it is passed, or until all phases before are over.
  __device__ void await(const Gather& gather) {
    if constexpr ((passes & PASSED_INPUT) != 0) {
      // The first look apart: as one of the loop's, which has fewer instructions, GDN 1.3B in Q8_0 takes 562 us on an H200, not 546.
      ask_passed();
      while (!(share.came() & (!added_come || near.added.came()) & (!gates_come || near.gates.came()))) {
        if (is_late(WAIT_MAILBOX)) break;
        rest();
        ask_passed();
      }
    } else {
      await_previous();
      share.load(gather.input.first);
      near.load(gather, 0);
    }
  }
};

// Makes the input of a product's phase from what has come: as it is, in 8 bits, and in bf16, each where there is room for it.
// The factor of an RMS norm is left to the rows, so that no warp waits for the others. Complete after a barrier.
template <int cols, int kinds, int codes_at, int parts_at, int bytes, class Coming>
__device__ void make_input(const Gather& gather, Coming& coming, const ProductInput& input) {
  float* room = shared_memory<float>();
  Share<cols, kinds>& share = coming.share;
  gather_steps<cols, kinds>(gather, 0, coming.near, share, room);
  if constexpr ((kinds & LATE_NORM) != 0) {
    float squares = 0.0f;
#pragma unroll
    for (int k = 0; k < share.count; k++) {
      squares += share.value[k] * share.value[k];
      share.value[k] *= coming.gain.value[k];
    }
    squares = warp_sum(squares);
    if (lane_index() == 0) warp_squares()[warp_index()] = squares;
  }
  if constexpr (codes_at > 0) share.store(room);
  if constexpr (parts_at > codes_at) input.rounded.store(share);
  if constexpr (bytes > parts_at) input.split.store(share);
}
