//! Linear recurrences on matrix states. Each head has a state S `[dk, dv]` that decays by key channel:
//! `S <- diag(decay) S + k^T write`, `o = scale q S`. A token reads after its write.
//!
//! A view may hold fewer heads than the output: if it holds n, output head h uses head `h / (heads / n)`. There may also be
//! fewer states; heads that share a state may then differ in their queries only.

mod cpu;
mod launch;

pub(super) use cpu::{Decays, Inputs, Outputs, Rows, in_matrix_form, run, scratch};
pub(super) use launch::{DecayKind, Lists, MatrixForm, Place, Plan, SOURCE, Update, Writing};

use super::{Access, Op};
use crate::functions::Activation;
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// How a state decays before a write.
pub enum Decay {
    /// Not at all.
    None,
    /// By `exp` of one constant for each head.
    Fixed(Vector),
    /// By `exp` of one value for each head and token.
    Head(View),
    /// By `exp` of one value for each head and token, times one constant for each head.
    Step(View, Vector),
    /// By `exp` of one value for each head, key channel and token: `[heads, dk]`.
    Key(View),
}

/// Where keys come from.
pub enum Key {
    /// These columns, `[heads, dk]`.
    View(View),
    /// One minus the decay.
    Complement,
}

/// The kind of write.
pub enum Write {
    /// `v`.
    Add,
    /// The delta rule: `beta (v - k S)`, S already decayed; `beta` is one value for each head and token.
    Delta(View),
    /// `v - key S`, S already decayed, with a separate key for the removal, `[heads, dk]`.
    Erase {
        /// Key of the removal.
        key: View,
    },
    /// `v`, after removing the value under `key` from S before it decays: `S <- diag(decay) S - (rate key)^T (key S) + k^T v`.
    Replace {
        /// Key of the removal, `[heads, dk]`.
        key: View,
        /// The rate of removal for each channel of the key, `[heads, dk]`.
        rate: View,
    },
}

/// Gates of each head and token.
pub struct HeadGates {
    /// Multiplies v, `[heads]`.
    pub write: View,
    /// Multiplies the output, `[heads]`.
    pub read: Option<View>,
}

/// The final step on an output o with value v: `(o + skip v) * function(gate)`.
#[derive(Default)]
pub struct Finish {
    /// Gains of the values that are added, `[heads, dv]`.
    pub skip: Option<Vector>,
    /// Gate columns `[heads, dv]`, and the activation applied to them; the result multiplies the outputs.
    pub gate: Option<(View, Activation)>,
}

/// A recurrence over heads.
pub struct Recur {
    /// Heads of the output.
    pub heads: usize,
    /// Number of states: `heads`, or a divisor of it.
    pub states: usize,
    /// Width of a key.
    pub dk: usize,
    /// Width of a value.
    pub dv: usize,
    /// Queries `[heads, dk]`.
    pub q: View,
    /// Keys.
    pub k: Key,
    /// Values `[heads, dv]`.
    pub v: View,
    /// The decay.
    pub decay: Decay,
    /// The write.
    pub write: Write,
    /// Gates of the heads.
    pub gates: Option<HeadGates>,
    /// Multiplies the output.
    pub scale: f32,
    /// Finish of the output.
    pub finish: Finish,
    /// The state tensor `[states, dk, dv]`.
    pub state: usize,
    /// Outputs `[heads, dv]`.
    pub out: View,
}

impl Recur {
    /// All columns that the recurrence reads.
    pub(super) fn columns(&self) -> Vec<View> {
        let mut columns = vec![self.q, self.v];
        match self.k {
            Key::View(view) => columns.push(view),
            Key::Complement => {}
        }
        match self.decay {
            Decay::None | Decay::Fixed(_) => {}
            Decay::Head(view) | Decay::Step(view, _) | Decay::Key(view) => columns.push(view),
        }
        match self.write {
            Write::Add => {}
            Write::Delta(beta) => columns.push(beta),
            Write::Erase { key } => columns.push(key),
            Write::Replace { key, rate } => columns.extend([key, rate]),
        }
        if let Some(gates) = &self.gates {
            columns.push(gates.write);
            columns.extend(gates.read);
        }
        columns.extend(self.finish.gate.map(|(gate, _)| gate));
        columns
    }
}

impl Op for Recur {
    fn access(&self) -> Access {
        Access::default()
            .reads(self.columns())
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let [states, dk, dv] = [self.states, self.dk, self.dv].map(Some);
        let width = self.heads * self.dv;
        rules.width("out", self.out, width);
        if let Some((gate, _)) = self.finish.gate {
            rules.width("gate", gate, width);
        }
        if let Some(gains) = &self.finish.skip {
            rules.equal("gains of the values", gains.len(), width);
        }
        rules.state(self.state, &[states, dk, dv]);
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}

#[cfg(test)]
mod tests;
