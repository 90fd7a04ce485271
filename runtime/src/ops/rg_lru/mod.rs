//! The real-gated linear recurrent unit (Griffin, arXiv 2402.19427, section 2.4; transformers
//! `models/recurrent_gemma`): every channel is a number with a decay of its own. The channels are split into heads, each
//! of which has a square matrix for either gate:
//!
//! ```text
//! i, r  = sigmoid(x W_i + b_i), sigmoid(x W_r + b_r)        per head
//! log a = rate r
//! h    <- a h + sqrt(1 - a^2) i x;  y = h                   at position 0 the root is one
//! ```

use super::{Access, DeviceOp, Op};
use crate::cpu::simd::{self, gemm};
use crate::cpu::{Frame, Shared};
use crate::cuda::{Call, Grid, Launches, Parameter};
use crate::error::Result;
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};
use crate::weights::Vector;

/// One gate of all heads.
pub struct HeadMatrices {
    /// `[heads, width, width]`; a head's input is a row vector on its left.
    pub weight: Vector,
    /// Added to the products `[channels]`.
    pub bias: Vector,
}

/// The recurrence over all channels.
pub struct RgLru {
    /// Parts of the channels with matrices of their own.
    pub heads: usize,
    /// Inputs `[channels]`.
    pub x: View,
    /// How much of an input is taken.
    pub input: HeadMatrices,
    /// How much of its decay a channel takes.
    pub recurrence: HeadMatrices,
    /// The logarithm of the strongest decay, `[channels]`.
    pub rate: Vector,
    /// The state tensor of the states `[channels]`.
    pub state: usize,
    /// Outputs `[channels]`.
    pub out: View,
}

/// Tokens whose gates are multiplied at once.
const BLOCK: usize = 16;

impl RgLru {
    fn head_dim(&self) -> usize {
        self.x.width / self.heads
    }
}

impl Op for RgLru {
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

    fn access(&self) -> Access {
        Access::default()
            .reads([self.x])
            .state([self.state])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("x", self.x, self.heads);
        rules.width("out", self.out, self.x.width);
        rules.state(self.state, &[Some(self.x.width)]);
    }

    fn scratch(&self, _chunk: usize) -> usize {
        2 * BLOCK * self.head_dim()
    }

    fn weight_bytes(&self) -> usize {
        let gates = [&self.input, &self.recurrence];
        let bytes = |gate: &&HeadMatrices| std::mem::size_of_val(&gate.weight[..]);
        gates.iter().map(bytes).sum()
    }

    fn touched(&self, plan: &StatePlan, _position: u64) -> Vec<Touched> {
        vec![Touched::whole(plan, self.state)]
    }
}

/// One token of one head, given its gates before their sigmoids.
#[inline(always)]
fn step(x: &[f32], [input, recurrence]: [&[f32]; 2], rate: &[f32], first: bool, state: &mut [f32]) {
    for c in 0..state.len() {
        let log_decay = rate[c] * simd::sigmoid(recurrence[c]);
        let share = match first {
            true => 1.0,
            false => (1.0 - simd::exp(2.0 * log_decay)).max(0.0).sqrt(),
        };
        let taken = share * simd::sigmoid(input[c]) * x[c];
        state[c] = simd::exp(log_decay) * state[c] + taken;
    }
}

/// Channels of a block of threads.
const CHANNELS: usize = 32;

impl DeviceOp for RgLru {
    fn launch(&self, launches: &mut Launches) -> Result<()> {
        let dim = self.head_dim();
        launches.push_prefetching(Call {
            source: include_str!("rg_lru.cu"),
            kernel: format!("rg_lru<{dim}>"),
            grid: Grid::Blocks(self.heads * dim.div_ceil(CHANNELS)),
            threads: 4 * CHANNELS,
            shared: 0,
            parameters: vec![
                launches.view(self.x),
                launches.vector(&self.input.weight)?,
                launches.vector(&self.input.bias)?,
                launches.vector(&self.recurrence.weight)?,
                launches.vector(&self.recurrence.bias)?,
                launches.vector(&self.rate)?,
                launches.state("float", self.state),
                launches.view(self.out),
                launches.position(),
                Parameter::tokens(),
            ],
        });
        Ok(())
    }
}
