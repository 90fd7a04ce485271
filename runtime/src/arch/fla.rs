//! flash-linear-attention's configurations: Transformer and Gated DeltaNet, the latter with attention layers and, in
//! the learnable-token-eviction fork, with eviction.

use std::sync::Arc;

use super::{Config, Family};
use crate::error::{Error, Result};
use crate::mixers::{Attention, GatedDeltaNet, Lte, Mixer, RouterScope, ScoreMap};
use crate::spec::{BlockSpec, MlpSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["transformer", "gated_deltanet", "hybrid_gated_deltanet"],
    spec,
    tensor_name,
};

/// The name in the checkpoint of one of our tensors.
fn tensor_name(name: &str) -> String {
    let whole = [
        ("token_embd.weight", "model.embeddings.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = whole.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let parts = [
        (".ffn_norm.", ".mlp_norm."),
        (".ffn_gate.", ".mlp.gate_proj."),
        (".ffn_up.", ".mlp.up_proj."),
        (".ffn_down.", ".mlp.down_proj."),
        (".mixer.", ".attn."),
    ];
    let theirs = name.replacen("blk.", "model.layers.", 1);
    match parts.iter().find(|(ours, _)| theirs.contains(ours)) {
        Some((ours, part)) => theirs.replacen(ours, part, 1),
        None => theirs,
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let norm_eps = config.f32_or("norm_eps", 1e-6)?;
    let mlp = mlp(config, hidden)?;
    let attention_config = config.child("attn")?;
    let attention_layers = match &attention_config {
        Some(attention) => attention.usizes("layers")?,
        None => Vec::new(),
    };
    let blocks = (0..config.usize("num_hidden_layers")?.min(1 << 20))
        .map(|layer| {
            let mixer: Arc<dyn Mixer> = match &attention_config {
                Some(attention) if attention_layers.contains(&layer) => {
                    attention_layer(attention, hidden)?
                }
                _ if config.string("model_type")? == "transformer" => {
                    Arc::new(attention(config, hidden)?)
                }
                _ => Arc::new(gated_deltanet(config, norm_eps)?),
            };
            Ok(BlockSpec {
                mixer,
                mlp: Some(mlp),
            })
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden,
        norm_eps,
        tied: config.bool_or("tie_word_embeddings", false)?,
        blocks,
    })
}

fn mlp(config: &Config, hidden: usize) -> Result<MlpSpec> {
    match config.optional_usize("intermediate_size")? {
        Some(intermediate) => {
            config.one_of("hidden_act", (), &[("swish", ()), ("silu", ())])?;
            Ok(MlpSpec { intermediate })
        }
        None => mlp_of_ratio(config, hidden),
    }
}

/// A feed-forward network whose width follows from the hidden size and `hidden_ratio`.
pub(super) fn mlp_of_ratio(config: &Config, hidden: usize) -> Result<MlpSpec> {
    config.one_of("hidden_act", (), &[("swish", ()), ("silu", ())])?;
    let ratio = config.usize_or("hidden_ratio", 4)?;
    let intermediate = (hidden.saturating_mul(ratio).saturating_mul(2) / 3).div_ceil(256) * 256;
    Ok(MlpSpec { intermediate })
}

/// The attention of a hybrid's layer: plain, or with eviction.
fn attention_layer(config: &Config, hidden: usize) -> Result<Arc<dyn Mixer>> {
    let attention = attention(config, hidden)?;
    match config.optional_string("attn_type").unwrap_or("attn") {
        "attn" => Ok(Arc::new(attention)),
        "lte" => Ok(Arc::new(lte(config, attention)?)),
        _ => Err(config.wrong("attn_type", "attn or lte")),
    }
}

pub(super) fn attention(config: &Config, hidden: usize) -> Result<Attention> {
    let heads = config.usize_or("num_heads", 32)?;
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(config.wrong(
            "num_heads",
            &format!("a divisor of the hidden size {hidden}"),
        ));
    }
    Ok(Attention {
        heads,
        kv_heads: config.usize_or("num_kv_heads", heads)?,
        head_dim: hidden / heads,
        window: config.optional_usize("window_size")?,
        rope_theta: Some(config.f32_or("rope_theta", 10000.0)?),
        bias: config.bool_or("qkv_bias", false)?,
        // The reference leaves the head norms at their default epsilon, whatever norm_eps says.
        head_norm_eps: config.bool_or("qk_norm", false)?.then_some(1e-5),
    })
}

fn lte(config: &Config, attention: Attention) -> Result<Lte> {
    let window = config.usize("window_size")?;
    let expected = "head or layer; a router shared by all layers is not supported";
    Ok(Lte {
        // This fork's eviction layers see `window_size` keys besides the current one.
        attention: Attention {
            window: window.checked_add(1),
            ..attention
        },
        capacity: config.usize("buffer_size")?,
        sink: config.usize("sink_size")?,
        router_taps: config.usizes("conv_size")?,
        router_dilations: config.usizes("conv_dilation")?,
        router_scope: match config.string("routing_shared")? {
            "head" => RouterScope::Head,
            "layer" => RouterScope::Layer,
            _ => return Err(config.wrong("routing_shared", expected)),
        },
        score: config.one_of(
            "routing_method",
            ScoreMap::Sigmoid,
            &[("sigmoid", ScoreMap::Sigmoid), ("relu", ScoreMap::Relu)],
        )?,
    })
}

fn gated_deltanet(config: &Config, norm_eps: f32) -> Result<GatedDeltaNet> {
    let heads = config.usize_or("num_heads", 6)?;
    let head_dim = config.usize_or("head_dim", 256)?;
    let value_dim = head_dim as f64 * f64::from(config.f32_or("expand_v", 2.0)?);
    if value_dim.fract() != 0.0 || value_dim < 1.0 || value_dim > 1e9 {
        return Err(config.wrong("expand_v", "a factor that makes whole value heads"));
    }
    if let Some(activation) = config
        .optional_string("output_gate_activation")
        .filter(|&a| a != "swish")
    {
        return Err(Error::Unsupported {
            file: config.file().into(),
            what: format!("output_gate_activation {activation:?}; known is swish"),
        });
    }
    let conv = config.bool_or("use_short_conv", true)?;
    Ok(GatedDeltaNet {
        heads,
        value_heads: config.usize_or("num_v_heads", heads)?,
        head_dim,
        value_dim: value_dim as usize,
        conv: if conv {
            Some(config.usize_or("conv_size", 4)?)
        } else {
            None
        },
        conv_bias: config.bool_or("conv_bias", false)?,
        gate: config.bool_or("use_gate", true)?,
        negative_eigenvalues: config.bool_or("allow_neg_eigval", false)?,
        norm_eps,
    })
}
