//! Elementwise functions.

use serde::{Deserialize, Serialize};

use crate::cpu::simd;

/// A function of single values: a feature map, or what an output gate passes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
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
    /// `x Phi(x)`, in its approximation by tanh.
    Gelu,
    /// `x + 1` above zero, else `e^x`.
    EluPlusOne,
}

impl Activation {
    /// Maps every value in place.
    #[inline(always)]
    pub(crate) fn apply(self, values: &mut [f32]) {
        match self {
            Activation::Identity => (),
            Activation::Silu => map(values, simd::silu),
            Activation::Tanh => map(values, |x| 2.0 * simd::sigmoid(2.0 * x) - 1.0),
            Activation::Sigmoid => map(values, simd::sigmoid),
            Activation::LogSigmoid => map(values, log_sigmoid),
            Activation::Relu => map(values, |x| x.max(0.0)),
            Activation::SquaredRelu => map(values, |x| x.max(0.0) * x.max(0.0)),
            Activation::Gelu => map(values, gelu),
            Activation::EluPlusOne => {
                map(values, |x| if x > 0.0 { x + 1.0 } else { simd::exp(x) });
            }
        }
    }

    /// Multiplies `values` by the mapped `gates`.
    #[inline(always)]
    pub(crate) fn gate(self, gates: &[f32], values: &mut [f32]) {
        const PIECE: usize = 64;
        for (gates, values) in gates.chunks(PIECE).zip(values.chunks_mut(PIECE)) {
            let mut mapped = [0.0; PIECE];
            mapped[..gates.len()].copy_from_slice(gates);
            self.apply(&mut mapped);
            for (x, gate) in values.iter_mut().zip(mapped) {
                *x *= gate;
            }
        }
    }
}

#[inline(always)]
fn map(values: &mut [f32], f: impl Fn(f32) -> f32) {
    values.iter_mut().for_each(|x| *x = f(*x));
}

/// `ln sigmoid(x)`.
#[inline(always)]
pub(super) fn log_sigmoid(x: f32) -> f32 {
    -simd::softplus(-x)
}

#[inline(always)]
fn gelu(x: f32) -> f32 {
    // (1 + tanh z) / 2 is sigmoid(2 z).
    x * simd::sigmoid(2.0 * 0.797_884_56 * x * (1.0 + 0.044_715 * x * x))
}
