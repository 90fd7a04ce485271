//! Products of few tokens with Q4_0x16, whose blocks of 32 values lie in the 32-bit lanes of a register. No code moves between lanes, and
//! the scales of sixteen blocks are multiplied at once.

use std::arch::x86_64::*;
use std::mem::MaybeUninit;
use std::ops::Range;

use super::avx2::prefetch;
use super::avx512::constant;
use crate::activations::GROUP;
use crate::formats::q4_0x16::Wide;
use crate::kernel::Product;

/// Prefetch distance of weights, in bytes.
const AHEAD: usize = 8 << 10;
/// Subtracted from each code.
const OFFSET: i8 = 8;
/// Blocks in a register.
const LANES: usize = 16;

/// Dword j of lane b becomes dword b of lane j.
const TRANSPOSED: [i32; 16] = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15];

/// Moves the codes of sixteen blocks of inputs from the order of [`Activations`](crate::Activations) into lanes: register j of each half
/// has codes 4 j to 4 j + 3.
///
/// # Safety
/// `codes` must be valid for 512 bytes, and the CPU must have AVX-512.
#[target_feature(enable = "avx512f")]
#[inline]
unsafe fn in_lanes(codes: *const i8) -> [[__m512i; 4]; 2] {
    [0, 64].map(|half| {
        let [a, b, c, d] = [0, 1, 2, 3].map(|group| {
            // SAFETY: a group has 64 bytes here.
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
        // low has lanes 0 and 2 of each register, high lanes 1 and 3.
        [
            _mm512_shuffle_i64x2::<0b10_00_10_00>(low.0, low.1),
            _mm512_shuffle_i64x2::<0b10_00_10_00>(high.0, high.1),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(low.0, low.1),
            _mm512_shuffle_i64x2::<0b11_01_11_01>(high.0, high.1),
        ]
    })
}

/// Blocks of inputs held in lanes at once.
const PART: usize = 32;
/// Largest number of tokens multiplied with a row at once.
const TOKENS: usize = 4;

/// A part of a token's input, in lanes.
struct InputPart {
    codes: [[[__m512i; 4]; 2]; PART],
    /// The contribution of the codes' offset to the products of every row.
    starts: [__m512i; PART],
}

/// Multiplies up to four tokens at a time, which share the codes of a row while these are in registers.
///
/// # Safety
/// As for [`Kernel`](crate::kernel::Kernel).
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(crate) unsafe fn multiply(product: &Product, rows: Range<usize>) {
    let mut parts = [const { MaybeUninit::<InputPart>::uninit() }; TOKENS];
    let blocks = product.row_bytes / size_of::<Wide>();
    for token in (0..product.tokens()).step_by(TOKENS) {
        let parts = &mut parts[..(product.tokens() - token).min(TOKENS)];
        for first in (0..blocks).step_by(PART) {
            let blocks = first..blocks.min(first + PART);
            for (t, part) in parts.iter_mut().enumerate() {
                let codes = &product.input(token + t).codes;
                let codes = &codes[blocks.start * 32 * LANES..blocks.end * 32 * LANES];
                // SAFETY: the caller guarantees the level.
                unsafe { prepare(codes, part) };
            }
            let (rows, place) = (rows.clone(), (token, blocks));
            // SAFETY: `prepare` wrote these blocks of each part, and the caller guarantees the rows, the tokens and the level.
            unsafe {
                match *parts {
                    [ref a, ref b, ref c, ref d] => {
                        part_of_rows(product, rows, place, [a, b, c, d])
                    }
                    [ref a, ref b, ref c] => part_of_rows(product, rows, place, [a, b, c]),
                    [ref a, ref b] => part_of_rows(product, rows, place, [a, b]),
                    _ => part_of_rows(product, rows, place, [&parts[0]]),
                }
            };
        }
    }
}

/// Multiplies these blocks of each row with the same blocks of T tokens. With one token, rows are read one at a time, in memory order; with
/// more tokens, two at a time.
///
/// # Safety
/// The CPU must have AVX-512 with VNNI, the parts must hold these blocks, and no other thread may access the rows' products with the
/// tokens.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
unsafe fn part_of_rows<const T: usize>(
    product: &Product,
    rows: Range<usize>,
    (token, blocks): (usize, Range<usize>),
    parts: [&MaybeUninit<InputPart>; T],
) {
    let scales = std::array::from_fn(|t| {
        &product.input(token + t).scales[blocks.start * LANES..blocks.end * LANES]
    });
    let weights = |row: usize| {
        let bytes = &product.weights[row * product.row_bytes..][..product.row_bytes];
        &bytes[blocks.start * size_of::<Wide>()..blocks.end * size_of::<Wide>()]
    };
    let write = |row: usize, dots: [f32; T]| {
        for (t, dot) in dots.into_iter().enumerate() {
            let column = (token + t) * product.out_stride + row;
            let out = product.out.wrapping_add(column);
            // SAFETY: the caller guarantees that this element is valid.
            unsafe {
                out.write(if blocks.start == 0 {
                    dot
                } else {
                    out.read() + dot
                })
            };
        }
    };
    let mut row = rows.start;
    while T > 1 && row + 2 <= rows.end {
        // SAFETY: guaranteed by the caller.
        let dots = unsafe { dots([weights(row), weights(row + 1)], parts, scales) };
        write(row, dots[0]);
        write(row + 1, dots[1]);
        row += 2;
    }
    for row in row..rows.end {
        // SAFETY: as above.
        let [dots] = unsafe { dots([weights(row)], parts, scales) };
        write(row, dots);
    }
}

/// Moves the codes of inputs into lanes.
///
/// # Safety
/// The CPU must have AVX-512 with VNNI.
#[target_feature(enable = "avx512f,avx512vnni")]
unsafe fn prepare(codes: &[i8], part: &mut MaybeUninit<InputPart>) {
    let part = part.as_mut_ptr();
    let (zero, offset) = (_mm512_setzero_si512(), _mm512_set1_epi8(OFFSET));
    let (blocks, _) = codes.as_chunks::<{ 32 * LANES }>();
    for (step, codes) in blocks[..blocks.len().min(PART)].iter().enumerate() {
        // SAFETY: these are the codes of one block.
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

/// Returns the products of parts of R rows with the same parts of T tokens; `scales` are those of the tokens' blocks. The bits of a product
/// do not depend on R and T.
///
/// # Safety
/// The CPU must have AVX-512 with VNNI, and each part must have at least as many initialized blocks as each of `weights`.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
#[inline]
unsafe fn dots<const R: usize, const T: usize>(
    weights: [&[u8]; R],
    parts: [&MaybeUninit<InputPart>; T],
    scales: [&[f32]; T],
) -> [[f32; T]; R] {
    // An integer sum may be split freely: with a single product, two chains reduce its latency.
    let second_chain = if R * T == 1 { 1 } else { 0 };
    let steps = weights[0].len() / size_of::<Wide>();
    let fits = |scales: &&[f32]| steps * LANES <= scales.len();
    assert!(steps <= PART && scales.iter().all(fits));
    assert!(weights.iter().all(|row| row.len() == weights[0].len()));
    let (low, zero) = (_mm512_set1_epi8(15), _mm512_setzero_si512());
    let mut sums = [[_mm512_setzero_ps(); T]; R];
    for step in 0..steps {
        let wide = weights.map(|row| row.as_ptr().cast::<Wide>().wrapping_add(step));
        for row in wide {
            prefetch(row.wrapping_byte_add(AHEAD), 1);
        }
        // SAFETY: the weights and the parts have block `step`; their lengths were compared above.
        unsafe {
            let parts = parts.map(MaybeUninit::as_ptr);
            let mut dots = [[[zero; 2]; T]; R];
            for r in 0..R {
                for t in 0..T {
                    dots[r][t][0] = (*parts[t]).starts[step];
                }
            }
            for j in 0..4 {
                let q = wide.map(|row| _mm512_loadu_si512((&raw const (*row).q[j]).cast()));
                for t in 0..T {
                    let [firsts, seconds] = &(*parts[t]).codes[step];
                    for r in 0..R {
                        let first = _mm512_and_si512(q[r], low);
                        let second = _mm512_and_si512(_mm512_srli_epi16::<4>(q[r]), low);
                        let dots = &mut dots[r][t];
                        dots[0] = _mm512_dpbusd_epi32(dots[0], first, firsts[j]);
                        let chain = &mut dots[second_chain];
                        *chain = _mm512_dpbusd_epi32(*chain, second, seconds[j]);
                    }
                }
            }
            for r in 0..R {
                let scale = _mm256_loadu_si256((&raw const (*wide[r]).d).cast());
                let scale = _mm512_cvtph_ps(scale);
                for t in 0..T {
                    let [first, second] = dots[r][t];
                    let dot = _mm512_cvtepi32_ps(_mm512_add_epi32(first, second));
                    let scales = _mm512_loadu_ps(scales[t].as_ptr().add(step * LANES));
                    sums[r][t] = _mm512_fmadd_ps(dot, _mm512_mul_ps(scale, scales), sums[r][t]);
                }
            }
        }
    }
    sums.map(|sums| sums.map(|sum| _mm512_reduce_add_ps(sum)))
}
