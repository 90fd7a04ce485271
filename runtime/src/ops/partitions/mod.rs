//! A recurrence over a state in partitions, of which every token writes and reads only those that a router chose for
//! it. The others are left as they are: they do not fade either.
//!
//! Each partition sees the tokens that chose it, gathered from the chunk, as a recurrence of its own. Which of three
//! ways the gathering takes depends on the chunk's length:
//!
//! - tokens: token after token, each over its partitions
//! - masked: all tokens for every partition; to the others its state is open to neither writing nor reading
//! - grouped: for every partition only its own tokens
//!
//! A GPU too groups the tokens of a chunk, and leaves them where they are if it has few for each partition (`matrix_form`).

mod launch;
mod matrix_form;

use super::recur::{self, Fade, Inputs, Recur, Rows};
use super::route::Chosen;
use super::{Access, Op};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

/// A recurrence in partitions.
pub struct Partitions {
    /// The recurrence in one partition, with as many states as heads. Its state tensor is `[partitions, heads, dk, dv]`.
    pub recur: Recur,
    /// Partitions of the state.
    pub partitions: usize,
    /// What [`super::Route`] chose: the numbers of partitions and their weights, `[2, chosen]`.
    pub route: View,
    /// How many of the chosen partitions, from the first on, are written.
    pub writers: usize,
    /// How many of the chosen partitions, from the first on, are read.
    pub readers: usize,
    /// Whether a partition's weight multiplies the query.
    pub weigh_queries: bool,
    /// Whether a partition's weight multiplies the key.
    pub weigh_keys: bool,
    /// Whether query and key are brought to length one once they are weighed, `x / sqrt(sum x^2 + 1e-6)`.
    pub unit_length: bool,
    /// Whether the inputs hold each partition's own columns, one partition after another.
    pub own_columns: bool,
    /// Whether the result is added to what stands at the output.
    pub add: bool,
}

/// Gathered tokens that pass over a state together.
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
    /// Partitions that a token writes or reads.
    pub(super) fn chosen(&self) -> usize {
        self.writers.max(self.readers)
    }

    /// The inputs of a head in a partition.
    fn inputs<'a>(&self, buffers: &'a Buffers, head: usize, partition: usize) -> Inputs<'a> {
        let part = match self.own_columns {
            true => (partition, self.partitions),
            false => (0, 1),
        };
        self.recur.inputs(buffers, head, part)
    }

    #[inline(always)]
    fn weigh(&self, weighed: bool, weight: f32, x: &mut [f32]) {
        let weight = if weighed { weight } else { 1.0 };
        let norm = match self.unit_length {
            true => (weight * weight * simd::dot(x, x) + 1e-6).sqrt(),
            false => 1.0,
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
                let mut piece = Piece::new(self, frame.buffers, head, chosen, room, &mut scratch);
                simd::vectorize(
                    #[inline(always)]
                    || match form {
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
                    },
                );
            });
        }
        frame.buffers.put(view.buffer, out);
    }
}

impl Op for Partitions {
    fn run(&self, frame: &mut Frame) {
        let form = form(frame.tokens.len());
        self.run_as(frame, form);
    }

    fn access(&self) -> Access {
        let access = Access::default()
            .reads(self.recur.columns())
            .reads([self.route])
            .state([self.recur.state]);
        match self.add {
            true => access.updates([self.recur.out]),
            false => access.writes([self.recur.out]),
        }
    }

    fn check(&self, rules: &mut Rules) {
        let Recur { heads, dk, dv, .. } = self.recur;
        rules.width("out", self.recur.out, heads * dv);
        let shape = [self.partitions, heads, dk, dv].map(Some);
        rules.state(self.recur.state, &shape);
    }

    fn scratch(&self, chunk: usize) -> usize {
        let (dk, dv) = (self.recur.dk, self.recur.dv);
        let piece = chunk.min(PIECE);
        piece * (3 * dk + 2 * dv + 1) + recur::scratch(dk, dv, piece)
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        let chosen = self.chosen();
        vec![Touched::entries(plan, self.recur.state, chosen, chosen)]
    }
}

/// Tokens gathered for one partition of one head.
struct Piece<'a> {
    op: &'a Partitions,
    buffers: &'a Buffers,
    head: usize,
    chosen: Chosen<'a>,
    /// The head's inputs, where each partition has its own those of the last one.
    inputs: Inputs<'a>,
    /// The gathered tokens.
    tokens: [Token; PIECE],
    len: usize,
    /// Their inputs, row by row.
    q: &'a mut [f32],
    k: &'a mut [f32],
    v: &'a mut [f32],
    fade: &'a mut [f32],
    beta: &'a mut [f32],
    out: &'a mut [f32],
    scratch: &'a mut [f32],
}

#[derive(Clone, Copy, Default)]
struct Token {
    index: usize,
    reads: bool,
}

impl<'a> Piece<'a> {
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
        let (fade, scratch) = scratch.split_at_mut(room * dk);
        let (v, scratch) = scratch.split_at_mut(room * dv);
        let (out, scratch) = scratch.split_at_mut(room * dv);
        let (beta, scratch) = scratch.split_at_mut(room);
        Piece {
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
            fade,
            beta,
            out,
            scratch,
        }
    }

    /// Begins a partition.
    #[inline(always)]
    fn open(&mut self, partition: usize) {
        if self.op.own_columns {
            self.inputs = self.op.inputs(self.buffers, self.head, partition);
        }
    }

    /// Adds token t, to which the open partition is the one of rank `rank`, or closed.
    #[inline(always)]
    fn gather(&mut self, t: usize, rank: Option<usize>) {
        let (op, inputs, i) = (self.op, &self.inputs, self.len);
        let (dk, dv) = (op.recur.dk, op.recur.dv);
        let weight = rank.map_or(0.0, |rank| self.chosen.weight(t, rank));
        let reads = rank.is_some_and(|rank| rank < op.readers);
        self.tokens[i] = Token { index: t, reads };
        self.len += 1;

        let q = &mut self.q[i * dk..][..dk];
        let k = &mut self.k[i * dk..][..dk];
        let fade = &mut self.fade[i * dk..][..dk];
        let v = &mut self.v[i * dv..][..dv];
        let beta = &mut self.beta[i];
        if reads {
            q.copy_from_slice(inputs.q.get(t, dk));
            op.weigh(op.weigh_queries, weight, q);
        } else {
            q.fill(0.0);
        }
        if rank.is_some_and(|rank| rank < op.writers) {
            inputs.fade(t, fade);
            inputs.key(t, fade, k);
            op.weigh(op.weigh_keys, weight, k);
            v.copy_from_slice(inputs.v.get(t, dv));
            simd::scale(inputs.write_gate(t), v);
            *beta = inputs.beta.map_or(1.0, |beta| beta.get(t, 1)[0]);
        } else {
            fade.fill(1.0);
            k.fill(0.0);
            v.fill(0.0);
            *beta = 0.0;
        }
    }

    /// Runs the gathered tokens over the partition's state, and adds what they read to their outputs.
    #[inline(always)]
    fn flush<'o>(&mut self, state: &mut [f32], out: &impl Fn(usize) -> &'o mut [f32]) {
        let (dk, dv) = (self.op.recur.dk, self.op.recur.dv);
        let gathered = Inputs {
            queries: 1,
            dk,
            dv,
            q: Rows::new(self.q, dk),
            k: Some(Rows::new(self.k, dk)),
            v: Rows::new(self.v, dv),
            decay: Fade::Factors(Rows::new(self.fade, dk)),
            beta: self.inputs.beta.map(|_| Rows::new(self.beta, 1)),
            erase: None,
            removal: None,
            write_gate: None,
            read_gate: None,
            scale: 1.0,
        };
        let rows = Shared::new(self.out);
        // SAFETY: the rows are distinct, and no other thread has them.
        let mut row = |i: usize| unsafe { rows.part(i * dv..(i + 1) * dv) };
        recur::run(&gathered, self.len, state, &mut row, self.scratch);
        for (i, token) in self.tokens[..self.len].iter().enumerate() {
            if token.reads {
                let factor = self.inputs.read_factor(token.index, 0);
                simd::axpy(factor, row(i), out(token.index));
            }
        }
        self.len = 0;
    }
}
