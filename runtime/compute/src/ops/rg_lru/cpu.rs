//! The op on a CPU.

use super::RgLru;
use crate::cpu::simd::{self, gemm};
use crate::cpu::{Frame, Shared};
use crate::ops::CpuOp;

/// Tokens whose gates are computed at once.
const BLOCK: usize = 16;

impl CpuOp for RgLru {
    fn run(&self, frame: &mut Frame) {
        let (tokens, dim) = (frame.tokens.len(), self.head_dim());
        let mut out = frame.buffers.take(self.out.buffer);
        {
            let out = Shared::new(&mut out);
            let states = Shared::new(frame.arena.tensor_mut::<f32>(self.state));
            let inputs = frame.buffers.get(self.x.buffer);
            frame.pool.each(self.heads, |worker, head| {
                let channels = head * dim..(head + 1) * dim;
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                let (input, rest) = scratch.split_at_mut(BLOCK * dim);
                let recurrence = &mut rest[..BLOCK * dim];
                // SAFETY: each task has its own channels of the states (rules: widths, bounds).
                let state = unsafe { states.part(channels.clone()) };
                simd::vectorize(
                    #[inline(always)]
                    || {
                        for first in (0..tokens).step_by(BLOCK) {
                            let n = BLOCK.min(tokens - first);
                            let start = first * self.x.stride + self.x.start + channels.start;
                            let x = &inputs[start..];
                            for (gate, of) in [
                                (&mut *input, &self.input),
                                (&mut *recurrence, &self.recurrence),
                            ] {
                                for row in gate[..n * dim].chunks_exact_mut(dim) {
                                    row.copy_from_slice(&of.bias[channels.clone()]);
                                }
                                let weight = &of.weight[head * dim * dim..][..dim * dim];
                                gemm([n, dim, dim], x, [self.x.stride, 1], weight, dim, gate, dim);
                            }
                            for t in 0..n {
                                let start =
                                    (first + t) * self.out.stride + self.out.start + channels.start;
                                // SAFETY: each task has its own channels of the output (rules: widths, disjoint writes).
                                let out = unsafe { out.part(start..start + dim) };
                                step(
                                    &x[t * self.x.stride..][..dim],
                                    [&input[t * dim..][..dim], &recurrence[t * dim..][..dim]],
                                    &self.rate[channels.clone()],
                                    frame.position + (first + t) as u64 == 0,
                                    state,
                                );
                                out.copy_from_slice(state);
                            }
                        }
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        2 * BLOCK * self.head_dim()
    }
}

/// Processes one token of one head, given its gates before their sigmoids.
#[inline(always)]
fn step(x: &[f32], [input, recurrence]: [&[f32]; 2], rate: &[f32], first: bool, state: &mut [f32]) {
    for c in 0..state.len() {
        let log_decay = rate[c] * simd::sigmoid(recurrence[c]);
        let share = if first {
            1.0
        } else {
            (1.0 - simd::exp(2.0 * log_decay)).max(0.0).sqrt()
        };
        let taken = share * simd::sigmoid(input[c]) * x[c];
        state[c] = simd::exp(log_decay) * state[c] + taken;
    }
}
