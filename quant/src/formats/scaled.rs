//! Blocks of 32 numbers with one scale: `x = scale * code`.

use bytemuck::{Pod, Zeroable};

use super::codes::Codes;
use super::fit::{self, Lanes, low_byte};
use super::importance::{self, mean_square};
use super::{Half, decode_blocks, encode_blocks, format_of_32};
use crate::activations::Row;
use crate::format::{Encode, Format};
use crate::kernel;
use crate::simd::scalar;

#[cfg(target_arch = "x86_64")]
use std::arch::x86_64::*;

/// A scale in its stored form.
pub(crate) trait Scale: Pod {
    /// The value of the scale.
    fn value(self) -> f32;

    /// Broadcasts the scales of two blocks, each to one 128-bit lane.
    ///
    /// # Safety
    /// The CPU must have AVX2 and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn lanes_256(scales: [Self; 2]) -> __m256;

    /// Broadcasts the scales of four blocks, each to one 128-bit lane.
    ///
    /// # Safety
    /// The CPU must have AVX-512 F and BW, and F16C.
    #[cfg(target_arch = "x86_64")]
    unsafe fn lanes_512<C: Codes>(blocks: &[Scaled<Self, C>; 4]) -> __m512;
}

/// A block.
#[derive(Clone, Copy)]
#[repr(C)]
pub(crate) struct Scaled<S, C> {
    /// The scale.
    pub(crate) d: S,
    /// The codes.
    pub(crate) q: C,
}

// SAFETY: both parts are zeroable.
unsafe impl<S: Scale, C: Codes> Zeroable for Scaled<S, C> {}
// SAFETY: both parts are plain data, and neither needs alignment, so there is no padding between them.
unsafe impl<S: Scale, C: Codes> Pod for Scaled<S, C> {}

impl<S: Scale, C: Codes> Scaled<S, C> {
    /// Fails to compile if the parts need alignment.
    const PACKED: () = assert!(align_of::<Self>() == 1);

    /// Returns the format of these blocks.
    pub(crate) const fn format(name: &'static str, ggml_type: u32, encode: Encode) -> Format {
        let decode = |src: &[u8], dst: &mut [f32]| decode_blocks(src, dst, Self::decode);
        format_of_32::<Self>(name, ggml_type, encode, decode, kernel::integer::<Self>)
    }

    pub(crate) fn decode(&self) -> [f32; 32] {
        let () = Self::PACKED;
        let d = self.d.value();
        self.q.signed().map(|q| d * f32::from(q))
    }

    /// Returns the product with block `b` of the inputs.
    pub(crate) fn dot(&self, b: usize, x: Row) -> f32 {
        scalar::dot_codes(&self.q.signed(), &x.block(b)) as f32 * (self.d.value() * x.scales[b])
    }
}

impl<C: Codes> Scaled<Half, C> {
    /// Encodes blocks such that the number of largest magnitude (the first one among equals) maps exactly to code 0, the lowest code. A row
    /// with the mean squares of its inputs is encoded by [`Scaled::fit`] instead.
    pub(crate) fn encode(src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        match importance {
            Some(_) => Self::fit(src, importance, dst),
            None => encode_blocks(src, dst, Self::encode_block),
        }
    }

    /// Encodes a block like [`Scaled::encode`] without importance.
    pub(crate) fn encode_block(x: &[f32; 32]) -> Self {
        let (half, largest) = (f32::from(C::OFFSET), C::LARGEST as i8);
        let d = fit::extreme(x) / -half;
        let inverse = if d == 0.0 { 0.0 } else { 1.0 / d };
        let code = |x: f32| (low_byte(x * inverse + (half + 0.5)) as i8).min(largest) as u8;
        Scaled {
            d: Half::from_f32(d),
            q: C::pack(x.map(code)),
        }
    }

    /// Encodes with the scales of least weighted error: one row with the mean squares of its inputs, or any number of rows without.
    pub(crate) fn fit(src: &[f32], importance: Option<&[f32]>, dst: &mut [u8]) {
        let spread = Lanes::all(mean_square(src));
        importance::encode_eights(src, importance, dst, |x, inputs| {
            let x = fit::columns::<32>(x);
            let weights = match inputs {
                Some(inputs) => importance::weights(&x, inputs, spread),
                None => fit::squares(&x),
            };
            let fit = fit::fit_symmetric(&x, &weights, C::OFFSET as u8);
            std::array::from_fn(|j| Scaled {
                d: Half::from_f32(fit.scale.0[j]),
                q: C::pack(fit.codes_of(j)),
            })
        });
    }
}

impl<S: Scale, C: Codes> scalar::Dot for Scaled<S, C> {
    fn dot(row: &[u8], x: Row) -> f32 {
        let blocks: &[Self] = bytemuck::cast_slice(row);
        let dot = |(b, block): (usize, &Self)| block.dot(b, x);
        blocks.iter().enumerate().map(dot).sum()
    }
}

impl Scale for Half {
    #[inline]
    fn value(self) -> f32 {
        #[cfg(target_arch = "aarch64")]
        {
            crate::simd::neon::half(self.bits())
        }
        #[cfg(not(target_arch = "aarch64"))]
        {
            self.to_f32()
        }
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    unsafe fn lanes_256([a, b]: [Self; 2]) -> __m256 {
        use crate::simd::avx2::{half, lanes};
        lanes(half(a.bits()), half(b.bits()))
    }

    #[cfg(target_arch = "x86_64")]
    #[target_feature(enable = "avx512f,avx512bw,f16c")]
    #[inline]
    unsafe fn lanes_512<C: Codes>(blocks: &[Scaled<Self, C>; 4]) -> __m512 {
        use crate::simd::avx512::{constant, spread_halves};
        if C::LOOKS_UP || !Scaled::<Self, C>::SCALES_IN_64_BYTES {
            let [a, b, c, d] = blocks;
            return spread_halves(a.d.bits(), b.d.bits(), c.d.bits(), d.d.bits());
        }
        // SAFETY: four blocks have at least 64 bytes.
        let start = unsafe { _mm512_loadu_si512(blocks.as_ptr().cast()) };
        let places = constant(const { &Scaled::<Self, C>::SCALE_PLACES });
        let scales = _mm512_permutexvar_epi16(places, start);
        _mm512_cvtph_ps(_mm512_castsi512_si256(scales))
    }
}

#[cfg(target_arch = "x86_64")]
impl<C: Codes> Scaled<Half, C> {
    /// Whether one load of 64 bytes contains the scales of four blocks, at even byte offsets.
    const SCALES_IN_64_BYTES: bool = {
        let bytes = size_of::<Self>();
        4 * bytes >= 64 && 3 * bytes + 2 <= 64 && bytes.is_multiple_of(2)
    };

    /// For each f32 lane, the index of its scale among the 16-bit words of these 64 bytes.
    const SCALE_PLACES: [u16; 32] = {
        let mut places = [0; 32];
        let mut lane = 0;
        while lane < 16 {
            places[lane] = (lane / 4 * size_of::<Self>() / 2) as u16;
            lane += 1;
        }
        places
    };
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use super::{Codes, Scale, Scaled};
    use crate::simd::register::{Avx2, Avx512};
    use crate::simd::{avx2, avx512};

    impl<S: Scale, C: Codes> avx512::Integer for Scaled<S, C> {
        type Chunk = [Self; 4];
        type Header = ();

        const GROUPS: usize = 1;
        const OFFSET: i8 = C::OFFSET;

        #[inline]
        unsafe fn header(_: *const [Self; 4]) {}

        #[target_feature(enable = "avx512f,avx512bw,f16c")]
        #[inline]
        unsafe fn group(chunk: *const [Self; 4], _: (), _: usize) -> avx512::Group {
            // SAFETY: the chunk is valid and blocks need no alignment; the level has these instructions.
            unsafe {
                let blocks = &*chunk;
                let codes = blocks.each_ref().map(|block| &block.q);
                let (first, second) = C::unpack::<Avx512, 4>(codes);
                let scales = S::lanes_512(blocks);
                avx512::Group::new(first.register(), second.register(), scales)
            }
        }
    }

    impl<S: Scale, C: Codes> avx2::Integer for Scaled<S, C> {
        type Chunk = [Self; 2];
        type Header = ();

        const PAIRS: usize = 1;
        const OFFSET: i8 = if C::SIGNED { 0 } else { C::OFFSET };
        const LARGEST: u8 = C::LARGEST;
        const SIGNED: bool = C::SIGNED;

        #[inline]
        unsafe fn header(_: *const [Self; 2]) {}

        #[target_feature(enable = "avx2,f16c")]
        #[inline]
        unsafe fn pair(chunk: *const [Self; 2], _: (), _: usize) -> avx2::Pair {
            // SAFETY: the chunk is valid and blocks need no alignment; the level has these instructions.
            unsafe {
                let [a, b] = &*chunk;
                let (first, second) = if C::SIGNED {
                    C::unpack_signed::<Avx2, 2>([&a.q, &b.q])
                } else {
                    C::unpack::<Avx2, 2>([&a.q, &b.q])
                };
                let scales = S::lanes_256([a.d, b.d]);
                avx2::Pair::new(first.register(), second.register(), scales)
            }
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod arm {
    use super::{Codes, Scale, Scaled};
    use crate::simd::neon::{Block, Integer};
    use crate::simd::neon_register::Neon;

    impl<S: Scale, C: Codes> Integer for Scaled<S, C> {
        type Header = ();

        const BLOCKS: usize = 1;

        #[inline]
        fn header(&self) {}

        #[inline]
        fn unpack(&self, _: (), _: usize) -> Block {
            // SAFETY: NEON is part of the architecture.
            let (first, second) = unsafe { C::unpack_signed::<Neon, 1>([&self.q]) };
            Block::new(first.register(), second.register(), self.d.value())
        }
    }
}
