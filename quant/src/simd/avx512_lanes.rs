//! Products of few tokens with formats whose blocks of 32 numbers lie in the 32-bit lanes of a register: no code is moved between lanes, and scales
//! and minima are multiplied for sixteen blocks at once.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use bytemuck::Pod;

use super::avx2::prefetch;
use super::avx512::constant;
use crate::activations::GROUP;
use crate::kernel::Product;

/// Bytes by which weights are prefetched.
const AHEAD: usize = 8 << 10;
/// Blocks in a register.
const LANES: usize = 16;

/// Sixteen blocks of 32 4-bit codes: `x = scale * (code - OFFSET) - min`.
pub(crate) trait Lanes: Pod {
    /// What is subtracted from each code.
    const OFFSET: i8;

    /// Scale of each block, and minimum if the format has any.
    ///
    /// # Safety
    /// `wide` is valid for reading, of any alignment.
    unsafe fn spacing(wide: *const Self) -> (__m512, Option<__m512>);

    /// Four times 64 bytes: lane b of the j-th has codes 4 j to 4 j + 3 of block b in its low halves, and those sixteen further on in its
    /// high halves.
    fn codes(wide: *const Self) -> *const [u8; 64];
}

/// Dword j of lane b becomes dword b of lane j.
pub(crate) const TRANSPOSED: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// The codes of sixteen blocks of inputs, from the order of [`Activations`](crate::Activations) into lanes: register j of each half has
/// codes 4 j to 4 j + 3.
///
/// # Safety
/// `codes` is valid for 512 bytes, and the CPU has AVX-512.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn in_lanes(codes: *const i8) -> [[__m512i; 4]; 2] {
    [0, 64].map(|half| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|group| {
            // SAFETY: 64 bytes of a group.
            let codes = unsafe { _mm512_loadu_si512(codes.add(group * GROUP + half).cast()) };
            _mm512_permutexvar_epi32(constant(&TRANSPOSED), codes)
        });
        let low = (
            _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(c, d),
        );
        let high = (
            _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(c, d),
        );
        // low has lanes 0 and 2 of each, high 1 and 3.
        [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(low.0, low.1),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(high.0, high.1),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(low.0, low.1),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(high.0, high.1),
        ]
    })
}

/// Most blocks of lanes in a row that is multiplied here.
pub(crate) const LONGEST: usize = 32;
/// Tokens that meet a row while it is in the nearest cache.
const TOKENS: usize = 4;

/// A token's input in lanes.
#[derive(Clone, Copy)]
struct Input {
    codes: [[[__m512i; 4]; 2]; LONGEST],
    /// The share of the codes' offset in every row's products.
    starts: [__m512i; LONGEST],
}

/// One row after another, in the order of memory, each with up to four tokens.
///
/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(crate) unsafe fn multiply<B: Lanes>(product: &Product, rows: Range<usize>) {
    let steps = product.row_bytes / size_of::<B>();
    assert!(steps <= LONGEST, "a row of {steps} blocks");
    let mut inputs = [const { MaybeUninit::<Input>::uninit() }; TOKENS];
    let tokens = product.tokens();
    for first in (0..tokens).step_by(TOKENS) {
        let count = (tokens - first).min(TOKENS);
        for (t, input) in inputs[..count].iter_mut().enumerate() {
            let x = product.input(first + t);
            let input = input.as_mut_ptr();
            for step in 0..steps {
                // SAFETY: the codes of a block: a row of inputs has as many as a row of weights.
                let codes = unsafe { in_lanes(x.codes.as_ptr().add(step * 32 * LANES)) };
                let offset = _mm512_set1_epi8(B::OFFSET);
                let zero = _mm512_setzero_si512();
                let below = (codes.as_flattened().iter())
                    .fold(zero, |sum, &x| _mm512_dpbusd_epi32(sum, offset, x));
                // SAFETY: step < LONGEST; no reference to what is not written is made.
                unsafe {
                    (&raw mut (*input).codes[step]).write(codes);
                    (&raw mut (*input).starts[step]).write(_mm512_sub_epi32(zero, below));
                }
            }
        }
        for row in rows.clone() {
            let weights = product.weights[row * product.row_bytes..][..product.row_bytes].as_ptr();
            for (t, input) in inputs[..count].iter().enumerate() {
                let x = product.input(first + t);
                let mut sum = _mm512_setzero_ps();
                for step in 0..steps {
                    let wide = weights.cast::<B>().wrapping_add(step);
                    if t == 0 {
                        prefetch(wide.wrapping_byte_add(AHEAD), 1);
                    }
                    // SAFETY: the block is within its row; the input's first `steps` blocks were written above, and its row has a scale and a
                    // sum for each 32 numbers.
                    unsafe {
                        let input = input.as_ptr();
                        let (scale, min) = B::spacing(wide);
                        let mut dots = [(*input).starts[step], _mm512_setzero_si512()];
                        let [firsts, seconds] = &(*input).codes[step];
                        for j in 0..4 {
                            let q = _mm512_loadu_si512(B::codes(wide).add(j).cast());
                            let first = _mm512_and_si512(q, low());
                            let second = _mm512_and_si512(_mm512_srli_epi16::<4>(q), low());
                            dots[0] = _mm512_dpbusd_epi32(dots[0], first, firsts[j]);
                            dots[1] = _mm512_dpbusd_epi32(dots[1], second, seconds[j]);
                        }
                        let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0], dots[1]));
                        let scales = _mm512_loadu_ps(x.scales.as_ptr().add(step * LANES));
                        sum = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, scales), sum);
                        if let Some(min) = min {
                            let sums = _mm512_loadu_ps(x.sums.as_ptr().add(step * LANES));
                            sum = _mm512_fnmadd_ps(min, sums, sum);
                        }
                    }
                }
                let out = product
                    .out
                    .wrapping_add((first + t) * product.out_stride + row);
                // SAFETY: the caller vouches for this element.
                unsafe { out.write(_mm512_reduce_add_ps(sum)) };
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn low() -> __m512i {
    _mm512_set1_epi8(15)
}
