//! Transformers as saved by the transformers library: Llama, Mistral, Ministral, Qwen2, Qwen3, SmolLM3.

use std::sync::Arc;

use super::{Config, Family, rotary};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Growth;

pub(super) const FAMILY: Family = Family {
    model_types: &[
        "llama",
        "ministral",
        "ministral3",
        "mistral",
        "qwen2",
        "qwen3",
        "smollm3",
    ],
    spec,
    tensor: |_, weights, weight| Ok(weights.tensor(&tensor_name(&weight.name, "self_attn"))?),
};

/// The checkpoint's name for one of our tensors; `mixer` is the checkpoint's name for the layer's mixer.
pub(super) fn tensor_name(name: &str, mixer: &str) -> String {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = whole.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let mixer = format!(".{mixer}.");
    let parts = [
        (".attn_norm.", ".input_layernorm."),
        (".ffn_norm.", ".post_attention_layernorm."),
        (".ffn_gate.", ".mlp.gate_proj."),
        (".ffn_up.", ".mlp.up_proj."),
        (".ffn_down.", ".mlp.down_proj."),
        (".mixer.sinks.weight", ".self_attn.sinks"),
        (".mixer.", mixer.as_str()),
    ];
    let theirs = name.replacen("blk.", "model.layers.", 1);
    match parts.iter().find(|(ours, _)| theirs.contains(ours)) {
        Some((ours, part)) => theirs.replacen(ours, part, 1),
        None => theirs,
    }
}

pub(super) fn spec(config: &Config) -> Result<ModelSpec> {
    let mlp = mlp(config)?;
    let attention = attention(config)?;
    let layers = (0..config.layers()?)
        .map(|layer| {
            let has_positions = has_positions(config, layer)?;
            let attention = Attention {
                window: window(config, layer)?,
                rope_theta: attention.rope_theta.filter(|_| has_positions),
                ..attention.clone()
            };
            Ok(LayerSpec::new(Arc::new(attention), Some(mlp)))
        })
        .collect::<Result<_>>()?;
    model(config, layers)
}

/// Builds the model from `layers` and the model-wide keys that all these configurations share.
pub(super) fn model(config: &Config, layers: Vec<LayerSpec>) -> Result<ModelSpec> {
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden: config.usize("hidden_size")?,
        norm_eps: norm_eps(config)?,
        tied: config.bool_or("tie_word_embeddings", false)?,
        layers,
        ..ModelSpec::default()
    })
}

pub(super) fn norm_eps(config: &Config) -> Result<f32> {
    config.f32_or("rms_norm_eps", 1e-6)
}

pub(super) fn mlp(config: &Config) -> Result<MlpSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    Ok(MlpSpec {
        intermediate: config.usize("intermediate_size")?,
        bias: config.bool_or("mlp_bias", false)?,
        ..MlpSpec::default()
    })
}

/// The attention of every layer, without its window.
pub(super) fn attention(config: &Config) -> Result<Attention> {
    let attention = attention_without_positions(config)?;
    let positions = rotary(config, attention.head_dim)?;
    Ok(Attention {
        rope_theta: positions.rope_theta,
        rope_dim: positions.rope_dim,
        rope_scaling: positions.rope_scaling,
        query_growth: positions.query_growth,
        ..attention
    })
}

/// Like [`attention`], but without rotary positions.
pub(super) fn attention_without_positions(config: &Config) -> Result<Attention> {
    let heads = config.usize("num_attention_heads")?;
    let hidden = config.usize("hidden_size")?;
    let head_dim = match config.optional_usize("head_dim")? {
        Some(head_dim) => head_dim,
        None if heads > 0 && hidden.is_multiple_of(heads) => hidden / heads,
        None => {
            let expected = format!("a divisor of the hidden size {hidden}");
            return Err(config.wrong("num_attention_heads", &expected));
        }
    };
    let model_type = config.string("model_type")?;
    let bias = config.bool_or("attention_bias", false)?;
    Ok(Attention {
        heads,
        kv_heads: config.usize_or("num_key_value_heads", heads)?,
        head_dim,
        bias: bias || model_type == "qwen2",
        out_bias: bias,
        head_norm_eps: match model_type {
            "qwen3" | "qwen3_vl_text" => Some(norm_eps(config)?),
            _ => None,
        },
        ..Attention::default()
    })
}

/// The rotary positions, from `rope_parameters` or, in older files, `rope_scaling` and top-level keys.
fn rotary(config: &Config, head_dim: usize) -> Result<Attention> {
    let nested = match config.child("rope_parameters")? {
        Some(nested) => Some(nested),
        None => config.child("rope_scaling")?,
    };
    let number = |key: &str| match &nested {
        Some(nested) => match nested.optional_f32(key)? {
            Some(number) => Ok(Some(number)),
            None => config.optional_f32(key),
        },
        None => config.optional_f32(key),
    };
    let usual = match config.string("model_type")? {
        "gpt_oss" => 1.5e5,
        "ministral3" => 1e6,
        "qwen3_vl_text" => 5e6,
        "smollm3" => 2e6,
        _ => 1e4,
    };
    let share = number("partial_rotary_factor")?;
    Ok(Attention {
        rope_theta: Some(number("rope_theta")?.unwrap_or(usual)),
        // Computed in f32, so that 0.7 of 20 is 14.
        rope_dim: share.map(|share| (head_dim as f32 * share) as usize),
        rope_scaling: match &nested {
            Some(nested) => rotary::scaling(nested, config)?,
            None => None,
        },
        query_growth: match &nested {
            Some(nested) if config.string("model_type")? == "ministral3" => growth(nested)?,
            _ => None,
        },
        ..Attention::default()
    })
}

/// The growth of queries with their positions, from an object of the configuration.
fn growth(rope: &Config) -> Result<Option<Growth>> {
    const PERIOD: &str = "original_max_position_embeddings";
    let Some(rate) = rope.optional_f32("llama_4_scaling_beta")? else {
        return Ok(None);
    };
    let period = rope.usize(PERIOD)?;
    let period = u32::try_from(period).ok().filter(|&period| period > 0);
    Ok(Some(Growth {
        rate,
        period: period.ok_or_else(|| rope.wrong(PERIOD, "a number of 1 or more"))?,
    }))
}

/// The attention with the layer's own base of rotary positions, if the configuration lists one for each layer; 0 means no positions.
pub(super) fn with_own_base(
    config: &Config,
    layer: usize,
    attention: Attention,
) -> Result<Attention> {
    const KEY: &str = "layer_rope_theta";
    if config.object().get(KEY).is_none_or(|list| list.is_null()) {
        return Ok(attention);
    }
    let base = config.array(KEY)?.get(layer).and_then(|base| base.as_f64());
    let base = base.ok_or_else(|| config.wrong(KEY, "a number for every layer"))? as f32;
    Ok(Attention {
        rope_theta: (base != 0.0).then_some(base),
        ..attention
    })
}

/// Whether layer `layer` has positions; some layers of SmolLM3 have none.
fn has_positions(config: &Config, layer: usize) -> Result<bool> {
    if config.string("model_type")? != "smollm3" {
        return Ok(true);
    }
    if config
        .object()
        .get("no_rope_layers")
        .is_none_or(serde_json::Value::is_null)
    {
        let interval = config.usize_or("no_rope_layer_interval", 4)?;
        return Ok(interval == 0 || !(layer + 1).is_multiple_of(interval));
    }
    let listed = config.usizes("no_rope_layers")?.get(layer).copied();
    let has = listed.ok_or_else(|| config.wrong("no_rope_layers", "a number for every layer"));
    Ok(has? != 0)
}

/// The sliding window of layer `layer`, if it has one.
fn window(config: &Config, layer: usize) -> Result<Option<usize>> {
    let Some(window) = config.optional_usize("sliding_window")? else {
        return Ok(None);
    };
    let slides = match config.string("model_type")? {
        "mistral" | "ministral3" => true,
        "ministral" => slides_by_list(config, layer)?.unwrap_or(true),
        "qwen2" | "qwen3" => {
            config.bool_or("use_sliding_window", false)?
                && match slides_by_list(config, layer)? {
                    Some(slides) => slides,
                    None => layer >= config.usize_or("max_window_layers", 28)?,
                }
        }
        "smollm3" => {
            config.bool_or("use_sliding_window", false)?
                && match slides_by_list(config, layer)? {
                    Some(slides) => slides,
                    None => !has_positions(config, layer)?,
                }
        }
        _ => false,
    };
    Ok(slides.then_some(window))
}

/// Whether layer `layer` has a window, if the configuration lists the layers' kinds.
pub(super) fn slides_by_list(config: &Config, layer: usize) -> Result<Option<bool>> {
    match layer_type(config, layer)? {
        Some("sliding_attention") => Ok(Some(true)),
        Some("full_attention") => Ok(Some(false)),
        Some(_) => Err(config.wrong("layer_types", "sliding_attention or full_attention")),
        None => Ok(None),
    }
}

/// The kind of layer `layer`, if the configuration lists the layers' kinds.
pub(super) fn layer_type(config: &Config, layer: usize) -> Result<Option<&str>> {
    if config
        .object()
        .get("layer_types")
        .is_none_or(|v| v.is_null())
    {
        return Ok(None);
    }
    match config
        .array("layer_types")?
        .get(layer)
        .and_then(|v| v.as_str())
    {
        Some(layer_type) => Ok(Some(layer_type)),
        None => Err(config.wrong("layer_types", "the kind of every layer")),
    }
}
