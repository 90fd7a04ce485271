//! The op on a CPU. Each partition processes the tokens that chose it, gathered from the chunk.

use super::Partitions;
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::ops::CpuOp;
use crate::ops::recur::{self, Decays, Inputs, Outputs, Recur, Rows};
use crate::ops::route::Chosen;

/// Most gathered tokens that pass over a state together.
const PIECE: usize = 32;

/// How a chunk passes over the partitions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Tokens,
    Masked,
    Grouped,
}

/// The form for a chunk of this many tokens.
fn form(tokens: usize) -> Form {
    match tokens {
        0..4 => Form::Tokens,
        4..8 => Form::Masked,
        _ => Form::Grouped,
    }
}

impl Partitions {
    /// The inputs of a head in a partition.
    fn inputs<'a>(&self, buffers: &'a Buffers, head: usize, partition: usize) -> Inputs<'a> {
        let part = if self.own_columns {
            (partition, self.partitions)
        } else {
            (0, 1)
        };
        self.recur.inputs(buffers, head, part)
    }

    #[inline(always)]
    fn weigh(&self, weighed: bool, weight: f32, x: &mut [f32]) {
        let weight = if weighed { weight } else { 1.0 };
        let norm = if self.unit_length {
            (weight * weight * simd::dot(x, x) + 1e-6).sqrt()
        } else {
            1.0
        };
        simd::scale(weight / norm, x);
    }

    fn run_as(&self, frame: &mut Frame, form: Form) {
        let Recur {
            heads,
            dk,
            dv,
            state: tensor,
            out: view,
            ..
        } = self.recur;
        let tokens = frame.tokens.len();
        let mut out = frame.buffers.take(view.buffer);
        let states = Shared::new(frame.arena.tensor_mut::<f32>(tensor));
        {
            let out = Shared::new(&mut out);
            frame.pool.each(heads, |worker, head| {
                let chosen = Chosen::new(&self.route, frame.buffers.get(self.route.buffer));
                let state = |partition: usize| {
                    let start = (partition * heads + head) * dk * dv;
                    // SAFETY: each task has its own head's states, and uses one of them at a time (rules: widths, bounds).
                    unsafe { states.part(start..start + dk * dv) }
                };
                let out = |t: usize| {
                    let start = t * view.stride + view.start + head * dv;
                    // SAFETY: each task has its own columns of the output (rules: widths, disjoint writes).
                    unsafe { out.part(start..start + dv) }
                };
                if !self.add {
                    (0..tokens).for_each(|t| out(t).fill(0.0));
                }
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let room = tokens.min(PIECE);
                let mut piece =
                    HeadColumns::new(self, frame.buffers, head, chosen, room, &mut scratch);
                match form {
                    Form::Tokens => {
                        for t in 0..tokens {
                            for rank in 0..self.chosen() {
                                let partition = chosen.partition(t, rank);
                                piece.open(partition);
                                piece.gather(t, Some(rank));
                                piece.flush(state(partition), &out);
                            }
                        }
                    }
                    Form::Masked | Form::Grouped => {
                        for partition in 0..self.partitions {
                            piece.open(partition);
                            for t in 0..tokens {
                                let rank = chosen.rank(t, partition);
                                if rank.is_some() || form == Form::Masked {
                                    piece.gather(t, rank);
                                }
                                if piece.len == PIECE {
                                    piece.flush(state(partition), &out);
                                }
                            }
                            piece.flush(state(partition), &out);
                        }
                    }
                }
            });
        }
        frame.buffers.put(view.buffer, out);
    }
}

impl CpuOp for Partitions {
    fn run(&self, frame: &mut Frame) {
        let form = form(frame.tokens.len());
        self.run_as(frame, form);
    }

    fn scratch(&self, chunk: usize) -> usize {
        let (dk, dv) = (self.recur.dk, self.recur.dv);
        let piece = chunk.min(PIECE);
        piece * (3 * dk + 2 * dv + 1) + recur::scratch(dk, dv, piece)
    }
}

/// Tokens gathered for one partition of one head.
struct HeadColumns<'a> {
    op: &'a Partitions,
    buffers: &'a Buffers,
    head: usize,
    chosen: Chosen<'a>,
    /// The head's inputs; if each partition has separate ones, the inputs of the open partition.
    inputs: Inputs<'a>,
    /// The gathered tokens.
    tokens: [Token; PIECE],
    len: usize,
    /// The inputs of the gathered tokens, row by row.
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    decay: &'a mut [f32],
    beta: &'a mut [f32],
    out: &'a mut [f32],
    scratch: &'a mut [f32],
}

#[derive(Clone, Copy, Default)]
struct Token {
    index: usize,
    reads: bool,
}

impl<'a> HeadColumns<'a> {
    fn new(
        op: &'a Partitions,
        buffers: &'a Buffers,
        head: usize,
        chosen: Chosen<'a>,
        room: usize,
        scratch: &'a mut [f32],
    ) -> Self {
        let (dk, dv) = (op.recur.dk, op.recur.dv);
        let (q, scratch) = scratch.split_at_mut(room * dk);
        let (k, scratch) = scratch.split_at_mut(room * dk);
        let (decay, scratch) = scratch.split_at_mut(room * dk);
        let (v, scratch) = scratch.split_at_mut(room * dv);
        let (out, scratch) = scratch.split_at_mut(room * dv);
        let (beta, scratch) = scratch.split_at_mut(room);
        HeadColumns {
            op,
            buffers,
            head,
            chosen,
            inputs: op.inputs(buffers, head, 0),
            tokens: [Token::default(); PIECE],
            len: 0,
            q,
            k,
            v,
            decay,
            beta,
            out,
            scratch,
        }
    }

    /// Opens a partition.
    #[inline(always)]
    fn open(&mut self, partition: usize) {
        if self.op.own_columns {
            self.inputs = self.op.inputs(self.buffers, self.head, partition);
        }
    }

    /// Adds token t, for which the open partition has rank `rank`, or is not chosen.
    #[inline(never)]
    fn gather(&mut self, t: usize, rank: Option<usize>) {
        simd::vectorize(
            #[inline(always)]
            || self.add(t, rank),
        );
    }

    #[inline(always)]
    fn add(&mut self, t: usize, rank: Option<usize>) {
        let (op, inputs, i) = (self.op, &self.inputs, self.len);
        let (dk, dv) = (op.recur.dk, op.recur.dv);
        let weight = rank.map_or(0.0, |rank| self.chosen.weight(t, rank));
        let reads = rank.is_some_and(|rank| rank < op.readers);
        self.tokens[i] = Token { index: t, reads };
        self.len += 1;

        let q = &mut self.q[i * dk..][..dk];
        let k = &mut self.k[i * dk..][..dk];
        let decay = &mut self.decay[i * dk..][..dk];
        let v = &mut self.v[i * dv..][..dv];
        let beta = &mut self.beta[i];
        if reads {
            q.copy_from_slice(inputs.q.get(t, dk));
            op.weigh(op.weigh_queries, weight, q);
        } else {
            q.fill(0.0);
        }
        if rank.is_some_and(|rank| rank < op.writers) {
            inputs.decay(t, decay);
            inputs.key(t, decay, k);
            op.weigh(op.weigh_keys, weight, k);
            v.copy_from_slice(inputs.v.get(t, dv));
            simd::scale(inputs.write_gate(t), v);
            *beta = inputs.beta.map_or(1.0, |beta| beta.get(t, 1)[0]);
        } else {
            decay.fill(1.0);
            k.fill(0.0);
            v.fill(0.0);
            *beta = 0.0;
        }
    }

    /// Runs the gathered tokens over the partition's state, and adds the results to their outputs.
    #[inline(never)]
    fn flush<'o>(&mut self, state: &mut [f32], out: &impl Fn(usize) -> &'o mut [f32]) {
        let (dk, dv) = (self.op.recur.dk, self.op.recur.dv);
        let gathered = Inputs {
            queries: 1,
            dk,
            dv,
            q: Rows::new(self.q, dk),
            k: Some(Rows::new(self.k, dk)),
            v: Rows::new(self.v, dv),
            decay: Decays::Factors(Rows::new(self.decay, dk)),
            beta: self.inputs.beta.map(|_| Rows::new(self.beta, 1)),
            erase: None,
            removal: None,
            write_gate: None,
            read_gate: None,
            scale: 1.0,
        };
        let rows = Shared::new(self.out);
        // SAFETY: no other thread has the rows.
        let mut rows = unsafe { Outputs::new(&rows, 0, dv, dv) };
        let tokens = (self.len, recur::in_matrix_form(self.len));
        recur::run(&gathered, tokens, state, &mut rows, self.scratch);
        let tokens = self.tokens[..self.len].iter().enumerate();
        simd::vectorize(
            #[inline(always)]
            || {
                for (i, token) in tokens.filter(|(_, token)| token.reads) {
                    let factor = self.inputs.read_factor(token.index, 0);
                    simd::axpy(factor, rows.token(i), out(token.index));
                }
            },
        );
        self.len = 0;
    }
}
