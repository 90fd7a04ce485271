//! Panels on AVX-512 with VNNI: eight rows by sixteen tokens in registers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use bytemuck::Zeroable;

use super::avx512::{Integer, constant};
use crate::activations::{BLOCK, GROUP, TokenPanel};
use crate::panel::{DEPTH, LANES, Minima, Panel, Panels, ROWS, Sums};

/// Rows whose sums are in registers at the same time.
const TILE: usize = 8;

/// Order of 8-byte block quarters, taken from the first halves of four blocks (0..8) and their second halves (8..16): blocks 0 and 1, then
/// 2 and 3.
const ORDER: [[u64; 8]; 2] = [[0, 1, 8, 9, 2, 3, 10, 11], [4, 5, 12, 13, 6, 7, 14, 15]];
/// The first f32 of each 128-bit lane.
const FIRSTS: [i32; 16] = [0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12, 0, 4, 8, 12];

/// Like [`Panels::unpack`]. Codes are unsigned, or, if `SIGNED`, have the format's offset subtracted.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,f16c")]
pub(super) unsafe fn unpack<B: Integer, const SIGNED: bool>(
    row: &[u8],
    from: usize,
    index: usize,
    panel: &mut Panel,
) {
    let chunk_bytes = size_of::<B::Chunk>();
    let numbers = B::GROUPS * GROUP;
    let chunks = row[from / numbers * chunk_bytes..].chunks(chunk_bytes);
    let offset = _mm512_set1_epi8(B::OFFSET);
    for (step, bytes) in chunks.take(DEPTH / numbers).enumerate() {
        // The blocks after the last complete chunk are padded with zeros.
        let mut last = B::Chunk::zeroed();
        let chunk = if bytes.len() == chunk_bytes {
            bytes.as_ptr().cast()
        } else {
            bytemuck::bytes_of_mut(&mut last)[..bytes.len()].copy_from_slice(bytes);
            &raw const last
        };
        // SAFETY: `chunk` points to the bytes of a chunk.
        let header = unsafe { B::header(chunk) };
        for g in 0..B::GROUPS {
            // SAFETY: as above; g < GROUPS.
            let w = unsafe { B::group(chunk, header, g) };
            let group = step * B::GROUPS + g;
            let codes = &mut panel.codes[index][group * GROUP..][..GROUP];
            for (order, codes) in ORDER.iter().zip(codes.as_chunks_mut::<64>().0) {
                let ordered = _mm512_permutex2var_epi64(w.first, constant(order), w.second);
                let ordered = if SIGNED {
                    _mm512_sub_epi8(ordered, offset)
                } else {
                    ordered
                };
                // SAFETY: 64 codes.
                unsafe { _mm512_storeu_si512(codes.as_mut_ptr().cast(), ordered) };
            }
            let firsts = constant(&FIRSTS);
            let scales = |spread| _mm512_castps512_ps128(_mm512_permutexvar_ps(firsts, spread));
            let place = group * 4..group * 4 + 4;
            // SAFETY: each store writes four scales.
            unsafe {
                let place = place.clone();
                let to = panel.scales[index][place].as_mut_ptr();
                _mm_storeu_ps(to, scales(w.scale));
            }
            if B::HALF_SCALES {
                let to = panel.second_scales[index][place].as_mut_ptr();
                // SAFETY: as above.
                unsafe { _mm_storeu_ps(to, scales(w.second_scale)) };
            }
        }
        if let Some(mins) = B::mins(header) {
            let to = panel.mins[index][step * 8..][..8].as_mut_ptr();
            // SAFETY: a chunk with minima has eight blocks.
            unsafe { _mm256_storeu_ps(to, mins) };
        }
        if let Some(mins) = B::half_mins(header) {
            let halves: [[f32; 2]; 8] = bytemuck::cast(floats(mins));
            for (b, [first, second]) in halves.into_iter().enumerate() {
                panel.mins[index][step * 8 + b] = first;
                panel.second_mins[index][step * 8 + b] = second;
            }
        }
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn floats(x: __m512) -> [f32; 16] {
    let mut out = [0.0; 16];
    // SAFETY: 16 floats.
    unsafe { _mm512_storeu_ps(out.as_mut_ptr(), x) };
    out
}

/// Adds a block's products to the sums of the rows from `first_row` on. `dot(half, r)` returns the products of row `first_row + r`.
///
/// # Safety
/// The CPU must have AVX-512, `block` must be below both panels' number of blocks, and the panel must have the rows.
#[inline(always)]
pub(super) unsafe fn add_block<B: Integer, const R: usize>(
    panel: &Panel,
    first_row: usize,
    x: &TokenPanel,
    block: usize,
    dot: impl Fn(usize, usize) -> __m512i,
    sum: &mut [__m512; R],
) {
    // SAFETY: guaranteed by the caller.
    unsafe {
        let load_row = |values: &[[f32; DEPTH / BLOCK]; ROWS], r: usize| {
            _mm512_set1_ps(*values.get_unchecked(first_row + r).get_unchecked(block))
        };
        let scale = _mm512_loadu_ps(x.scales.add(block * LANES));
        for r in 0..R {
            let first = _mm512_cvtepi32_ps(dot(0, r));
            let own = load_row(&panel.scales, r);
            if B::HALF_SCALES {
                let second = _mm512_cvtepi32_ps(dot(1, r));
                let scaled = _mm512_mul_ps(first, own);
                let scaled = _mm512_fmadd_ps(second, load_row(&panel.second_scales, r), scaled);
                sum[r] = _mm512_fmadd_ps(scaled, scale, sum[r]);
            } else {
                sum[r] = _mm512_fmadd_ps(first, _mm512_mul_ps(own, scale), sum[r]);
            }
        }
        let x_sum = |half: usize| {
            let at = x.half_sums.add((2 * block + half) * LANES);
            _mm512_mul_ps(scale, _mm512_cvtepi32_ps(_mm512_loadu_si512(at.cast())))
        };
        match B::MINIMA {
            Minima::None => (),
            Minima::Blocks => {
                let both = _mm512_loadu_ps(x.sums.add(block * LANES));
                for r in 0..R {
                    sum[r] = _mm512_fnmadd_ps(load_row(&panel.mins, r), both, sum[r]);
                }
            }
            Minima::Halves => {
                let (first, second) = (x_sum(0), x_sum(1));
                for r in 0..R {
                    sum[r] = _mm512_fnmadd_ps(load_row(&panel.mins, r), first, sum[r]);
                    sum[r] = _mm512_fnmadd_ps(load_row(&panel.second_mins, r), second, sum[r]);
                }
            }
        }
    }
}

/// Like [`Panels::store`].
#[target_feature(enable = "avx512f")]
pub(super) unsafe fn store(sums: &Sums, [rows, tokens]: [usize; 2], out: *mut f32, stride: usize) {
    let mut x = [_mm512_setzero_ps(); 16];
    for (x, sums) in x.iter_mut().zip(&sums.0) {
        // SAFETY: sixteen sums.
        *x = unsafe { _mm512_loadu_ps(sums.as_ptr()) };
    }
    let x = transpose(x);
    let mask = ((1u32 << rows) - 1) as __mmask16;
    for (t, x) in x.iter().enumerate().take(tokens) {
        // SAFETY: the caller guarantees that `rows` elements of each token are valid.
        unsafe { _mm512_mask_storeu_ps(out.add(t * stride), mask, *x) };
    }
}

/// Turns columns into rows.
#[target_feature(enable = "avx512f")]
#[inline]
pub(super) fn transpose(x: [__m512; 16]) -> [__m512; 16] {
    let mut y = [_mm512_setzero_ps(); 16];
    let mut z = [_mm512_setzero_ps(); 16];
    // Within each lane, four by four.
    for i in (0..16).step_by(4) {
        let (a, b) = (
            _mm512_unpacklo_ps(x[i], x[i + 1]),
            _mm512_unpackhi_ps(x[i], x[i + 1]),
        );
        let (c, d) = (
            _mm512_unpacklo_ps(x[i + 2], x[i + 3]),
            _mm512_unpackhi_ps(x[i + 2], x[i + 3]),
        );
        y[i] = _mm512_shuffle_ps::<0b01_00_01_00>(a, c);
        y[i + 1] = _mm512_shuffle_ps::<0b11_10_11_10>(a, c);
        y[i + 2] = _mm512_shuffle_ps::<0b01_00_01_00>(b, d);
        y[i + 3] = _mm512_shuffle_ps::<0b11_10_11_10>(b, d);
    }
    // Then across lanes.
    for i in 0..4 {
        let low = _mm512_shuffle_f32x4::<0b10_00_10_00>(y[i], y[i + 4]);
        let high = _mm512_shuffle_f32x4::<0b10_00_10_00>(y[i + 8], y[i + 12]);
        z[i] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
        z[i + 8] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high);
        let low = _mm512_shuffle_f32x4::<0b11_01_11_01>(y[i], y[i + 4]);
        let high = _mm512_shuffle_f32x4::<0b11_01_11_01>(y[i + 8], y[i + 12]);
        z[i + 4] = _mm512_shuffle_f32x4::<0b10_00_10_00>(low, high);
        z[i + 12] = _mm512_shuffle_f32x4::<0b11_01_11_01>(low, high);
    }
    z
}

pub(crate) struct Vnni<B>(PhantomData<B>);

impl<B: Integer> Panels for Vnni<B> {
    unsafe fn unpack(row: &[u8], from: usize, index: usize, panel: &mut Panel) {
        // SAFETY: the caller guarantees the level.
        unsafe { unpack::<B, false>(row, from, index, panel) }
    }

    #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni")]
    unsafe fn accumulate(panel: &Panel, x: &TokenPanel, sums: &mut Sums) {
        let offset = _mm512_set1_epi32(-i32::from(B::OFFSET as u8));
        assert!(x.blocks <= DEPTH / BLOCK);
        for first_row in (0..ROWS).step_by(TILE) {
            let rows = &mut sums.0[first_row..][..TILE];
            let mut sum = [_mm512_setzero_ps(); TILE];
            for r in 0..TILE {
                // SAFETY: sixteen sums.
                sum[r] = unsafe { _mm512_loadu_ps(rows[r].as_ptr()) };
            }
            for block in 0..x.blocks {
                let (mut start, mut second_start) =
                    (_mm512_setzero_si512(), _mm512_setzero_si512());
                if B::OFFSET != 0 {
                    // SAFETY: the panel has two sets of sixteen sums for each block.
                    let [first, second] = unsafe {
                        let at = x.half_sums.add(2 * block * LANES);
                        [
                            _mm512_loadu_si512(at.cast()),
                            _mm512_loadu_si512(at.add(LANES).cast()),
                        ]
                    };
                    if B::HALF_SCALES {
                        start = _mm512_mullo_epi32(first, offset);
                        second_start = _mm512_mullo_epi32(second, offset);
                    } else {
                        start = _mm512_mullo_epi32(_mm512_add_epi32(first, second), offset);
                    }
                }
                let mut dot = [start; TILE];
                let mut second_dot = [second_start; TILE];
                for i in 0..8 {
                    // SAFETY: the panel has 64 codes for every four columns.
                    let x = unsafe { _mm512_loadu_si512(x.codes.add((block * 8 + i) * 64).cast()) };
                    for r in 0..TILE {
                        let w = panel.codes[first_row + r].as_ptr();
                        // SAFETY: reads four codes of a block of the row.
                        let w = unsafe { w.add(block * BLOCK + 4 * i).cast::<i32>().read() };
                        let w = _mm512_set1_epi32(w);
                        if B::HALF_SCALES && i >= 4 {
                            second_dot[r] = _mm512_dpbusd_epi32(second_dot[r], w, x);
                        } else {
                            dot[r] = _mm512_dpbusd_epi32(dot[r], w, x);
                        }
                    }
                }
                let dot = |half: usize, r: usize| if half == 0 { dot[r] } else { second_dot[r] };
                // SAFETY: the rows and the block are within the panel.
                unsafe { add_block::<B, TILE>(panel, first_row, x, block, dot, &mut sum) };
            }
            for r in 0..TILE {
                // SAFETY: sixteen sums.
                unsafe { _mm512_storeu_ps(rows[r].as_mut_ptr(), sum[r]) };
            }
        }
    }

    unsafe fn store(sums: &Sums, size: [usize; 2], out: *mut f32, stride: usize) {
        // SAFETY: guaranteed by the caller.
        unsafe { store(sums, size, out, stride) };
    }
}
