//! A mixture of experts: many feed-forward networks of one shape. Each token passes through the networks that a router
//! chose for it, and optionally through a shared one. Only chosen experts are read.

mod cpu;
mod grouped;
mod launch;
mod launch_chunk;

use waterline_quant::{Matrix, Rounding};

use self::grouped::Grouped;
use super::{Access, Op};
use crate::functions::{Activation, ClampedUnit, Norm};
use crate::operands::View;
use crate::ops::Rules;
use crate::weights::Vector;

/// The matrices of feed-forward networks of one shape. Each matrix holds one network after another.
pub struct Expert {
    /// `[networks * width, cols]`; `None` for networks without a gate.
    pub gate: Option<Matrix>,
    /// `[networks * width, cols]`.
    pub up: Matrix,
    /// `[networks * rows, width]`.
    pub down: Matrix,
}

/// The biases of the experts' matrices, with one number for each of their rows.
pub struct ExpertBiases {
    /// Bias of the gate; `None` for networks without a gate.
    pub gate: Option<Vector>,
    /// Bias of `up`.
    pub up: Vector,
    /// Bias of `down`, which the weight of an expert multiplies too.
    pub down: Vector,
}

/// The expert that every token passes through.
pub struct SharedExpert {
    /// The expert's matrices.
    pub expert: Expert,
    /// A value whose `sigmoid` multiplies the output.
    pub gate: Option<View>,
    /// Multiplies the output.
    pub multiplier: f32,
}

/// `output = sum_e w_e expert_e(x) + w_s shared(x)` over the chosen experts with `x = norm(input)`, or `+=`.
///
/// `expert(x) = down(act(gate x) * up x)`, without a gate `down(act(up x))`.
pub struct Experts {
    /// Input of the experts.
    pub input: View,
    /// Applied to the input first.
    pub norm: Option<Norm>,
    /// Output of [`super::Route`]: the chosen experts and their weights.
    pub route: View,
    /// Number of experts.
    pub experts: usize,
    /// The experts' matrices.
    pub expert: Expert,
    /// Added to the products of the experts' matrices, but not to those of the shared expert.
    pub biases: Option<ExpertBiases>,
    /// The expert that every token passes through.
    pub shared: Option<SharedExpert>,
    /// Activation of the gate or, without gates, of `up x`.
    pub activation: Activation,
    /// Replaces the activation of gates and its product with `up x`.
    pub clamped: Option<ClampedUnit>,
    /// Room for the values between the matrices, of [`Experts::inner_width`].
    pub inner: View,
    /// Room for the order of tokens, of [`Experts::order_width`].
    pub order: View,
    /// Destination of the sum.
    pub output: View,
    /// Whether the sum is added to the previous contents.
    pub add: bool,
}

/// Inputs of products are padded to a multiple of this.
const PAD: usize = 256;

impl Expert {
    /// Width between the matrices.
    fn width(&self) -> usize {
        self.down.cols()
    }

    /// All matrices except `down`.
    fn first(&self) -> impl Iterator<Item = &Matrix> {
        self.gate.iter().chain([&self.up])
    }

    /// How the input of the first matrices is rounded; if they differ, the finer of the two ways.
    fn rounding(&self) -> Option<Rounding> {
        let formats = || self.first().map(Matrix::format);
        let rounding = |format| Rounding::for_shared_input(format, formats());
        formats().map(rounding).max().flatten()
    }

    fn bytes(&self) -> usize {
        let first: usize = self.first().map(|matrix| matrix.bytes().len()).sum();
        first + self.down.bytes().len()
    }
}

impl Experts {
    /// Width of the room for the values between the matrices: the values of each chosen expert, then of the shared one.
    pub fn inner_width(chosen: usize, width: usize, shared: usize) -> usize {
        chosen * width + shared
    }

    /// Width of the room for the order of tokens.
    pub fn order_width(chosen: usize) -> usize {
        Grouped::width(chosen)
    }

    /// Width that the inputs of products need so that a token's inner values fit as rows.
    pub fn inputs_width(chosen: usize, width: usize) -> usize {
        chosen * width.next_multiple_of(PAD)
    }

    /// Number of experts per token.
    fn chosen(&self) -> usize {
        self.route.width / 2
    }
}

impl Op for Experts {
    fn access(&self) -> Access {
        let gate = self.shared.as_ref().and_then(|shared| shared.gate);
        let access = Access::default().reads([self.route]).reads(gate);
        let access = if self.add {
            access.updates([self.output])
        } else {
            access.writes([self.output])
        };
        let is_named = self.add && self.input == self.output;
        let input = (!is_named).then_some(self.input);
        access.reads(input).writes([self.inner, self.order])
    }

    fn check(&self, rules: &mut Rules) {
        let (chosen, width) = (self.chosen(), self.expert.width());
        let shared = self.shared.as_ref().map(|shared| &shared.expert);
        let shared_width = shared.map_or(0, Expert::width);
        rules.width("input", self.input, self.expert.up.cols());
        rules.width("route", self.route, 2 * chosen);
        rules.width(
            "output",
            self.output,
            self.expert.down.rows() / self.experts,
        );
        let inner = Self::inner_width(chosen, width, shared_width);
        rules.width(
            "inner",
            View::whole(self.inner.buffer, self.inner.stride),
            inner,
        );
        if let Some(biases) = &self.biases {
            let gate = |gate: Option<&Matrix>| gate.map_or(0, Matrix::rows);
            let of_gate = biases.gate.as_ref().map_or(0, |bias| bias.len());
            rules.equal(
                "the bias of the gate",
                of_gate,
                gate(self.expert.gate.as_ref()),
            );
            rules.equal("the bias of up", biases.up.len(), self.expert.up.rows());
            rules.equal(
                "the bias of down",
                biases.down.len(),
                self.expert.down.rows(),
            );
        }
        let order = Self::order_width(chosen);
        rules.width(
            "order",
            View::whole(self.order.buffer, self.order.stride),
            order,
        );
    }

    fn weight_bytes(&self) -> usize {
        let shared = self.shared.as_ref();
        self.expert.bytes() / self.experts * self.chosen()
            + shared.map_or(0, |shared| shared.expert.bytes())
    }
}

#[cfg(test)]
mod tests;
