//! Rotary positions.

use serde::{Deserialize, Serialize};

use crate::operands::View;
use crate::weights::Vector;

/// Rotary position embedding on halves: with a, b the halves of a head's leading values,
/// `(a cos - b sin, b cos + a sin)`. Later values do not change.
pub struct Rope {
    /// Angle per position of each pair, `[table.width / 2]`.
    pub frequencies: Vector,
    /// Multiplies cosines and sines.
    pub magnitude: f32,
    /// Room for the cosines, then the sines, of each token, which all heads share.
    pub table: View,
}

/// How rotary frequencies are stretched so that a model reaches further than its original training context.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// Divides all angles by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3: divides low frequencies by `factor` and keeps high ones, with a smooth transition between them.
    Llama3 {
        /// The divisor.
        factor: f32,
        /// Pairs that turn less often than this within `trained` tokens are divided.
        low: f32,
        /// Pairs that turn more often than this do not change.
        high: f32,
        /// The original training context, in tokens.
        trained: f32,
    },
    /// YaRN (arXiv 2309.00071): like Llama 3, but the transition is linear in the pair's index, and queries and keys are scaled up.
    Yarn {
        /// The divisor.
        factor: f32,
        /// Pairs with more turns within `trained` tokens do not change.
        fast: f32,
        /// Pairs that turn less often than this are divided.
        slow: f32,
        /// The original training context, in tokens.
        trained: f32,
        /// Multiplies the rotated values of queries and keys.
        magnitude: f32,
        /// Whether the transition begins and ends at whole pair indices.
        whole: bool,
    },
    /// Rotates only the first pairs, which hold `turned` values.
    Proportional {
        /// Number of rotated values.
        turned: usize,
        /// Divides all angles.
        #[serde(default = "one", skip_serializing_if = "is_one")]
        factor: f32,
    },
    /// LongRoPE (arXiv 2402.13753): divides each angle by a separate number, and scales queries and keys up.
    Divided {
        /// The divisor of each pair.
        divisors: Vec<f32>,
        /// Multiplies the rotated values of queries and keys.
        magnitude: f32,
    },
}

fn one() -> f32 {
    1.0
}

fn is_one(factor: &f32) -> bool {
    *factor == 1.0
}

impl RopeScaling {
    /// YaRN's magnitude for a divisor; `scale` is usually 1.
    pub fn yarn_magnitude(factor: f32, scale: f32) -> f32 {
        if factor > 1.0 {
            0.1 * scale * factor.ln() + 1.0
        } else {
            1.0
        }
    }

    /// The angle per token of pair number `pair`, in `width` rotated values.
    pub fn frequency(&self, theta: f32, width: usize, pair: usize) -> f64 {
        let plain = plain(theta, width, pair);
        match *self {
            RopeScaling::Linear { factor } => plain / f64::from(factor),
            RopeScaling::Llama3 {
                factor,
                low,
                high,
                trained,
            } => {
                let turns = f64::from(trained) * plain / std::f64::consts::TAU;
                let kept = (turns - f64::from(low)) / (f64::from(high) - f64::from(low));
                mix(plain, factor, kept)
            }
            RopeScaling::Yarn {
                factor,
                fast,
                slow,
                trained,
                whole,
                ..
            } => {
                // The index of the pair that makes this many turns within the training context.
                let pair_of = |turns: f32| {
                    let length = f64::from(trained) / (f64::from(turns) * std::f64::consts::TAU);
                    width as f64 * length.ln() / (2.0 * f64::from(theta).ln())
                };
                let (mut low, mut high) = (pair_of(fast), pair_of(slow));
                if whole {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(width as f64 - 1.0));
                let divided = (pair as f64 - low) / (high - low).max(1e-3);
                mix(plain, factor, 1.0 - divided)
            }
            RopeScaling::Proportional { turned, factor } => {
                if pair < turned / 2 {
                    plain / f64::from(factor)
                } else {
                    0.0
                }
            }
            RopeScaling::Divided { ref divisors, .. } => {
                plain
                    / divisors
                        .get(pair)
                        .map_or(1.0, |&divisor| f64::from(divisor))
            }
        }
    }

    /// Returns why the scaling does not fit `pairs` pairs of values, if it does not: all its numbers must be positive.
    pub fn misfit(&self, pairs: usize) -> Option<String> {
        let numbers = match self {
            RopeScaling::Linear { factor } => vec![*factor],
            RopeScaling::Llama3 {
                factor,
                low,
                high,
                trained,
            } => vec![*factor, *low, *high, *trained, high - low],
            RopeScaling::Yarn {
                factor,
                fast,
                slow,
                trained,
                magnitude,
                whole: _,
            } => vec![*factor, *fast, *slow, *trained, *magnitude],
            RopeScaling::Proportional { turned: _, factor } => vec![*factor],
            RopeScaling::Divided {
                divisors,
                magnitude,
            } => {
                if divisors.len() != pairs {
                    return Some(format!("{} divisors for {pairs} pairs", divisors.len()));
                }
                [&divisors[..], &[*magnitude]].concat()
            }
        };
        let is_wrong = |number: &&f32| !number.is_finite() || **number <= 0.0;
        let wrong = numbers.iter().find(is_wrong)?;
        Some(format!("{wrong} in the scaling of rotary frequencies"))
    }

    fn magnitude(&self) -> f32 {
        match *self {
            RopeScaling::Yarn { magnitude, .. } | RopeScaling::Divided { magnitude, .. } => {
                magnitude
            }
            _ => 1.0,
        }
    }
}

/// The angle `theta^(-2 pair / width)`.
fn plain(theta: f32, width: usize, pair: usize) -> f64 {
    f64::from(theta).powf(-2.0 * pair as f64 / width as f64)
}

/// Blends an angle, with weight `kept`, and the angle divided by `factor`.
fn mix(plain: f64, factor: f32, kept: f64) -> f64 {
    let kept = kept.clamp(0.0, 1.0);
    plain * (kept + (1.0 - kept) / f64::from(factor))
}

impl Rope {
    /// Angles `theta^(-2 i / d)` for the d columns of `table`, scaled.
    pub fn new(theta: f32, scaling: Option<&RopeScaling>, table: View) -> Self {
        let width = table.width;
        let frequency = |pair| match scaling {
            Some(scaling) => scaling.frequency(theta, width, pair) as f32,
            None => plain(theta, width, pair) as f32,
        };
        Rope {
            frequencies: (0..width / 2).map(frequency).collect(),
            magnitude: scaling.map_or(1.0, RopeScaling::magnitude),
            table,
        }
    }

    pub(super) fn fill(&self, position: u64, row: &mut [f32]) {
        let (cosines, sines) = row.split_at_mut(self.frequencies.len());
        for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(self.frequencies.iter()) {
            // The reference multiplies in f32; its rounding of the angle is part of its result.
            let (sine, cosine) = (position as f32 * frequency).sin_cos();
            (*sin, *cos) = (self.magnitude * sine, self.magnitude * cosine);
        }
    }
}

/// Rotates a head by a token's row of the table.
#[inline(always)]
pub(super) fn rotate(angles: &[f32], head: &mut [f32]) {
    let (cosines, sines) = angles.split_at(angles.len() / 2);
    let (a, b) = head.split_at_mut(cosines.len());
    for (((a, b), cos), sin) in a.iter_mut().zip(b).zip(cosines).zip(sines) {
        (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frequencies(scaling: RopeScaling) -> Vec<f32> {
        let rope = Rope::new(1000.0, Some(&scaling), View::whole(0, 20));
        rope.frequencies.to_vec()
    }

    #[test]
    fn yarn_is_that_of_transformers() {
        let yarn = |fast, slow, trained, whole| RopeScaling::Yarn {
            factor: 4.0,
            fast,
            slow,
            trained,
            magnitude: RopeScaling::yarn_magnitude(4.0, 1.0),
            whole,
        };
        let close = |found: Vec<f32>, expected: [f32; 10]| {
            for (found, expected) in found.iter().zip(expected) {
                assert!((found / expected - 1.0).abs() < 1e-6, "{found} {expected}");
            }
        };
        // transformers 5.24.0, ROPE_INIT_FUNCTIONS["yarn"], heads of 20 values.
        let first = [
            1.0,
            0.4072146,
            0.1569929,
            0.05507798,
            0.01577393,
            0.007905695,
            0.003962232,
            0.001985821,
            0.0009952679,
            0.0004988157,
        ];
        close(frequencies(yarn(32.0, 1.0, 64.0, true)), first);
        let second = [
            1.0,
            0.5011872,
            0.2511886,
            0.105711,
            0.03726103,
            0.01079611,
            0.003962232,
            0.001985821,
            0.0009952679,
            0.0004988157,
        ];
        close(frequencies(yarn(16.0, 2.0, 512.0, false)), second);
        assert!((RopeScaling::yarn_magnitude(4.0, 1.0) - 1.138_629_4).abs() < 1e-6);
        assert_eq!(RopeScaling::yarn_magnitude(0.5, 1.0), 1.0);
    }

    #[test]
    fn divided_angles_have_a_divisor_each() {
        let divided = |divisors: Vec<f32>| RopeScaling::Divided {
            divisors,
            magnitude: 1.5,
        };
        let plain = frequencies(RopeScaling::Linear { factor: 1.0 });
        let divisors: Vec<f32> = (1..=10).map(|n| n as f32).collect();
        let found = frequencies(divided(divisors.clone()));
        for ((found, plain), divisor) in found.iter().zip(&plain).zip(&divisors) {
            assert!((found * divisor / plain - 1.0).abs() < 1e-6);
        }
        assert_eq!(divided(divisors.clone()).magnitude(), 1.5);
        assert_eq!(divided(divisors.clone()).misfit(10), None);
        assert!(divided(divisors).misfit(9).is_some());
        assert!(divided(vec![0.0; 10]).misfit(10).is_some());
        assert!(divided(vec![f32::NAN; 10]).misfit(10).is_some());
    }

    #[test]
    fn proportional_positions_turn_the_first_pairs() {
        let proportional = |factor| frequencies(RopeScaling::Proportional { turned: 6, factor });
        let (turned, halved) = (proportional(1.0), proportional(2.0));
        assert_eq!(turned[3..], [0.0; 7]);
        assert!(turned[..3].iter().all(|&frequency| frequency > 0.0));
        assert!(
            turned
                .iter()
                .zip(halved)
                .all(|(whole, half)| *whole == 2.0 * half)
        );
    }
}
