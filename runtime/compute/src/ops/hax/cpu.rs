//! The op on a CPU: hashes and scores of the tokens on all threads, everything that depends on earlier tokens on one thread,
//! then the values in blocks of channels.

use half::f16;

use super::Hax;
use crate::cpu::{Buffers, Frame, Shared, SharedArena, simd};
use crate::operands::View;
use crate::ops::CpuOp;
use crate::ops::hax_sources::{Measures, State, advance_means};
use crate::ops::softmax::Element;
use crate::state::StateDtype;

/// Channels per task.
const BLOCK: usize = 64;

impl Hax {
    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut plan = frame.buffers.take(self.plan.buffer);
        let mut out = frame.buffers.take(self.out.buffer);
        E::vectorize(
            #[inline(always)]
            || {
                self.measure(frame, &mut plan);
                self.choose::<E>(frame, &mut plan);
            },
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

    /// The key and the query of a token of the chunk.
    #[inline(always)]
    fn key_and_query<'a>(&self, buffers: &'a Buffers, t: usize) -> (&'a [f32], &'a [f32]) {
        let columns =
            |view: &View| &buffers.get(view.buffer)[t * view.stride + view.start..][..view.width];
        (columns(&self.k), columns(&self.q))
    }

    /// Measures the tokens, an equal part on each thread. The means before each part are computed first.
    #[inline(always)]
    fn measure(&self, frame: &mut Frame, plan: &mut [f32]) {
        let (tokens, position, means) = (frame.tokens.len(), frame.position, 2 * self.k.width);
        let part = tokens.div_ceil(frame.pool.threads());
        let firsts = &mut frame.common[..tokens.div_ceil(part) * means];
        let (scratch, buffers) = (frame.scratch, &*frame.buffers);
        let shared = frame.arena.shared();
        // SAFETY: no other thread runs.
        let current = unsafe { shared.tensor::<f32>(self.means, 0..means) };
        for t in 0..tokens {
            if t % part == 0 {
                firsts[t / part * means..][..means].copy_from_slice(current);
            }
            let (k, q) = self.key_and_query(buffers, t);
            advance_means(current, position + t as u64, k, q);
        }
        let (firsts, plans) = (&*firsts, Shared::new(plan));
        frame.pool.each(firsts.len() / means, |worker, index| {
            let mut scratch = scratch[worker].lock().expect("scratch");
            let (current, scratch) = scratch.split_at_mut(means);
            current.copy_from_slice(&firsts[index * means..][..means]);
            for t in index * part..tokens.min((index + 1) * part) {
                let (k, q) = self.key_and_query(buffers, t);
                advance_means(current, position + t as u64, k, q);
                let measures = self.sources.measure(current, k, q, scratch);
                let start = t * self.plan.stride;
                // SAFETY: each task has its own tokens.
                measures.store(unsafe { plans.part(start..start + self.plan.width) });
            }
        });
    }

    /// Processes the keys: caches them and plans the work of the values.
    #[inline(always)]
    fn choose<E: Element>(&self, frame: &mut Frame, plan: &mut [f32]) {
        let mut scratch = frame.scratch[0].lock().expect("scratch");
        let (rows, width) = (self.sources.rows(), self.k.width);
        let shared = frame.arena.shared();
        // SAFETY: the state tensors are distinct (rule: disjoint writes), and no other thread runs.
        let mut state = unsafe {
            State::<E> {
                keys: shared.tensor(self.keys, 0..rows * width),
                positions: shared.tensor(self.positions, 0..rows),
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
            let measures = Measures::stored(plan);
            self.sources.step(
                frame.position + t as u64,
                self.key_and_query(frame.buffers, t),
                measures,
                &mut state,
                plan,
                &mut scratch,
            );
        }
    }

    /// Processes the values of one block of channels.
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
        2 * self.k.width + self.sources.scratch(self.k.width)
    }

    fn common(&self, threads: usize) -> usize {
        2 * self.k.width * threads
    }
}
