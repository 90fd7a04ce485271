//! Rotary positions.

use serde::{Deserialize, Serialize};

use crate::operands::View;
use crate::weights::Vector;

/// Rotary position embedding on halves: with a, b the halves of a head's leading values,
/// `(a cos - b sin, b cos + a sin)`. What follows them stays.
pub struct Rope {
    /// Angle per position of each pair, `[table.width / 2]`.
    pub frequencies: Vector,
    /// Room for the cosines, then the sines, of each token: they are the same for every head.
    pub table: View,
}

/// How rotary frequencies are stretched so that a model reaches further than it was first trained to.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase", deny_unknown_fields)]
pub enum RopeScaling {
    /// All angles divided by `factor`.
    Linear {
        /// The divisor.
        factor: f32,
    },
    /// Llama 3: slow angles divided by `factor`, fast ones kept, a smooth passage between.
    Llama3 {
        /// The divisor.
        factor: f32,
        /// Pairs that turn less often than this within `trained` tokens are divided.
        low: f32,
        /// Pairs that turn more often than this are kept.
        high: f32,
        /// The context of the first training, in tokens.
        trained: f32,
    },
}

impl RopeScaling {
    /// What becomes of an angle per token.
    pub(crate) fn apply(self, frequency: f64) -> f64 {
        match self {
            RopeScaling::Linear { factor } => frequency / f64::from(factor),
            RopeScaling::Llama3 {
                factor,
                low,
                high,
                trained,
            } => {
                let turns = f64::from(trained) * frequency / std::f64::consts::TAU;
                let kept = (turns - f64::from(low)) / (f64::from(high) - f64::from(low));
                let kept = kept.clamp(0.0, 1.0);
                frequency * (kept + (1.0 - kept) / f64::from(factor))
            }
        }
    }
}

impl Rope {
    /// Angles `theta^(-2 i / d)` for the d columns of `table`, scaled.
    pub fn new(theta: f32, scaling: Option<RopeScaling>, table: View) -> Self {
        let frequency = |i| {
            let plain = f64::from(theta).powf(-2.0 * i as f64 / table.width as f64);
            scaling.map_or(plain, |scaling| scaling.apply(plain)) as f32
        };
        Rope {
            frequencies: (0..table.width / 2).map(frequency).collect(),
            table,
        }
    }

    pub(super) fn fill(&self, position: u64, row: &mut [f32]) {
        let (cosines, sines) = row.split_at_mut(self.frequencies.len());
        for ((cos, sin), frequency) in cosines.iter_mut().zip(sines).zip(self.frequencies.iter()) {
            // The reference multiplies in f32; its rounding of the angle is part of its result.
            (*sin, *cos) = (position as f32 * frequency).sin_cos();
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
