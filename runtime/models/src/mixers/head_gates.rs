//! Softmax linear attention (arXiv 2602.01744) as an option of any linear attention: softmax over the heads weights the
//! writes and reads of each head.
//!
//! ```text
//! gate_q, gate_k = softmax_h(W_gq input), softmax_h(W_gk input)
//! RetNet, GLA:    S_h += (gate_k k_h)^T v_h;                 o_h = (gate_q q_h) S_h
//! Gated DeltaNet: S_h += k_h^T beta (gate_k v_h - k_h S_h);  o_h = gate_q (q_h S_h)
//! ```
//! RetNet and GLA lack only the delta, so in all of them both are gates on writes and reads. A head's output norm cancels the
//! read gate's magnitude, up to its epsilon; with `read_gate_after_norm` the gate comes last: `o_h = gate_q rms(q_h S_h)`.

use serde::{Deserialize, Serialize};

use super::Mismatch;
use crate::error::Result;
use crate::functions::Norm;
use crate::lowering::Lowering;
use crate::operands::View;
use crate::ops::{Gate, HeadGates, HeadGroup, HeadOp, Prepare};
use crate::weights::WeightSpec;

/// The input of the gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HeadGateInput {
    /// The layer's normed input.
    Hidden,
    /// The heads' queries for the read gate and their keys for the write gate, as the recurrence receives them.
    Projections,
}

const READ: &str = "gate_q_proj";
const WRITE: &str = "gate_k_proj";

impl HeadGateInput {
    /// The gate matrices, given the widths of the queries and keys.
    pub(super) fn weights(
        self,
        hidden: usize,
        heads: usize,
        [q_width, k_width]: [usize; 2],
    ) -> [WeightSpec; 2] {
        let width = |projected| match self {
            HeadGateInput::Hidden => hidden,
            HeadGateInput::Projections => projected,
        };
        [(READ, q_width), (WRITE, k_width)].map(|(name, projected)| {
            WeightSpec::full(&format!("{name}.weight"), &[heads, width(projected)])
        })
    }

    /// The gate matrices that multiply the layer's input.
    pub(super) fn projections(self) -> &'static [&'static str] {
        match self {
            HeadGateInput::Hidden => &[READ, WRITE],
            HeadGateInput::Projections => &[],
        }
    }

    /// Computes the gates from `projected`, the columns of [`HeadGateInput::projections`], or from the queries and keys.
    pub(super) fn lower(
        self,
        layer: &mut Lowering,
        projected: &[View],
        [q, k]: [View; 2],
    ) -> Result<HeadGates> {
        let (read, write) = match (self, projected) {
            (HeadGateInput::Hidden, &[read, write]) => (read, write),
            _ => (
                layer.project_from(q, None, &[READ])?[0],
                layer.project_from(k, None, &[WRITE])?[0],
            ),
        };
        layer.push(Prepare {
            groups: Vec::new(),
            rope: None,
            gates: vec![(read, Gate::Softmax), (write, Gate::Softmax)],
        });
        Ok(HeadGates {
            write,
            read: Some(read),
        })
    }
}

/// Checks that a read gate after the norm comes with head gates.
pub(super) fn check(gates: Option<HeadGateInput>, read_after_norm: bool) -> Result<(), Mismatch> {
    Mismatch::unless(
        gates.is_some() || !read_after_norm,
        || "read_gate_after_norm without head_gates".into(),
        "head_gates",
    )
}

/// Normalizes each head of `out`, `[heads, value_dim]`, with the gains `o_norm.weight`, and multiplies it by its read gate.
pub(super) fn norm_then_read(
    layer: &mut Lowering,
    out: View,
    value_dim: usize,
    norm_eps: f32,
    read: View,
) -> Result<()> {
    let norm = Norm::rms(layer.vector("o_norm.weight")?, norm_eps);
    layer.push(Prepare {
        groups: vec![HeadGroup {
            view: out,
            head_dim: value_dim,
            conv: None,
            maps: vec![HeadOp::Rms(norm), HeadOp::Weigh(read)],
        }],
        rope: None,
        gates: Vec::new(),
    });
    Ok(())
}
