//! Linear recurrences on matrix states. For each head, with a state S `[dk, dv]` that fades by key channel:
//! `S <- diag(decay) S + k^T write`, `o = scale q S`, the read after the write of the same token.
//!
//! Heads share: where a view holds n heads, head h of the output takes number `h / (heads / n)`. So do the states:
//! where there are fewer than heads, the heads of one state must differ in their queries only.

mod chunk;
mod inputs;
mod launch;
mod matrix_form;
mod one_fade;
mod step;
#[cfg(test)]
mod tests;
mod token;

pub(super) use inputs::{Fade, Inputs, Removal, Rows};
pub(super) use launch::{Fading, Input, Inputs as DeviceInputs, Plan, SOURCE, Writing};
pub(super) use matrix_form::{Lists, MatrixForm};
use token::step;

use super::{Access, Op};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// How a state fades before a write.
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

/// What is written.
pub enum Write {
    /// `v`.
    Add,
    /// The delta rule: `beta (v - k S)`, S already faded; `beta` is one value for each head and token.
    Delta(View),
    /// `v - key S`, S already faded, with a key of its own for what is taken off, `[heads, dk]`.
    Erase {
        /// What is read and taken off.
        key: View,
    },
    /// `v`, and what `key` reads of S before it fades is taken off: `S <- diag(decay) S - (rate key)^T (key S) + k^T v`.
    Replace {
        /// What is removed, `[heads, dk]`.
        key: View,
        /// How much of it, for each channel of the key, `[heads, dk]`.
        rate: View,
    },
}

/// Weights of each head and token.
pub struct HeadGates {
    /// Multiplies v, `[heads]`.
    pub write: View,
    /// Multiplies the output, `[heads]`.
    pub read: Option<View>,
}

/// A recurrence over heads.
pub struct Recur {
    /// Heads of the output.
    pub heads: usize,
    /// States; `heads`, or a divisor.
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
    /// Weights of the heads.
    pub gates: Option<HeadGates>,
    /// Multiplies the output.
    pub scale: f32,
    /// The state tensor of the states `[states, dk, dv]`.
    pub state: usize,
    /// Outputs `[heads, dv]`.
    pub out: View,
    /// Recurrences that a device runs beside it, each on its part of the SMs.
    pub beside: usize,
}

/// Whether the matrix form pays for a chunk of this many tokens: below, its triangles cost more than they save.
fn in_matrix_form(tokens: usize) -> bool {
    tokens >= 8
}

/// Floats of scratch that [`run`] needs for chunks of up to `chunk` tokens.
pub(super) fn scratch(dk: usize, dv: usize, chunk: usize) -> usize {
    if in_matrix_form(chunk) {
        chunk::scratch(dk, dv)
    } else {
        2 * dk
    }
}

/// Runs `tokens` tokens on one state; `out(t)` is the place of an output `[queries, dv]`.
#[inline(always)]
pub(super) fn run<'o>(
    inputs: &Inputs,
    tokens: usize,
    state: &mut [f32],
    out: &mut impl FnMut(usize) -> &'o mut [f32],
    scratch: &mut [f32],
) {
    if in_matrix_form(tokens) {
        chunk::run(inputs, tokens, state, out, scratch);
    } else {
        for t in 0..tokens {
            step(inputs, t, state, out(t), scratch);
        }
    }
}

impl Recur {
    /// All columns that it reads.
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
        columns
    }

    /// What the state number `state` takes from the buffers; from part `part.0` of their columns, which have `part.1`
    /// equal ones.
    pub(super) fn inputs<'a>(
        &self,
        buffers: &'a Buffers,
        state: usize,
        part: (usize, usize),
    ) -> Inputs<'a> {
        let queries = self.heads / self.states;
        let head = state * queries;
        let rows = |view: &View, width: usize| {
            let columns = view.width / part.1;
            let sharing = self.heads / (columns / width);
            let start = view.start + part.0 * columns + head / sharing * width;
            Rows::new(&buffers.get(view.buffer)[start..], view.stride)
        };
        let own = |constants: &Vector| constants[head / (self.heads / constants.len())];
        Inputs {
            queries,
            dk: self.dk,
            dv: self.dv,
            q: rows(&self.q, self.dk),
            k: match &self.k {
                Key::View(view) => Some(rows(view, self.dk)),
                Key::Complement => None,
            },
            v: rows(&self.v, self.dv),
            decay: match &self.decay {
                Decay::None => Fade::None,
                Decay::Fixed(g) => Fade::Fixed(own(g)),
                Decay::Head(view) => Fade::Head(rows(view, 1)),
                Decay::Step(view, rate) => Fade::Step(rows(view, 1), own(rate)),
                Decay::Key(view) => Fade::Key(rows(view, self.dk)),
            },
            beta: match &self.write {
                Write::Delta(view) => Some(rows(view, 1)),
                _ => None,
            },
            erase: match &self.write {
                Write::Erase { key } => Some(rows(key, self.dk)),
                _ => None,
            },
            removal: match &self.write {
                Write::Replace { key, rate } => Some(Removal {
                    key: rows(key, self.dk),
                    rate: rows(rate, self.dk),
                }),
                _ => None,
            },
            write_gate: self.gates.as_ref().map(|gates| rows(&gates.write, 1)),
            read_gate: (self.gates.as_ref())
                .and_then(|gates| gates.read.as_ref())
                .map(|read| rows(read, 1)),
            scale: self.scale,
        }
    }
}

impl Op for Recur {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        let mut out = frame.buffers.take(self.out.buffer);
        let states = Shared::new(frame.arena.tensor_mut::<f32>(self.state));
        let size = self.dk * self.dv;
        {
            let out = Shared::new(&mut out);
            frame.pool.each(self.states, |worker, state| {
                let inputs = self.inputs(frame.buffers, state, (0, 1));
                // SAFETY: each task has its own state (rules: widths, bounds).
                let matrix = unsafe { states.part(state * size..(state + 1) * size) };
                let width = inputs.queries * self.dv;
                let start = self.out.start + state * width;
                // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                let mut row = |t: usize| unsafe {
                    let start = t * self.out.stride + start;
                    out.part(start..start + width)
                };
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                simd::vectorize(
                    #[inline(always)]
                    || run(&inputs, tokens, matrix, &mut row, &mut scratch),
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn access(&self) -> Access {
        Access::default()
            .reads(self.columns())
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let [states, dk, dv] = [self.states, self.dk, self.dv].map(Some);
        rules.width("out", self.out, self.heads * self.dv);
        rules.state(self.state, &[states, dk, dv]);
    }

    fn scratch(&self, chunk: usize) -> usize {
        scratch(self.dk, self.dv, chunk)
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}
