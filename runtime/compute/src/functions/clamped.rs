//! The gated unit of gpt-oss.

use serde::{Deserialize, Serialize};

use crate::cpu::simd;

/// A gated unit with bounds: `(u + 1) g sigmoid(slope g)` with `g = min(gate, limit)` and u clamped to `-limit..=limit`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClampedUnit {
    /// Largest gate, and largest magnitude of the gated values.
    pub limit: f32,
    /// Slope of the sigmoid.
    pub slope: f32,
}

impl ClampedUnit {
    /// Replaces `values` by the unit's outputs for them and their `gates`.
    pub(crate) fn gate(self, gates: &[f32], values: &mut [f32]) {
        let ClampedUnit { limit, slope } = self;
        simd::vectorize(
            #[inline(always)]
            || {
                for (gate, value) in gates.iter().zip(values) {
                    let gate = gate.min(limit);
                    let clamped = value.max(-limit).min(limit);
                    *value = (clamped + 1.0) * gate * simd::sigmoid(slope * gate);
                }
            },
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_inputs_have_bounds() {
        let unit = ClampedUnit {
            limit: 7.0,
            slope: 1.702,
        };
        let pairs = [
            (0.5, -0.25),
            (-9.0, 2.0),
            (9.0, 1.0),
            (1.0, -20.0),
            (30.0, 20.0),
        ];
        for (gate, up) in pairs {
            let mut found = [up];
            unit.gate(&[gate], &mut found);
            let (g, u) = (f64::from(gate.min(7.0)), f64::from(up.clamp(-7.0, 7.0)));
            let expected = (u + 1.0) * g / (1.0 + (-1.702 * g).exp());
            assert!((f64::from(found[0]) - expected).abs() < 1e-5, "{gate} {up}");
        }
    }
}
