//! RWKV-7, as saved by flash-linear-attention. Each of its layers is two of ours: time mixing and channel mixing.

use std::sync::Arc;

use super::{Config, Family};
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::NormKind;
use crate::mixers::{Mixer, Rwkv7, RwkvChannelMix};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["rwkv7"],
    spec,
    tensor: |_, weights, weight| Ok(weights.tensor(&tensor_name(&weight.name))?),
};

/// The checkpoint's name for one of our tensors.
fn tensor_name(name: &str) -> String {
    let whole = [
        ("token_embd.", "model.embeddings."),
        ("token_embd_norm.", "model.layers.0.pre_norm."),
        ("output_norm.", "model.norm."),
        ("output.", "lm_head."),
    ];
    for (ours, theirs) in whole {
        if let Some(part) = name.strip_prefix(ours) {
            return format!("{theirs}{part}");
        }
    }
    let parts = name
        .strip_prefix("blk.")
        .and_then(|name| name.split_once('.'));
    let Some((Ok(block), part)) = parts.map(|(block, part)| (block.parse::<usize>(), part)) else {
        return name.into();
    };
    let mixer = if block % 2 == 0 { "attn" } else { "ffn" };
    let part = part.replacen("attn_norm.", &format!("{mixer}_norm."), 1);
    let part = part.replacen("mixer.", &format!("{mixer}."), 1);
    format!("model.layers.{}.{part}", block / 2)
}

fn spec(config: &Config) -> Result<ModelSpec> {
    if !config.children("attn")?.is_empty() {
        return Err(config.wrong("attn", "null: no attention layers"));
    }
    let hidden = config.usize("hidden_size")?;
    let norm_eps = config.f32_or("norm_eps", 1e-5)?;
    let layers = config.layers()?;
    let channel_mix: Arc<dyn Mixer> = Arc::new(channel_mix(config, hidden)?);
    let mut all = Vec::with_capacity(2 * layers);
    for layer in 0..layers {
        let time_mix: Arc<dyn Mixer> = Arc::new(time_mix(config, hidden, norm_eps, layer)?);
        for mixer in [time_mix, Arc::clone(&channel_mix)] {
            all.push(LayerSpec::new(mixer, None));
        }
    }
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden,
        norm: NormKind::Layer {
            bias: config.bool_or("norm_bias", true)?,
        },
        norm_eps,
        embedding_norm: config.bool_or("norm_first", true)?,
        tied: config.bool_or("tie_word_embeddings", false)?,
        layers: all,
        ..ModelSpec::default()
    })
}

fn time_mix(config: &Config, hidden: usize, norm_eps: f32, layer: usize) -> Result<Rwkv7> {
    let head_dim = match config.optional_usize("head_dim")? {
        Some(head_dim) => head_dim,
        None => hidden / config.usize("num_heads")?.max(1),
    };
    if head_dim == 0 || !hidden.is_multiple_of(head_dim) {
        let expected = format!("a divisor of the hidden size {hidden}");
        return Err(config.wrong("head_dim", &expected));
    }
    let heads = hidden / head_dim;
    let values = match config.object().get("value_dim") {
        None | Some(serde_json::Value::Null) => hidden,
        Some(serde_json::Value::Array(_)) => match config.usizes("value_dim")?.get(layer) {
            Some(values) => *values,
            None => return Err(config.wrong("value_dim", "a width for each layer")),
        },
        Some(_) => config.usize("value_dim")?,
    };
    if !values.is_multiple_of(heads) {
        let expected = format!("a multiple of the {heads} heads");
        return Err(config.wrong("value_dim", &expected));
    }
    // Ranks that are not in the file follow from the widths.
    let rank = |key: &str, factor: f64, head_factor: bool| -> Result<usize> {
        if let Some(rank) = config.optional_usize(key)? {
            return Ok(rank);
        }
        let share = if head_factor {
            head_dim as f64 / 64.0
        } else {
            1.0
        };
        let steps = (factor * (hidden as f64).sqrt() * share / 32.0).round_ties_even();
        Ok((steps as usize * 32).max(32))
    };
    // Without the fused norm, the reference's epsilon is negligible.
    let fused = config.bool_or("fuse_norm", true)?;
    Ok(Rwkv7 {
        heads,
        head_dim,
        value_dim: values / heads,
        first: layer == 0,
        decay_rank: rank("decay_low_rank_dim", 2.5, true)?,
        rate_rank: rank("a_low_rank_dim", 2.5, true)?,
        value_rank: rank("v_low_rank_dim", 1.7, true)?,
        gate_rank: Some(rank("gate_low_rank_dim", 5.0, false)?),
        key_eps: if fused { 1e-6 } else { 1e-24 },
        norm_eps: Some(head_dim as f32 * norm_eps),
    })
}

fn channel_mix(config: &Config, hidden: usize) -> Result<RwkvChannelMix> {
    let known = [
        ("sqrelu", Activation::SquaredRelu),
        ("relu", Activation::Relu),
        ("silu", Activation::Silu),
        ("swish", Activation::Silu),
        ("sigmoid", Activation::Sigmoid),
    ];
    let intermediate = match config.optional_usize("intermediate_size")? {
        Some(intermediate) => intermediate,
        None => {
            let ratio = config.f32_or("hidden_ratio", 4.0)?;
            let width = (hidden as f64 * f64::from(ratio)) as usize;
            width.div_ceil(32).saturating_mul(32)
        }
    };
    Ok(RwkvChannelMix {
        hidden,
        intermediate,
        activation: config.one_of("hidden_act", Activation::SquaredRelu, &known)?,
        receptance: false,
    })
}
