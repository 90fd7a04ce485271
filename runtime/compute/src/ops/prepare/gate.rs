//! Gates: maps of one token's columns, without heads.

use crate::cpu::simd;
use crate::functions::log_sigmoid;
use crate::ops::softmax::softmax;
use crate::weights::Vector;

/// A map from one token's columns to an input of a recurrence. Vectors have one value for each
/// column.
pub enum Gate {
    /// The logarithm of a decay, `-rate softplus(x + bias)`.
    Decay {
        /// `exp(a_log)`.
        rate: Vector,
        /// Added to x.
        bias: Vector,
    },
    /// The logarithm of a decay that is bounded below, `bound sigmoid(rate (x + bias))`.
    BoundedDecay {
        /// `exp(a_log)`.
        rate: Vector,
        /// Added to x.
        bias: Vector,
        /// The smallest logarithm.
        bound: f32,
    },
    /// The logarithm of a decay, `max(scale ln sigmoid(x), min)`.
    LogSigmoid {
        /// One over the gate's normalizer.
        scale: f32,
        /// The smallest logarithm; may be negative infinity.
        min: f32,
    },
    /// The logarithm of a decay of at least L, `ln(L + (1 - L) sigmoid(x))`.
    LowerBound(Vector),
    /// The logarithm of a decay, `-e^x`.
    Exponential,
    /// `scale sigmoid(x)`.
    Sigmoid {
        /// 1, or 2 where negative eigenvalues are allowed.
        scale: f32,
    },
    /// `softplus(x + bias)`, clamped.
    Step {
        /// Added to x.
        bias: Vector,
        /// Smallest result.
        min: f32,
        /// Largest result.
        max: f32,
    },
    /// Softmax over the columns.
    Softmax,
    /// Write strength that complements a decay, `1 - sigmoid(x)^scale`.
    Forget {
        /// One over the gate's normalizer.
        scale: f32,
    },
    /// Softmax over time of each column: the weight of each token among the tokens up to it.
    RunningSoftmax {
        /// Bounds of x.
        clamp: [f32; 2],
        /// The state tensor `[2, columns]`: each column's largest x, then its sum of `e^(x - largest)`.
        state: usize,
    },
    /// Constants, independent of x.
    Constant(Vector),
}

impl Gate {
    #[inline(always)]
    pub(super) fn apply(&self, values: &mut [f32], state: &mut [f32]) {
        match self {
            Gate::RunningSoftmax {
                clamp: [low, high], ..
            } => {
                let (largest, sums) = state.split_at_mut(values.len());
                for ((x, largest), sum) in values.iter_mut().zip(largest).zip(sums) {
                    let now = x.max(*low).min(*high);
                    // A sum of zero marks the first token.
                    let before = if *sum > 0.0 { *largest } else { now };
                    *largest = now.max(before);
                    let weight = simd::exp(now - *largest);
                    *sum = *sum * simd::exp(before - *largest) + weight;
                    *x = weight / *sum;
                }
            }
            Gate::Decay { rate, bias } => {
                for ((x, rate), bias) in values.iter_mut().zip(rate.iter()).zip(bias.iter()) {
                    *x = -rate * simd::softplus(*x + bias);
                }
            }
            Gate::BoundedDecay { rate, bias, bound } => {
                for ((x, rate), bias) in values.iter_mut().zip(rate.iter()).zip(bias.iter()) {
                    *x = bound * simd::sigmoid(rate * (*x + bias));
                }
            }
            Gate::LogSigmoid { scale, min } => values
                .iter_mut()
                .for_each(|x| *x = (scale * log_sigmoid(*x)).max(*min)),
            Gate::LowerBound(bounds) => {
                for (x, bound) in values.iter_mut().zip(bounds.iter()) {
                    *x = (bound + (1.0 - bound) * simd::sigmoid(*x)).ln();
                }
            }
            Gate::Exponential => values.iter_mut().for_each(|x| *x = -simd::exp(*x)),
            Gate::Sigmoid { scale } => values
                .iter_mut()
                .for_each(|x| *x = scale * simd::sigmoid(*x)),
            Gate::Step { bias, min, max } => {
                for (x, bias) in values.iter_mut().zip(bias.iter()) {
                    *x = simd::softplus(*x + bias).clamp(*min, *max);
                }
            }
            Gate::Softmax => softmax(values),
            Gate::Forget { scale } => values
                .iter_mut()
                .for_each(|x| *x = 1.0 - simd::exp(scale * log_sigmoid(*x))),
            Gate::Constant(constants) => values.copy_from_slice(constants),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mapped(gate: &Gate, values: &[f32]) -> Vec<f32> {
        let mut values = values.to_vec();
        gate.apply(&mut values, &mut []);
        values
    }

    #[test]
    fn gates_keep_their_meaning_at_both_ends() {
        let x = [-200.0f32, -30.0, -3.0, 0.0, 2.5, 40.0, 200.0];
        let sigmoid = |x: f32| 1.0 / (1.0 + (-f64::from(x)).exp());
        let close = |name: &str, found: &[f32], expected: &dyn Fn(f32) -> f64| {
            for (found, x) in found.iter().zip(x) {
                let (found, expected) = (f64::from(*found), expected(x));
                let error = (found - expected).abs();
                assert!(
                    error <= 1e-6 * (1.0 + expected.abs()),
                    "{name} of {x}: {found} {expected}"
                );
            }
        };
        let gate = Gate::LogSigmoid {
            scale: 0.0625,
            min: -1.0,
        };
        let expected = |x: f32| (0.0625 * -(1.0 + (-f64::from(x)).exp()).ln()).max(-1.0);
        close("log sigmoid", &mapped(&gate, &x), &expected);

        let gate = Gate::BoundedDecay {
            rate: vec![0.5; x.len()].into(),
            bias: vec![1.0; x.len()].into(),
            bound: -5.0,
        };
        let expected = |x: f32| -5.0 * sigmoid(0.5 * (x + 1.0));
        close("bounded decay", &mapped(&gate, &x), &expected);

        // The factor itself: its logarithm is all but zero where it is close to one.
        let bounds = |bound: f32| Gate::LowerBound(vec![bound; x.len()].into());
        for bound in [0.0f32, 0.3, 1.0] {
            let factors: Vec<f32> = mapped(&bounds(bound), &x).iter().map(|g| g.exp()).collect();
            let low = f64::from(bound);
            close("lower bound", &factors, &|x| low + (1.0 - low) * sigmoid(x));
        }

        let shares = mapped(&Gate::Softmax, &[1000.0, 1000.0, -1000.0]);
        assert_eq!(shares, [0.5, 0.5, 0.0]);
    }
}
