//! What the K formats share: packed 6-bit scales, and the search for scales when encoding.

/// Codes per scale and minimum in Q4_K and Q5_K.
pub(crate) const SUB: usize = 32;

/// Eight 6-bit scales and eight 6-bit minima in 12 bytes.
///
/// ```text
/// bytes 0..4   scale j in bits 0..6; bits 4..6 of scale j + 4 in bits 6..8
/// bytes 4..8   minimum j likewise
/// bytes 8..12  bits 0..4 of scale j + 4; bits 0..4 of minimum j + 4
/// ```
#[derive(Clone, Copy, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(C)]
pub(crate) struct PackedScales([u8; 12]);

impl PackedScales {
    pub(crate) fn pack(scales: &[u8; 8], mins: &[u8; 8]) -> PackedScales {
        let mut packed = [0; 12];
        for j in 0..4 {
            packed[j] = scales[j] | scales[j + 4] >> 4 << 6;
            packed[j + 4] = mins[j] | mins[j + 4] >> 4 << 6;
            packed[j + 8] = scales[j + 4] & 15 | mins[j + 4] << 4;
        }
        PackedScales(packed)
    }

    /// The scales and the minima, the first of each in the lowest byte.
    #[inline]
    pub(crate) fn unpack(&self) -> (u64, u64) {
        const LOW6: u32 = 0x3f3f_3f3f;
        const LOW4: u32 = 0x0f0f_0f0f;
        const HIGH2: u32 = 0x3030_3030;
        let [a, b, c] = bytemuck::cast::<_, [[u8; 4]; 3]>(self.0).map(u32::from_le_bytes);
        let scales = u64::from(a & LOW6) | u64::from(c & LOW4 | a >> 2 & HIGH2) << 32;
        let mins = u64::from(b & LOW6) | u64::from(c >> 4 & LOW4 | b >> 2 & HIGH2) << 32;
        (scales, mins)
    }
}

/// A line of codes: code q stands for `scale * q - min`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Affine {
    pub(crate) scale: f32,
    pub(crate) min: f32, // >= 0
}

impl Affine {
    /// The code nearest to `x`.
    pub(crate) fn code(self, x: f32, max_code: u8) -> u8 {
        self.nearest_code(x, self.inverse(), max_code) as u8
    }

    fn inverse(self) -> f32 {
        if self.scale == 0.0 {
            0.0
        } else {
            1.0 / self.scale
        }
    }

    fn nearest_code(self, x: f32, inverse: f32, max_code: u8) -> f32 {
        nearest(((x + self.min) * inverse).clamp(0.0, f32::from(max_code)))
    }
}

/// The nearest integer to a number below 2^22 in magnitude, ties to even. Unlike `f32::round_ties_even` this needs no
/// instruction that the oldest x86-64 CPUs lack, so loops over it are vectorised.
pub(crate) fn nearest(x: f32) -> f32 {
    const TWO_TO_23_AND_22: f32 = 12_582_912.0; // numbers near it are spaced by 1
    (x + TWO_TO_23_AND_22) - TWO_TO_23_AND_22
}

/// The scale and minimum with the least weighted squared error over codes `0..=max_code`.
///
/// Candidate spacings around the one that spans the values exactly give candidate codes; for each set of codes the best line
/// is a weighted linear regression, whose own codes may be regressed again. Numbers of large magnitude weigh more, because
/// inputs multiply them.
pub(crate) fn fit_affine(x: &[f32; SUB], max_code: u8) -> Affine {
    let mean_square = x.iter().map(|x| x * x).sum::<f32>() / SUB as f32;
    let weight = x.map(|x| mean_square.sqrt() + x.abs());
    let low = x.iter().copied().fold(0f32, f32::min); // a minimum cannot be negative
    let high = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    if high - low <= 0.0 || !mean_square.is_finite() {
        return Affine {
            scale: 0.0,
            min: -low,
        };
    }
    let mut best = Affine {
        scale: (high - low) / f32::from(max_code),
        min: -low,
    };
    let mut best_error = Regression::of(best, x, &weight, max_code).error();
    for step in 0..=20 {
        let spacing = (high - low) / (f32::from(max_code) - 1.0 + 0.1 * step as f32);
        let mut sums = Regression::of(
            Affine {
                scale: spacing,
                min: -low,
            },
            x,
            &weight,
            max_code,
        );
        for _ in 0..2 {
            let line = sums.best_line();
            if line.scale <= 0.0 {
                break;
            }
            sums = Regression::of(line, x, &weight, max_code);
            if sums.error() < best_error {
                (best, best_error) = (line, sums.error());
            }
        }
    }
    best
}

/// Weighted sums over a sub-block and the codes q that a line gives it, in lanes that the compiler can vectorise.
#[derive(Default)]
struct Regression {
    w: [f32; LANES],
    wq: [f32; LANES],
    wqq: [f32; LANES],
    wx: [f32; LANES],
    wqx: [f32; LANES],
    error: [f32; LANES],
}

const LANES: usize = 8;

impl Regression {
    fn of(line: Affine, x: &[f32; SUB], weight: &[f32; SUB], max_code: u8) -> Regression {
        let inverse = line.inverse();
        let mut sums = Regression::default();
        for (x, weight) in x
            .as_chunks::<LANES>()
            .0
            .iter()
            .zip(weight.as_chunks::<LANES>().0)
        {
            for i in 0..LANES {
                let q = line.nearest_code(x[i], inverse, max_code);
                let difference = line.scale * q - line.min - x[i];
                sums.w[i] += weight[i];
                sums.wq[i] += weight[i] * q;
                sums.wqq[i] += weight[i] * q * q;
                sums.wx[i] += weight[i] * x[i];
                sums.wqx[i] += weight[i] * q * x[i];
                sums.error[i] += weight[i] * difference * difference;
            }
        }
        sums
    }

    /// `sum weight * (scale * q - min - x)^2` of the line that gave the codes.
    fn error(&self) -> f32 {
        self.error.iter().sum()
    }

    /// The line that minimises the same sum for these codes, with `min >= 0`.
    fn best_line(&self) -> Affine {
        let [w, wq, wqq, wx, wqx] =
            [self.w, self.wq, self.wqq, self.wx, self.wqx].map(|lanes| lanes.iter().sum::<f32>());
        let determinant = w * wqq - wq * wq;
        if determinant <= 0.0 {
            return Affine::default();
        }
        let scale = (w * wqx - wq * wx) / determinant;
        let min = (wq * wqx - wqq * wx) / determinant;
        if min >= 0.0 {
            Affine { scale, min }
        } else {
            Affine {
                scale: wqx / wqq,
                min: 0.0,
            }
        }
    }
}

/// Scales and minima of the eight lines of a super-block, rounded to 6 bits each under one f16 scale for either kind.
pub(crate) struct SuperScales {
    pub(crate) d: super::Half,
    pub(crate) dmin: super::Half,
    pub(crate) packed: PackedScales,
    /// The lines as a decoder will see them.
    pub(crate) lines: [Affine; 8],
}

/// Fits the eight lines of a super-block.
pub(crate) fn fit_super_block(x: &[f32; 256], max_code: u8) -> SuperScales {
    let mut lines = [Affine::default(); 8];
    for (line, x) in lines.iter_mut().zip(x.as_chunks::<SUB>().0) {
        *line = fit_affine(x, max_code);
    }
    let (d, scales) = round_to_6_bits(lines.map(|line| line.scale));
    let (dmin, mins) = round_to_6_bits(lines.map(|line| line.min));
    for j in 0..8 {
        lines[j] = Affine {
            scale: d.to_f32() * f32::from(scales[j]),
            min: dmin.to_f32() * f32::from(mins[j]),
        };
    }
    SuperScales {
        d,
        dmin,
        packed: PackedScales::pack(&scales, &mins),
        lines,
    }
}

fn round_to_6_bits(values: [f32; 8]) -> (super::Half, [u8; 8]) {
    let max = values.into_iter().fold(0f32, f32::max);
    let inverse = if max > 0.0 { 63.0 / max } else { 0.0 };
    let codes = values.map(|value| nearest((value * inverse).min(63.0)) as u8);
    (super::Half::from_f32(max / 63.0), codes)
}

#[cfg(target_arch = "x86_64")]
pub(crate) mod x86 {
    use std::arch::x86_64::*;

    use super::PackedScales;
    use crate::formats::Half;
    use crate::simd::avx2;
    use crate::simd::avx512::{SPREAD, constant};

    /// Scales and minima of the eight sub-blocks of a super-block.
    #[derive(Clone, Copy)]
    pub(crate) struct EightLines {
        pub(crate) scales: __m256,
        pub(crate) mins: __m256,
    }

    #[target_feature(enable = "avx2,f16c")]
    #[inline]
    pub(crate) fn eight_lines(d: &Half, dmin: &Half, packed: &PackedScales) -> EightLines {
        let (scales, mins) = packed.unpack();
        let floats =
            |bytes: u64| _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_cvtsi64_si128(bytes as i64)));
        EightLines {
            scales: _mm256_mul_ps(floats(scales), _mm256_set1_ps(avx2::half(d.bits()))),
            mins: _mm256_mul_ps(floats(mins), _mm256_set1_ps(avx2::half(dmin.bits()))),
        }
    }

    impl EightLines {
        /// The four scales of a group, each in one 128-bit lane.
        #[target_feature(enable = "avx512f")]
        #[inline]
        pub(crate) fn spread(self, group: usize) -> __m512 {
            let places = _mm512_add_epi32(constant(&SPREAD), _mm512_set1_epi32(4 * group as i32));
            _mm512_permutexvar_ps(places, _mm512_castps256_ps512(self.scales))
        }

        /// The two scales of a pair, each in one 128-bit lane.
        #[target_feature(enable = "avx2")]
        #[inline]
        pub(crate) fn spread_pair(self, pair: usize) -> __m256 {
            let lanes = _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1);
            let places = _mm256_add_epi32(lanes, _mm256_set1_epi32(2 * pair as i32));
            _mm256_permutevar8x32_ps(self.scales, places)
        }
    }
}

#[cfg(target_arch = "aarch64")]
pub(crate) mod arm {
    use std::arch::aarch64::*;

    use super::PackedScales;
    use crate::formats::Half;
    use crate::simd::neon;

    /// Scales and minima of the eight sub-blocks of a super-block.
    #[derive(Clone, Copy)]
    pub(crate) struct EightLines {
        pub(crate) scales: [f32; 8],
        pub(crate) mins: [float32x4_t; 2],
    }

    #[inline]
    pub(crate) fn eight_lines(d: &Half, dmin: &Half, packed: &PackedScales) -> EightLines {
        let (scales, mins) = packed.unpack();
        let (d, dmin) = (neon::half(d.bits()), neon::half(dmin.bits()));
        let mins = mins.to_le_bytes().map(|min| dmin * f32::from(min));
        EightLines {
            scales: scales.to_le_bytes().map(|scale| d * f32::from(scale)),
            // SAFETY: eight floats.
            mins: unsafe { [vld1q_f32(mins.as_ptr()), vld1q_f32(mins.as_ptr().add(4))] },
        }
    }

    /// The low (`half` 0) or high halves (1) of 32 bytes.
    #[inline]
    pub(crate) fn nibbles(run: &[u8; 32], half: usize) -> (uint8x16_t, uint8x16_t) {
        // SAFETY: NEON is part of the architecture.
        unsafe {
            let right = vdupq_n_s8(-4 * half as i8);
            let nibble = |bytes| vandq_u8(vshlq_u8(bytes, right), vdupq_n_u8(15));
            (nibble(neon::load(run, 0)), nibble(neon::load(run, 1)))
        }
    }
}
