//! Elementwise functions.

use std::f32::consts::FRAC_1_SQRT_2;

use serde::{Deserialize, Serialize};

use crate::abi::device_enum;
use crate::cpu::simd;

device_enum! {
    /// An elementwise function: a feature map, or the function of an output gate.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(rename_all = "snake_case")]
    pub enum Activation("") {
        /// `x`.
        Identity,
        /// `x sigmoid(x)`.
        Silu,
        /// `1 / (1 + e^-x)`.
        Sigmoid,
        /// `tanh x`.
        Tanh,
        /// `ln sigmoid(x)`.
        LogSigmoid,
        /// `max(x, 0)`.
        Relu,
        /// `max(x, 0)^2`.
        SquaredRelu,
        /// `x Phi(x)`, in its tanh approximation.
        Gelu,
        /// `x + 1` above zero, otherwise `e^x`.
        EluPlusOne,
        /// `x Phi(x)`.
        GeluErf,
        /// `ln(1 + e^x)`.
        Softplus,
    }
}

impl Activation {
    /// Maps every value in place. Not inlined: the compiled code of all functions together is large.
    #[inline(never)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        simd::vectorize(
            #[inline(always)]
            || self.map(values),
        );
    }

    #[inline(always)]
    fn map(self, values: &mut [f32]) {
        match self {
            Activation::Identity => (),
            Activation::Silu => map(values, simd::silu),
            Activation::Tanh => map(values, |x| 2.0 * simd::sigmoid(2.0 * x) - 1.0),
            Activation::Sigmoid => map(values, simd::sigmoid),
            Activation::LogSigmoid => map(values, log_sigmoid),
            Activation::Relu => map(values, |x| x.max(0.0)),
            Activation::SquaredRelu => map(values, |x| x.max(0.0) * x.max(0.0)),
            Activation::Gelu => map(values, gelu),
            Activation::Softplus => map(values, simd::softplus),
            Activation::GeluErf => map(values, |x| 0.5 * x * (1.0 + erf(x * FRAC_1_SQRT_2))),
            Activation::EluPlusOne => {
                map(values, |x| if x > 0.0 { x + 1.0 } else { simd::exp(x) });
            }
        }
    }

    /// Multiplies `values` by the mapped `gates`.
    pub(crate) fn gate(self, gates: &[f32], values: &mut [f32]) {
        const PIECE: usize = 256;
        let mut room = [0.0; PIECE];
        for (gates, values) in gates.chunks(PIECE).zip(values.chunks_mut(PIECE)) {
            let mapped = &mut room[..gates.len()];
            mapped.copy_from_slice(gates);
            self.apply(mapped);
            simd::vectorize(
                #[inline(always)]
                || simd::multiply(mapped, values),
            );
        }
    }
}

#[inline(always)]
fn map(values: &mut [f32], f: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|x| *x = f(*x));
}

/// `ln sigmoid(x)`.
#[inline(always)]
pub(crate) fn log_sigmoid(x: f32) -> f32 {
    -simd::softplus(-x)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    // (1 + tanh z) / 2 is sigmoid(2 z).
    x * simd::sigmoid(2.0 * 0.797_884_6 * x * (1.0 + 0.044_715 * x * x))
}

/// The error function, with an absolute error of at most 1.5e-7 (Abramowitz and Stegun, 7.1.26).
#[inline(always)]
fn erf(x: f32) -> f32 {
    const FACTORS: [f32; 5] = [
        1.061_405_4,
        -1.453_152,
        1.421_413_7,
        -0.284_496_73,
        0.254_829_6,
    ];
    let t = 1.0 / (1.0 + 0.327_591_1 * x.abs());
    let polynomial = FACTORS.iter().fold(0.0, |sum, factor| (sum + factor) * t);
    (1.0 - polynomial * simd::exp(-x * x)).copysign(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_follow_their_definitions() {
        let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
        let tanh_gelu =
            |x: f64| 0.5 * x * (1.0 + (0.797_884_56 * x * (1.0 + 0.044_715 * x * x)).tanh());
        // The normal distribution function: a power series, and 0 or 1 in the tails, where the series would cancel.
        let normal = |x: f64| {
            let density = (-x * x / 2.0).exp() / (2.0 * std::f64::consts::PI).sqrt();
            let series = (1..200).fold((x, x), |(sum, term), n| {
                let term = term * x * x / f64::from(2 * n + 1);
                (sum + term, term)
            });
            if x.abs() > 6.0 {
                f64::from(u8::from(x > 0.0))
            } else {
                0.5 + density * series.0
            }
        };
        let definitions: [(Activation, &dyn Fn(f64) -> f64); 9] = [
            (Activation::Silu, &|x| x * sigmoid(x)),
            (Activation::Sigmoid, &sigmoid),
            (Activation::LogSigmoid, &|x| -(-x).exp().ln_1p()),
            (Activation::Softplus, &|x| {
                x.max(0.0) + (-x.abs()).exp().ln_1p()
            }),
            (Activation::Relu, &|x| x.max(0.0)),
            (Activation::SquaredRelu, &|x| x.max(0.0).powi(2)),
            (Activation::GeluErf, &|x| x * normal(x)),
            (Activation::Gelu, &tanh_gelu),
            (Activation::EluPlusOne, &|x| {
                if x > 0.0 { x + 1.0 } else { x.exp() }
            }),
        ];
        // More than one piece of a gate, and a rest.
        let values: Vec<f32> = (0..150).map(|i| (i as f32 - 70.0) * 0.3).collect();
        for (function, definition) in definitions {
            let mut mapped = values.clone();
            function.apply(&mut mapped);
            let mut gated = vec![2.0; values.len()];
            function.gate(&values, &mut gated);
            for ((x, mapped), gated) in values.iter().zip(mapped).zip(gated) {
                let expected = definition(f64::from(*x));
                let error = (f64::from(mapped) - expected).abs();
                assert!(
                    error <= 1e-6 * (1.0 + expected.abs()),
                    "{function:?} of {x}: {mapped}"
                );
                assert_eq!(gated, 2.0 * mapped);
            }
        }
    }
}
