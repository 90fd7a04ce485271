//! IQ4_XS: super-blocks of 256 numbers, in eight sub-blocks of 32 with a 6-bit scale each, and 4-bit codes of the values of IQ4_NL: `x = d
//! * (scale - 32) * VALUES[q]`.
//!
//! Bits 0..4 of scale j are one half of a byte of `scales_low`; bits 4..6 are bits `2 * j..2 * j + 2` of `scales_high`. The low halves of a
//! sub-block's 16 bytes are its numbers 0..16, the high halves its numbers 16..32.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::codes::{Codes, Lookup, Table};
use crate::formats::fit::{self, Lanes, nearest_int};
use crate::formats::importance::{self, mean_square};
use crate::formats::iq4_nl::{Values, nearest_codes};
use crate::formats::{Half, decode_blocks, encode_row};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 4.25 bits per number: super-blocks of 256, scale per 32, and values spaced more closely near zero.
pub static IQ4_XS: Format = Format {
    name: "IQ4_XS",
    ggml_type: 23,
    block_len: 256,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::SuperBlocks),
    device_apart: 0..8,
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
    d: Half,
    scales_high: [u8; 2],
    scales_low: [u8; 4],
    q: [Lookup<Values>; 8],
}

const _: () = assert!(size_of::<Block>() == 136);

impl Block {
    fn encode(x: &[f32; 256], importance: Option<&[f32; 256]>) -> Block {
        let columns = fit::columns::<32>(x);
        let weights = match importance {
            Some(inputs) => importance::weights(&columns, inputs, Lanes::all(2.0 * mean_square(x))),
            None => fit::squares(&columns),
        };
        let fitted = fit::fit_to_values(&columns, &weights, &Values::VALUES).0;
        // The scale of largest magnitude is represented exactly, as -32.
        let d = -fit::extreme(&fitted) / 32.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let mut block: Block = bytemuck::Zeroable::zeroed();
        block.d = Half::from_f32(d);
        for (j, x) in x.as_chunks().0.iter().enumerate() {
            let scale = nearest_int(inverse * fitted[j]).clamp(-32, 31);
            block.q[j] = Lookup::pack(nearest_codes(x, d * scale as f32));
            let code = (scale + 32) as u8;
            block.scales_low[j / 2] |= (code & 15) << (j % 2 * 4);
            block.scales_high[j / 4] |= code >> 4 << (j % 4 * 2);
        }
        block
    }

    /// The scale of sub-block `j`, minus 32.
    fn scale(&self, j: usize) -> i8 {
        let low = self.scales_low[j / 2] >> (j % 2 * 4) & 15;
        let high = self.scales_high[j / 4] >> (j % 4 * 2) & 3;
        (low | high << 4) as i8 - 32
    }

    fn decode(&self) -> [f32; 256] {
        let mut x = [0.0; 256];
        for (j, x) in x.as_chunks_mut().0.iter_mut().enumerate() {
            let scale = self.d.to_f32() * f32::from(self.scale(j));
            *x = self.q[j].signed().map(|q| scale * f32::from(q));
        }
        x
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let mut dot = 0.0;
        for (b, block) in blocks.iter().enumerate() {
            for j in 0..8 {
                let scale = block.d.to_f32() * f32::from(block.scale(j));
                let codes = scalar::dot_codes(&block.q[j].signed(), &x.block(8 * b + j));
                dot += scale * x.scales[8 * b + j] * codes as f32;
            }
        }
        dot
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, Lookup};
    use crate::formats::codes::Codes;
    use crate::formats::k_quants::x86::EightLines;
    use crate::simd::register::Avx2;
    use crate::simd::{avx2, avx512};

    /// The eight scales; there are no minima.
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    fn eight_scales(block: &Block) -> EightLines {
        let low = _mm256_set1_epi32(i32::from_le_bytes(block.scales_low));
        let high = _mm256_set1_epi32(u16::from_le_bytes(block.scales_high).into());
        let low = _mm256_srlv_epi32(low, _mm256_setr_epi32(0, 4, 8, 12, 16, 20, 24, 28));
        let high = _mm256_srlv_epi32(high, _mm256_setr_epi32(0, 2, 4, 6, 8, 10, 12, 14));
        let low = _mm256_and_si256(low, _mm256_set1_epi32(15));
        let high = _mm256_slli_epi32::<4>(_mm256_and_si256(high, _mm256_set1_epi32(3)));
        let codes = _mm256_sub_epi32(_mm256_or_si256(low, high), _mm256_set1_epi32(32));
        let d = _mm256_set1_ps(avx2::half(block.d.bits()));
        EightLines {
            scales: _mm256_mul_ps(_mm256_cvtepi32_ps(codes), d),
            mins: _mm256_setzero_ps(),
        }
    }

    impl avx512::Integer for Block {
        type Chunk = Block;
        type Header = EightLines;

        const GROUPS: usize = 2;
        const OFFSET: i8 = -128;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> EightLines {
            // SAFETY: the block is valid and needs no alignment.
            eight_scales(unsafe { &*block })
        }

        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        unsafe fn group(block: *const Block, header: EightLines, group: usize) -> avx512::Group {
            // SAFETY: the block is valid; the level has these instructions.
            let (first, second) =
                unsafe { Lookup::unpack_adjacent(&(*block).q.as_chunks::<4>().0[group]) };
            let scale = header.spread(group);
            avx512::Group::new(first.register(), second.register(), scale)
        }
    }

    impl avx2::Integer for Block {
        type Chunk = Block;
        type Header = EightLines;

        const PAIRS: usize = 4;
        const SIGNED: bool = true;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(block: *const Block) -> EightLines {
            // SAFETY: the block is valid and needs no alignment.
            eight_scales(unsafe { &*block })
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(block: *const Block, header: EightLines, pair: usize) -> avx2::Pair {
            // SAFETY: the block is valid; the level has these instructions.
            let (first, second) = unsafe {
                let codes = &(*block).q.as_chunks::<2>().0[pair];
                Lookup::unpack_signed::<Avx2, 2>(codes.each_ref())
            };
            let scale = header.spread_pair(pair);
            avx2::Pair::new(first.register(), second.register(), scale)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Block, Codes, Lookup};
    use crate::simd::neon;
    use crate::simd::neon_register::Neon;

    impl neon::Integer for Block {
        type Header = f32;

        const BLOCKS: usize = 8;

        #[inline]
        fn header(&self) -> f32 {
            neon::half(self.d.bits())
        }

        #[inline]
        fn unpack(&self, d: f32, block: usize) -> neon::Block {
            // SAFETY: NEON is part of the architecture.
            let (first, second) = unsafe { Lookup::unpack_signed::<Neon, 1>([&self.q[block]]) };
            let scale = d * f32::from(self.scale(block));
            neon::Block::new(first.register(), second.register(), scale)
        }
    }
}
