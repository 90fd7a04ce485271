//! Formats whose blocks have 64, 128 or 256 numbers in runs of 32: `x = scale * (code - OFFSET)`, with one scale for each sixteen numbers. A
//! format supplies the layout of its block and [`Block::unpack`]; the products of all of them are here.

use bytemuck::{Pod, Zeroable};

use super::Half;
use crate::activations::Row;
use crate::format::{Encode, Format};
use crate::kernel;
use crate::rounding::Rounding;
use crate::simd::register::Register;
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

    /// The factor of all scales.
    fn factor(&self) -> f32;

    /// The scales of both halves of a run, from the block's factor.
    #[inline(always)]
    fn scales(&self, factor: f32, _run: usize) -> [f32; 2] {
        [factor; 2]
    }

    /// Unpacks the first and the last 16 codes of a run of each block.
    ///
    /// # Safety
    /// As for [`Register::load`].
    unsafe fn unpack<R: Register<N>, const N: usize>(runs: [Run<Self>; N]) -> (R, R);
}

/// A run of 32 numbers: its block and its number there.
pub(crate) type Run<'a, B> = (&'a B, usize);

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
                let factor = block.factor();
                for (run, values) in values.as_chunks_mut::<32>().0.iter_mut().enumerate() {
                    let (halves, scales) = (codes(block, run), block.scales(factor, run));
                    for (i, x) in values.iter_mut().enumerate() {
                        *x = scales[i / 16] * f32::from(halves[i / 16][i % 16]);
                    }
                }
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

/// The codes of both halves of a run, minus the offset.
fn codes<B: Block>(block: &B, run: usize) -> [[i8; 16]; 2] {
    // SAFETY: the scalar register needs no CPU features.
    let (first, second) = unsafe { B::unpack::<[u8; 16], 1>([(block, run)]) };
    [first, second].map(|half| half.map(|code| code as i8 - B::OFFSET as i8))
}

impl<B: Block, const N: usize> scalar::Dot for Wide<B, N> {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[B] = bytemuck::cast_slice(row);
        let mut dot = 0.0;
        for (b, block) in blocks.iter().enumerate() {
            let factor = block.factor();
            for run in 0..B::LEN / 32 {
                let input = b * B::LEN / 32 + run;
                let x_codes = x.block(input);
                let weights = codes(block, run);
                let scales = block.scales(factor, run);
                let mut sum = 0.0;
                for (half, x_codes) in x_codes.as_chunks::<16>().0.iter().enumerate() {
                    sum += scales[half] * scalar::dot_codes::<16>(&weights[half], x_codes) as f32;
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

    use super::{Block, Run, Wide};
    use crate::simd::avx512::{SPREAD, constant};
    use crate::simd::register::{Avx2, Avx512};
    use crate::simd::{avx2, avx512};

    /// The `K` runs from run `first` of a chunk on, and their scales: those of the first halves, then those of the second halves.
    #[inline(always)]
    fn runs<'c, B: Block, const N: usize, const K: usize>(
        chunk: &'c [B; N],
        factors: &[f32; N],
        first: usize,
    ) -> ([Run<'c, B>; K], [[f32; K]; 2]) {
        let mut runs = [(&chunk[0], 0); K];
        let mut scales = [[0.0; K]; 2];
        for k in 0..K {
            let (block, run) = ((first + k) * 32 / B::LEN, (first + k) % (B::LEN / 32));
            runs[k] = (&chunk[block], run);
            [scales[0][k], scales[1][k]] = chunk[block].scales(factors[block], run);
        }
        (runs, scales)
    }

    #[inline(always)]
    fn factors<B: Block, const N: usize>(chunk: &[B; N]) -> [f32; N] {
        let mut factors = [0.0; N];
        for i in 0..N {
            factors[i] = chunk[i].factor();
        }
        factors
    }

    impl<B: Block, const N: usize> avx512::Integer for Wide<B, N> {
        type Chunk = [Wide<B, N>; N];
        type Header = [f32; N];

        const GROUPS: usize = 2;
        const OFFSET: i8 = B::OFFSET as i8;
        const HALF_SCALES: bool = B::HALVES;

        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
        #[inline]
        unsafe fn header(chunk: *const Self::Chunk) -> [f32; N] {
            // SAFETY: the chunk is valid and needs no alignment.
            factors(unsafe { &*chunk.cast::<[B; N]>() })
        }

        #[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,f16c")]
        #[inline]
        unsafe fn group(
            chunk: *const Self::Chunk,
            factors: [f32; N],
            group: usize,
        ) -> avx512::Group {
            // SAFETY: the chunk is valid and needs no alignment; the level has these instructions.
            let ((first, second), scales) = unsafe {
                let (runs, scales) = runs::<B, N, 4>(&*chunk.cast(), &factors, 4 * group);
                (B::unpack::<Avx512, 4>(runs), scales)
            };
            let spread = |[a, b, c, d]: [f32; 4]| {
                let four = _mm512_castps128_ps512(_mm_setr_ps(a, b, c, d));
                _mm512_permutexvar_ps(constant(&SPREAD), four)
            };
            let scale = spread(scales[0]);
            avx512::Group {
                first: first.register(),
                second: second.register(),
                scale,
                second_scale: if B::HALVES { spread(scales[1]) } else { scale },
            }
        }
    }

    impl<B: Block, const N: usize> avx2::Integer for Wide<B, N> {
        type Chunk = [Wide<B, N>; N];
        type Header = [f32; N];

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
        unsafe fn header(chunk: *const Self::Chunk) -> [f32; N] {
            // SAFETY: the chunk is valid and needs no alignment.
            factors(unsafe { &*chunk.cast::<[B; N]>() })
        }

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn pair(chunk: *const Self::Chunk, factors: [f32; N], pair: usize) -> avx2::Pair {
            // SAFETY: the chunk is valid and needs no alignment; the level has these instructions.
            let ((first, second), scales) = unsafe {
                let (runs, scales) = runs::<B, N, 2>(&*chunk.cast(), &factors, 2 * pair);
                (B::unpack::<Avx2, 2>(runs), scales)
            };
            let [scale, second_scale] = scales.map(|[a, b]| avx2::lanes(a, b));
            avx2::Pair {
                first: first.register(),
                second: second.register(),
                scale,
                second_scale: if B::HALVES { second_scale } else { scale },
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Block, Wide};
    use crate::simd::neon;
    use crate::simd::neon_register::Neon;
    use crate::simd::register::Register;

    impl<B: Block, const N: usize> neon::Integer for Wide<B, N> {
        type Header = f32;

        const BLOCKS: usize = B::LEN / 32;
        const HALF_SCALES: bool = B::HALVES;

        #[inline]
        fn header(&self) -> f32 {
            self.0.factor()
        }

        #[inline]
        fn unpack(&self, factor: f32, block: usize) -> neon::Block {
            // SAFETY: NEON is part of the architecture.
            let (first, second) = unsafe { B::unpack::<Neon, 1>([(&self.0, block)]) };
            let [scale, second_scale] = self.0.scales(factor, block);
            neon::Block {
                first: first.minus(B::OFFSET).register(),
                second: second.minus(B::OFFSET).register(),
                scale,
                second_scale,
            }
        }
    }
}
