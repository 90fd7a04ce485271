//! Q5_0: blocks of 32 numbers, an f16 scale and 5-bit codes: `x = d * (q - 16)`.

use crate::activations::Row;
use crate::format::Format;
use crate::formats::fit::{self, low_byte};
use crate::formats::five_bits::FiveBits;
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 5.5 bits per number: blocks of 32 with one scale.
pub static Q5_0: Format = Format {
    name: "Q5_0",
    ggml_type: 6,
    block_len: 32,
    block_bytes: size_of::<Block>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..6,
    reordered: None,
    encode: |src, dst| encode_blocks(src, dst, Block::encode),
    decode: |src, dst| decode_blocks(src, dst, Block::decode),
    kernel: kernel::integer::<Block>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Block {
    d: Half,
    q: FiveBits,
}

const _: () = assert!(size_of::<Block>() == 22);

impl Block {
    fn encode(x: &[f32; 32]) -> Block {
        // The number of largest magnitude (the first of equals) becomes code 0, that is -16, exactly.
        let d = fit::extreme(x) / -16.0;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        Block {
            d: Half::from_f32(d),
            q: FiveBits::pack(x.map(|x| (low_byte(x * inverse + 16.5) as i8).min(31) as u8)),
        }
    }

    fn decode(&self) -> [f32; 32] {
        let d = self.d.to_f32();
        self.q.codes(16).map(|q| f32::from(q) * d)
    }
}

impl scalar::Dot for Block {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Block] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Block)| {
            let codes = scalar::dot_codes(&block.q.codes(16), &x.block(b)) as f32;
            codes * (block.d.to_f32() * x.scales[b])
        };
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Block;
    use crate::formats::five_bits::x86::{four_blocks, two_blocks};
    use crate::simd::{avx2, avx512};

    impl avx512::Integer for Block {
        type Chunk = [Block; 4];
        type Header = ();

        const GROUPS: usize = 1;
        const OFFSET: i8 = 16;

        #[inline]
        unsafe fn header(_: *const [Block; 4]) {}

        #[target_feature(enable = "avx512f,avx512bw,f16c")]
        #[inline]
        unsafe fn group(chunk: *const [Block; 4], _: (), _: usize) -> avx512::Group {
            // SAFETY: the chunk is valid; blocks need no alignment.
            let [a, b, c, d] = unsafe { &*chunk };
            let (first, second) = four_blocks([&a.q, &b.q, &c.q, &d.q]);
            let scale = avx512::spread_halves(a.d.bits(), b.d.bits(), c.d.bits(), d.d.bits());
            avx512::Group::new(first, second, scale)
        }

        #[inline]
        fn mins(_: ()) -> Option<__m256> {
            None
        }
    }

    impl avx2::Integer for Block {
        type Chunk = [Block; 2];
        type Header = ();

        const PAIRS: usize = 1;
        const OFFSET: i8 = 16;
        const LARGEST: u8 = 31;

        #[inline]
        unsafe fn header(_: *const [Block; 2]) {}

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn pair(chunk: *const [Block; 2], _: (), _: usize) -> avx2::Pair {
            // SAFETY: the chunk is valid; blocks need no alignment.
            let [a, b] = unsafe { &*chunk };
            let (first, second) = two_blocks([&a.q, &b.q]);
            let scale = avx2::lanes(avx2::half(a.d.bits()), avx2::half(b.d.bits()));
            avx2::Pair::new(first, second, scale)
        }

        #[inline]
        fn mins(_: ()) -> Option<__m256> {
            None
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::Block;
    use crate::simd::neon;

    impl neon::Integer for Block {
        type Header = ();

        const BLOCKS: usize = 1;

        #[inline]
        fn header(&self) {}

        #[inline]
        fn unpack(&self, _: (), _: usize) -> neon::Block {
            let (first, second) = self.q.unpack();
            let scale = neon::half(self.d.bits());
            // SAFETY: NEON is part of the architecture.
            unsafe {
                neon::Block::new(
                    vsubq_s8(first, vdupq_n_s8(16)),
                    vsubq_s8(second, vdupq_n_s8(16)),
                    scale,
                )
            }
        }

        #[inline]
        fn mins(_: ()) -> Option<[float32x4_t; 2]> {
            None
        }
    }
}
