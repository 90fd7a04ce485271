//! Qwen3-Next and the text models of Qwen3.5, as saved by transformers: Gated DeltaNet layers with one convolution over
//! adjacent q, k and v, and attention whose query projection includes an output gate, with or without mixtures of
//! experts. Norms are stored as their distance from one, except for the gated norm of Gated DeltaNet.

use std::ops::Range;
use std::sync::Arc;

use waterline_quant::Tensor;

use super::experts::{ExpertNames, is_sparse};
use super::hugging_face::{attention, layer_type, mlp, model, norm_eps, tensor_name};
use super::tensors::{one_plus, rows, rows_of_groups};
use super::{Config, Family};
use crate::error::{Error, Result};
use crate::feed_forward::{ExpertsSpec, FeedForward, SharedSpec};
use crate::functions::Activation;
use crate::mixers::{Attention, GatedDeltaNet, Mixer};
use crate::model::{LayerSpec, ModelSpec, MtpSpec};
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"],
    spec,
    tensor: |config, weights, weight| {
        let read = |name: &str| Ok(weights.tensor(name)?);
        tensor(config, &read, weight)
    },
};

/// The language model of a model that also reads images.
pub(super) const WITH_IMAGES: Family = Family {
    model_types: &["qwen3_5", "qwen3_5_moe"],
    spec: |config| {
        let text = text_config(config)?;
        let tied = text.bool_or("tie_word_embeddings", false)?;
        Ok(ModelSpec {
            tied: config.bool_or("tie_word_embeddings", tied)?,
            ..spec(&text)?
        })
    },
    tensor: |config, weights, weight| {
        let nested = |name: &str| name.replacen("model.", "model.language_model.", 1);
        let read = |name: &str| Ok(weights.tensor(&nested(name))?);
        tensor(&text_config(config)?, &read, weight)
    },
};

fn text_config(config: &Config) -> Result<Config> {
    let text = config.child("text_config")?;
    text.ok_or_else(|| config.wrong("text_config", "the configuration of the language model"))
}

/// Reads a tensor by its name in the checkpoint.
type Read<'a> = &'a dyn Fn(&str) -> Result<Tensor>;

fn spec(config: &Config) -> Result<ModelSpec> {
    let attention = gated_attention(config)?;
    let delta = gated_deltanet(config)?;
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer: Arc<dyn Mixer> = if is_attention(config, layer)? {
                Arc::new(attention.clone())
            } else {
                Arc::new(delta.clone())
            };
            Ok(LayerSpec {
                mixer: Some(mixer),
                ffn: Some(feed_forward(config, layer)?),
                ..LayerSpec::default()
            })
        })
        .collect::<Result<_>>()?;
    model(config, layers)
}

fn feed_forward(config: &Config, layer: usize) -> Result<FeedForward> {
    Ok(if has_experts(config, layer)? {
        FeedForward::Experts(experts(config)?)
    } else {
        FeedForward::Dense(mlp(config)?)
    })
}

fn is_attention(config: &Config, layer: usize) -> Result<bool> {
    // The layer after the last one is the block that predicts further tokens.
    if layer == config.layers()? {
        return Ok(true);
    }
    match layer_type(config, layer)? {
        Some("full_attention") => Ok(true),
        Some("linear_attention") => Ok(false),
        Some(_) => Err(config.wrong("layer_types", "full_attention or linear_attention")),
        None => {
            let interval = config.usize_or("full_attention_interval", 4)?;
            Ok((layer + 1).is_multiple_of(interval))
        }
    }
}

/// Whether a layer has a mixture of experts; in Qwen3-Next, the layers that the configuration lists as plain do not.
fn has_experts(config: &Config, layer: usize) -> Result<bool> {
    match config.string("model_type")? {
        "qwen3_next" => is_sparse(config, layer, config.usize_or("num_experts", 512)?),
        model_type => Ok(model_type == "qwen3_5_moe_text"),
    }
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let next = config.string("model_type")? == "qwen3_next";
    let (experts, chosen) = if next { (512, 10) } else { (256, 8) };
    Ok(ExpertsSpec {
        experts: config.usize_or("num_experts", experts)?,
        chosen: config.usize_or("num_experts_per_tok", chosen)?,
        intermediate: config.usize_or("moe_intermediate_size", 512)?,
        router: Router::softmax(!next || config.bool_or("norm_topk_prob", true)?),
        shared: Some(SharedSpec {
            intermediate: config.usize_or("shared_expert_intermediate_size", 512)?,
            gate: true,
        }),
        ..ExpertsSpec::default()
    })
}

fn gated_attention(config: &Config) -> Result<Attention> {
    let attention = attention(config)?;
    Ok(Attention {
        rope_dim: attention.rope_dim.or(Some(attention.head_dim / 4)),
        head_norm_eps: Some(norm_eps(config)?),
        gate: true,
        ..attention
    })
}

fn gated_deltanet(config: &Config) -> Result<GatedDeltaNet> {
    Ok(GatedDeltaNet {
        heads: config.usize_or("linear_num_key_heads", 16)?,
        value_heads: config.usize_or("linear_num_value_heads", 32)?,
        head_dim: config.usize_or("linear_key_head_dim", 128)?,
        value_dim: config.usize_or("linear_value_head_dim", 128)?,
        conv: Some(config.usize_or("linear_conv_kernel_dim", 4)?),
        conv_bias: false,
        gate: Some(Activation::Silu),
        negative_eigenvalues: false,
        decay: true,
        head_gates: None,
        read_gate_after_norm: false,
        norm_eps: norm_eps(config)?,
        tiled: false,
    })
}

/// The block that predicts the token after the next one. It exists if the checkpoint has its tensors, whose names begin with
/// `mtp.`, regardless of the configuration.
pub(super) fn mtp(config: &Config) -> Result<MtpSpec> {
    let model_type = config.string("model_type")?;
    if !(FAMILY.model_types.iter().chain(WITH_IMAGES.model_types)).any(|known| *known == model_type)
    {
        return Err(Error::Unsupported {
            file: config.file().into(),
            what: format!(
                "an MTP block of model_type {model_type:?}, expected that of Qwen3-Next or Qwen3.5"
            ),
        });
    }
    if !config.has_tensor("mtp.fc.weight") {
        return Err(Error::Unsupported {
            file: config.file().into(),
            what: "drafts by an MTP block: the directory has no tensor mtp.fc.weight".into(),
        });
    }
    let text = config.child("text_config")?;
    let config = text.as_ref().unwrap_or(config);
    let blocks = config.usize_or("mtp_num_hidden_layers", 1)?;
    if blocks != 1 {
        return Err(config.wrong("mtp_num_hidden_layers", "one block"));
    }
    if config.bool_or("mtp_use_dedicated_embeddings", false)? {
        return Err(config.wrong("mtp_use_dedicated_embeddings", "false"));
    }
    let layer = config.layers()?;
    Ok(MtpSpec {
        layer: LayerSpec {
            mixer: Some(Arc::new(gated_attention(config)?)),
            ffn: Some(feed_forward(config, layer)?),
            ..LayerSpec::default()
        },
        own_embedding: false,
        own_norm: true,
        own_head: false,
    })
}

/// Names of the block's own tensors: ours, and the checkpoint's.
const MTP_NAMES: &[(&str, &str)] = &[
    ("nextn.eh_proj.", "mtp.fc."),
    ("nextn.enorm.", "mtp.pre_fc_norm_embedding."),
    ("nextn.hnorm.", "mtp.pre_fc_norm_hidden."),
    ("nextn.shared_head_norm.", "mtp.norm."),
];

fn tensor(config: &Config, read: Read, weight: &WeightSpec) -> Result<Tensor> {
    let behind = format!("model.layers.{}.", config.layers()?);
    // The layer after the last one is the first layer of the block that predicts further tokens.
    let read = |name: &str| match name.strip_prefix(&behind) {
        None => read(name),
        Some(part) => match MTP_NAMES.iter().find(|(ours, _)| part.starts_with(ours)) {
            Some((ours, theirs)) => read(&part.replacen(ours, theirs, 1)),
            None => read(&format!("mtp.layers.0.{part}")),
        },
    };
    let read: Read = &read;
    let name = weight.name.as_str();
    if let Some(tensor) = ExpertNames::USUAL.tensor(weight, "model.layers", read) {
        return tensor;
    }
    let Some((layer, part)) = mixer_part(name) else {
        let tensor = read(&tensor_name(name, ""))?;
        return if name.ends_with("norm.weight") {
            one_plus(&tensor)
        } else {
            Ok(tensor)
        };
    };
    if is_attention(config, layer)? {
        attention_tensor(config, read, name, part)
    } else {
        delta_tensor(config, read, layer, part)
    }
}

/// Splits the name `blk.{layer}.mixer.{part}` into the layer's number and the part.
fn mixer_part(name: &str) -> Option<(usize, &str)> {
    let (layer, part) = name.strip_prefix("blk.")?.split_once(".mixer.")?;
    Some((layer.parse().ok()?, part))
}

fn attention_tensor(config: &Config, read: Read, name: &str, part: &str) -> Result<Tensor> {
    let tensor = |name: &str| read(&tensor_name(name, "self_attn"));
    // The checkpoint stores each query head followed by its gate.
    let Attention {
        heads, head_dim, ..
    } = attention(config)?;
    match part.split_once('.') {
        Some(("q_proj", _)) => rows_of_groups(name, &tensor(name)?, heads, 0..head_dim),
        Some(("g_proj", _)) => {
            let fused = tensor(&name.replace("g_proj", "q_proj"))?;
            rows_of_groups(name, &fused, heads, head_dim..2 * head_dim)
        }
        Some(("q_norm" | "k_norm", _)) => one_plus(&tensor(name)?),
        _ => tensor(name),
    }
}

fn delta_tensor(config: &Config, read: Read, layer: usize, part: &str) -> Result<Tensor> {
    let delta = gated_deltanet(config)?;
    let file = |name: &str| read(&format!("model.layers.{layer}.linear_attn.{name}"));
    let keys = delta.heads * delta.head_dim;
    let values = delta.value_heads * delta.value_dim;
    // The rows of q, k and v are adjacent.
    let stacked = |part: &str| -> Range<usize> {
        match part.as_bytes()[0] {
            b'q' => 0..keys,
            b'k' => keys..2 * keys,
            _ => 2 * keys..2 * keys + values,
        }
    };
    let grouped = config.string("model_type")? == "qwen3_next";
    match part {
        "q_conv1d.weight" | "k_conv1d.weight" | "v_conv1d.weight" => {
            rows(part, &file("conv1d.weight")?, &[stacked(part)])
        }
        "q_proj.weight" | "k_proj.weight" | "v_proj.weight" | "g_proj.weight" if grouped => {
            // For each key head: its query and key, then the values and gates of its value heads.
            let key = delta.head_dim;
            let value = delta.value_heads / delta.heads.max(1) * delta.value_dim;
            let range = match part.as_bytes()[0] {
                b'q' => 0..key,
                b'k' => key..2 * key,
                b'v' => 2 * key..2 * key + value,
                _ => 2 * key + value..2 * (key + value),
            };
            rows_of_groups(part, &file("in_proj_qkvz.weight")?, delta.heads, range)
        }
        "a_proj.weight" | "b_proj.weight" if grouped => {
            let count = delta.value_heads / delta.heads.max(1);
            let range = match part.as_bytes()[0] {
                b'b' => 0..count,
                _ => count..2 * count,
            };
            rows_of_groups(part, &file("in_proj_ba.weight")?, delta.heads, range)
        }
        "q_proj.weight" | "k_proj.weight" | "v_proj.weight" => {
            rows(part, &file("in_proj_qkv.weight")?, &[stacked(part)])
        }
        "g_proj.weight" => file("in_proj_z.weight"),
        "a_proj.weight" => file("in_proj_a.weight"),
        "b_proj.weight" => file("in_proj_b.weight"),
        "o_norm.weight" => file("norm.weight"),
        "o_proj.weight" => file("out_proj.weight"),
        _ => file(part),
    }
}
