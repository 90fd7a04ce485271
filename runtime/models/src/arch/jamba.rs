//! Jamba, as saved by transformers: Mamba layers whose parameters are normalized, attention without positions, and
//! mixtures of experts in some layers.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, layer_part};
use super::hugging_face::{mlp, model, norm_eps, tensor_name};
use super::{Config, Family, tensors};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward};
use crate::mixers::{Attention, Mamba, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["jamba"],
    spec,
    tensor,
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let attention: Arc<dyn Mixer> = Arc::new(attention(config)?);
    let mamba: Arc<dyn Mixer> = Arc::new(mamba(config)?);
    let has_experts = config.usize_or("num_experts", 16)? > 1;
    let layers = (0..config.layers()?)
        .map(|layer| {
            let of_attention = is_periodic(config, layer, "attn_layer", [8, 4])?;
            let of_experts = is_periodic(config, layer, "expert_layer", [2, 1])?;
            Ok(LayerSpec {
                mixer: Some(Arc::clone(if of_attention { &attention } else { &mamba })),
                ffn: Some(if has_experts && of_experts {
                    FeedForward::Experts(experts(config)?)
                } else {
                    FeedForward::Dense(mlp(config)?)
                }),
                ..LayerSpec::default()
            })
        })
        .collect::<Result<_>>()?;
    model(config, layers)
}

/// Whether the layer is one of every `{kind}_period` layers, starting with `{kind}_offset`.
fn is_periodic(config: &Config, layer: usize, kind: &str, usual: [usize; 2]) -> Result<bool> {
    let key = format!("{kind}_period");
    let period = config.usize_or(&key, usual[0])?;
    if period == 0 {
        return Err(config.wrong(&key, "a number of one or more"));
    }
    Ok(layer % period == config.usize_or(&format!("{kind}_offset"), usual[1])?)
}

fn attention(config: &Config) -> Result<Attention> {
    let (heads, hidden) = (
        config.usize("num_attention_heads")?,
        config.usize("hidden_size")?,
    );
    if heads == 0 || !hidden.is_multiple_of(heads) {
        let expected = format!("a divisor of the hidden size {hidden}");
        return Err(config.wrong("num_attention_heads", &expected));
    }
    Ok(Attention {
        heads,
        kv_heads: config.usize_or("num_key_value_heads", heads)?,
        head_dim: hidden / heads,
        rope_theta: None,
        ..Attention::default()
    })
}

fn mamba(config: &Config) -> Result<Mamba> {
    let hidden = config.usize("hidden_size")?;
    Ok(Mamba {
        inner: config.usize_or("mamba_expand", 2)?.saturating_mul(hidden),
        state: config.usize_or("mamba_d_state", 16)?,
        rank: match config.optional_string("mamba_dt_rank") {
            Some("auto") => hidden.div_ceil(16),
            _ => config.usize_or("mamba_dt_rank", hidden.div_ceil(16))?,
        },
        conv: config.usize_or("mamba_d_conv", 4)?,
        conv_bias: config.bool_or("mamba_conv_bias", true)?,
        bias: config.bool_or("mamba_proj_bias", false)?,
        norm_eps: Some(norm_eps(config)?),
        norm_gains: true,
        hax: None,
    })
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    Ok(ExpertsSpec {
        experts: config.usize_or("num_experts", 16)?,
        chosen: config.usize_or("num_experts_per_tok", 2)?,
        intermediate: mlp(config)?.intermediate,
        router: Router::softmax(false),
        ..ExpertsSpec::default()
    })
}

const EXPERTS: ExpertNames = ExpertNames {
    block: "feed_forward",
    router: "router.weight",
    ..ExpertNames::USUAL
};

fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let Some((layer, part)) = layer_part(&weight.name) else {
        return match weight.name.as_str() {
            "output_norm.weight" => read("model.final_layernorm.weight"),
            name => read(&tensor_name(name, "")),
        };
    };
    let of_layer = |name: &str| read(&format!("model.layers.{layer}.{name}"));
    if let Some(tensor) = EXPERTS.tensor(weight, "model.layers", &read) {
        return tensor;
    }
    let of_attention = is_periodic(config, layer, "attn_layer", [8, 4])?;
    match part {
        "attn_norm.weight" => of_layer("input_layernorm.weight"),
        "ffn_norm.weight" => of_layer("pre_ff_layernorm.weight"),
        "ffn_gate.weight" => of_layer("feed_forward.gate_proj.weight"),
        "ffn_up.weight" => of_layer("feed_forward.up_proj.weight"),
        "ffn_down.weight" => of_layer("feed_forward.down_proj.weight"),
        "mixer.A" => tensors::minus_exp(&of_layer("mamba.A_log")?),
        _ if of_attention => of_layer(&part.replacen("mixer.", "self_attn.", 1)),
        _ => of_layer(
            &part
                .replacen("mixer.", "mamba.", 1)
                .replacen("_norm.", "_layernorm.", 1),
        ),
    }
}
