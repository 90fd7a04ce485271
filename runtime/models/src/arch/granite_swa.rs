//! Granite's Transformers with windows (transformers `granite_swa`, `granitemoe_swa`): Granite's multipliers, attention sinks, and
//! possibly separate rotary positions for each layer.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, layer_part};
use super::granite::{multiplied, sublayer};
use super::hugging_face::{attention, mlp, slides_by_list, tensor_name, with_own_base};
use super::{Config, Family, tensors};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, SharedSpec};
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["granite_swa", "granitemoe_swa"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

/// Without a list, every n-th layer from the first attends to all tokens.
pub(super) const PATTERN: usize = 4;

const NAMES: ExpertNames = ExpertNames {
    block: "block_sparse_moe",
    router: "router.weight",
    shared: "shared_mlp",
    shared_parts: ["input_linear", "input_linear", "output_linear"],
    ..ExpertNames::USUAL
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let all = Attention {
        softmax_scale: Some(config.f32_or("attention_multiplier", 1.0)?),
        sinks: true,
        ..attention(config)?
    };
    let ffn = match config.string("model_type")? {
        "granite_swa" => FeedForward::Dense(mlp(config)?),
        _ => FeedForward::Experts(experts(config)?),
    };
    let sublayer = sublayer(config)?;
    let window = config.optional_usize("sliding_window")?;
    let layers = (0..config.layers()?).map(|layer| {
        let listed = slides_by_list(config, layer)?;
        let slides = listed.unwrap_or(!layer.is_multiple_of(PATTERN));
        let attention = Attention {
            window: window.filter(|_| slides),
            ..with_own_base(config, layer, all.clone())?
        };
        Ok(LayerSpec {
            mixer_sublayer: sublayer,
            ffn_sublayer: sublayer,
            ffn: Some(ffn.clone()),
            ..LayerSpec::new(Arc::new(attention), None)
        })
    });
    multiplied(config, layers.collect::<Result<_>>()?)
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let shared = config.usize_or("shared_intermediate_size", 0)?;
    Ok(ExpertsSpec {
        experts: config.usize("num_local_experts")?,
        chosen: config.usize("num_experts_per_tok")?,
        intermediate: config.usize("intermediate_size")?,
        // Softmax over the chosen logits equals softmax over all, divided by the sum of the chosen.
        router: Router::softmax(true),
        shared: (shared > 0).then_some(SharedSpec {
            intermediate: shared,
            gate: false,
        }),
        ..ExpertsSpec::default()
    })
}

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let Some(tensor) = NAMES.tensor(weight, "model.layers", &read) else {
        return read(&tensor_name(&weight.name, "self_attn"));
    };
    // The shared expert's gates come first, then the rows that they gate.
    let rows = weight.shape[0];
    let half = match layer_part(&weight.name) {
        Some((_, "ffn_gate_shexp.weight")) => 0..rows,
        Some((_, "ffn_up_shexp.weight")) => rows..2 * rows,
        _ => return tensor,
    };
    tensors::rows(&weight.name, &tensor?, &[half])
}
