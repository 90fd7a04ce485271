//! Q5_1: blocks of 32 numbers, an f16 scale, an f16 least number and 5-bit codes: `x = d * q + m`.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::low_byte;
use crate::formats::five_bits::FiveBits;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 6 bits per number: blocks of 32 with a scale and a least number.
pub static Q5_1: Format = Format {
    name: "Q5_1",
    ggml_type: 7,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..8,
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
    q: FiveBits,
}

const _: () = assert!(size_of::<Block>() == 24);

impl Block {
    fn encode(x: &[f32; 32]) -> Block {
        let low = x
            .iter()
            .fold(f32::MAX, |low, &x| if x < low { x } else { low });
        let high = x
            .iter()
            .fold(f32::MIN, |high, &x| if x > high { x } else { high });
        let d = (high - low) / 31.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let codes = x.map(|x| low_byte((x - low) * inverse + 0.5));
        Block {
            d: Half::from_f32(d),
            m: Half::from_f32(low),
            q: FiveBits::pack(codes),
        }
    }

    fn codes(&self) -> [i8; 32] {
        self.q.codes(0)
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
    use crate::formats::five_bits::x86::{four_blocks, two_blocks};
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
            let (first, second) = four_blocks([&a.q, &b.q, &c.q, &d.q]);
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
        const LARGEST: u8 = 31;
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
            let (first, second) = two_blocks([&a.q, &b.q]);
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
            let (first, second) = self.q.unpack();
            neon::Block::new(first, second, scale)
        }

        #[inline]
        fn min(min: f32) -> Option<f32> {
            Some(min)
        }
    }
}
