//! The op on a CPU: step by step, or in matrix form.

mod chunk;
mod inputs;
mod token;
mod uniform_decay;

use inputs::Removal;
pub(in crate::ops) use inputs::{Decays, Inputs, Outputs, Rows};
use token::step;

use super::{Decay, Finish, Key, Recur, Write};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::weights::Vector;

/// Whether the matrix form pays for a chunk of this many tokens; in a shorter chunk its triangles cost more than they save.
pub(in crate::ops) fn in_matrix_form(tokens: usize) -> bool {
    tokens >= 8
}

/// Floats of scratch that [`run`] needs for chunks of up to `chunk` tokens.
pub(in crate::ops) fn scratch(dk: usize, dv: usize, chunk: usize) -> usize {
    if in_matrix_form(chunk) {
        chunk::scratch(dk, dv)
    } else {
        2 * dk
    }
}

/// Runs tokens on one state, in matrix form or step by step. All ops with such states share this one function, as it is large
/// and compiled for each vector unit.
#[inline(never)]
pub(in crate::ops) fn run(
    inputs: &Inputs,
    (tokens, in_matrix_form): (usize, bool),
    state: &mut [f32],
    out: &mut Outputs,
    scratch: &mut [f32],
) {
    simd::vectorize(
        #[inline(always)]
        || {
            if in_matrix_form {
                chunk::run(inputs, tokens, state, out, scratch);
            } else {
                for t in 0..tokens {
                    step(inputs, t, state, out.token(t), scratch);
                }
            }
        },
    );
}

impl Recur {
    /// The inputs of state number `state`, from part `part.0` of the `part.1` equal parts of their columns.
    pub(in crate::ops) fn inputs<'a>(
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
                Decay::None => Decays::None,
                Decay::Fixed(g) => Decays::Fixed(own(g)),
                Decay::Head(view) => Decays::Head(rows(view, 1)),
                Decay::Step(view, rate) => Decays::Step(rows(view, 1), own(rate)),
                Decay::Key(view) => Decays::Key(rows(view, self.dk)),
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

impl Finish {
    /// Applies the finish to a state's `outputs` of token `t`, which begin at `column` of the row.
    fn apply(
        &self,
        inputs: &Inputs,
        buffers: &Buffers,
        [t, column]: [usize; 2],
        outputs: &mut [f32],
    ) {
        if let Some(gains) = &self.skip {
            let gains = gains[column..].chunks_exact(inputs.dv);
            for (outputs, gains) in outputs.chunks_exact_mut(inputs.dv).zip(gains) {
                let values = inputs.v.get(t, inputs.dv);
                for ((out, gain), value) in outputs.iter_mut().zip(gains).zip(values) {
                    *out += gain * value;
                }
            }
        }
        if let Some((gate, function)) = &self.gate {
            let gates = &gate.token(buffers, t)[column..][..outputs.len()];
            function.gate(gates, outputs);
        }
    }
}

impl CpuOp for Recur {
    fn run(&self, frame: &mut Frame) {
        let tokens = frame.tokens.len();
        let mut out = frame.buffers.take(self.out.buffer);
        let states = Shared::new(frame.arena.tensor_mut::<f32>(self.state));
        let size = self.dk * self.dv;
        let in_matrix_form = in_matrix_form(tokens) && !frame.in_step_order;
        {
            let out = Shared::new(&mut out);
            frame.pool.each(self.states, |worker, state| {
                let inputs = self.inputs(frame.buffers, state, (0, 1));
                // SAFETY: each task has its own state (rules: widths, bounds).
                let matrix = unsafe { states.part(state * size..(state + 1) * size) };
                let width = inputs.queries * self.dv;
                let start = self.out.start + state * width;
                // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                let mut out = unsafe { Outputs::new(&out, start, self.out.stride, width) };
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let tokens_and_form = (tokens, in_matrix_form);
                run(&inputs, tokens_and_form, matrix, &mut out, &mut scratch);
                for t in 0..tokens {
                    let place = [t, state * width];
                    (self.finish).apply(&inputs, frame.buffers, place, out.token(t));
                }
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn reads_chunks_as_steps(&self) -> bool {
        true
    }

    fn scratch(&self, chunk: usize) -> usize {
        scratch(self.dk, self.dv, chunk)
    }
}
