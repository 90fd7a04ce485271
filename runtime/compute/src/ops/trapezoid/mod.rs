//! The trapezoidal rule of Mamba-3 (arXiv 2603.15569) as the inputs of a recurrence with one write per token. Each head has a
//! step d, the token's share s of the step, and a rate `a = min(rate, -least_rate)` (head h uses group `h / (heads / groups)` of
//! b and c):
//!
//! ```text
//! angle <- angle + pi turn d   (mod 2 pi)                                   one turn for all heads
//! q, k   = R(angle) (rms(c) + c_bias), R(angle) (rms(b) + b_bias)           R rotates values 2 i and 2 i + 1 by angle i
//! h_t    = e^(a d) (h_{t-1} + (1 - s) d k_{t-1}^T v_{t-1}) + s d k_t^T v_t
//! o_t    = q_t h_t + skip v_t
//! ```
//!
//! A token's key and value are written once, when the next token has arrived and their full weight is known. The state before
//! the token's own part is `S_t = e^(a d) (S_{t-1} + w k_{t-1}^T v_{t-1})` with `w = s_{t-1} d_{t-1} + (1 - s_t) d_t`, and
//! `o_t = q_t S_t + (skip + s d (q_t . k_t)) v_t`: a recurrence on the previous token's key and value, and a bonus.

mod cpu;
mod launch;

use super::{Access, Op};
use crate::functions::Norm;
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// The map, with one task per head.
pub struct Trapezoid {
    /// Heads.
    pub heads: usize,
    /// c, `[groups, dk]`.
    pub q: View,
    /// b, `[groups, dk]`.
    pub k: View,
    /// Values `[heads, dv]`.
    pub v: View,
    /// Steps `[heads]`.
    pub step: View,
    /// Shares of the tokens in their steps, `[heads]`.
    pub share: View,
    /// Rates, `[heads]`, all at most zero.
    pub rate: View,
    /// Turns `[pairs]` from -1 to 1.
    pub turn: View,
    /// The norm of c, `[dk]`: root mean square, without a bias.
    pub q_norm: Norm,
    /// The norm of b, of the same kind.
    pub k_norm: Norm,
    /// `[heads, dk]`.
    pub q_bias: Vector,
    /// `[heads, dk]`.
    pub k_bias: Vector,
    /// `[heads]`.
    pub skip: Vector,
    /// Least distance of a rate from zero.
    pub least_rate: f32,
    /// State tensors.
    pub state: TrapezoidState,
    /// Results.
    pub out: TrapezoidOutputs,
}

/// State tensors of the previous token.
pub struct TrapezoidState {
    /// Angles `[heads, pairs]`, from 0 to 2 pi.
    pub angle: usize,
    /// Keys `[heads, dk]`.
    pub key: usize,
    /// Values `[heads, dv]`.
    pub value: usize,
    /// Weights `s d`, `[heads]`.
    pub weight: usize,
}

/// Results, each in a separate buffer.
pub struct TrapezoidOutputs {
    /// Queries `[heads, dk]`.
    pub q: View,
    /// The previous token's keys, `[heads, dk]`.
    pub key: View,
    /// The previous token's values, `[heads, dv]`.
    pub value: View,
    /// Logarithms of the decays, `[heads]`.
    pub decay: View,
    /// Weights of the write, decayed: `[heads]`.
    pub write: View,
    /// Added to the recurrence's output, `[heads, dv]`.
    pub bonus: View,
}

impl TrapezoidState {
    fn tensors(&self) -> [usize; 4] {
        [self.angle, self.key, self.value, self.weight]
    }
}

impl TrapezoidOutputs {
    fn views(&self) -> [View; 6] {
        [
            self.q, self.key, self.value, self.decay, self.write, self.bonus,
        ]
    }
}

impl Trapezoid {
    /// Widths of a head's key and value, and the number of rotated pairs.
    fn widths(&self) -> [usize; 3] {
        let (dk, dv) = (self.q_norm.weight.len(), self.v.width / self.heads);
        [dk, dv, self.turn.width]
    }
}

impl Op for Trapezoid {
    fn access(&self) -> Access {
        Access::default()
            .reads([self.q, self.k, self.v])
            .reads([self.step, self.share, self.rate, self.turn])
            .state(self.state.tensors())
            .writes(self.out.views())
    }

    fn check(&self, rules: &mut Rules) {
        let [dk, dv, pairs] = self.widths();
        let heads = self.heads;
        rules.multiple("q", self.q, dk);
        rules.width("k", self.k, self.q.width);
        rules.equal("turned values", (2 * pairs).min(dk), 2 * pairs);
        rules.equal("a key's unpaired values", dk % 2, 0);
        let plain = |norm: &&Norm| !norm.centred && norm.bias.is_none();
        let norms = [&self.q_norm, &self.k_norm];
        rules.equal(
            "plain norms",
            norms.iter().filter(|norm| plain(norm)).count(),
            2,
        );
        for (name, view) in [("step", self.step), ("share", self.share)] {
            rules.width(name, view, heads);
        }
        rules.width("rate", self.rate, heads);
        let widths = [dk, dk, dv, 1, 1, dv];
        for (view, width) in self.out.views().into_iter().zip(widths) {
            rules.width("a result", view, heads * width);
        }
        rules.apart("results", self.out.views());
        let widths = [Some(pairs), Some(dk), Some(dv)];
        for (tensor, width) in self.state.tensors().into_iter().zip(widths) {
            rules.state(tensor, &[Some(heads), width]);
        }
        rules.state(self.state.weight, &[Some(heads)]);
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        let tensors = self.state.tensors();
        tensors.map(|tensor| Touched::whole(plan, tensor)).into()
    }
}

#[cfg(test)]
pub(crate) mod tests;
