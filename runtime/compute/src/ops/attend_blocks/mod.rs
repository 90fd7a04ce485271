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
//! Where there are fewer tokens and key heads than threads, each step of a query ([`Phase`]) is divided among threads. When the
//! context has wrapped, blocks that have lost a token are out of view, and the first complete block takes the place of the
//! first.

mod best;
mod cpu;
mod launch;
mod task;

use super::{Access, Op};
use crate::operands::View;
use crate::ops::Rules;
use crate::state::{StatePlan, Touched};

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
    /// Gates of the means, chosen and window branches, `[heads, 3]`.
    pub gates: View,
    /// Multiplies the scores.
    pub scale: f32,
    /// Tokens of a block.
    pub block: usize,
    /// Number of blocks that a query chooses.
    pub chosen: usize,
    /// Tokens of the window; zero for no window.
    pub window: usize,
    /// The state tensor of the cached keys `[kv_heads, rows, head_dim]`.
    pub keys: usize,
    /// The state tensor of the cached values, of the same shape.
    pub values: usize,
    /// The state tensor of the blocks' mean keys `[kv_heads, blocks, head_dim]`.
    pub mean_keys: usize,
    /// The state tensor of the blocks' mean values, of the same shape.
    pub mean_values: usize,
    /// Outputs `[heads, head_dim]`.
    pub out: View,
}

const BRANCHES: usize = 3;

impl AttendBlocks {
    fn head_dim(&self) -> usize {
        self.k.width / self.kv_heads
    }

    fn group(&self) -> usize {
        self.heads / self.kv_heads
    }
}

impl Op for AttendBlocks {
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

    fn touched(&self, plan: &StatePlan, position: u64) -> Vec<Touched> {
        let block = self.block as u64;
        let oldest = (position + 1).saturating_sub(plan.tensors()[self.keys].shape[1] as u64);
        let current = position / block;
        let first = oldest.div_ceil(block).min(current);
        // The window and the last two blocks are contiguous, the other chosen blocks may lie anywhere.
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
