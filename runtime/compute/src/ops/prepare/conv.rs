//! Short convolutions over time, separate for each channel.

use super::HeadGroup;
use crate::cpu::{Shared, SharedArena, simd};
use crate::operands::View;
use crate::weights::Vector;

/// `y_t = bias + sum_j weight[taps - 1 - j] x_{t - j}`, for each channel.
pub struct Conv {
    /// `[taps, channels]`: the last row is multiplied by the current token.
    pub weight: Vector,
    /// `[channels]`.
    pub bias: Option<Vector>,
    /// The state tensor with the last `taps - 1` inputs, `[taps - 1, channels]`, oldest first.
    pub state: usize,
    /// Multiplies the input; the product `[channels]` is stored as state. No head group may change these columns.
    pub gate: Option<View>,
}

impl Conv {
    /// From a checkpoint's weight `[channels, taps]`.
    pub fn new(weight: &[f32], channels: usize, bias: Option<Vector>, tensor: usize) -> Self {
        let taps = weight.len() / channels;
        let transposed: Vec<f32> = (0..weight.len())
            .map(|i| weight[i % channels * taps + i / channels])
            .collect();
        Conv {
            weight: transposed.into(),
            bias,
            state: tensor,
            gate: None,
        }
    }
}

/// One head's channels over a chunk.
pub(super) struct HeadColumns<'a> {
    /// The buffer.
    pub values: &'a Shared<'a, f32>,
    /// Distance between tokens, in values.
    pub stride: usize,
    /// The head's first channel within its group.
    pub column: usize,
    /// Tokens of the chunk.
    pub tokens: usize,
}

impl HeadGroup {
    /// Convolves one head's channels over the chunk, in place.
    ///
    /// # Safety
    /// No other thread touches these columns of the values or of the history.
    #[inline(always)]
    pub(super) unsafe fn convolve(
        &self,
        conv: &Conv,
        head: &HeadColumns,
        state: &SharedArena,
        scratch: &mut [f32],
    ) {
        let (dim, channels) = (self.head_dim, self.view.width);
        let (column, tokens) = (head.column, head.tokens);
        let past = conv.weight.len() / channels - 1;
        // SAFETY: the caller's contract.
        let token = |t: usize| unsafe {
            let start = t * head.stride + self.view.start + column;
            head.values.part(start..start + dim)
        };
        // SAFETY: the caller's contract.
        let kept = |j: usize| unsafe {
            state.tensor::<f32>(
                conv.state,
                j * channels + column..j * channels + column + dim,
            )
        };
        let old = &mut scratch[..past * dim];
        for j in 0..past {
            old[j * dim..][..dim].copy_from_slice(kept(j));
        }
        for j in 0..past {
            // Row j is the input `past - j` tokens before the end.
            match (tokens + j).checked_sub(past) {
                Some(t) => kept(j).copy_from_slice(token(t)),
                None => kept(j).copy_from_slice(&old[(j + tokens) * dim..][..dim]),
            }
        }
        // The last token comes first: an output replaces an input that no earlier token needs.
        for t in (0..tokens).rev() {
            let out = token(t);
            let tap = |i: usize| &conv.weight[i * channels + column..][..dim];
            for (x, w) in out.iter_mut().zip(tap(past)) {
                *x *= w;
            }
            for j in 1..=past {
                let weight = tap(past - j);
                let input: &[f32] = match t.checked_sub(j) {
                    Some(t) => token(t),
                    None => &old[(past + t - j) * dim..][..dim],
                };
                for ((x, w), input) in out.iter_mut().zip(weight).zip(input) {
                    *x += w * input;
                }
            }
            if let Some(bias) = &conv.bias {
                simd::add(&bias[column..][..dim], out);
            }
        }
    }
}
