//! Q4_0x16: the numbers of sixteen blocks of Q4_0, ordered for registers of sixteen 32-bit lanes: a lane belongs to a block.
//!
//! A register of codes meets the inputs without being put together, and one conversion and two multiply-adds serve 512 numbers instead of 128. No other
//! program reads it.

use crate::activations::Row;
use crate::format::{Format, Reordered};
use crate::formats::q4_0::{Block, Q4_0};
use crate::formats::{Half, decode_blocks, encode_blocks};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// 4.5 bits per number: [`Q4_0`] in blocks of 512, for CPUs with AVX-512.
pub static Q4_0X16: Format = Format {
    name: "Q4_0x16",
    ggml_type: 0x1000 + 2, // ggml has no such number
    block_len: 512,
    block_bytes: size_of::<Wide>(),
    rounding: Some(Rounding::Blocks),
    device_apart: 0..0,
    reordered: Some(Reordered {
        of: &Q4_0,
        order: |bytes| {
            let (blocks, _) = bytemuck::cast_slice::<u8, Block>(bytes).as_chunks();
            let wides: Vec<Wide> = blocks.iter().map(Wide::of).collect();
            bytemuck::cast_slice(&wides).to_vec()
        },
        restore: |bytes| {
            let wides: &[Wide] = bytemuck::cast_slice(bytes);
            let blocks: Vec<Block> = wides.iter().flat_map(Wide::blocks).collect();
            bytemuck::cast_slice(&blocks).to_vec()
        },
    }),
    encode: |src, dst| encode_blocks(src, dst, Wide::encode),
    decode: |src, dst| decode_blocks(src, dst, Wide::decode),
    kernel: kernel::wide::<Wide>,
};

#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct Wide {
    d: [Half; 16],
    /// Bytes 4 j to 4 j + 3 of block b are `q[j][b]`.
    q: [[[u8; 4]; 16]; 4],
}

const _: () = assert!(size_of::<Wide>() == 16 * size_of::<Block>());

impl Wide {
    fn of(blocks: &[Block; 16]) -> Wide {
        let mut wide: Wide = bytemuck::Zeroable::zeroed();
        for (b, block) in blocks.iter().enumerate() {
            wide.d[b] = block.d;
            for (j, bytes) in block.q.as_chunks::<4>().0.iter().enumerate() {
                wide.q[j][b] = *bytes;
            }
        }
        wide
    }

    fn encode(x: &[f32; 512]) -> Wide {
        let (blocks, _) = x.as_chunks::<32>();
        Wide::of(&std::array::from_fn(|b| Block::encode(&blocks[b])))
    }

    #[inline]
    fn block(&self, b: usize) -> Block {
        Block {
            d: self.d[b],
            q: bytemuck::cast(self.q.map(|bytes| bytes[b])),
        }
    }

    fn blocks(&self) -> [Block; 16] {
        std::array::from_fn(|b| self.block(b))
    }

    fn decode(&self) -> [f32; 512] {
        bytemuck::cast(self.blocks().map(|block| block.decode()))
    }
}

impl scalar::Dot for Wide {
    fn dot(row: &[u8], x: Row) -> f32 {
        let wides: &[Wide] = bytemuck::cast_slice(row);
        let blocks = wides.iter().flat_map(Wide::blocks);
        blocks.enumerate().map(|(b, block)| block.dot(b, x)).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::Wide;
    use crate::simd::{avx2, avx512, avx512_lanes};

    impl avx512_lanes::Lanes for Wide {
        const OFFSET: i8 = 8;

        #[target_feature(enable = "avx512f,f16c")]
        #[inline]
        unsafe fn spacing(wide: *const Wide) -> (__m512, Option<__m512>) {
            // SAFETY: sixteen halves.
            let d = unsafe { _mm256_loadu_si256((&raw const (*wide).d).cast()) };
            (_mm512_cvtph_ps(d), None)
        }

        #[inline]
        fn codes(wide: *const Wide) -> *const [u8; 64] {
            // SAFETY: no reference is made, and the field is within the block.
            unsafe { (&raw const (*wide).q).cast() }
        }
    }

    impl avx512::Integer for Wide {
        type Chunk = Wide;
        type Header = ();

        const GROUPS: usize = 4;
        const OFFSET: i8 = 8;
        const HALF_SCALES: bool = false;

        #[inline]
        unsafe fn header(_: *const Wide) {}

        #[target_feature(enable = "avx512f,avx512bw,f16c")]
        #[inline]
        unsafe fn group(wide: *const Wide, _: (), group: usize) -> avx512::Group {
            // SAFETY: the block is valid.
            let wide = unsafe { &*wide };
            let quarter = |j: usize| {
                let at = wide.q[j][4 * group..][..4].as_ptr();
                // SAFETY: four times four bytes.
                unsafe { _mm_loadu_si128(at.cast()) }
            };
            let codes = avx512::join(quarter(0), quarter(1), quarter(2), quarter(3));
            let codes =
                _mm512_permutexvar_epi32(avx512::constant(&avx512_lanes::TRANSPOSED), codes);
            let low = _mm512_set1_epi8(15);
            let d = [0, 1, 2, 3].map(|b| wide.d[4 * group + b].bits());
            let scale = avx512::spread_halves(d[0], d[1], d[2], d[3]);
            avx512::Group {
                first: _mm512_and_si512(codes, low),
                second: _mm512_and_si512(_mm512_srli_epi16::<4>(codes), low),
                scale,
                second_scale: scale,
            }
        }

        #[inline]
        fn mins(_: ()) -> Option<__m256> {
            None
        }
    }

    impl avx2::Integer for Wide {
        type Chunk = Wide;
        type Header = ();

        const PAIRS: usize = 8;
        const OFFSET: i8 = 8;
        const LARGEST: u8 = 15;
        const SIGNED: bool = false;
        const HALF_SCALES: bool = false;

        #[inline]
        unsafe fn header(_: *const Wide) {}

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn pair(wide: *const Wide, _: (), pair: usize) -> avx2::Pair {
            // SAFETY: the block is valid.
            let wide = unsafe { &*wide };
            // Quarter j of both blocks.
            let quarters = |j: usize| {
                let at = wide.q[j][2 * pair..][..2].as_ptr();
                // SAFETY: twice four bytes.
                unsafe { _mm_castsi128_ps(_mm_loadl_epi64(at.cast())) }
            };
            let start = _mm_movelh_ps(quarters(0), quarters(1));
            let end = _mm_movelh_ps(quarters(2), quarters(3));
            let codes = _mm256_castps_si256(_mm256_set_m128(
                _mm_shuffle_ps::<0b11_01_11_01>(start, end),
                _mm_shuffle_ps::<0b10_00_10_00>(start, end),
            ));
            let low = _mm256_set1_epi8(15);
            let d = [0, 1].map(|b| avx2::half(wide.d[2 * pair + b].bits()));
            let scale = avx2::lanes(d[0], d[1]);
            avx2::Pair {
                first: _mm256_and_si256(codes, low),
                second: _mm256_and_si256(_mm256_srli_epi16::<4>(codes), low),
                scale,
                second_scale: scale,
            }
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

    use super::Wide;
    use crate::simd::neon;

    impl neon::Integer for Wide {
        type Header = ();

        const BLOCKS: usize = 16;
        const HALF_SCALES: bool = false;

        #[inline]
        fn header(&self) {}

        #[inline]
        fn unpack(&self, _: (), block: usize) -> neon::Block {
            neon::Integer::unpack(&self.block(block), (), 0)
        }

        #[inline]
        fn mins(_: ()) -> Option<[float32x4_t; 2]> {
            None
        }
    }
}
