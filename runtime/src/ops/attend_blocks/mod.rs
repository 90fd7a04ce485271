//! Native sparse attention: three softmaxes over the same keys and values, each multiplied by a gate and summed.
//! Position p lies in row `p % rows` of a circular segment, block c in row `c % blocks` of the means. For query t,
//! with `current = t / block`:
//!
//! - means: the keys and values of every complete block, averaged over the block
//! - chosen: the tokens up to t in the most important blocks. A block's importance is the sum over the group's query
//!   heads of its share in the softmax over means; the first block and the last two count as a full share of every
//!   head. The lower block wins a tie.
//! - window: the last `window` tokens
//!
//! Where there are fewer tokens and key heads than threads, each step of a query ([`Step`]) is shared out. When the
//! context has wrapped, blocks that have lost a token are out of view, and the first whole one stands for the first.

mod best;
mod launch;
mod task;

use best::Best;
use half::f16;
use task::{Notes, Step, Task};

use super::softmax::{Element, TILE};
use super::{Access, Op};
use crate::cpu::{Frame, Shared, simd};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StateDtype, StatePlan, Touched};

/// Attention over block means, chosen blocks and a window.
pub struct AttendBlocks {
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; query head h reads head `h / (heads / kv_heads)`.
    pub kv_heads: usize,
    /// Queries `[heads, head_dim]`.
    pub q: View,
    /// Keys `[kv_heads, head_dim]`.
    pub k: View,
    /// Values `[kv_heads, head_dim]`.
    pub v: View,
    /// Factors of means, chosen and window, `[heads, 3]`.
    pub gates: View,
    /// Multiplies the scores.
    pub scale: f32,
    /// Tokens of a block.
    pub block: usize,
    /// Blocks that a query chooses.
    pub chosen: usize,
    /// Tokens of the window; zero: no window.
    pub window: usize,
    /// The state tensor of the cached keys `[kv_heads, rows, head_dim]`.
    pub keys: usize,
    /// The state tensor of the cached values, likewise.
    pub values: usize,
    /// The state tensor of the blocks' mean keys `[kv_heads, blocks, head_dim]`.
    pub mean_keys: usize,
    /// The state tensor of the blocks' mean values, likewise.
    pub mean_values: usize,
    /// Outputs `[heads, head_dim]`.
    pub out: View,
}

const BRANCHES: usize = 3;

/// What the means of one query head leave behind: the largest score, and the sum of all relative to it.
const TOTALS: usize = 2;

impl AttendBlocks {
    fn head_dim(&self) -> usize {
        self.k.width / self.kv_heads
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }

    /// Tasks for each step of a key and value head's query.
    fn parts(&self, threads: usize) -> usize {
        threads.div_ceil(self.kv_heads).min(self.group())
    }

    /// Floats of the notes that the steps of one query leave each other: the totals of its heads, and for each part the
    /// best of its blocks.
    fn notes(&self, parts: usize) -> usize {
        TOTALS * self.group() + parts * Best::floats(self.chosen)
    }

    fn run_as<E: Element>(&self, frame: &mut Frame) {
        let mut out = frame.buffers.take(self.out.buffer);
        {
            let out = Shared::new(&mut out);
            let state = frame.arena.shared();
            let task = Task::<E> {
                attend: self,
                buffers: frame.buffers,
                position: frame.position,
                rows: state.rows(self.keys),
                blocks: state.rows(self.mean_keys),
                out: &out,
                state: &state,
                element: std::marker::PhantomData,
            };
            let tokens = frame.tokens.len();
            let threads = frame.pool.threads();
            let parts = self.parts(threads);
            let fits = frame.position + tokens as u64 <= task.rows as u64;
            if fits && (parts == 1 || tokens * self.kv_heads >= threads) {
                // Nothing is overwritten: all tokens can be cached before the first query.
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    simd::vectorize(
                        #[inline(always)]
                        || (0..tokens).for_each(|t| task.cache(head, t, &mut scratch)),
                    );
                });
                frame.pool.each(self.kv_heads * tokens, |worker, index| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    let (t, head) = (index / self.kv_heads, index % self.kv_heads);
                    simd::vectorize(
                        #[inline(always)]
                        || task.query(head, t, &mut scratch),
                    );
                });
            } else if parts == 1 {
                frame.pool.each(self.kv_heads, |worker, head| {
                    let mut scratch = frame.scratch[worker].lock().expect("scratch");
                    simd::vectorize(
                        #[inline(always)]
                        || {
                            for t in 0..tokens {
                                task.cache(head, t, &mut scratch);
                                task.query(head, t, &mut scratch);
                            }
                        },
                    );
                });
            } else {
                let notes = Notes::new(self, parts, frame.common);
                for t in 0..tokens {
                    frame.pool.each(self.kv_heads, |worker, head| {
                        let mut scratch = frame.scratch[worker].lock().expect("scratch");
                        simd::vectorize(
                            #[inline(always)]
                            || task.cache(head, t, &mut scratch),
                        );
                    });
                    for step in Step::ALL {
                        frame.pool.each(self.kv_heads * parts, |worker, index| {
                            let mut scratch = frame.scratch[worker].lock().expect("scratch");
                            let (head, part) = (index / parts, index % parts);
                            simd::vectorize(
                                #[inline(always)]
                                || task.take(step, head, t, part, &notes, &mut scratch),
                            );
                        });
                    }
                }
            }
        }
        frame.buffers.put(self.out.buffer, out);
    }
}

impl Op for AttendBlocks {
    fn run(&self, frame: &mut Frame) {
        match frame.arena.plan().tensors[self.keys].dtype {
            StateDtype::F16 => self.run_as::<f16>(frame),
            _ => self.run_as::<f32>(frame),
        }
    }

    fn access(&self) -> Access {
        Access::default()
            .reads([self.q, self.k, self.v, self.gates])
            .state([self.keys, self.values, self.mean_keys, self.mean_values])
            .writes([self.out])
    }

    fn check(&self, rules: &mut Rules) {
        rules.multiple("k", self.k, self.kv_heads);
        rules.width("out", self.out, self.heads * self.head_dim());
        for tensor in [self.keys, self.values, self.mean_keys, self.mean_values] {
            rules.state(tensor, &[Some(self.kv_heads), None, Some(self.head_dim())]);
        }
    }

    fn scratch(&self, _chunk: usize) -> usize {
        let dim = self.head_dim();
        let running = (BRANCHES - 1) * self.group() * (dim + 2);
        running + 2 * TILE * dim + TILE + Best::floats(self.chosen) + self.notes(1)
    }

    fn common(&self, threads: usize) -> usize {
        self.kv_heads * self.notes(self.parts(threads))
    }

    fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let block = self.block as u64;
        let oldest = (position + 1).saturating_sub(plan.tensors[self.keys].shape[1] as u64);
        let current = position / block;
        let first = oldest.div_ceil(block).min(current);
        // The window and the last two blocks lie together, the other chosen blocks may lie anywhere.
        let window = (position + 1).saturating_sub(self.window as u64);
        let recent = window.min(current.saturating_sub(1) * block).max(oldest);
        let others = (self.chosen as u64)
            .min(current - first + 1)
            .saturating_sub(2);
        let tokens = (position - recent + others * block).min(position - oldest);
        let completes = (position + 1).is_multiple_of(block);
        let rows = |tensor, read: u64, written| Touched::rows(plan, tensor, read as usize, written);
        let mean = |tensor| rows(tensor, current - first, usize::from(completes));
        vec![
            rows(self.keys, tokens, 1),
            rows(self.values, tokens, 1),
            mean(self.mean_keys),
            mean(self.mean_values),
        ]
    }
}

#[cfg(test)]
mod tests;
