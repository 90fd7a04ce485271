//! Q6_K: super-blocks of 256 numbers, in sixteen sub-blocks of 16 with an 8-bit scale each, and 6-bit codes: `x = d * scale * (q - 32)`.
//!
//! Each half of 128 numbers is four runs of 32. Number i of run j has its low four bits in byte `32 * (j % 2) + i` of the half's `low`:
//! runs 0 and 1 in the low halves of the bytes, runs 2 and 3 in the high halves. Its high two bits are bits `2 * j..2 * j + 2` of byte i of
//! the half's `high`.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{self, nearest_int};
use crate::formats::{Half, decode_blocks, encode_row};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 6.56 bits per number: super-blocks of 256, scale per 16.
pub static Q6_K: Format = Format {
    name: "Q6_K",
    ggml_type: 14,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::SuperBlocks),
    device_apart: 208..210,
    code_tiles: true,
    slot_tiles: true,
    reordered: None,
    encode: Some(|src, importance, dst| encode_row(src, importance, dst, Block::encode)),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    low: [[u8; 64]; 2],
    high: [[u8; 32]; 2],
    scales: [i8; 16],
    d: Half,
}

const _: () = assert!(size_of::<Block>() == 210);

impl Block {
    fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
        let fits = [0, 128].map(|first| {
            let columns = fit::columns::<16>(&x[first..]);
            // Weights are the inputs' mean squares alone, whatever the numbers' magnitudes.
            let weights = match importance {
                Some(importance) => fit::columns(&importance[first..]),
                None => fit::squares(&columns),
            };
            fit::fit_symmetric(&columns, &weights, 32)
        });
        let fitted: [f32; 16] = bytemuck::cast([fits[0].scale.0, fits[1].scale.0]);
        // The scale of largest magnitude is represented exactly, as -128.
        let extreme = fit::extreme(&fitted);
        let mut block: Block = bytemuck::Zeroable::zeroed();
        if extreme.abs() < fit::LEAST_MAGNITUDE {
            return block;
        }
        let inverse = -128.0 / extreme;
        block.d = Half::from_f32(1.0 / inverse);
        block.scales = fitted.map(|s| nearest_int(inverse * s).min(127) as i8);
        for (sub, x) in x.as_chunks::<16>().0.iter().enumerate() {
            let scale = block.d.to_f32() * f32::from(block.scales[sub]);
            let codes = if scale == 0.0 {
                fits[sub / 8].codes_of(sub % 8)
            } else {
                x.map(|x| (nearest_int(x / scale).clamp(-32, 31) + 32) as u8)
            };
            let (half, run, first) = (sub / 8, sub % 8 / 2, sub % 2 * 16);
            for (i, code) in codes.iter().enumerate() {
                block.low[half][run % 2 * 32 + first + i] |= (code & 15) << (run / 2 * 4);
                block.high[half][first + i] |= code >> 4 << (run * 2);
            }
        }
        block
    }

    /// The codes of run `run` (of 8), minus 32.
    fn codes(&self, run: usize) -> [i8; 32] {
        let (half, run) = (run / 4, run % 4);
        let mut codes = [0; 32];
        for i in 0..32 {
            let low = self.low[half][run % 2 * 32 + i] >> (run / 2 * 4) & 15;
            let high = self.high[half][i] >> (run * 2) & 3;
            codes[i] = (low | high << 4) as i8 - 32;
        }
        codes
    }

    fn decode(&self) -> [f32; 256] {
        let mut x = [0.0; 256];
        for (run, x) in x.as_chunks_mut::<32>().0.iter_mut().enumerate() {
            let codes = self.codes(run);
            for i in 0..32 {
                let scale = self.d.to_f32() * f32::from(self.scales[2 * run + i / 16]);
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
            for run in 0..8 {
                let (weights, codes) = (block.codes(run), x.block(8 * b + run));
                let mut sum = 0.0;
                for (half, (weights, codes)) in weights
                    .as_chunks::<16>()
                    .0
                    .iter()
                    .zip(codes.as_chunks().0)
                    .enumerate()
                {
                    let scale = block.d.to_f32() * f32::from(block.scales[2 * run + half]);
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
    use crate::formats::k_quants::x86::{half_scales_256, half_scales_512};
    use crate::simd::avx512::constant;
    use crate::simd::{avx2, avx512};

    /// How far each 128-bit lane is rotated left to bring its two high bits to bits 4 and 5: 4, 2, 0, -2.
    const ROTATIONS: [i32; 16] = [4, 4, 4, 4, 2, 2, 2, 2, 0, 0, 0, 0, 30, 30, 30, 30];

    impl avx512::Integer for Block {
        type Chunk = Block;
        type Header = __m512;

        const GROUPS: usize = 2;
        const OFFSET: i8 = 32;
        const HALF_SCALES: bool = true;

        #[target_feature(enable = "avx512f,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> __m512 {
            // SAFETY: the block is valid; its scales are 16 bytes.
            let (scales, d) = unsafe {
                (
                    _mm_loadu_si128((*block).scales.as_ptr().cast()),
                    (*block).d.bits(),
                )
            };
            _mm512_mul_ps(
                _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(scales)),
                _mm512_set1_ps(avx2::half(d)),
            )
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
        #[inline]
        unsafe fn group(block: *const Block, header: __m512, group: usize) -> avx512::Group {
            // SAFETY: a group has 64 bytes of low bits and 32 bytes of high bits.
            let (low, high_1, high_2) = unsafe {
                let high = (*block).high.as_ptr().add(group).cast::<__m128i>();
                (
                    _mm512_loadu_si512((*block).low.as_ptr().add(group).cast()),
                    _mm512_broadcast_i32x4(_mm_loadu_si128(high)),
                    _mm512_broadcast_i32x4(_mm_loadu_si128(high.add(1))),
                )
            };
            // The lanes of `low` are the first and second halves of runs 0 and 2, then of runs 1 and 3.
            let first = _mm512_shuffle_i64x2::<0b10_00_10_00>(low, low);
            let second = _mm512_shuffle_i64x2::<0b11_01_11_01>(low, low);
            let rotations = constant(&ROTATIONS);
            let join = |low, high| {
                // The low four bits come from `low`, the next two from `high`.
                const SELECT: i32 = 0b1100_1010;
                let low = _mm512_mask_srli_epi16::<4>(low, 0xffff_0000, low);
                let high = _mm512_rolv_epi32(high, rotations);
                let both = _mm512_ternarylogic_epi32::<SELECT>(_mm512_set1_epi8(15), low, high);
                _mm512_and_si512(both, _mm512_set1_epi8(63))
            };
            let (scale, second_scale) = half_scales_512(header, group);
            avx512::Group {
                first: join(first, high_1),
                second: join(second, high_2),
                scale,
                second_scale,
            }
        }
    }

    impl avx2::Integer for Block {
        type Chunk = Block;
        type Header = [__m256; 2];

        const PAIRS: usize = 4;
        const OFFSET: i8 = 32;
        const HALF_SCALES: bool = true;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> [__m256; 2] {
            // SAFETY: the block is valid; its scales are 16 bytes.
            let (scales, d) = unsafe {
                (
                    _mm_loadu_si128((*block).scales.as_ptr().cast()),
                    (*block).d.bits(),
                )
            };
            let d = _mm256_set1_ps(avx2::half(d));
            let floats =
                |scales| _mm256_mul_ps(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(scales)), d);
            [floats(scales), floats(_mm_srli_si128::<8>(scales))]
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(block: *const Block, header: [__m256; 2], pair: usize) -> avx2::Pair {
            let (half, upper) = (pair / 2, pair % 2);
            // SAFETY: a half has 64 bytes of low bits and 32 bytes of high bits.
            let (low_1, low_2, high_1, high_2) = unsafe {
                let low = (*block).low.as_ptr().add(half).cast::<__m128i>();
                let high = (*block).high.as_ptr().add(half).cast::<__m128i>();
                (
                    _mm256_loadu2_m128i(low.add(2), low),
                    _mm256_loadu2_m128i(low.add(3), low.add(1)),
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(high)),
                    _mm256_broadcastsi128_si256(_mm_loadu_si128(high.add(1))),
                )
            };
            // Runs 2 * upper and 2 * upper + 1, one per lane.
            let down = _mm_cvtsi32_si128(4 * upper as i32);
            let left = _mm256_set_epi64x(2, 2, 4, 4);
            let join = |low, high| {
                let low = _mm256_and_si256(_mm256_srl_epi16(low, down), _mm256_set1_epi8(15));
                // Bits from neighbouring bytes are shifted in and masked away.
                let high = _mm256_sllv_epi64(_mm256_srl_epi16(high, down), left);
                _mm256_or_si256(low, _mm256_and_si256(high, _mm256_set1_epi8(48)))
            };
            let (scale, second_scale) = half_scales_256(header, pair);
            avx2::Pair {
                first: join(low_1, high_1),
                second: join(low_2, high_2),
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
    use crate::formats::k_quants::arm::nibbles;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = f32;

        const BLOCKS: usize = 8;
        const HALF_SCALES: bool = true;

        #[inline]
        fn header(&self) -> f32 {
            neon::half(self.d.bits())
        }

        #[inline]
        fn unpack(&self, d: f32, block: usize) -> neon::Block {
            let (half, run) = (block / 4, block % 4);
            let low = self.low[half].as_chunks().0;
            let (first, second) = nibbles(&low[run % 2], run / 2);
            let scale = |part: usize| d * f32::from(self.scales[2 * block + part]);
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let right = vdupq_n_s8(-2 * run as i8);
                let with = |low, part| {
                    let high = vshlq_u8(neon::load(&self.high[half], part), right);
                    let code = vorrq_u8(low, vshlq_n_u8::<4>(vandq_u8(high, vdupq_n_u8(3))));
                    vsubq_s8(vreinterpretq_s8_u8(code), vdupq_n_s8(32))
                };
                neon::Block {
                    first: with(first, 0),
                    second: with(second, 1),
                    scale: scale(0),
                    second_scale: scale(1),
                }
            }
        }
    }
}
