//! Linear recurrences on matrix states. For each head, with a state S `[dk, dv]` that fades by key channel:
//! `S <- diag(decay) S + k^T write`, `o = scale q S`, the read after the write of the same token.
//!
//! Heads share: where a view holds n heads, head h of the output takes number `h / (heads / n)`. So do the states:
//! where there are fewer than heads, the heads of one state must differ in their queries only.

mod chunk;
mod launch;
mod matrix_form;
mod one_fade;
mod step;
#[cfg(test)]
mod tests;

pub(super) use launch::{Fading, Input, Inputs as DeviceInputs, Plan, SOURCE, Writing};
pub(super) use matrix_form::{Lists, MatrixForm};

use super::{Access, Op};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::program::{Vector, View};
use crate::state::{StatePlan, Touched};
use crate::validate::Rules;

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
    /// The slot of the states `[states, dk, dv]`.
    pub slot: usize,
    /// Outputs `[heads, dv]`.
    pub out: View,
    /// Recurrences that a device runs beside it, each on its part of the processors.
    pub beside: usize,
}

/// Columns of a buffer from a head's first one on.
#[derive(Clone, Copy)]
pub(super) struct Rows<'a> {
    pub values: &'a [f32],
    pub stride: usize,
}

impl<'a> Rows<'a> {
    #[inline(always)]
    pub fn new(values: &'a [f32], stride: usize) -> Self {
        Rows { values, stride }
    }

    /// The rows from token t on, without the first columns.
    #[inline(always)]
    pub fn from(&self, t: usize, column: usize) -> Self {
        Rows::new(&self.values[t * self.stride + column..], self.stride)
    }

    /// The first `width` columns of token t.
    #[inline(always)]
    pub fn get(&self, t: usize, width: usize) -> &'a [f32] {
        &self.values[t * self.stride..][..width]
    }
}

/// The inputs of one state over a chunk.
pub(super) struct Inputs<'a> {
    /// Queries, one after another, that read the state.
    pub queries: usize,
    pub dk: usize,
    pub dv: usize,
    pub q: Rows<'a>,
    pub k: Option<Rows<'a>>,
    pub v: Rows<'a>,
    pub decay: Fade<'a>,
    pub beta: Option<Rows<'a>>,
    /// The key of [`Write::Erase`].
    pub erase: Option<Rows<'a>>,
    pub removal: Option<Removal<'a>>,
    pub write_gate: Option<Rows<'a>>,
    pub read_gate: Option<Rows<'a>>,
    pub scale: f32,
}

/// What [`Write::Replace`] takes off a state.
#[derive(Clone, Copy)]
pub(super) struct Removal<'a> {
    pub key: Rows<'a>,
    pub rate: Rows<'a>,
}

/// How a state fades: by `exp` of these, by one minus them, or by them.
pub(super) enum Fade<'a> {
    None,
    Fixed(f32),
    Head(Rows<'a>),
    Step(Rows<'a>, f32),
    Key(Rows<'a>),
    Complement(Rows<'a>),
    Factors(Rows<'a>),
}

impl Inputs<'_> {
    /// Writes the factors by which the rows of the state fade before token t, `[dk]`.
    #[inline(always)]
    pub fn fade(&self, t: usize, fade: &mut [f32]) {
        match self.decay {
            Fade::None => fade.fill(1.0),
            Fade::Fixed(g) => fade.fill(simd::exp(g)),
            Fade::Head(g) => fade.fill(simd::exp(g.get(t, 1)[0])),
            Fade::Step(step, rate) => fade.fill(simd::exp(rate * step.get(t, 1)[0])),
            Fade::Key(g) => {
                for (fade, &g) in fade.iter_mut().zip(g.get(t, self.dk)) {
                    *fade = simd::exp(g);
                }
            }
            Fade::Factors(factors) => fade.copy_from_slice(factors.get(t, self.dk)),
            Fade::Complement(weights) => {
                for (fade, &weight) in fade.iter_mut().zip(weights.get(t, self.dk)) {
                    *fade = 1.0 - weight;
                }
            }
        }
    }

    /// Writes the key of token t, `[dk]`.
    #[inline(always)]
    pub fn key(&self, t: usize, fade: &[f32], key: &mut [f32]) {
        match self.k {
            Some(k) => key.copy_from_slice(k.get(t, self.dk)),
            None => {
                for (key, fade) in key.iter_mut().zip(fade) {
                    *key = 1.0 - fade;
                }
            }
        }
    }

    /// Weight of token t's value.
    #[inline(always)]
    pub fn write_gate(&self, t: usize) -> f32 {
        self.write_gate.map_or(1.0, |gate| gate.get(t, 1)[0])
    }

    /// Factor of what the state's query `query` reads at token t.
    #[inline(always)]
    pub fn read_factor(&self, t: usize, query: usize) -> f32 {
        let gate = self
            .read_gate
            .map_or(1.0, |gate| gate.get(t, query + 1)[query]);
        self.scale * gate
    }
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
        let states = Shared::new(frame.arena.slot_mut::<f32>(self.slot));
        let size = self.dk * self.dv;
        {
            let out = Shared::new(&mut out);
            frame.pool.each(self.states, |worker, state| {
                let inputs = self.inputs(frame.buffers, state, (0, 1));
                // SAFETY: each task has its own state.
                let matrix = unsafe { states.part(state * size..(state + 1) * size) };
                let width = inputs.queries * self.dv;
                let start = self.out.start + state * width;
                // SAFETY: each task has its own columns of the output.
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
            .state([self.slot])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let [states, dk, dv] = [self.states, self.dk, self.dv].map(Some);
        rules.width("out", self.out, self.heads * self.dv);
        rules.state(self.slot, &[states, dk, dv]);
    }

    fn scratch(&self, chunk: usize) -> usize {
        scratch(self.dk, self.dv, chunk)
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.slot)]
    }
}

/// One token: the equations as they stand.
#[inline(always)]
fn step(inputs: &Inputs, t: usize, state: &mut [f32], out: &mut [f32], scratch: &mut [f32]) {
    let (fade, rest) = scratch.split_at_mut(inputs.dk);
    let key = &mut rest[..inputs.dk];
    inputs.fade(t, fade);
    inputs.key(t, fade, key);
    let token = Token {
        fade,
        key,
        value: inputs.v.get(t, inputs.dv),
        beta: inputs.beta.map(|beta| beta.get(t, 1)[0]),
        erase: inputs.erase.map(|erase| erase.get(t, inputs.dk)),
        removal: inputs.removal.map(|removal| {
            let (key, rate) = (
                removal.key.get(t, inputs.dk),
                removal.rate.get(t, inputs.dk),
            );
            (key, rate)
        }),
        gate: inputs.write_gate(t),
        dv: inputs.dv,
    };
    for query in 0..inputs.queries {
        let q = &inputs.q.get(t, inputs.queries * inputs.dk)[query * inputs.dk..][..inputs.dk];
        let out = &mut out[query * inputs.dv..][..inputs.dv];
        let mut column = 0;
        while column < inputs.dv {
            // The first query reads while the state is written.
            // As wide as can be: a large state comes from memory, which is fastest in its own order.
            column += match (query, inputs.dv - column) {
                (0, 256..) => token.write::<256>(column, q, state, out),
                (0, 128..) => token.write::<128>(column, q, state, out),
                (0, 32..) => token.write::<32>(column, q, state, out),
                (0, 8..) => token.write::<8>(column, q, state, out),
                (0, _) => token.write::<1>(column, q, state, out),
                (_, 128..) => token.read::<128>(column, q, state, out),
                (_, 32..) => token.read::<32>(column, q, state, out),
                (_, 8..) => token.read::<8>(column, q, state, out),
                (_, _) => token.read::<1>(column, q, state, out),
            };
        }
        simd::scale(inputs.read_factor(t, query), out);
    }
}

/// One token's inputs. The columns of the state depend on no others: each group fits in registers while the rows
/// pass.
struct Token<'a> {
    fade: &'a [f32],
    key: &'a [f32],
    value: &'a [f32],
    beta: Option<f32>,
    erase: Option<&'a [f32]>,
    removal: Option<(&'a [f32], &'a [f32])>,
    gate: f32,
    dv: usize,
}

impl Token<'_> {
    /// Writes and reads `N` columns of the state.
    #[inline(always)]
    fn write<const N: usize>(
        &self,
        column: usize,
        q: &[f32],
        state: &mut [f32],
        out: &mut [f32],
    ) -> usize {
        let value: &[f32; N] = self.value[column..].first_chunk().expect("columns of v");
        let mut write = value.map(|v| self.gate * v);
        let rows = self.key.iter().zip(self.fade);
        // What reads the faded state, and how much of the difference is written.
        let corrected = match (self.beta, self.erase) {
            (Some(beta), _) => Some((beta, self.key)),
            (None, Some(erase)) => Some((1.0, erase)),
            (None, None) => None,
        };
        if let Some((beta, keys)) = corrected {
            let mut read = [0.0f32; N];
            let rows = keys.iter().zip(self.fade);
            for (row, (key, fade)) in state.chunks_exact(self.dv).zip(rows) {
                let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
                let key = key * fade;
                for l in 0..N {
                    read[l] += key * row[l];
                }
            }
            for l in 0..N {
                write[l] = beta * (write[l] - read[l]);
            }
        }
        let mut sums = [0.0f32; N];
        if let Some((keys, rates)) = self.removal {
            let mut read = [0.0f32; N];
            for (row, key) in state.chunks_exact(self.dv).zip(keys) {
                let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
                for l in 0..N {
                    read[l] += key * row[l];
                }
            }
            let removal = keys.iter().zip(rates).map(|(key, rate)| key * rate);
            let state = state.chunks_exact_mut(self.dv).zip(removal);
            for (((row, removed), (key, fade)), q) in state.zip(rows).zip(q) {
                let row: &mut [f32; N] = row[column..].first_chunk_mut().expect("columns of a row");
                for l in 0..N {
                    row[l] = fade * row[l] + key * write[l] - removed * read[l];
                    sums[l] += q * row[l];
                }
            }
            out[column..column + N].copy_from_slice(&sums);
            return N;
        }
        for ((row, (key, fade)), q) in state.chunks_exact_mut(self.dv).zip(rows).zip(q) {
            let row: &mut [f32; N] = row[column..].first_chunk_mut().expect("columns of a row");
            for l in 0..N {
                row[l] = fade * row[l] + key * write[l];
                sums[l] += q * row[l];
            }
        }
        out[column..column + N].copy_from_slice(&sums);
        N
    }

    /// Reads `N` columns of the state.
    #[inline(always)]
    fn read<const N: usize>(
        &self,
        column: usize,
        q: &[f32],
        state: &[f32],
        out: &mut [f32],
    ) -> usize {
        let mut sums = [0.0f32; N];
        for (row, q) in state.chunks_exact(self.dv).zip(q) {
            let row: &[f32; N] = row[column..].first_chunk().expect("columns of a row");
            for l in 0..N {
                sums[l] += q * row[l];
            }
        }
        out[column..column + N].copy_from_slice(&sums);
        N
    }
}
