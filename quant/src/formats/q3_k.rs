//! Q3_K: super-blocks of 256 numbers, in sixteen sub-blocks of 16 with a 6-bit scale each, and 3-bit codes: `x = d * (scale - 32) * (q -
//! 4)`.
//!
//! Each half of 128 numbers is four runs of 32. Number i of run j of half h has its low two bits in bits `2 * j..2 * j + 2` of byte i of
//! the half's `low`, and its third bit in bit `4 * h + j` of byte i of `high`.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{self, Fit, Lanes, nearest_int};
use crate::formats::importance::{self, mean_square};
use crate::formats::{Half, decode_blocks, encode_row};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 3.44 bits per number: super-blocks of 256, scale per 16.
pub static Q3_K: Format = Format {
    name: "Q3_K",
    ggml_type: 11,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::SuperBlocks),
    device_apart: 96..110,
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
    high: [u8; 32],
    low: [[u8; 32]; 2],
    scales: Scales,
    d: Half,
}

const _: () = assert!(size_of::<Block>() == 110);

/// Sixteen 6-bit scales in 12 bytes.
///
/// ```text
/// bytes 0..8   bits 0..4 of scale j; bits 0..4 of scale j + 8
/// bytes 8..12  bits 4..6 of scales j, j + 4, j + 8, j + 12
/// ```
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
struct Scales([u8; 12]);

impl Scales {
    fn pack(scales: [u8; 16]) -> Scales {
        let mut packed = [0; 12];
        for (j, scale) in scales.into_iter().enumerate() {
            packed[j % 8] |= (scale & 15) << (j / 8 * 4);
            packed[8 + j % 4] |= scale >> 4 << (j / 4 * 2);
        }
        Scales(packed)
    }

    /// Returns the scales: eight in each number, the first one in the lowest byte.
    #[inline]
    fn unpack(&self) -> [u64; 2] {
        const LOW4: u64 = 0x0f0f_0f0f_0f0f_0f0f;
        const HIGH2: u64 = 0x3030_3030;
        let [a, b, high] = bytemuck::cast::<_, [[u8; 4]; 3]>(self.0).map(u32::from_le_bytes);
        let (low, high) = (u64::from(a) | u64::from(b) << 32, u64::from(high));
        // Bits 0..2 and 2..4 of the last four bytes, then bits 4..6 and 6..8.
        let first = high << 4 & HIGH2 | high << 34 & HIGH2 << 32;
        let second = high & HIGH2 | high << 30 & HIGH2 << 32;
        [low & LOW4 | first, low >> 4 & LOW4 | second]
    }

    /// The scales minus 32.
    #[inline]
    fn signed(&self) -> [i8; 16] {
        bytemuck::cast::<_, [i8; 16]>(self.unpack().map(u64::to_le_bytes)).map(|scale| scale - 32)
    }
}

impl Block {
    fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
        let halves = [0, 128].map(|first| fit::columns::<16>(&x[first..]));
        let mut block: Block = bytemuck::Zeroable::zeroed();
        let fits = if let Some(importance) = importance {
            let spread = Lanes::all(2.0 * mean_square(x));
            let inputs = importance.as_chunks::<128>().0;
            let weights =
                [0, 1].map(|half| importance::weights(&halves[half], &inputs[half], spread));
            let fits = [0, 1].map(|half| fit::fit_symmetric(&halves[half], &weights[half], 4));
            let sums = weights.map(|weights| importance::sums(&weights).0);
            block.round_scales(&fits, |scales| {
                // The sixteen scales are fitted like a block of numbers.
                let [x, weights] = [scales, bytemuck::cast(sums)].map(|all| all.map(Lanes::all));
                let fit = fit::fit_symmetric(&x, &weights, 32);
                (fit.scale.0[0], fit.codes_of(0))
            });
            fits
        } else {
            let fits = halves.map(|columns| fit::fit_one_by_one(&columns, 4));
            block.round_scales(&fits, |scales| {
                // The scale of largest magnitude is represented exactly, as -32.
                let extreme = fit::extreme(&scales);
                if extreme == 0.0 {
                    return (0.0, [0; 16]);
                }
                let inverse = -32.0 / extreme;
                let code = |s: f32| (nearest_int(inverse * s) as i8).clamp(-32, 31) + 32;
                (1.0 / inverse, scales.map(|s| code(s) as u8))
            });
            fits
        };
        let scales = block.scales.signed();
        for (sub, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let scale = block.d.to_f32() * f32::from(scales[sub]);
            let codes = if scale == 0.0 {
                fits[sub / 8].codes_of(sub % 8)
            } else {
                x.map(|x| (nearest_int(x / scale).clamp(-4, 3) + 4) as u8)
            };
            let (half, run, first) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
            for (i, code) in codes.iter().enumerate() {
                block.low[half][first + i] |= (code & 3) << (2 * run);
                block.high[first + i] |= code >> 2 << (4 * half + run);
            }
        }
        block
    }

    /// Stores the sub-blocks' scales as one common scale and 6-bit codes.
    fn round_scales(&mut self, fits: &[Fit<16>; 2], round: impl Fn([f32; 16]) -> (f32, [u8; 16])) {
        let [a, b] = fits;
        let (d, codes) = round(bytemuck::cast([a.scale.0, b.scale.0]));
        self.d = Half::from_f32(d);
        self.scales = Scales::pack(codes);
    }

    /// The codes of run `run` (of 8), minus 4.
    fn codes(&self, run: usize) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..32 {
            let low = self.low[run / 4][i] >> (run % 4 * 2) & 3;
            codes[i] = (low | (self.high[i] >> run & 1) << 2) as i8 - 4;
        }
        codes
    }

    fn decode(&self) -> [f32; 256] {
        let mut x = [0.0; 256];
        let scales = self.scales.signed();
        for (run, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = self.codes(run);
            for i in 0..32 {
                let scale = self.d.to_f32() * f32::from(scales[2 * run + i / 16]);
                x[i] = scale * f32::from(codes[i]);
            }
        }
        x
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let mut dot = 0.0;
        for (b, block) in blocks.iter().enumerate() {
            let scales = block.scales.signed();
            for run in 0..8 {
                let (weights, codes) = (block.codes(run), x.block(8 * b + run));
                let halves = weights.as_chunks::<16>().0.iter().zip(codes.as_chunks().0);
                let mut sum = 0.0;
                for (half, (weights, codes)) in halves.enumerate() {
                    let scale = block.d.to_f32() * f32::from(scales[2 * run + half]);
                    sum += scale * scalar::dot_codes(weights, codes) as f32;
                }
                dot += sum * x.scales[8 * b + run];
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
        half_scales_256, half_scales_512, high_bits_256, high_bits_512, two_bits_256, two_bits_512,
    };
    use crate::simd::{avx2, avx512};

    /// The sixteen scales minus 32.
    #[target_feature(enable = "avx2")]
    #[inline]
    fn signed_scales(block: &Block) -> __m128i {
        let [first, second] = block.scales.unpack();
        let scales = _mm_set_epi64x(second as i64, first as i64);
        _mm_sub_epi8(scales, _mm_set1_epi8(32))
    }

    impl avx512::Integer for Block {
        type Chunk = Block;
        type Header = __m512;

        const GROUPS: usize = 2;
        const OFFSET: i8 = 4;
        const HALF_SCALES: bool = true;

        #[target_feature(enable = "avx512f,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> __m512 {
            // SAFETY: the block is valid and needs no alignment.
            let block = unsafe { &*block };
            let scales = signed_scales(block);
            let d = _mm512_set1_ps(avx2::half(block.d.bits()));
            _mm512_mul_ps(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)), d)
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
        #[inline]
        unsafe fn group(block: *const Block, header: __m512, group: usize) -> avx512::Group {
            // SAFETY: the block is valid and needs no alignment.
            let block = unsafe { &*block };
            let (first, second) = two_bits_512(&block.low[group]);
            let (first_high, second_high) = high_bits_512(&block.high, group);
            let four = _mm512_set1_epi8(4);
            let (scale, second_scale) = half_scales_512(header, group);
            avx512::Group {
                first: _mm512_mask_add_epi8(first, first_high, first, four),
                second: _mm512_mask_add_epi8(second, second_high, second, four),
                scale,
                second_scale,
            }
        }
    }

    impl avx2::Integer for Block {
        type Chunk = Block;
        type Header = [__m256; 2];

        const PAIRS: usize = 4;
        const OFFSET: i8 = 4;
        const LARGEST: u8 = 7;
        const HALF_SCALES: bool = true;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> [__m256; 2] {
            // SAFETY: the block is valid and needs no alignment.
            let block = unsafe { &*block };
            let scales = signed_scales(block);
            let d = _mm256_set1_ps(avx2::half(block.d.bits()));
            let floats =
                |scales| _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)), d);
            [floats(scales), floats(_mm_srli_si128::<8>(scales))]
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(block: *const Block, header: [__m256; 2], pair: usize) -> avx2::Pair {
            // SAFETY: the block is valid and needs no alignment.
            let block = unsafe { &*block };
            let (first, second) = two_bits_256(&block.low[pair / 2], pair % 2);
            let (first_high, second_high) = high_bits_256(&block.high, pair, 4);
            let (scale, second_scale) = half_scales_256(header, pair);
            avx2::Pair {
                first: _mm256_or_si256(first, first_high),
                second: _mm256_or_si256(second, second_high),
                scale,
                second_scale,
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Block;
    use crate::formats::k_quants::arm::two_bits;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = [f32; 16];

        const BLOCKS: usize = 8;
        const HALF_SCALES: bool = true;

        #[inline]
        fn header(&self) -> [f32; 16] {
            let d = neon::half(self.d.bits());
            self.scales.signed().map(|scale| d * f32::from(scale))
        }

        #[inline]
        fn unpack(&self, header: [f32; 16], block: usize) -> neon::Block {
            let (first, second) = two_bits(&self.low[block / 4], block % 4);
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let bit = vdupq_n_u8(1 << block);
                // The codes minus 4: subtracts 4 where the third bit is not set.
                let with = |low, half| {
                    let set = vtstq_u8(neon::load(&self.high, half), bit);
                    let below = vbicq_u8(vdupq_n_u8(4), set);
                    vreinterpretq_s8_u8(vsubq_u8(low, below))
                };
                neon::Block {
                    first: with(first, 0),
                    second: with(second, 1),
                    scale: header[2 * block],
                    second_scale: header[2 * block + 1],
                }
            }
        }
    }
}
