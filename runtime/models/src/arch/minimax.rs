//! MiniMax-Text-01, as saved by transformers: layers of lightning attention and of softmax attention, each with a mixture
//! of experts. A layer's residual is its normed input.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, layer_part};
use super::hugging_face::{attention, layer_type, model, tensor_name};
use super::tensors::rows_of_groups;
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward};
use crate::lowering::Sublayer;
use crate::mixers::{Attention, LightningAttention, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["minimax", "minimax_text_01"],
    spec,
    tensor,
};

/// Epsilon of the norm after lightning attention, as in the reference.
const OUTPUT_EPS: f32 = 1e-6;

fn spec(config: &Config) -> Result<ModelSpec> {
    let softmax: Arc<dyn Mixer> = Arc::new(softmax_attention(config)?);
    let experts = FeedForward::Experts(experts(config)?);
    let count = config.layers()?;
    let layers = (0..count)
        .map(|layer| {
            let of_softmax = is_softmax(config, layer)?;
            let mixer: Arc<dyn Mixer> = if of_softmax {
                Arc::clone(&softmax)
            } else {
                Arc::new(lightning_attention(config, layer, count)?)
            };
            let kind = if of_softmax {
                "full_attn"
            } else {
                "linear_attn"
            };
            Ok(LayerSpec {
                mixer: Some(mixer),
                ffn: Some(experts.clone()),
                mixer_sublayer: sublayer(config, kind)?,
                ffn_sublayer: sublayer(config, "mlp")?,
                ..LayerSpec::default()
            })
        })
        .collect::<Result<_>>()?;
    model(config, layers)
}

/// `x = alpha n + beta f(n)`; the authors' own files spell out the names of the factors.
fn sublayer(config: &Config, kind: &str) -> Result<Sublayer> {
    let spelt = kind.replace("attn", "attention");
    let factor = |name: &str| match config.optional_f32(&format!("layernorm_{spelt}_{name}"))? {
        Some(factor) => Ok(factor),
        None => config.f32_or(&format!("{kind}_{name}_factor"), 1.0),
    };
    Ok(Sublayer {
        normed_residual: Some(factor("alpha")?),
        multiplier: factor("beta")?,
        ..Sublayer::default()
    })
}

/// Whether a layer is softmax attention. Older files number the kinds; softmax attention is 1.
fn is_softmax(config: &Config, layer: usize) -> Result<bool> {
    match layer_type(config, layer)? {
        Some("full_attention") => Ok(true),
        Some("linear_attention") => Ok(false),
        Some(_) => Err(config.wrong("layer_types", "full_attention or linear_attention")),
        None => match config.usizes("attn_type_list")?.get(layer) {
            Some(&kind) => Ok(kind == 1),
            None => Err(config.wrong("attn_type_list", "one kind for each layer")),
        },
    }
}

fn softmax_attention(config: &Config) -> Result<Attention> {
    let attention = attention(config)?;
    Ok(Attention {
        rope_dim: config.optional_usize("rotary_dim")?.or(attention.rope_dim),
        bias: false,
        out_bias: false,
        ..attention
    })
}

fn lightning_attention(config: &Config, layer: usize, layers: usize) -> Result<LightningAttention> {
    let Attention {
        heads, head_dim, ..
    } = attention(config)?;
    Ok(lightning_of_depth(heads, head_dim, layer, layers))
}

/// Lightning attention in layer `layer` of `layers`; heads of deeper layers decay more slowly.
pub(super) fn lightning_of_depth(
    heads: usize,
    head_dim: usize,
    layer: usize,
    layers: usize,
) -> LightningAttention {
    let depth = layer as f64 / (layers as f64 - 1.0 + 1e-5);
    LightningAttention {
        heads,
        head_dim,
        slope: (1.0 - depth + 1e-5) as f32,
        norm_eps: OUTPUT_EPS,
        unmapped: None,
    }
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    if !config.bool_or("postnorm", true)? {
        return Err(config.wrong(
            "postnorm",
            "true: the residual must be the normalized input",
        ));
    }
    Ok(ExpertsSpec {
        experts: config.usize("num_local_experts")?,
        chosen: config.usize_or("num_experts_per_tok", 2)?,
        intermediate: config.usize("intermediate_size")?,
        ..ExpertsSpec::default()
    })
}

const EXPERTS: ExpertNames = ExpertNames {
    block: "block_sparse_moe",
    parts: ["w1", "w3", "w2"],
    ..ExpertNames::USUAL
};

fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let name = weight.name.as_str();
    let Some((layer, part)) = layer_part(name) else {
        return read(&tensor_name(name, ""));
    };
    let of_layer = |name: &str| read(&format!("model.layers.{layer}.{name}"));
    if let Some(tensor) = EXPERTS.tensor(weight, "model.layers", &read) {
        return tensor;
    }
    let Some(part) = part.strip_prefix("mixer.") else {
        return read(&tensor_name(name, ""));
    };
    if is_softmax(config, layer)? {
        return of_layer(&format!("self_attn.{part}"));
    }
    let Attention {
        heads, head_dim, ..
    } = attention(config)?;
    // The fused matrix holds query, key and value of one head after another.
    let of_head = |index: usize| {
        let fused = of_layer("self_attn.qkv_proj.weight")?;
        let range = index * head_dim..(index + 1) * head_dim;
        rows_of_groups(name, &fused, heads, range)
    };
    match part {
        "q_proj.weight" => of_head(0),
        "k_proj.weight" => of_head(1),
        "v_proj.weight" => of_head(2),
        "g_proj.weight" => of_layer("self_attn.output_gate.weight"),
        "o_norm.weight" => of_layer("self_attn.norm.weight"),
        "o_proj.weight" => of_layer("self_attn.out_proj.weight"),
        _ => of_layer(&format!("self_attn.{part}")),
    }
}
