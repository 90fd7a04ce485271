//! Random weights: value `i` of tensor `t` is a pure function of (seed, t, i), so threads can share the work.

use crate::splitmix::SplitMix64;

/// The distribution of a tensor's values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Distribution {
    /// All elements have this value.
    Constant(f32),
    /// Approximately normal around zero, with this standard deviation.
    Normal(f32),
    /// Uniform between these two bounds.
    Uniform(f32, f32),
    /// Logarithms of numbers that are uniform between these two bounds.
    LogUniform(f32, f32),
    /// Values `x` whose `softplus(x)` is log-uniform between these two bounds.
    InverseSoftplus(f32, f32),
}

/// The values of one tensor.
#[derive(Clone, Copy)]
pub struct Random {
    stream: u64,
    distribution: Distribution,
}

impl Random {
    /// Creates the values of tensor number `tensor`.
    pub fn new(seed: u64, tensor: usize, distribution: Distribution) -> Self {
        Random {
            stream: mix(mix(seed) ^ tensor as u64),
            distribution,
        }
    }

    /// Writes the values `first..first + out.len()`.
    pub fn fill(&self, first: usize, out: &mut [f32]) {
        for (i, value) in out.iter_mut().enumerate() {
            let bits = mix(self.stream.wrapping_add((first + i) as u64));
            *value = match self.distribution {
                Distribution::Constant(value) => value,
                Distribution::Normal(deviation) => deviation * normal(bits),
                Distribution::Uniform(low, high) => low + uniform(bits) * (high - low),
                Distribution::LogUniform(low, high) => (low + uniform(bits) * (high - low)).ln(),
                Distribution::InverseSoftplus(low, high) => {
                    let target = low * (high / low).powf(uniform(bits));
                    target.exp_m1().ln()
                }
            };
        }
    }
}

/// The sum of four uniform numbers, scaled to unit variance.
fn normal(bits: u64) -> f32 {
    let sum: u64 = (0..4).map(|i| bits >> (16 * i) & 0xffff).sum();
    let deviation = 65536.0 * (4.0f32 / 12.0).sqrt();
    (sum as f32 - 2.0 * 65535.0) / deviation
}

fn uniform(bits: u64) -> f32 {
    (bits >> 40) as f32 / (1u64 << 24) as f32
}

fn mix(n: u64) -> u64 {
    SplitMix64(n).bits()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_have_the_moments_that_were_asked_for() {
        let mut values = vec![0.0; 1 << 16];
        Random::new(1, 2, Distribution::Normal(0.5)).fill(0, &mut values);
        let n = values.len() as f32;
        let mean = values.iter().sum::<f32>() / n;
        let variance = values.iter().map(|x| x * x).sum::<f32>() / n;
        assert!(mean.abs() < 0.01, "{mean}");
        assert!((variance.sqrt() - 0.5).abs() < 0.01, "{variance}");
    }

    #[test]
    fn pieces_make_the_same_tensor() {
        let random = Random::new(1, 2, Distribution::InverseSoftplus(0.001, 0.1));
        let (mut whole, mut pieces) = (vec![0.0; 100], vec![0.0; 100]);
        random.fill(0, &mut whole);
        for (i, piece) in pieces.chunks_mut(7).enumerate() {
            random.fill(7 * i, piece);
        }
        assert_eq!(whole, pieces);
        assert!(
            whole
                .iter()
                .all(|x| (0.0009..0.11).contains(&x.exp().ln_1p()))
        );
    }
}
