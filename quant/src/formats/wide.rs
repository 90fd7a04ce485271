//! Formats whose blocks are unpacked to one byte per number before they are multiplied: `x = scale * (code - OFFSET)`, with one scale for
//! each sixteen numbers. A format supplies the layout of its block and [`Block::unpack`]; the products of all of them are here.

use bytemuck::{Pod, Zeroable};

use super::Half;
use crate::activations::Row;
use crate::format::{Encode, Format};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::scalar;

/// Numbers that are unpacked together.
const CHUNK: usize = 256;

/// A block of 64, 128 or 256 numbers. All bytes zero are a block of zeros.
pub(crate) trait Block: Pod {
    /// Numbers of the block.
    const LEN: usize;
    /// Subtracted from each code. The offset and all codes are below 128, and codes are at most `2 * OFFSET + 1`.
    const OFFSET: u8;
    /// Whether numbers 0..16 and 16..32 of each 32 may have different scales.
    const HALVES: bool = false;

    /// Writes the codes, eight at a time, and the scale of each sixteen numbers.
    fn unpack(&self, codes: &mut [[u8; 8]], scales: &mut [f32]);
}

/// A block of type `B`, of which `N` make a chunk of 256 numbers.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub(crate) struct Wide<B, const N: usize>(B);

// SAFETY: the block is zeroable.
unsafe impl<B: Block, const N: usize> Zeroable for Wide<B, N> {}
// SAFETY: the block is plain data.
unsafe impl<B: Block, const N: usize> Pod for Wide<B, N> {}

/// Defines a format of blocks `B`. `device_apart` are the bytes of a block that GPU kernels read from a separate place.
pub(crate) const fn format<B: Block, const N: usize>(
    name: &'static str,
    ggml_type: u32,
    rounding: Rounding,
    device_apart: std::ops::Range<usize>,
    encode: Option<Encode>,
) -> Format {
    assert!(B::LEN * N == CHUNK && align_of::<B>() == 1 && B::OFFSET < 127);
    Format {
        name,
        ggml_type,
        block_len: B::LEN,
        block_bytes: size_of::<B>(),
        rounding: Some(rounding),
        device_apart,
        code_tiles: false,
        slot_tiles: false,
        reordered: None,
        encode,
        decode: |src, dst| {
            for (block, values) in bytemuck::cast_slice::<u8, B>(src)
                .iter()
                .zip(dst.chunks_exact_mut(B::LEN))
            {
                let numbers = Numbers::of(std::slice::from_ref(block));
                let scaled = values.iter_mut().enumerate();
                scaled.for_each(|(i, x)| {
                    *x = numbers.scales[i / 16] * f32::from(numbers.signed::<B>(i));
                });
            }
        },
        kernel: kernel::integer::<Wide<B, N>>,
    }
}

/// The largest magnitude as scale, and the nearest multiples of it (-1, 0 or 1) plus one. `beyond` is the code of numbers whose multiple is
/// not finite, because the scale is subnormal or infinite.
pub(crate) fn ternary<const N: usize>(x: &[f32; N], beyond: u8) -> (Half, [u8; N]) {
    let d = x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
    let inverse = if d > 0.0 { 1.0 / d } else { 0.0 };
    let code = |x: f32| match x * inverse {
        multiple if multiple.is_finite() => (multiple.round() as i32 + 1) as u8,
        _ => beyond,
    };
    (Half::from_f32(d), x.map(code))
}

/// The unpacked numbers of a chunk.
#[derive(Clone, Copy)]
#[repr(C, align(64))]
pub(crate) struct Numbers {
    codes: [[u8; 8]; CHUNK / 8],
    scales: [f32; CHUNK / 16],
}

impl Numbers {
    /// Unpacks blocks of at most 256 numbers together.
    #[inline(always)]
    fn of<B: Block>(blocks: &[B]) -> Numbers {
        let mut numbers = Numbers {
            codes: [[0; 8]; CHUNK / 8],
            scales: [0.0; CHUNK / 16],
        };
        let codes = numbers.codes.chunks_exact_mut(B::LEN / 8);
        let scales = numbers.scales.chunks_exact_mut(B::LEN / 16);
        for ((block, codes), scales) in blocks.iter().zip(codes).zip(scales) {
            block.unpack(codes, scales);
        }
        numbers
    }

    /// Code `i` minus the offset.
    fn signed<B: Block>(&self, i: usize) -> i8 {
        self.codes[i / 8][i % 8] as i8 - B::OFFSET as i8
    }
}

impl<B: Block, const N: usize> scalar::Dot for Wide<B, N> {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[B] = bytemuck::cast_slice(row);
        let mut dot = 0.0;
        for (b, block) in blocks.iter().enumerate() {
            let numbers = Numbers::of(std::slice::from_ref(block));
            for run in 0..B::LEN / 32 {
                let input = b * B::LEN / 32 + run;
                let codes = x.block(input);
                let mut sum = 0.0;
                for (half, codes) in codes.as_chunks::<16>().0.iter().enumerate() {
                    let sixteen = 2 * run + half;
                    let weights = std::array::from_fn(|i| numbers.signed::<B>(16 * sixteen + i));
                    let dot = scalar::dot_codes::<16>(&weights, codes);
                    sum += numbers.scales[sixteen] * dot as f32;
                }
                dot += sum * x.scales[input];
            }
        }
        dot
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Block, Numbers, Wide};
    use crate::formats::k_quants::x86::{half_scales_256, half_scales_512};
    use crate::simd::{avx2, avx512};

    impl<B: Block, const N: usize> avx512::Integer for Wide<B, N> {
        type Chunk = [Wide<B, N>; N];
        type Header = Numbers;

        const GROUPS: usize = 2;
        const OFFSET: i8 = B::OFFSET as i8;
        const HALF_SCALES: bool = B::HALVES;

        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
        #[inline]
        unsafe fn header(chunk: *const Self::Chunk) -> Numbers {
            // SAFETY: the chunk is valid and needs no alignment.
            Numbers::of(unsafe { &*chunk.cast::<[B; N]>() })
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq")]
        #[inline]
        unsafe fn group(_: *const Self::Chunk, numbers: Numbers, group: usize) -> avx512::Group {
            // SAFETY: the numbers are aligned to 64 bytes; a group has 128 codes, and there are sixteen scales.
            let (a, b, scales) = unsafe {
                let codes = numbers.codes[16 * group..].as_ptr().cast::<u8>();
                (
                    _mm512_load_si512(codes.cast()),
                    _mm512_load_si512(codes.add(64).cast()),
                    _mm512_load_ps(numbers.scales.as_ptr()),
                )
            };
            let (scale, second_scale) = half_scales_512(scales, group);
            avx512::Group {
                first: _mm512_shuffle_i64x2::<0b10_00_10_00>(a, b),
                second: _mm512_shuffle_i64x2::<0b11_01_11_01>(a, b),
                scale,
                second_scale,
            }
        }
    }

    impl<B: Block, const N: usize> avx2::Integer for Wide<B, N> {
        type Chunk = [Wide<B, N>; N];
        type Header = Numbers;

        const PAIRS: usize = 4;
        const OFFSET: i8 = B::OFFSET as i8;
        const LARGEST: u8 = if B::OFFSET < 63 {
            2 * B::OFFSET + 1
        } else {
            127
        };
        // Only products with separate scales of the halves permit codes of 64 and above.
        const HALF_SCALES: bool = B::HALVES || B::OFFSET > 31;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(chunk: *const Self::Chunk) -> Numbers {
            // SAFETY: the chunk is valid and needs no alignment.
            Numbers::of(unsafe { &*chunk.cast::<[B; N]>() })
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(_: *const Self::Chunk, numbers: Numbers, pair: usize) -> avx2::Pair {
            // SAFETY: the numbers are aligned to 64 bytes; a pair has 64 codes, and there are sixteen scales.
            let (a, b, scales) = unsafe {
                let codes = numbers.codes[8 * pair..].as_ptr().cast::<u8>();
                let scales = numbers.scales.as_ptr();
                (
                    _mm256_load_si256(codes.cast()),
                    _mm256_load_si256(codes.add(32).cast()),
                    [_mm256_load_ps(scales), _mm256_load_ps(scales.add(8))],
                )
            };
            let (scale, second_scale) = half_scales_256(scales, pair);
            avx2::Pair {
                first: _mm256_permute2x128_si256::<0x20>(a, b),
                second: _mm256_permute2x128_si256::<0x31>(a, b),
                scale,
                second_scale,
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use std::arch::aarch64::*;

    use super::{Block, Numbers, Wide};
    use crate::simd::neon;

    impl<B: Block, const N: usize> neon::Integer for Wide<B, N> {
        type Header = Numbers;

        const BLOCKS: usize = B::LEN / 32;
        const HALF_SCALES: bool = B::HALVES;

        #[inline]
        fn header(&self) -> Numbers {
            Numbers::of(std::slice::from_ref(&self.0))
        }

        #[inline]
        fn unpack(&self, numbers: Numbers, block: usize) -> neon::Block {
            let codes = numbers.codes.as_flattened();
            // SAFETY: NEON is part of the architecture.
            let half = |half| unsafe {
                let offset = vdupq_n_u8(B::OFFSET);
                vreinterpretq_s8_u8(vsubq_u8(neon::load(codes, half), offset))
            };
            neon::Block {
                first: half(2 * block),
                second: half(2 * block + 1),
                scale: numbers.scales[2 * block],
                second_scale: numbers.scales[2 * block + 1],
            }
        }
    }
}
