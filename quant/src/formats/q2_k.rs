//! Q2_K: super-blocks of 256 numbers, in sixteen sub-blocks of 16 with a 4-bit scale and a 4-bit minimum each, and 2-bit codes: `x = d *
//! scale * q - dmin * min`.
//!
//! Each half of 128 numbers is four runs of 32. Number i of run j is bits `2 * j..2 * j + 2` of byte i of the half's 32 bytes.
//! The low halves of `scales` are the scales, the high halves the minima.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{self, Fit, Lanes, Spacings, nearest_int};
use crate::formats::importance::{self, mean_square};
use crate::formats::{Half, decode_blocks, encode_row};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 2.63 bits per number: super-blocks of 256, scale and minimum per 16.
pub static Q2_K: Format = Format {
    name: "Q2_K",
    ggml_type: 10,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::SuperBlocks),
    device_apart: 80..84,
    code_tiles: false,
    slot_tiles: false,
    reordered: None,
    encode: Some(|src, importance, dst| encode_row(src, importance, dst, Block::encode)),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    scales: [u8; 16],
    q: [[u8; 32]; 2],
    d: Half,
    dmin: Half,
}

const _: () = assert!(size_of::<Block>() == 84);

const SPACINGS: Spacings = Spacings {
    max_code: 3,
    first: -0.5,
    stride: 0.1,
    steps: 15,
};

impl Block {
    fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
        let halves = [0, 128].map(|first| fit::columns::<16>(&x[first..]));
        let weights: [[Lanes; 16]; 2] = if let Some(importance) = importance {
            let spread = Lanes::all(mean_square(x));
            let inputs = importance.as_chunks::<128>().0;
            [0, 1].map(|half| importance::weights(&halves[half], &inputs[half], spread))
        } else {
            halves.map(|columns| columns.map(|x| x.map(f32::abs)))
        };
        let fits: [Fit<16>; 2] = [0, 1].map(|half| {
            let (x, weights) = (&halves[half], &weights[half]);
            if importance.is_some() {
                fit::fit_affine::<16, false>(x, weights, importance::spacings(3))
            } else {
                fit::fit_affine::<16, true>(x, weights, SPACINGS)
            }
        });
        let all = |part: fn(&Fit<16>) -> Lanes| -> [f32; 16] {
            bytemuck::cast([part(&fits[0]).0, part(&fits[1]).0])
        };
        let sums = weights.map(|weights| importance::sums(&weights).0);
        let round = |values: [f32; 16]| {
            if importance.is_some() {
                importance::fit_scales(&values, bytemuck::cast_ref(&sums), 15)
            } else {
                round_to_4_bits(values)
            }
        };
        let (d, scales) = round(all(|fit| fit.scale));
        let (dmin, mins) = round(all(|fit| fit.min));
        let mut block = Block {
            scales: std::array::from_fn(|j| scales[j] | mins[j] << 4),
            q: [[0; 32]; 2],
            d,
            dmin,
        };
        for (sub, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let (scale, min) = block.line(sub);
            let codes = if scale == 0.0 {
                fits[sub / 8].codes_of(sub % 8)
            } else {
                x.map(|x| nearest_int((x + min) / scale).clamp(0, 3) as u8)
            };
            let (half, run, first) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
            for (i, code) in codes.iter().enumerate() {
                block.q[half][first + i] |= code << (2 * run);
            }
        }
        block
    }

    /// Scale and minimum of sub-block `sub`.
    fn line(&self, sub: usize) -> (f32, f32) {
        let (scale, min) = (self.scales[sub] & 15, self.scales[sub] >> 4);
        (
            self.d.to_f32() * f32::from(scale),
            self.dmin.to_f32() * f32::from(min),
        )
    }

    /// The codes of run `run` (of 8).
    fn codes(&self, run: usize) -> [i8; 32] {
        self.q[run / 4].map(|byte| (byte >> (run % 4 * 2) & 3) as i8)
    }

    fn decode(&self) -> [f32; 256] {
        let mut x = [0.0; 256];
        for (run, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = self.codes(run);
            for i in 0..32 {
                let (scale, min) = self.line(2 * run + i / 16);
                x[i] = scale * f32::from(codes[i]) - min;
            }
        }
        x
    }
}

fn round_to_4_bits(values: [f32; 16]) -> (Half, [u8; 16]) {
    let max = values
        .into_iter()
        .fold(0.0, |max, value| if value > max { value } else { max });
    if max <= 0.0 {
        return (Half::from_f32(0.0), [0; 16]);
    }
    let inverse = 15.0 / max;
    let codes = values.map(|value| nearest_int(inverse * value) as u8);
    (Half::from_f32(max / 15.0), codes)
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let mut dot = 0.0;
        for (b, block) in blocks.iter().enumerate() {
            for run in 0..8 {
                let (weights, codes) = (block.codes(run), x.block(8 * b + run));
                let halves = weights.as_chunks::<16>().0.iter().zip(codes.as_chunks().0);
                for (half, (weights, codes)) in halves.enumerate() {
                    let (scale, min) = block.line(2 * run + half);
                    let codes = scalar::dot_codes(weights, codes) as f32;
                    let sum = x.half_sums[16 * b + 2 * run + half];
                    dot += scale * x.scales[8 * b + run] * codes - min * sum;
                }
            }
        }
        dot
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;
    use crate::formats::k_quants::x86::{
        half_scales_256, half_scales_512, two_bits_256, two_bits_512,
    };
    use crate::panel::Minima;
    use crate::simd::{avx2, avx512};

    /// Scales and minima of the sixteen sub-blocks of a super-block.
    #[derive(Clone, Copy)]
    pub(crate) struct SixteenLines<V> {
        scales: V,
        mins: V,
    }

    impl avx512::Integer for Block {
        type Chunk = Block;
        type Header = SixteenLines<__m512>;

        const GROUPS: usize = 2;
        const HALF_SCALES: bool = true;
        const MINIMA: Minima = Minima::Halves;

        #[target_feature(enable = "avx512f,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> SixteenLines<__m512> {
            // SAFETY: the block is valid and needs no alignment; its scales are 16 bytes.
            let (block, lines) = unsafe {
                let lines = _mm_loadu_si128((*block).scales.as_ptr().cast());
                (&*block, _mm512_cvtepu8_epi32(lines))
            };
            let floats = |codes, unit: u16| {
                _mm512_mul_ps(_mm512_cvtepi32_ps(codes), _mm512_set1_ps(avx2::half(unit)))
            };
            let scales = _mm512_and_si512(lines, _mm512_set1_epi32(15));
            SixteenLines {
                scales: floats(scales, block.d.bits()),
                mins: floats(_mm512_srli_epi32::<4>(lines), block.dmin.bits()),
            }
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
        #[inline]
        unsafe fn group(
            block: *const Block,
            header: SixteenLines<__m512>,
            group: usize,
        ) -> avx512::Group {
            // SAFETY: the block is valid and needs no alignment.
            let (first, second) = two_bits_512(unsafe { &(*block).q[group] });
            let (scale, second_scale) = half_scales_512(header.scales, group);
            avx512::Group {
                first,
                second,
                scale,
                second_scale,
            }
        }

        #[inline]
        fn half_mins(header: SixteenLines<__m512>) -> Option<__m512> {
            Some(header.mins)
        }
    }

    impl avx2::Integer for Block {
        type Chunk = Block;
        type Header = SixteenLines<[__m256; 2]>;

        const PAIRS: usize = 4;
        const LARGEST: u8 = 3;
        const HALF_SCALES: bool = true;
        const MINIMA: Minima = Minima::Halves;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> SixteenLines<[__m256; 2]> {
            // SAFETY: the block is valid and needs no alignment; its scales are 16 bytes.
            let (block, lines) = unsafe {
                let lines = _mm_loadu_si128((*block).scales.as_ptr().cast());
                (&*block, lines)
            };
            let low = _mm_set1_epi8(15);
            let floats = |codes: __m128i, unit: u16| {
                let unit = _mm256_set1_ps(avx2::half(unit));
                [codes, _mm_srli_si128::<8>(codes)].map(|codes| {
                    _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(codes)), unit)
                })
            };
            let mins = _mm_and_si128(_mm_srli_epi16::<4>(lines), low);
            SixteenLines {
                scales: floats(_mm_and_si128(lines, low), block.d.bits()),
                mins: floats(mins, block.dmin.bits()),
            }
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(
            block: *const Block,
            header: SixteenLines<[__m256; 2]>,
            pair: usize,
        ) -> avx2::Pair {
            // SAFETY: the block is valid and needs no alignment.
            let (first, second) = two_bits_256(unsafe { &(*block).q[pair / 2] }, pair % 2);
            let (scale, second_scale) = half_scales_256(header.scales, pair);
            avx2::Pair {
                first,
                second,
                scale,
                second_scale,
            }
        }

        #[inline]
        fn half_mins(header: SixteenLines<[__m256; 2]>) -> Option<[__m256; 2]> {
            Some(header.mins)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Block;
    use crate::formats::k_quants::arm::two_bits;
    use crate::panel::Minima;
    use crate::simd::neon;

    /// Scales and minima of the sixteen sub-blocks of a super-block.
    #[derive(Clone, Copy)]
    pub(crate) struct SixteenLines {
        scales: [f32; 16],
        mins: [float32x4_t; 4],
    }

    impl neon::Integer for Block {
        type Header = SixteenLines;

        const BLOCKS: usize = 8;
        const HALF_SCALES: bool = true;
        const MINIMA: Minima = Minima::Halves;

        #[inline]
        fn header(&self) -> SixteenLines {
            let (d, dmin) = (neon::half(self.d.bits()), neon::half(self.dmin.bits()));
            let mins = self.scales.map(|line| dmin * f32::from(line >> 4));
            SixteenLines {
                scales: self.scales.map(|line| d * f32::from(line & 15)),
                // SAFETY: sixteen floats.
                mins: [0, 4, 8, 12].map(|first| unsafe { vld1q_f32(mins.as_ptr().add(first)) }),
            }
        }

        #[inline]
        fn unpack(&self, header: SixteenLines, block: usize) -> neon::Block {
            let (first, second) = two_bits(&self.q[block / 4], block % 4);
            // SAFETY: NEON is part of the architecture.
            unsafe {
                neon::Block {
                    first: vreinterpretq_s8_u8(first),
                    second: vreinterpretq_s8_u8(second),
                    scale: header.scales[2 * block],
                    second_scale: header.scales[2 * block + 1],
                }
            }
        }

        #[inline]
        fn half_mins(header: SixteenLines) -> Option<[float32x4_t; 4]> {
            Some(header.mins)
        }
    }
}
