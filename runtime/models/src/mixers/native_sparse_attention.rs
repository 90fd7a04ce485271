//! Native sparse attention (arXiv 2502.11089; flash-linear-attention `layers/nsa.py`).
//!
//! Over keys k and values v with rotary positions, in blocks of `block_size` tokens, for query t:
//! ```text
//! means   = softmax attention over the averaged k and v of every complete block
//! chosen  = softmax attention over the tokens up to t in `block_count` blocks: the first, the last two, and
//!           those with the largest shares in the first softmax, summed over the heads that share keys
//! window  = softmax attention over the last `window` tokens
//! o       = sigmoid(g_0) means + sigmoid(g_1) chosen + sigmoid(g_2) window,   g = W_g x  [heads, 3]
//! y       = W_o o
//! ```
//! State: keys and values of the session's context, and the blocks' averages.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::attention::Attention;
use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::ops::{AttendBlocks, Gate};
use crate::state::{Size, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "native_sparse_attention";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NativeSparseAttention {
    /// Projections and positions; the window and gate are unused.
    pub attention: Attention,
    /// Tokens per block.
    pub block_size: usize,
    /// Number of blocks that a query chooses, including the first and the last two.
    pub block_count: usize,
    /// Tokens in the window, including the query's own; zero for no window.
    pub window: usize,
}

impl Mixer for NativeSparseAttention {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        self.attention.check_heads()?;
        let plain = &self.attention;
        Mismatch::unless(
            plain.window.is_none() && plain.retained.is_none() && !plain.gate,
            || format!("{plain:?}"),
            "attention without its own window, retained set or gate",
        )?;
        Mismatch::unless(
            (1..=1 << 20).contains(&self.block_size) && (1..=1 << 16).contains(&self.block_count),
            || format!("{} blocks of {} tokens", self.block_count, self.block_size),
            "1 to 65536 blocks of 1 to 1048576 tokens",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = self.attention.weights(hidden);
        let gates = [3 * self.attention.heads, hidden];
        weights.push(WeightSpec::full("g_proj.weight", &gates));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let Attention {
            kv_heads, head_dim, ..
        } = self.attention;
        let mut tensors = self.attention.state();
        let blocks = Size::ContextBlocks(self.block_size);
        let shape = [Size::Fixed(kv_heads), blocks, Size::Fixed(head_dim)];
        tensors.extend(["mean_keys", "mean_values"].map(|name| StateTensor::cached(name, shape)));
        tensors
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let attention = &self.attention;
        let views = attention.project(layer, &["g_proj"])?;
        let [q, k, v, gates] = views[..] else {
            unreachable!("a view for each projection")
        };
        attention.prepare(layer, q, k, vec![(gates, Gate::Sigmoid { scale: 1.0 })])?;
        let out = layer.buffer(attention.heads * attention.head_dim);
        layer.push(AttendBlocks {
            heads: attention.heads,
            kv_heads: attention.kv_heads,
            q,
            k,
            v,
            gates,
            scale: attention.scale(),
            block: self.block_size,
            chosen: self.block_count,
            window: self.window,
            keys: layer.state_tensor(0),
            values: layer.state_tensor(1),
            mean_keys: layer.state_tensor(2),
            mean_values: layer.state_tensor(3),
            out,
        });
        layer.emit(out, Vec::new(), "o_proj")
    }
}
