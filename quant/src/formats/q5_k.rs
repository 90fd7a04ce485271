//! Q5_K: like Q4_K, with a fifth bit per code: `x = d * scale * q - dmin * min`.
//!
//! Bit j of byte i of `high` is the fifth bit of number i of sub-block j.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::Spacings;
use crate::formats::k_quants::{PackedScales, SUB, fit_super_block};
use crate::formats::{Half, decode_blocks, encode_row};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 5.5 bits per number: super-blocks of 256, scale and minimum per 32.
pub static Q5_K: Format = Format {
    name: "Q5_K",
    ggml_type: 13,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::SuperBlocks),
    device_apart: 0..0,
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
    d: Half,
    dmin: Half,
    scales: PackedScales,
    high: [u8; 32],
    low: [[u8; 32]; 4],
}

const _: () = assert!(size_of::<Block>() == 176);

impl Block {
    fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
        let fit = fit_super_block(
            x,
            importance,
            Spacings {
                max_code: 31,
                first: -0.5,
                stride: 0.1,
                steps: 15,
            },
        );
        let (mut high, mut low) = ([0; 32], [[0; 32]; 4]);
        for (sub, codes) in fit.codes.iter().enumerate() {
            for (i, code) in codes.iter().enumerate() {
                low[sub / 2][i] |= (code & 15) << (sub % 2 * 4);
                high[i] |= code >> 4 << sub;
            }
        }
        Block {
            d: fit.d,
            dmin: fit.dmin,
            scales: fit.packed,
            high,
            low,
        }
    }

    fn codes(&self, sub: usize) -> [i8; SUB] {
        let mut codes = [0; SUB];
        for i in 0..SUB {
            let low = self.low[sub / 2][i] >> (sub % 2 * 4) & 15;
            codes[i] = (low | (self.high[i] >> sub & 1) << 4) as i8;
        }
        codes
    }

    fn decode(&self) -> [f32; 256] {
        let mut x = [0.0; 256];
        let (scales, mins) = self.scales.unpack();
        for (sub, x) in x.as_chunks_mut::<SUB>().0.iter_mut().enumerate() {
            let scale = self.d.to_f32() * f32::from(scales.to_le_bytes()[sub]);
            let min = self.dmin.to_f32() * f32::from(mins.to_le_bytes()[sub]);
            *x = self.codes(sub).map(|q| scale * f32::from(q) - min);
        }
        x
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let mut dot = 0.0;
        for (b, block) in blocks.iter().enumerate() {
            let (scales, mins) = block.scales.unpack();
            for sub in 0..8 {
                let scale = block.d.to_f32() * f32::from(scales.to_le_bytes()[sub]);
                let min = block.dmin.to_f32() * f32::from(mins.to_le_bytes()[sub]);
                let codes = scalar::dot_codes(&block.codes(sub), &x.block(8 * b + sub)) as f32;
                dot += scale * x.scales[8 * b + sub] * codes - min * x.sums[8 * b + sub];
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
        EightLines, eight_lines, eight_lines_512, high_bits_256, high_bits_512, spread,
    };
    use crate::panel::Minima;
    use crate::simd::{avx2, avx512};

    impl avx512::Integer for Block {
        type Chunk = Block;
        type Header = __m512;

        const GROUPS: usize = 2;
        const MINIMA: Minima = Minima::Blocks;

        #[target_feature(enable = "avx512f,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> __m512 {
            // SAFETY: the block is valid.
            unsafe { eight_lines_512(&(*block).d, &(*block).dmin, &(*block).scales) }
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
        #[inline]
        unsafe fn group(block: *const Block, header: __m512, group: usize) -> avx512::Group {
            // SAFETY: the block is valid; a group's low bits are 64 bytes.
            let (low, high) = unsafe {
                let low = _mm512_loadu_si512((*block).low.as_ptr().add(2 * group).cast());
                (low, &(*block).high)
            };
            let (first, second) = avx512::nibbles(low);
            let (first_high, second_high) = high_bits_512(high, group);
            let sixteen = _mm512_set1_epi8(16);
            let scale = spread(header, group);
            avx512::Group::new(
                _mm512_mask_add_epi8(first, first_high, first, sixteen),
                _mm512_mask_add_epi8(second, second_high, second, sixteen),
                scale,
            )
        }

        #[inline]
        fn mins(header: __m512) -> Option<__m256> {
            // SAFETY: only called on levels with AVX-512.
            Some(unsafe { _mm512_extractf32x8_ps::<1>(header) })
        }
    }

    impl avx2::Integer for Block {
        type Chunk = Block;
        type Header = EightLines;

        const PAIRS: usize = 4;
        const LARGEST: u8 = 31;
        const MINIMA: Minima = Minima::Blocks;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> EightLines {
            // SAFETY: the block is valid.
            unsafe { eight_lines(&(*block).d, &(*block).dmin, &(*block).scales) }
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(block: *const Block, header: EightLines, pair: usize) -> avx2::Pair {
            // SAFETY: the block is valid; a pair's low bits are 32 bytes.
            let (low, high) = unsafe {
                let low = _mm256_loadu_si256((*block).low.as_ptr().add(pair).cast());
                (low, &(*block).high)
            };
            let (first, second) = avx2::nibbles(low);
            let (first_high, second_high) = high_bits_256(high, pair, 16);
            let scale = header.spread_pair(pair);
            avx2::Pair::new(
                _mm256_or_si256(first, first_high),
                _mm256_or_si256(second, second_high),
                scale,
            )
        }

        #[inline]
        fn mins(header: EightLines) -> Option<__m256> {
            Some(header.mins)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Block;
    use crate::formats::k_quants::arm::{EightLines, eight_lines, nibbles};
    use crate::panel::Minima;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = EightLines;

        const BLOCKS: usize = 8;
        const MINIMA: Minima = Minima::Blocks;

        #[inline]
        fn header(&self) -> EightLines {
            eight_lines(&self.d, &self.dmin, &self.scales)
        }

        #[inline]
        fn unpack(&self, header: EightLines, block: usize) -> neon::Block {
            let (first, second) = nibbles(&self.low[block / 2], block % 2);
            let scale = header.scales[block];
            // SAFETY: NEON is part of the architecture.
            unsafe {
                let bit = vdupq_n_u8(1 << block);
                let with = |low, half| {
                    let set = vtstq_u8(neon::load(&self.high, half), bit);
                    vreinterpretq_s8_u8(vorrq_u8(low, vandq_u8(set, vdupq_n_u8(16))))
                };
                neon::Block::new(with(first, 0), with(second, 1), scale)
            }
        }

        #[inline]
        fn mins(header: EightLines) -> Option<[float32x4_t; 2]> {
            Some(header.mins)
        }
    }
}
