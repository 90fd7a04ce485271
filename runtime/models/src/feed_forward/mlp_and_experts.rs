//! A dense network beside a mixture of experts (Gemma 4), both from the residual stream x.
//!
//! ```text
//! y = rms(mlp(rms(x))) + rms(experts(rms(x)))                         four norms
//! router: rms(x) D^-1/2, with gains of its own                        the sublayer's last norm is applied to y
//! ```

use super::{ExpertsSpec, MlpSpec};
use crate::error::Result;
use crate::lowering::Lowering;
use crate::mixers::Mismatch;
use crate::operands::{RESIDUAL, View};
use crate::ops::{Experts, HeadOp, Mlp, Normalize};
use crate::weights::WeightSpec;

/// Gains of the router's norm.
const ROUTER_NORM: &str = "ffn_gate_inp.scale";
/// The norms before the experts, and after each of the two.
const EXPERTS_NORM: &str = "pre_ffw_norm_2.weight";
const POST_NORMS: [&str; 2] = ["post_ffw_norm_1.weight", "post_ffw_norm_2.weight"];

/// Hyperparameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MlpAndExperts {
    /// The dense network, which has gates.
    pub mlp: MlpSpec,
    /// The mixture, without a shared expert.
    pub experts: ExpertsSpec,
}

impl MlpAndExperts {
    pub(super) fn check(&self) -> Result<(), Mismatch> {
        self.mlp.check()?;
        self.experts.check()?;
        Mismatch::unless(
            self.mlp.gated && self.experts.shared.is_none() && self.experts.latent.is_none(),
            || "a network without gates, a shared expert or projected experts".into(),
            "a gated network beside plain experts",
        )
    }

    pub(super) fn weights(&self, hidden: usize) -> Vec<WeightSpec> {
        let mut weights = self.mlp.weights(hidden);
        weights.extend(self.experts.weights(hidden));
        let norms = [ROUTER_NORM, EXPERTS_NORM].into_iter().chain(POST_NORMS);
        weights.extend(norms.map(|name| WeightSpec::full(name, &[hidden])));
        weights
    }

    pub(super) fn lower(&self, layer: &mut Lowering) -> Result<()> {
        let hidden = layer.hidden();
        let stream = View::whole(RESIDUAL, hidden);
        let outputs = [layer.buffer(hidden), layer.buffer(hidden)];

        let norm = layer.stream_norm(ROUTER_NORM, (hidden as f32).powf(-0.5))?;
        let logits = layer.project_from(stream, Some(norm), &["ffn_gate_inp"])?[0];
        let route = self.experts.route(layer, logits, 1.0)?;
        let norm = layer.stream_norm(EXPERTS_NORM, 1.0)?;
        let experts = self
            .experts
            .chosen(layer, stream, route, None, outputs[1])?;
        let norm = Some(norm);
        layer.push(Experts { norm, ..experts });

        let down = layer.linear("ffn_down", self.mlp.multiplier, 0)?;
        layer.wide_inputs(down.matrix.cols());
        let mlp = self.mlp.gated_network(layer, down)?;
        layer.push(Mlp {
            output: Some(outputs[0]),
            ..mlp
        });

        for (columns, name) in outputs.into_iter().zip(POST_NORMS) {
            let norm = layer.norm(name)?;
            layer.push(Normalize { columns, norm });
        }
        layer.push_maps(outputs[0], vec![HeadOp::Add(outputs[1])]);
        layer.add_columns(outputs[0]);
        Ok(())
    }
}
