//! Root-mean-square norm and layer norm.

use crate::cpu::simd;
use crate::weights::Vector;

/// `x / sqrt(mean(x^2) + eps) * weight + bias`. A centred norm takes `x - mean(x)` in place of `x`.
#[derive(Debug, Clone)]
pub struct Norm {
    /// Gains, one per value.
    pub weight: Vector,
    /// Added to the mean square.
    pub eps: f32,
    /// Whether the mean is subtracted first.
    pub centred: bool,
    /// Added to the result.
    pub bias: Option<Vector>,
}

impl Norm {
    /// A root-mean-square norm.
    pub fn rms(weight: Vector, eps: f32) -> Self {
        Norm {
            weight,
            eps,
            centred: false,
            bias: None,
        }
    }

    /// Returns this norm with its result multiplied by `multiplier`.
    pub fn scaled(&self, multiplier: f32) -> Self {
        let scaled = |values: &Vector| values.iter().map(|x| multiplier * x).collect();
        Norm {
            weight: scaled(&self.weight),
            bias: self.bias.as_ref().map(scaled),
            ..*self
        }
    }

    /// Returns the norm that gives for `x` what this norm gives for `factor x`: only its epsilon differs.
    pub fn divided(self, factor: f32) -> Self {
        Norm {
            eps: self.eps / (factor * factor),
            ..self
        }
    }

    /// Writes the norm of `x` to `out`.
    #[inline]
    pub(crate) fn apply(&self, x: &[f32], out: &mut [f32]) {
        out.copy_from_slice(x);
        self.apply_in_place(out);
    }

    /// Normalises `x` in place.
    #[inline]
    pub fn apply_in_place(&self, x: &mut [f32]) {
        self.apply_in_groups(x, 1);
    }

    /// Normalises each of `groups` equal parts of `x` in place. Not inlined, since it is compiled for each vector unit.
    #[inline(never)]
    pub(crate) fn apply_in_groups(&self, x: &mut [f32], groups: usize) {
        simd::vectorize(
            #[inline(always)]
            || self.norm(x, groups),
        );
    }

    #[inline(always)]
    fn norm(&self, x: &mut [f32], groups: usize) {
        let size = x.len() / groups;
        for (x, weights) in x.chunks_exact_mut(size).zip(self.weight.chunks(size)) {
            if self.centred {
                let mean = simd::sum(x) / size as f32;
                x.iter_mut().for_each(|x| *x -= mean);
            }
            let inverse = inverse_rms(x, self.eps);
            for (x, weight) in x.iter_mut().zip(weights) {
                *x = *x * inverse * weight;
            }
        }
        if let Some(bias) = &self.bias {
            simd::add(bias, x);
        }
    }
}

/// Squares are summed in f64, as in ggml, so that their order does not matter. Norms of embedding rows stored in 16 bits, or with gains in
/// 16 bits, often lie exactly between two 8-bit codes, where the last bit decides.
#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    let mean = (simd::square_sum(x) / x.len() as f64) as f32;
    1.0 / (mean + eps).sqrt()
}
