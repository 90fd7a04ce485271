//! The op on a CPU: one task per key and value head.

use super::{RouterLayer, Score, ScoreMap};
use crate::cpu::{Buffers, Frame, Shared, simd};
use crate::operands::View;
use crate::ops::CpuOp;

/// The tokens of a chunk.
struct Chunk<'a> {
    buffers: &'a Buffers,
    /// Number of tokens in the chunk, and before it.
    tokens: usize,
    position: u64,
}

impl Score {
    fn widest_input(&self, tokens: usize) -> usize {
        self.layers
            .iter()
            .map(|layer| (layer.past() + tokens) * layer.inputs)
            .max()
            .unwrap_or(0)
    }

    #[inline(always)]
    fn run_head<'s>(
        &self,
        chunk: &Chunk,
        head: usize,
        history: &impl Fn(&RouterLayer) -> &'s mut [f32],
        score: &impl Fn(usize) -> &'s mut f32,
        scratch: &mut [f32],
    ) {
        let Chunk {
            buffers,
            tokens,
            position,
        } = *chunk;
        let (inputs, outputs) = scratch.split_at_mut(self.widest_input(tokens));
        let head_dim = self.k.width / self.kv_heads;
        let group = if self.bias.len() == 1 { 0 } else { head };
        let columns = |view: &View, t: usize| {
            let row = t * view.stride + view.start + head * head_dim;
            &buffers.get(view.buffer)[row..row + head_dim]
        };
        // The position of the first output of the current layer.
        let mut first = position as i64;
        for (index, layer) in self.layers.iter().enumerate() {
            let (past, ahead) = (layer.past(), layer.ahead());
            let past_inputs = history(layer);
            inputs[..past_inputs.len()].copy_from_slice(past_inputs);
            let new = &mut inputs[past_inputs.len()..][..tokens * layer.inputs];
            if index == 0 {
                for (t, row) in new.chunks_exact_mut(layer.inputs).enumerate() {
                    row[..head_dim].copy_from_slice(columns(&self.k, t));
                    row[head_dim..].copy_from_slice(columns(&self.v, t));
                }
            } else {
                new.copy_from_slice(&outputs[..tokens * layer.inputs]);
            }
            past_inputs.copy_from_slice(&inputs[tokens * layer.inputs..][..past * layer.inputs]);

            first -= ahead as i64;
            let out = &mut outputs[..tokens * layer.outputs];
            for row in out.chunks_exact_mut(layer.outputs) {
                row.copy_from_slice(&layer.bias[group * layer.outputs..][..layer.outputs]);
            }
            for tap in 0..layer.taps {
                let size = layer.inputs * layer.outputs;
                let weight = &layer.weight[(group * layer.taps + tap) * size..][..size];
                let inputs = &inputs[tap * layer.dilation * layer.inputs..];
                let shape = [tokens, layer.outputs, layer.inputs];
                simd::gemm(
                    shape,
                    inputs,
                    [layer.inputs, 1],
                    weight,
                    layer.outputs,
                    out,
                    layer.outputs,
                );
            }
            for (t, row) in out.chunks_exact_mut(layer.outputs).enumerate() {
                if first + (t as i64) < 0 {
                    // Before the sequence: padding for the next layer.
                    row.fill(0.0);
                } else {
                    row.iter_mut().for_each(|x| *x = simd::silu(*x));
                }
            }
        }
        let last = self.weight.len() / self.bias.len();
        for (t, row) in outputs[..tokens * last].chunks_exact(last).enumerate() {
            let z = simd::dot(row, &self.weight[group * last..][..last]) + self.bias[group];
            *score(t) = match self.map {
                ScoreMap::Sigmoid => simd::sigmoid(z) - 0.5,
                ScoreMap::Relu => z.max(0.0),
            };
        }
    }
}

impl CpuOp for Score {
    fn run(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        let width = self.out.stride;
        {
            let scores = Shared::new(&mut out);
            let state = frame.arena.shared();
            frame.pool.each(self.kv_heads, |worker, head| {
                let mut scratch = frame.scratch[worker].lock().expect("scratch");
                simd::vectorize(
                    #[inline(always)]
                    || {
                        let row = |t: usize| {
                            let at = t * width + self.out.start + head;
                            // SAFETY: each task has its own head's column (rules: widths, disjoint writes).
                            unsafe { &mut scores.part(at..at + 1)[0] }
                        };
                        let history = |layer: &RouterLayer| {
                            let n = layer.past() * layer.inputs;
                            // SAFETY: each task has its own head's history (rules: widths, bounds).
                            unsafe { state.tensor::<f32>(layer.state, head * n..(head + 1) * n) }
                        };
                        let chunk = Chunk {
                            buffers: frame.buffers,
                            tokens: frame.tokens.len(),
                            position: frame.position,
                        };
                        self.run_head(&chunk, head, &history, &row, &mut scratch);
                    },
                );
            });
        }
        frame.buffers.put(self.out.buffer, out);
    }

    fn scratch(&self, chunk: usize) -> usize {
        self.widest_input(chunk)
            + self
                .layers
                .iter()
                .map(|layer| chunk * layer.outputs)
                .max()
                .unwrap_or(0)
    }
}
