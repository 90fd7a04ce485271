//! Panels on AVX2, with or without 256-bit VNNI: four rows by eight tokens in registers.

use std::arch::x86_64::*;
use std::marker::PhantomData;

use bytemuck::Zeroable;

use super::avx2::Integer;
use crate::activations::{BLOCK, TokenPanel};
use crate::panel::{DEPTH, LANES, Minima, Panel, Panels, ROWS, Sums};

/// Rows whose sums are in registers at the same time.
const TILE: usize = 4;
/// Tokens per register.
const WIDTH: usize = 8;
/// Added to a signed code to make it unsigned.
const SIGN: i8 = -128;

pub(crate) struct Panel8<B, const VNNI: bool>(PhantomData<B>);

/// Adds sums of four consecutive products to `sum`, in i32. Without VNNI, `dot_pairs` returns sums of two products in i16.
#[target_feature(enable = "avx2,avxvnni")]
#[inline]
fn dot_vnni(sum: __m256i, w: __m256i, x: __m256i) -> __m256i {
    _mm256_dpbusd_avx_epi32(sum, w, x)
}

#[target_feature(enable = "avx2")]
#[inline]
fn dot_pairs<const SIGNED: bool>(w: __m256i, x: __m256i) -> __m256i {
    if SIGNED {
        _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w))
    } else {
        _mm256_maddubs_epi16(w, x)
    }
}

impl<B: Integer, const VNNI: bool> Panel8<B, VNNI> {
    /// Number of groups of four columns whose products can be added in 16 bits.
    const STEPS: usize = if B::SIGNED {
        1
    } else {
        match i16::MAX as usize / (2 * 127 * B::LARGEST as usize) {
            8.. if !B::HALF_SCALES => 8,
            4.. => 4,
            2.. => 2,
            _ => 1,
        }
    };

    /// Returns the products of `GROUPS` times four columns from `column` on with eight tokens.
    ///
    /// # Safety
    /// The CPU must have the instructions, `x` must be valid for `GROUPS` lines of 64 codes, and the columns must be within the panel.
    #[inline(always)]
    unsafe fn dots<const GROUPS: usize>(
        panel: &Panel,
        first_row: usize,
        column: usize,
        x: *const i8,
        start: __m256i,
    ) -> [__m256i; TILE] {
        let mut dot = [start; TILE];
        // SAFETY: guaranteed by the caller; four codes of each row are read.
        unsafe {
            let weights = |r: usize, i: usize| {
                let w = panel.codes[first_row + r].as_ptr().add(column + 4 * i);
                _mm256_set1_epi32(w.cast::<i32>().read())
            };
            if VNNI {
                for i in 0..GROUPS {
                    let x = _mm256_loadu_si256(x.add(64 * i).cast());
                    for r in 0..TILE {
                        dot[r] = dot_vnni(dot[r], weights(r, i), x);
                    }
                }
                return dot;
            }
            for i in (0..GROUPS).step_by(Self::STEPS) {
                let mut pairs = [_mm256_setzero_si256(); TILE];
                for i in i..i + Self::STEPS {
                    let x = _mm256_loadu_si256(x.add(64 * i).cast());
                    for r in 0..TILE {
                        let products = if B::SIGNED {
                            dot_pairs::<true>(weights(r, i), x)
                        } else {
                            dot_pairs::<false>(weights(r, i), x)
                        };
                        pairs[r] = _mm256_add_epi16(pairs[r], products);
                    }
                }
                for r in 0..TILE {
                    let sums = _mm256_madd_epi16(pairs[r], _mm256_set1_epi16(1));
                    dot[r] = _mm256_add_epi32(dot[r], sums);
                }
            }
        }
        dot
    }

    /// Adds the products of rows `first_row..` with the tokens `lane..lane + 8` to `sums`.
    ///
    /// # Safety
    /// The CPU must have the instructions.
    #[inline(always)]
    unsafe fn tile(panel: &Panel, x: &TokenPanel, [first_row, lane]: [usize; 2], sums: &mut Sums) {
        let taken_off = if VNNI && B::SIGNED { SIGN } else { B::OFFSET };
        assert!(x.blocks <= DEPTH / BLOCK);
        // SAFETY: the rows and tokens are within the panels; the caller guarantees the instructions.
        unsafe {
            let offset = _mm256_set1_epi32(-i32::from(taken_off as u8));
            let zero = _mm256_setzero_si256();
            let mut sum = [_mm256_setzero_ps(); TILE];
            for r in 0..TILE {
                sum[r] = _mm256_loadu_ps(sums.0[first_row + r][lane..].as_ptr());
            }
            for block in 0..x.blocks {
                let at = x.half_sums.add(2 * block * LANES + lane);
                let first = _mm256_loadu_si256(at.cast());
                let second = _mm256_loadu_si256(at.add(LANES).cast());
                let scale = _mm256_loadu_ps(x.scales.add(block * LANES + lane));
                let codes = x.codes.add(block * 512 + 4 * lane);
                let column = block * BLOCK;
                let start = |sums| match taken_off {
                    0 => zero,
                    _ => _mm256_mullo_epi32(sums, offset),
                };
                if B::HALF_SCALES {
                    let [dot, second_dot] = [
                        Self::dots::<4>(panel, first_row, column, codes, start(first)),
                        Self::dots::<4>(
                            panel,
                            first_row,
                            column + 16,
                            codes.add(256),
                            start(second),
                        ),
                    ];
                    for r in 0..TILE {
                        let own = _mm256_set1_ps(panel.scales[first_row + r][block]);
                        let other = _mm256_set1_ps(panel.second_scales[first_row + r][block]);
                        let scaled = _mm256_mul_ps(_mm256_cvtepi32_ps(dot[r]), own);
                        let scaled =
                            _mm256_fmadd_ps(_mm256_cvtepi32_ps(second_dot[r]), other, scaled);
                        sum[r] = _mm256_fmadd_ps(scaled, scale, sum[r]);
                    }
                } else {
                    let both = _mm256_add_epi32(first, second);
                    let dot = Self::dots::<8>(panel, first_row, column, codes, start(both));
                    for r in 0..TILE {
                        let own = _mm256_set1_ps(panel.scales[first_row + r][block]);
                        let own = _mm256_mul_ps(own, scale);
                        sum[r] = _mm256_fmadd_ps(_mm256_cvtepi32_ps(dot[r]), own, sum[r]);
                    }
                }
                let less = |sums| _mm256_mul_ps(scale, _mm256_cvtepi32_ps(sums));
                match B::MINIMA {
                    Minima::None => (),
                    Minima::Blocks => {
                        let both = _mm256_loadu_ps(x.sums.add(block * LANES + lane));
                        for r in 0..TILE {
                            let min = _mm256_set1_ps(panel.mins[first_row + r][block]);
                            sum[r] = _mm256_fnmadd_ps(min, both, sum[r]);
                        }
                    }
                    Minima::Halves => {
                        let (first, second) = (less(first), less(second));
                        for r in 0..TILE {
                            let min = _mm256_set1_ps(panel.mins[first_row + r][block]);
                            sum[r] = _mm256_fnmadd_ps(min, first, sum[r]);
                            let min = _mm256_set1_ps(panel.second_mins[first_row + r][block]);
                            sum[r] = _mm256_fnmadd_ps(min, second, sum[r]);
                        }
                    }
                }
            }
            for r in 0..TILE {
                _mm256_storeu_ps(sums.0[first_row + r][lane..].as_mut_ptr(), sum[r]);
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn accumulate_avx2(panel: &Panel, x: &TokenPanel, sums: &mut Sums) {
        for lane in (0..LANES).step_by(WIDTH) {
            for row in (0..ROWS).step_by(TILE) {
                // SAFETY: guaranteed by the caller.
                unsafe { Self::tile(panel, x, [row, lane], sums) };
            }
        }
    }

    #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
    unsafe fn accumulate_vnni(panel: &Panel, x: &TokenPanel, sums: &mut Sums) {
        for lane in (0..LANES).step_by(WIDTH) {
            for row in (0..ROWS).step_by(TILE) {
                // SAFETY: guaranteed by the caller.
                unsafe { Self::tile(panel, x, [row, lane], sums) };
            }
        }
    }
}

impl<B: Integer, const VNNI: bool> Panels for Panel8<B, VNNI> {
    #[target_feature(enable = "avx2,fma,f16c")]
    unsafe fn unpack(row: &[u8], from: usize, index: usize, panel: &mut Panel) {
        let chunk_bytes = size_of::<B::Chunk>();
        let numbers = B::PAIRS * 2 * BLOCK;
        let chunks = row[from / numbers * chunk_bytes..].chunks(chunk_bytes);
        let sign = _mm256_set1_epi8(if VNNI && B::SIGNED { SIGN } else { 0 });
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
            for p in 0..B::PAIRS {
                // SAFETY: as above; p < PAIRS.
                let w = unsafe { B::pair(chunk, header, p) };
                let pair = step * B::PAIRS + p;
                let codes = &mut panel.codes[index][pair * 2 * BLOCK..][..2 * BLOCK];
                // SAFETY: 64 codes.
                unsafe {
                    let to = codes.as_mut_ptr().cast::<__m256i>();
                    let first = _mm256_permute2x128_si256::<0x20>(w.first, w.second);
                    let second = _mm256_permute2x128_si256::<0x31>(w.first, w.second);
                    _mm256_storeu_si256(to, _mm256_xor_si256(first, sign));
                    _mm256_storeu_si256(to.add(1), _mm256_xor_si256(second, sign));
                }
                let ends = |spread| {
                    let high = _mm_cvtss_f32(_mm256_extractf128_ps::<1>(spread));
                    [_mm256_cvtss_f32(spread), high]
                };
                panel.scales[index][2 * pair..][..2].copy_from_slice(&ends(w.scale));
                if B::HALF_SCALES {
                    let scales = ends(w.second_scale);
                    panel.second_scales[index][2 * pair..][..2].copy_from_slice(&scales);
                }
            }
            if let Some(mins) = B::mins(header) {
                let to = panel.mins[index][step * 8..][..8].as_mut_ptr();
                // SAFETY: a chunk with minima has eight blocks.
                unsafe { _mm256_storeu_ps(to, mins) };
            }
            if let Some(halves) = B::half_mins(header) {
                // SAFETY: vectors of eight floats.
                let halves: [[f32; 8]; 2] = unsafe { std::mem::transmute(halves) };
                let halves: [[f32; 2]; 8] = bytemuck::cast(halves);
                for (b, [first, second]) in halves.into_iter().enumerate() {
                    panel.mins[index][step * 8 + b] = first;
                    panel.second_mins[index][step * 8 + b] = second;
                }
            }
        }
    }

    unsafe fn accumulate(panel: &Panel, x: &TokenPanel, sums: &mut Sums) {
        // SAFETY: the caller guarantees the level.
        unsafe {
            if VNNI {
                Self::accumulate_vnni(panel, x, sums)
            } else {
                Self::accumulate_avx2(panel, x, sums)
            }
        }
    }

    #[target_feature(enable = "avx2")]
    unsafe fn store(sums: &Sums, [rows, tokens]: [usize; 2], out: *mut f32, stride: usize) {
        for (row, lane) in [(0, 0), (0, WIDTH), (WIDTH, 0), (WIDTH, WIDTH)] {
            let mut x = [_mm256_setzero_ps(); WIDTH];
            for (x, sums) in x.iter_mut().zip(&sums.0[row..]) {
                // SAFETY: eight sums.
                *x = unsafe { _mm256_loadu_ps(sums[lane..].as_ptr()) };
            }
            let height = rows.saturating_sub(row).min(WIDTH);
            let tokens = tokens.saturating_sub(lane);
            for (t, x) in transpose(x).into_iter().enumerate().take(tokens) {
                let out = out.wrapping_add((lane + t) * stride + row);
                let mut line = [0.0f32; WIDTH];
                // SAFETY: the caller guarantees that `rows` elements of each token are valid.
                unsafe {
                    if height == WIDTH {
                        _mm256_storeu_ps(out, x);
                    } else {
                        _mm256_storeu_ps(line.as_mut_ptr(), x);
                        std::ptr::copy_nonoverlapping(line.as_ptr(), out, height);
                    }
                }
            }
        }
    }
}

/// Turns columns into rows.
#[target_feature(enable = "avx2")]
#[inline]
pub(super) fn transpose(x: [__m256; 8]) -> [__m256; 8] {
    let pairs = |a: usize, b: usize| {
        [
            _mm256_castps_pd(_mm256_unpacklo_ps(x[a], x[b])),
            _mm256_castps_pd(_mm256_unpackhi_ps(x[a], x[b])),
        ]
    };
    // Each 128-bit lane holds column i or i + 4 of four rows.
    let quads = |first: usize| {
        let (a, b) = (pairs(first, first + 1), pairs(first + 2, first + 3));
        [
            _mm256_unpacklo_pd(a[0], b[0]),
            _mm256_unpackhi_pd(a[0], b[0]),
            _mm256_unpacklo_pd(a[1], b[1]),
            _mm256_unpackhi_pd(a[1], b[1]),
        ]
        .map(|quad| _mm256_castpd_ps(quad))
    };
    let (low, high) = (quads(0), quads(4));
    let mut y = [_mm256_setzero_ps(); 8];
    for i in 0..4 {
        y[i] = _mm256_permute2f128_ps::<0x20>(low[i], high[i]);
        y[i + 4] = _mm256_permute2f128_ps::<0x31>(low[i], high[i]);
    }
    y
}
