//! Q4_1: blocks of 32 numbers, an f16 scale, an f16 least number and 4-bit codes: `x = d * q + m`.
//!
//! The low halves of the bytes are numbers 0..16, the high halves numbers 16..32.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::low_byte;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 5 bits per number: blocks of 32 with a scale and a least number.
pub static Q4_1: Format = Format {
    name: "Q4_1",
    ggml_type: 3,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..4,
    reordered: None,
    encode: |src, dst| encode_blocks(src, dst, Block::encode),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    d: Half,
    m: Half,
    q: [u8; 16],
}

const _: () = assert!(size_of::<Block>() == 20);

impl Block {
    fn encode(x: &[f32; 32]) -> Block {
        let low = x
            .iter()
            .fold(f32::MAX, |low, &x| if x < low { x } else { low });
        let high = x
            .iter()
            .fold(f32::MIN, |high, &x| if x > high { x } else { high });
        let d = (high - low) / 15.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let codes = x.map(|x| (low_byte((x - low) * inverse + 0.5) as i8).min(15) as u8);
        let mut q = [0; 16];
        for i in 0..16 {
            q[i] = codes[i] | codes[i + 16] << 4;
        }
        Block {
            d: Half::from_f32(d),
            m: Half::from_f32(low),
            q,
        }
    }

    fn codes(&self) -> [i8; 32] {
        let mut codes = [0; 32];
        for i in 0..16 {
            codes[i] = (self.q[i] & 15) as i8;
            codes[i + 16] = (self.q[i] >> 4) as i8;
        }
        codes
    }

    fn decode(&self) -> [f32; 32] {
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        self.codes().map(|q| f32::from(q) * d + m)
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Block)| {
            let codes = scalar::dot_codes(&block.codes(), &x.block(b)) as f32;
            block.d.to_f32() * x.scales[b] * codes + block.m.to_f32() * x.sums[b]
        };
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;
    use crate::formats::k_quants::x86::{EightLines, lines_of_blocks};
    use crate::panel::Minima;
    use crate::simd::{avx2, avx512};

    impl Block {
        fn line(&self) -> [u16; 2] {
            [self.d.bits(), self.m.bits()]
        }
    }

    impl avx512::Integer for Block {
        type Chunk = [Block; 8];
        type Header = EightLines;

        const GROUPS: usize = 2;
        const MINIMA: Minima = Minima::Blocks;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(chunk: *const [Block; 8]) -> EightLines {
            // SAFETY: the chunk is valid; blocks need no alignment.
            lines_of_blocks(unsafe { &*chunk }.each_ref().map(Block::line))
        }

        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        unsafe fn group(
            chunk: *const [Block; 8],
            header: EightLines,
            group: usize,
        ) -> avx512::Group {
            // SAFETY: as above.
            let [a, b, c, d] = unsafe { &(*chunk).as_chunks::<4>().0[group] };
            let codes = |block: &Block| {
                // SAFETY: a block's codes are 16 bytes.
                unsafe { _mm_loadu_si128(block.q.as_ptr().cast()) }
            };
            let low = _mm512_set1_epi8(15);
            let codes = avx512::join(codes(a), codes(b), codes(c), codes(d));
            let first = _mm512_and_si512(codes, low);
            let second = _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low);
            let scale = header.spread(group);
            avx512::Group::new(first, second, scale)
        }

        #[inline]
        fn mins(header: EightLines) -> Option<__m256> {
            Some(header.mins)
        }
    }

    impl avx2::Integer for Block {
        type Chunk = [Block; 8];
        type Header = EightLines;

        const PAIRS: usize = 4;
        const LARGEST: u8 = 15;
        const MINIMA: Minima = Minima::Blocks;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(chunk: *const [Block; 8]) -> EightLines {
            // SAFETY: the chunk is valid; blocks need no alignment.
            lines_of_blocks(unsafe { &*chunk }.each_ref().map(Block::line))
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(chunk: *const [Block; 8], header: EightLines, pair: usize) -> avx2::Pair {
            // SAFETY: as above.
            let [a, b] = unsafe { &(*chunk).as_chunks::<2>().0[pair] };
            // SAFETY: a block's codes are 16 bytes.
            let codes = unsafe { _mm256_loadu2_m128i(b.q.as_ptr().cast(), a.q.as_ptr().cast()) };
            let low = _mm256_set1_epi8(15);
            let first = _mm256_and_si256(codes, low);
            let second = _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low);
            let scale = header.spread_pair(pair);
            avx2::Pair::new(first, second, scale)
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
    use crate::panel::Minima;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = f32;

        const BLOCKS: usize = 1;
        const MINIMA: Minima = Minima::Blocks;

        #[inline]
        fn header(&self) -> f32 {
            -neon::half(self.m.bits())
        }

        #[inline]
        fn unpack(&self, _: f32, _: usize) -> neon::Block {
            let scale = neon::half(self.d.bits());
            let codes = neon::load(&self.q, 0);
            // SAFETY: NEON is part of the architecture.
            let (first, second) = unsafe {
                (
                    vreinterpretq_s8_u8(vandq_u8(codes, vdupq_n_u8(15))),
                    vreinterpretq_s8_u8(vshrq_n_u8::<4>(codes)),
                )
            };
            neon::Block::new(first, second, scale)
        }

        #[inline]
        fn min(min: f32) -> Option<f32> {
            Some(min)
        }
    }
}
