//! Root-mean-square norm.

use crate::cpu::simd;
use crate::program::Vector;

/// `x / sqrt(mean(x^2) + eps) * weight`.
#[derive(Debug, Clone)]
pub struct Norm {
    /// Gains, one for each value.
    pub weight: Vector,
    /// Added to the mean square.
    pub eps: f32,
}

impl Norm {
    /// Writes the normed `x` to `out`.
    #[inline(always)]
    pub(crate) fn apply(&self, x: &[f32], out: &mut [f32]) {
        let inverse = inverse_rms(x, self.eps);
        for ((out, x), weight) in out.iter_mut().zip(x).zip(self.weight.iter()) {
            *out = x * inverse * weight;
        }
    }

    /// Norms `x` in place.
    #[inline(always)]
    pub(crate) fn apply_in_place(&self, x: &mut [f32]) {
        self.apply_in_groups(x, 1);
    }

    /// Norms each of `groups` equal parts of `x` in place.
    #[inline(always)]
    pub(crate) fn apply_in_groups(&self, x: &mut [f32], groups: usize) {
        let size = x.len() / groups;
        for (x, weights) in x.chunks_exact_mut(size).zip(self.weight.chunks(size)) {
            let inverse = inverse_rms(x, self.eps);
            for (x, weight) in x.iter_mut().zip(weights) {
                *x = *x * inverse * weight;
            }
        }
    }
}

#[inline(always)]
fn inverse_rms(x: &[f32], eps: f32) -> f32 {
    1.0 / (simd::dot(x, x) / x.len() as f32 + eps).sqrt()
}
