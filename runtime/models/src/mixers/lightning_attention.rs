//! Lightning attention (MiniMax-01, arXiv 2501.08313; transformers `models/minimax`): linear attention whose heads fade at
//! fixed rates.
//!
//! With x the normed input, per head h:
//! ```text
//! q, k, v = silu(W_q x), silu(W_k x), silu(W_v x)
//! S <- exp(-slope 2^(-8 (h + 1) / heads)) S + k^T v;  o = q S
//! y = W_o (rms(o over all heads) sigmoid(W_g x))
//! ```
//! The slope differs from layer to layer. State: `S [heads, head_dim, head_dim]`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::ops::{Decay, Finish, HeadGroup, HeadOp, Key, Prepare, Recur, Write};
use crate::state::{StateDtype, StateKind, StateTensor};
use crate::weights::WeightSpec;

pub(super) const KIND: &str = "lightning_attention";

/// Hyperparameters.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LightningAttention {
    /// Heads.
    pub heads: usize,
    /// Width of a head.
    pub head_dim: usize,
    /// Multiplies the rates at which heads fade.
    pub slope: f32,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
}

const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "g_proj"];

impl Mixer for LightningAttention {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.head_dim];
        Mismatch::unless_positive(&dims, "heads and a width of one or more")?;
        Mismatch::unless(
            self.slope >= 0.0 && self.slope.is_finite(),
            || format!("slope {}", self.slope),
            "a finite number, 0 or more",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let width = self.heads * self.head_dim;
        let matrix = |name| WeightSpec::matrix(&format!("{name}.weight"), width, hidden);
        let mut weights: Vec<WeightSpec> = PROJECTIONS.into_iter().map(matrix).collect();
        weights.push(WeightSpec::full("o_norm.weight", &[width]));
        weights.push(WeightSpec::matrix("o_proj.weight", hidden, width));
        weights
    }

    fn state(&self) -> Vec<StateTensor> {
        let shape = [self.heads, self.head_dim, self.head_dim];
        let dtype = StateDtype::F32;
        vec![StateTensor::new("state", StateKind::Matrix, dtype, &shape)]
    }

    fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let views = layer.project(&PROJECTIONS)?;
        let (q, k, v, gate) = (views[0], views[1], views[2], views[3]);
        let silu = |view| HeadGroup {
            view,
            head_dim: self.head_dim,
            conv: None,
            maps: vec![HeadOp::Activation(Activation::Silu)],
        };
        layer.push(Prepare {
            groups: [q, k, v].map(silu).into(),
            rope: None,
            gates: Vec::new(),
        });
        let rate = |head| {
            let power = -8.0 * (head + 1) as f64 / self.heads as f64;
            (-f64::from(self.slope) * power.exp2()) as f32
        };
        let out = layer.buffer(self.heads * self.head_dim);
        layer.push(Recur {
            heads: self.heads,
            states: self.heads,
            dk: self.head_dim,
            dv: self.head_dim,
            q,
            k: Key::View(k),
            v,
            decay: Decay::Fixed((0..self.heads).map(rate).collect()),
            write: Write::Add,
            gates: None,
            scale: 1.0,
            finish: Finish::default(),
            state: layer.state_tensor(0),
            out,
        });
        let norm = Norm::rms(layer.vector("o_norm.weight")?, self.norm_eps);
        let finish = vec![
            OutputOp::Norm(norm),
            OutputOp::Gate(gate, Activation::Sigmoid),
        ];
        layer.emit(out, finish, "o_proj")
    }
}
