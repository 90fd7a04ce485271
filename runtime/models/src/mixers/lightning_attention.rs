//! Lightning attention (MiniMax-01, arXiv 2501.08313; transformers `models/minimax`): linear attention whose heads decay
//! at fixed rates.
//!
//! With x the normed input, per head h:
//! ```text
//! q, k, v = silu(W_q x), silu(W_k x), silu(W_v x)
//! or q, k, v = rms(W_q x), rms(W_k x), W_v x;  q, k <- rotary(position)      (MiniCPM-SALA; norm and positions optional)
//! S <- exp(-slope 2^(-8 (h + 1) / heads)) S + k^T v;  o = scale q S
//! y = W_o (rms(o over all heads) sigmoid(W_g x))
//! ```
//! The slope differs from layer to layer. State: `S [heads, head_dim, head_dim]`.

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Mismatch, Mixer};
use crate::error::Result;
use crate::functions::{Activation, Norm, OutputOp};
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Decay, Finish, HeadGroup, HeadOp, Key, Prepare, Recur, Rope, Write};
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
    /// Multiplies the rates at which heads decay.
    pub slope: f32,
    /// Epsilon of the output norm.
    pub norm_eps: f32,
    /// Preparation of queries and keys without silu; `None` applies silu to queries, keys and values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unmapped: Option<Unmapped>,
}

/// How queries and keys are prepared in mixers that do not apply silu.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Unmapped {
    /// Key and value heads; divides the number of heads.
    pub kv_heads: usize,
    /// Epsilon of the norm of each head of queries and keys; `None` for no norm.
    pub head_norm_eps: Option<f32>,
    /// Base of the rotary positions; `None` for no positions.
    pub rope_theta: Option<f32>,
    /// Multiplies the output of the recurrence.
    pub scale: f32,
}

const PROJECTIONS: [&str; 4] = ["q_proj", "k_proj", "v_proj", "g_proj"];

impl LightningAttention {
    fn kv_heads(&self) -> usize {
        self.unmapped
            .map_or(self.heads, |unmapped| unmapped.kv_heads)
    }

    /// The head group of queries, keys or values before the recurrence; `norm` names their head norm, if they have one.
    fn group(&self, layer: &Lowering, view: View, norm: Option<&str>) -> Result<HeadGroup> {
        let mut maps = Vec::new();
        match (self.unmapped, norm) {
            (None, _) => maps.push(HeadOp::Activation(Activation::Silu)),
            (Some(unmapped), Some(name)) => {
                if let Some(eps) = unmapped.head_norm_eps {
                    maps.push(HeadOp::Rms(Norm::rms(layer.vector(name)?, eps)));
                }
                maps.extend(unmapped.rope_theta.map(|_| HeadOp::Rope));
            }
            (Some(_), None) => (),
        }
        Ok(HeadGroup {
            view,
            head_dim: self.head_dim,
            conv: None,
            maps,
        })
    }
}

impl Mixer for LightningAttention {
    fn kind(&self) -> &'static str {
        KIND
    }

    fn to_json(&self) -> Value {
        json!(self)
    }

    fn check(&self, _hidden: usize) -> Result<(), Mismatch> {
        let dims = [self.heads, self.head_dim, self.kv_heads()];
        Mismatch::unless_positive(&dims, "heads and a width of one or more")?;
        Mismatch::unless_shared(self.heads, "heads", self.kv_heads(), "key and value head")?;
        if let Some(unmapped) = self.unmapped {
            Mismatch::unless_base(unmapped.rope_theta)?;
            Mismatch::unless(
                unmapped.scale.is_finite()
                    && (unmapped.rope_theta.is_none() || self.head_dim.is_multiple_of(2)),
                || format!("{unmapped:?} on heads of {}", self.head_dim),
                "a finite scale, and an even head width for positions",
            )?;
        }
        Mismatch::unless(
            self.slope >= 0.0 && self.slope.is_finite(),
            || format!("slope {}", self.slope),
            "a finite number, 0 or more",
        )
    }

    fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let width = self.heads * self.head_dim;
        let kv_width = self.kv_heads() * self.head_dim;
        let matrix = |(name, rows)| WeightSpec::matrix(&format!("{name}.weight"), rows, hidden);
        let rows = PROJECTIONS
            .into_iter()
            .zip([width, kv_width, kv_width, width]);
        let mut weights: Vec<WeightSpec> = rows.map(matrix).collect();
        if self
            .unmapped
            .is_some_and(|unmapped| unmapped.head_norm_eps.is_some())
        {
            let norm = |name| WeightSpec::full(name, &[self.head_dim]);
            weights.extend(["q_norm.weight", "k_norm.weight"].map(norm));
        }
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
        let mut groups = vec![
            self.group(layer, q, Some("q_norm.weight"))?,
            self.group(layer, k, Some("k_norm.weight"))?,
            self.group(layer, v, None)?,
        ];
        groups.retain(|group| !group.maps.is_empty());
        let theta = self.unmapped.and_then(|unmapped| unmapped.rope_theta);
        if !groups.is_empty() {
            let rope = theta.map(|theta| Rope::new(theta, None, layer.buffer(self.head_dim)));
            layer.push(Prepare {
                groups,
                rope,
                gates: Vec::new(),
            });
        }
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
            scale: self.unmapped.map_or(1.0, |unmapped| unmapped.scale),
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
