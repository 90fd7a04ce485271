//! Where checkpoints store the tensors of mixtures of experts: one tensor per expert, or one for all experts.

use waterline_quant::Tensor;

use super::Config;
use super::tensors::{rows_of_groups, stacked};
use crate::error::Result;
use crate::weights::WeightSpec;

/// Whether a layer of Qwen3's families has a mixture of `experts`: every n-th layer, but for those that the configuration lists as plain.
pub(super) fn is_sparse(config: &Config, layer: usize, experts: usize) -> Result<bool> {
    let is_plain = match config.object().get("mlp_only_layers") {
        None | Some(serde_json::Value::Null) => false,
        Some(_) => config.usizes("mlp_only_layers")?.contains(&layer),
    };
    let step = config.usize_or("decoder_sparse_step", 1)?;
    Ok(experts > 0 && (layer + 1).is_multiple_of(step) && !is_plain)
}

/// Whether a layer has a mixture of experts, if the configuration lists the kinds of the layers' networks.
pub(super) fn is_listed_sparse(config: &Config, layer: usize) -> Result<Option<bool>> {
    const KEY: &str = "mlp_layer_types";
    if config.object().get(KEY).is_none_or(|kinds| kinds.is_null()) {
        return Ok(None);
    }
    match config.array(KEY)?.get(layer).and_then(|kind| kind.as_str()) {
        Some("sparse") => Ok(Some(true)),
        Some("dense") => Ok(Some(false)),
        _ => Err(config.wrong(KEY, "sparse or dense for every layer")),
    }
}

/// Names in a checkpoint, relative to the layer.
pub(super) struct ExpertNames {
    /// Prefix of all names except the shared expert's.
    pub block: &'static str,
    /// The router's matrix.
    pub router: &'static str,
    /// Bias of the router's scores for the choice.
    pub bias: &'static str,
    /// Names of the parts of an expert: gate, up and down.
    pub parts: [&'static str; 3],
    /// Prefix of the shared expert's names.
    pub shared: &'static str,
    /// Names of the parts of the shared expert.
    pub shared_parts: [&'static str; 3],
}

const PROJECTIONS: [&str; 3] = ["gate_proj", "up_proj", "down_proj"];

impl ExpertNames {
    /// The most common names.
    pub const USUAL: ExpertNames = ExpertNames {
        block: "mlp",
        router: "gate.weight",
        bias: "gate.e_score_correction_bias",
        parts: PROJECTIONS,
        shared: "mlp.shared_expert",
        shared_parts: PROJECTIONS,
    };

    /// Reads one of our tensors if it belongs to a mixture of experts. `read` reads a tensor of the checkpoint, whose layer
    /// names begin with `{layers}.{number}`.
    pub fn tensor(
        &self,
        weight: &WeightSpec,
        layers: &str,
        read: &dyn Fn(&str) -> Result<Tensor>,
    ) -> Option<Result<Tensor>> {
        let (layer, part) = layer_part(&weight.name)?;
        let block = self.block;
        let named = |name: &str| read(&format!("{layers}.{layer}.{block}.{name}"));
        let shared = |index: usize| {
            let name = self.shared_parts[index];
            read(&format!("{layers}.{layer}.{}.{name}.weight", self.shared))
        };
        Some(match part {
            "ffn_gate_inp.weight" => named(self.router),
            "exp_probs_b.bias" => named(self.bias),
            "ffn_latent_in.weight" => named("fc1_latent_proj.weight"),
            "ffn_latent_out.weight" => named("fc2_latent_proj.weight"),
            "ffn_gate_inp_shexp.weight" => named("shared_expert_gate.weight"),
            "ffn_gate_shexp.weight" => shared(0),
            "ffn_up_shexp.weight" => shared(1),
            "ffn_down_shexp.weight" => shared(2),
            "ffn_gate_exps.weight" => self.experts(weight, 0, &named),
            "ffn_up_exps.weight" => self.experts(weight, 1, &named),
            "ffn_down_exps.weight" => self.experts(weight, 2, &named),
            _ => return None,
        })
    }

    /// Reads part `index` of every expert, from `experts.gate_up_proj` `[experts, 2 width, cols]` and
    /// `experts.down_proj`, or from `experts.{e}.{part}.weight`.
    fn experts(
        &self,
        weight: &WeightSpec,
        index: usize,
        read: &dyn Fn(&str) -> Result<Tensor>,
    ) -> Result<Tensor> {
        let fused = match index {
            2 => "experts.down_proj",
            _ => "experts.gate_up_proj",
        };
        if let Ok(fused) = read(fused) {
            return part_of_fused(&weight.name, fused, index);
        }
        // Without gates, the up projection has a tensor to itself.
        if let (1, Ok(alone)) = (index, read("experts.up_proj")) {
            return part_of_fused(&weight.name, alone, 2);
        }
        let part = self.parts[index];
        let rows = read(&format!("experts.0.{part}.weight"))?;
        let rows = rows.shape.first().copied().unwrap_or(0);
        let count = weight.shape[0] / rows.max(1);
        let parts = (0..count).map(|expert| read(&format!("experts.{expert}.{part}.weight")));
        stacked(
            &weight.name,
            &parts.collect::<Result<Vec<_>>>()?,
            &weight.shape,
        )
    }
}

/// Returns the gates (part 0) or the up projections (1) of `[experts, 2 width, cols]`, or all of `[experts, rows, cols]`
/// (2), as rows of one matrix.
pub(super) fn part_of_fused(name: &str, mut fused: Tensor, part: usize) -> Result<Tensor> {
    let experts = fused.shape.first().copied().unwrap_or(0);
    if let [experts, rows, cols] = fused.shape[..] {
        fused.shape = vec![experts * rows, cols];
    }
    let rows = fused.shape[0] / experts.max(1);
    match part {
        0 => rows_of_groups(name, &fused, experts, 0..rows / 2),
        1 => rows_of_groups(name, &fused, experts, rows / 2..rows),
        _ => Ok(fused),
    }
}

/// Splits the name `blk.{layer}.{part}` into the layer's number and the part.
pub(super) fn layer_part(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
    Some((layer.parse().ok()?, part))
}
