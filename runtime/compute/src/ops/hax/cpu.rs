//! The op on a CPU: the keys' part on one thread, then the values' part in blocks of channels.

use half::f16;

use super::Hax;
use crate::cpu::{Buffers, Frame, Shared, SharedArena, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::ops::hax_sources::State;
use crate::ops::softmax::Element;
use crate::state::StateDtype;

/// Channels of a task.
const BLOCK: usize = 64;

impl Hax {
    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut plan = frame.buffers.take(self.plan.buffer);
        let mut out = frame.buffers.take(self.out.buffer);
        E::vectorize(
            #[inline(always)]
            || self.choose::<E>(frame, &mut plan),
        );
        {
            let out = Shared::new(&mut out);
            let state = frame.arena.shared();
            let tokens = frame.tokens.len();
            let blocks = self.v.width.div_ceil(BLOCK);
            frame.pool.each(blocks, |_, block| {
                E::vectorize(
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

    /// The keys' part: caches them and plans the work of the values.
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
            // SAFETY: each task has its own channels of the output (rules: widths, disjoint writes).
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

impl CpuOp for Hax {
    fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().tensors()[self.keys].dtype {
            StateDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn scratch(&self, _chunk: usize) -> usize {
        self.sources.scratch(self.k.width)
    }
}
