//! Products of few tokens with Q4_0x16, whose blocks of 32 numbers lie in the 32-bit lanes of a register: no code is moved between lanes, and the
//! scales of sixteen blocks are multiplied at once.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::avx2::prefetch;
use super::avx512::constant;
use crate::activations::GROUP;
use crate::formats::q4_0x16::Wide;
use crate::kernel::Product;

/// Bytes by which weights are prefetched.
const AHEAD: usize = 8 << 10;
/// Subtracted from each code.
const OFFSET: i8 = 8;
/// Blocks in a register.
const LANES: usize = 16;

/// Dword j of lane b becomes dword b of lane j.
const TRANSPOSED: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

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

/// Blocks of inputs that are in lanes at once.
const PART: usize = 32;
/// Tokens multiplied with a row while it is in the L1 cache.
const TOKENS: usize = 4;

/// A part of a token's input in lanes.
struct InputPart {
    codes: [[[__m512i; 4]; 2]; PART],
    /// The share of the codes' offset in every row's products.
    starts: [__m512i; PART],
}

/// One row after another, in the order of memory, each with up to four tokens.
///
/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(crate) unsafe fn multiply(product: &Product, rows: Range<usize>) {
    let mut parts = [const { MaybeUninit::<InputPart>::uninit() }; TOKENS];
    let blocks = product.row_bytes / size_of::<Wide>();
    for first in (0..product.tokens()).step_by(TOKENS) {
        let parts = &mut parts[..(product.tokens() - first).min(TOKENS)];
        for from in (0..blocks).step_by(PART) {
            let steps = (blocks - from).min(PART);
            for (t, part) in parts.iter_mut().enumerate() {
                let codes = &product.input(first + t).codes[from * 32 * LANES..];
                // SAFETY: the caller vouches for the level.
                unsafe { prepare(&codes[..steps * 32 * LANES], part) };
            }
            for row in rows.clone() {
                let row_bytes = &product.weights[row * product.row_bytes..][..product.row_bytes];
                let weights = &row_bytes[from * size_of::<Wide>()..][..steps * size_of::<Wide>()];
                for (t, part) in parts.iter().enumerate() {
                    let x = product.input(first + t);
                    let scales = &x.scales[from * LANES..];
                    let out = product
                        .out
                        .wrapping_add((first + t) * product.out_stride + row);
                    // SAFETY: `prepare` wrote the part's first `steps` blocks, and the caller vouches for this element.
                    unsafe {
                        let dot = dot(weights, part, scales, t == 0);
                        out.write(if from == 0 { dot } else { out.read() + dot });
                    }
                }
            }
        }
    }
}

/// Brings codes of inputs into lanes.
///
/// # Safety
/// The CPU has AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn prepare(codes: &[i8], part: &mut MaybeUninit<InputPart>) {
    let part = part.as_mut_ptr();
    let (zero, offset) = (_mm512_setzero_si512(), _mm512_set1_epi8(OFFSET));
    let (blocks, _) = codes.as_chunks::<{ 32 * LANES }>();
    for (step, codes) in blocks[..blocks.len().min(PART)].iter().enumerate() {
        // SAFETY: the codes of a block.
        let codes = unsafe { in_lanes(codes.as_ptr()) };
        let below =
            (codes.as_flattened().iter()).fold(zero, |sum, &x| _mm512_dpbusd_epi32(sum, offset, x));
        // SAFETY: step < PART; no reference to uninitialized memory is made.
        unsafe {
            (&raw mut (*part).codes[step]).write(codes);
            (&raw mut (*part).starts[step]).write(_mm512_sub_epi32(zero, below));
        }
    }
}

/// The product of a part of a row with the same part of a token, whose blocks have these scales.
///
/// # Safety
/// The CPU has AVX-512 with VNNI, and the part has at least as many initialized blocks as
/// `weights`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
#[inline]
unsafe fn dot(
    weights: &[u8],
    part: &MaybeUninit<InputPart>,
    scales: &[f32],
    is_first: bool,
) -> f32 {
    let steps = weights.len() / size_of::<Wide>();
    assert!(steps <= PART && steps * LANES <= scales.len());
    let low = _mm512_set1_epi8(15);
    let mut sum = _mm512_setzero_ps();
    for step in 0..steps {
        let wide = weights.as_ptr().cast::<Wide>().wrapping_add(step);
        if is_first {
            prefetch(wide.wrapping_byte_add(AHEAD), 1);
        }
        // SAFETY: block `step` of the weights and of the part, whose numbers were compared above.
        unsafe {
            let part = part.as_ptr();
            let scale = _mm512_cvtph_ps(_mm256_loadu_si256((&raw const (*wide).d).cast()));
            let mut dots = [(*part).starts[step], _mm512_setzero_si512()];
            let [firsts, seconds] = &(*part).codes[step];
            for j in 0..4 {
                let q = _mm512_loadu_si512((&raw const (*wide).q[j]).cast());
                let first = _mm512_and_si512(q, low);
                let second = _mm512_and_si512(_mm512_srli_epi16::<4>(q), low);
                dots[0] = _mm512_dpbusd_epi32(dots[0], first, firsts[j]);
                dots[1] = _mm512_dpbusd_epi32(dots[1], second, seconds[j]);
            }
            let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(dots[0], dots[1]));
            let scales = _mm512_loadu_ps(scales.as_ptr().add(step * LANES));
            sum = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, scales), sum);
        }
    }
    _mm512_reduce_add_ps(sum)
}
