//! Blocks of 32 numbers with an f16 scale and an f16 minimum: `x = d * q + m`.

use bytemuck::{Pod, Zeroable};

use super::codes::Codes;
use super::fit::{self, Lanes, low_byte};
use super::importance::{self, mean_square};
use super::{Half, decode_blocks, encode_blocks, format_of_32};
use crate::activations::Row;
use crate::format::Format;
use crate::kernel;
use crate::simd::scalar;

/// A block. Its codes are unsigned.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Affine<C> {
    d: Half,
    m: Half,
    q: C,
}

// SAFETY: all parts are zeroable.
unsafe impl<C: Codes> Zeroable for Affine<C> {}
// SAFETY: all parts are plain data, and no part needs alignment, so there is no padding between them.
unsafe impl<C: Codes> Pod for Affine<C> {}

impl<C: Codes> Affine<C> {
    /// Fails to compile if the codes need alignment or are signed.
    const PACKED: () = assert!(align_of::<Self>() == 1 && C::OFFSET == 0 && !C::SIGNED);

    /// Returns the format of these blocks.
    pub(crate) const fn format(name: &'static str, ggml_type: u32) -> Format {
        let encode = |src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]| match importance {
            Some(inputs) => Self::encode_row(src, inputs, dst),
            None => encode_blocks(src, dst, Self::encode),
        };
        let decode = |src: &[u8], dst: &mut [f32]| decode_blocks(src, dst, Self::decode);
        format_of_32::<Self>(name, ggml_type, encode, decode, kernel::integer::<Self>)
    }

    /// Encodes with the smallest number as code 0.
    fn encode(x: &[f32; 32]) -> Self {
        let lower = |low, &x: &f32| if x < low { x } else { low };
        let higher = |high, &x: &f32| if x > high { x } else { high };
        let (low, high) = (
            x.iter().fold(f32::MAX, lower),
            x.iter().fold(f32::MIN, higher),
        );
        let d = (high - low) / f32::from(C::LARGEST);
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        Affine {
            d: Half::from_f32(d),
            m: Half::from_f32(low),
            q: C::pack(
                x.map(|x| (low_byte((x - low) * inverse + 0.5) as i8).min(C::LARGEST as i8) as u8),
            ),
        }
    }

    /// Encodes a row with the mean squares of its inputs.
    fn encode_row(row: &[f32], inputs: &[f32], dst: &mut [u8]) {
        let spread = Lanes::all(mean_square(row));
        importance::encode_eights(row, Some(inputs), dst, |x, inputs| {
            let x = fit::columns::<32>(x);
            let weights = importance::weights(&x, inputs.unwrap_or_default(), spread);
            let spacings = importance::spacings(C::LARGEST);
            let fit = fit::fit_affine::<32, false>(&x, &weights, spacings);
            std::array::from_fn(|j| Affine {
                d: Half::from_f32(fit.scale.0[j]),
                m: Half::from_f32(-fit.min.0[j]),
                q: C::pack(fit.codes_of(j)),
            })
        });
    }

    fn decode(&self) -> [f32; 32] {
        let () = Self::PACKED;
        let (d, m) = (self.d.to_f32(), self.m.to_f32());
        self.q.signed().map(|q| f32::from(q) * d + m)
    }
}

impl<C: Codes> scalar::Dot for Affine<C> {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Self] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Self)| {
            let codes = scalar::dot_codes(&block.q.signed(), &x.block(b)) as f32;
            block.d.to_f32() * x.scales[b] * codes + block.m.to_f32() * x.sums[b]
        };
        blocks.iter().enumerate().map(dot).sum()
    }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;

    use super::{Affine, Codes};
    use crate::formats::k_quants::x86::{EightLines, lines_of_blocks};
    use crate::panel::Minima;
    use crate::simd::register::{Avx2, Avx512};
    use crate::simd::{avx2, avx512};

    impl<C: Codes> Affine<C> {
        fn line(&self) -> [u16; 2] {
            [self.d.bits(), self.m.bits()]
        }
    }

    impl<C: Codes> avx512::Integer for Affine<C> {
        type Chunk = [Self; 8];
        type Header = EightLines;

        const GROUPS: usize = 2;
        const MINIMA: Minima = Minima::Blocks;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(chunk: *const [Self; 8]) -> EightLines {
            // SAFETY: the chunk is valid; blocks need no alignment.
            lines_of_blocks(unsafe { &*chunk }.each_ref().map(Self::line))
        }

        #[target_feature(enable = "avx512f,avx512bw")]
        #[inline]
        unsafe fn group(
            chunk: *const [Self; 8],
            header: EightLines,
            group: usize,
        ) -> avx512::Group {
            // SAFETY: as above; the level has these instructions.
            let (first, second) = unsafe {
                let blocks = &(*chunk).as_chunks::<4>().0[group];
                C::unpack::<Avx512, 4>(blocks.each_ref().map(|block| &block.q))
            };
            let scales = header.spread(group);
            avx512::Group::new(first.register(), second.register(), scales)
        }

        #[inline]
        fn mins(header: EightLines) -> Option<__m256> {
            Some(header.mins)
        }
    }

    impl<C: Codes> avx2::Integer for Affine<C> {
        type Chunk = [Self; 8];
        type Header = EightLines;

        const PAIRS: usize = 4;
        const LARGEST: u8 = C::LARGEST;
        const MINIMA: Minima = Minima::Blocks;

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn header(chunk: *const [Self; 8]) -> EightLines {
            // SAFETY: the chunk is valid; blocks need no alignment.
            lines_of_blocks(unsafe { &*chunk }.each_ref().map(Self::line))
        }

        #[target_feature(enable = "avx2")]
        #[inline]
        unsafe fn pair(chunk: *const [Self; 8], header: EightLines, pair: usize) -> avx2::Pair {
            // SAFETY: as above; the level has these instructions.
            let (first, second) = unsafe {
                let [a, b] = &(*chunk).as_chunks::<2>().0[pair];
                C::unpack::<Avx2, 2>([&a.q, &b.q])
            };
            let scales = header.spread_pair(pair);
            avx2::Pair::new(first.register(), second.register(), scales)
        }

        #[inline]
        fn mins(header: EightLines) -> Option<__m256> {
            Some(header.mins)
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Affine, Codes};
    use crate::panel::Minima;
    use crate::simd::neon;
    use crate::simd::neon_register::Neon;

    impl<C: Codes> neon::Integer for Affine<C> {
        type Header = f32;

        const BLOCKS: usize = 1;
        const MINIMA: Minima = Minima::Blocks;

        #[inline]
        fn header(&self) -> f32 {
            -neon::half(self.m.bits())
        }

        #[inline]
        fn unpack(&self, _: f32, _: usize) -> neon::Block {
            // SAFETY: NEON is part of the architecture.
            let (first, second) = unsafe { C::unpack_signed::<Neon, 1>([&self.q]) };
            let scale = neon::half(self.d.bits());
            neon::Block::new(first.register(), second.register(), scale)
        }

        #[inline]
        fn min(min: f32) -> Option<f32> {
            Some(min)
        }
    }
}
