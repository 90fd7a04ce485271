//! Sparse attention beside a state-space model (HAX, arXiv 2507.00449): one head, whose values are all channels and
//! whose query sees the union of a few small sources of earlier tokens.
//!
//! Every source keeps its tokens in rows of a common table, so that the state does not grow. Keys decide first, token
//! by token on one thread: which rows a token takes, which rows its query sees, with which weights. The values, which
//! are wide, follow that plan in columns on all threads. A query whose sources are empty gets zero.

mod launch;

use half::f16;

use super::hax_sources::{Sources, State};
use super::softmax::Element;
use super::{Access, Op};
use crate::cpu::{Buffers, Frame, Shared, SharedArena, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StateDtype, StatePlan, Touched};

/// The attention.
pub struct Hax {
    /// Keys `[width]`.
    pub k: View,
    /// Queries `[width]`.
    pub q: View,
    /// Values `[channels]`.
    pub v: View,
    /// Where keys come from.
    pub sources: Sources,
    /// The state tensor of the cached keys `[rows, width]`.
    pub keys: usize,
    /// The state tensor of the cached values `[rows, channels]`.
    pub values: usize,
    /// The state tensor of one more than the position of each row's token, `[rows]`; 0 is an empty row.
    pub positions: usize,
    /// The state tensor of the mean key and the mean query so far, `[2, width]`.
    pub means: usize,
    /// The state tensor of the next row of each bin `[bins]`, if there are bins.
    pub cursors: Option<usize>,
    /// The state tensor of the scores of the selected keys, if keys are selected.
    pub scores: Option<usize>,
    /// Room for each token's plan, [`Sources::plan_width`].
    pub plan: View,
    /// Outputs `[channels]`.
    pub out: View,
}

/// Channels of a task.
const BLOCK: usize = 64;

impl Hax {
    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut plan = frame.buffers.take(self.plan.buffer);
        let mut out = frame.buffers.take(self.out.buffer);
        simd::vectorize(
            #[inline(always)]
            || self.choose::<E>(frame, &mut plan),
        );
        {
            let out = Shared::new(&mut out);
            let state = frame.arena.shared();
            let tokens = frame.tokens.len();
            let blocks = self.v.width.div_ceil(BLOCK);
            frame.pool.each(blocks, |_, block| {
                simd::vectorize(
                    #[inline(always)]
                    || {
                        self.mix::<E>(block, tokens, frame.buffers, &plan, &state, &out);
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
        frame.buffers.put(self.plan.buffer, plan);
    }

    /// The keys' part: caches them and plans what the values do.
    #[inline(always)]
    fn choose<E: Element>(&self, frame: &mut Frame, plan: &mut [f32]) {
        let mut scratch = frame.scratch[0].lock().expect("scratch");
        let (rows, width) = (self.sources.rows(), self.k.width);
        let shared = frame.arena.shared();
        // SAFETY: the state tensors are different ones (rule: disjoint writes), and no other thread runs.
        let mut state = unsafe {
            State::<E> {
                keys: shared.tensor(self.keys, 0..rows * width),
                positions: shared.tensor(self.positions, 0..rows),
                means: shared.tensor(self.means, 0..2 * width),
                cursors: match self.cursors {
                    Some(tensor) => shared.tensor(tensor, 0..self.sources.bins(width)),
                    None => &mut [],
                },
                scores: match self.scores {
                    Some(tensor) => shared.tensor(tensor, 0..self.sources.scored()),
                    None => &mut [],
                },
            }
        };
        for (t, plan) in plan
            .chunks_exact_mut(self.plan.stride)
            .take(frame.tokens.len())
            .enumerate()
        {
            let columns = |view: &View| {
                &frame.buffers.get(view.buffer)[t * view.stride + view.start..][..width]
            };
            self.sources.step(
                frame.position + t as u64,
                columns(&self.k),
                columns(&self.q),
                &mut state,
                plan,
                &mut scratch,
            );
        }
    }

    /// The values' part, for one block of channels.
    #[inline(always)]
    fn mix<E: Element>(
        &self,
        block: usize,
        tokens: usize,
        buffers: &Buffers,
        plan: &[f32],
        state: &SharedArena,
        out: &Shared<f32>,
    ) {
        let channels = self.v.width;
        let first = block * BLOCK;
        let width = BLOCK.min(channels - first);
        // SAFETY: each task has its own channels (rules: widths, disjoint writes).
        let cached = |row: usize| unsafe {
            let start = row * channels + first;
            state.tensor::<E>(self.values, start..start + width)
        };
        for (t, plan) in plan.chunks_exact(self.plan.stride).take(tokens).enumerate() {
            let start = t * self.v.stride + self.v.start + first;
            let value = &buffers.get(self.v.buffer)[start..start + width];
            for row in self.sources.written(plan) {
                E::narrow(value, cached(row));
            }
            let start = t * self.out.stride + self.out.start + first;
            // SAFETY: as above.
            let out = unsafe { out.part(start..start + width) };
            out.fill(0.0);
            let mut wide = [0.0; BLOCK];
            for (row, weight) in self.sources.seen(plan) {
                E::widen(cached(row), &mut wide[..width]);
                simd::axpy(weight, &wide[..width], out);
            }
        }
    }
}

impl Op for Hax {
    fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().tensors[self.keys].dtype {
            StateDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn access(&self) -> Access {
        Access::default()
            .reads([self.k, self.q, self.v])
            .state([self.keys, self.values, self.positions, self.means])
            .state(self.cursors.into_iter().chain(self.scores))
            .writes([self.plan, self.out])
    }

    fn check(&self, rules: &mut Rules) {
        let (rows, width) = (self.sources.rows(), self.k.width);
        rules.width("out", self.out, self.v.width);
        rules.width("plan", self.plan, self.sources.plan_width());
        rules.apart("plan and out", [self.plan, self.out]);
        rules.state(self.keys, &[Some(rows), Some(width)]);
        rules.state(self.values, &[Some(rows), Some(self.v.width)]);
        rules.state(self.positions, &[Some(rows)]);
        rules.state(self.means, &[Some(2), Some(width)]);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        self.sources.scratch(self.k.width)
    }

    fn weight_bytes(&self) -> usize {
        self.sources.weight_bytes()
    }

    fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let (seen, taken) = self.sources.touched(position);
        let entries = |tensor, read, written| Touched::entries(plan, tensor, read, written);
        let mut all = vec![
            entries(self.keys, seen, taken),
            entries(self.values, seen, taken),
            // The rows in sight are looked at also while they are empty.
            entries(self.positions, self.sources.most(), taken),
            Touched::whole(plan, self.means),
        ];
        all.extend(self.cursors.map(|tensor| entries(tensor, 1, 1)));
        all.extend(self.scores.map(|tensor| {
            let full = position >= plan.tensors[tensor].shape[0] as u64;
            entries(tensor, if full { usize::MAX } else { 0 }, 1)
        }));
        all
    }
}
