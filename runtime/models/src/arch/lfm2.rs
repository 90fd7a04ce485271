//! LFM2, as saved by transformers: layers of gated short convolutions and of attention.

use std::sync::Arc;

use super::hugging_face::{attention, layer_type};
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::mixers::{Attention, GatedConv, Mixer};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm2"],
    spec,
    tensor: |_, weights, weight| Ok(weights.tensor(&tensor_name(&weight.name))?),
};

/// The checkpoint's name for one of our tensors. Both mixers have an `out_proj` there, under different prefixes.
pub(super) fn tensor_name(name: &str) -> String {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.embedding_norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = whole.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let parts = [
        (".attn_norm.", ".operator_norm."),
        (".ffn_gate.", ".feed_forward.w1."),
        (".ffn_up.", ".feed_forward.w3."),
        (".ffn_down.", ".feed_forward.w2."),
        (".mixer.in_proj.", ".conv.in_proj."),
        (".mixer.conv.", ".conv.conv."),
        (".mixer.out_proj.", ".conv.out_proj."),
        (".mixer.q_norm.", ".self_attn.q_layernorm."),
        (".mixer.k_norm.", ".self_attn.k_layernorm."),
        (".mixer.o_proj.", ".self_attn.out_proj."),
        (".mixer.", ".self_attn."),
    ];
    let theirs = name.replacen("blk.", "model.layers.", 1);
    match parts.iter().find(|(ours, _)| theirs.contains(ours)) {
        Some((ours, part)) => theirs.replacen(ours, part, 1),
        None => theirs,
    }
}

pub(super) fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let norm_eps = config.f32_or("norm_eps", 1e-5)?;
    let attention = Attention {
        rope_theta: Some(rope_theta(config)?),
        head_norm_eps: Some(norm_eps),
        ..attention(config)?
    };
    let conv = GatedConv {
        channels: hidden,
        conv: config.usize_or("conv_L_cache", 3)?,
        bias: config.bool_or("conv_bias", false)?,
    };
    let mlp = MlpSpec {
        intermediate: intermediate(config)?,
        ..MlpSpec::default()
    };
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer: Arc<dyn Mixer> = if is_attention(config, layer)? {
                Arc::new(attention.clone())
            } else {
                Arc::new(conv.clone())
            };
            Ok(LayerSpec::new(mixer, Some(mlp)))
        })
        .collect::<Result<_>>()?;
    let tied = config.bool_or("tie_embedding", true)?;
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden,
        norm_eps,
        tied: config.bool_or("tie_word_embeddings", tied)?,
        layers,
        ..ModelSpec::default()
    })
}

/// Whether a layer is attention. Older files list the numbers of the attention layers.
fn is_attention(config: &Config, layer: usize) -> Result<bool> {
    match layer_type(config, layer)? {
        Some("full_attention") => Ok(true),
        Some("conv") => Ok(false),
        Some(_) => Err(config.wrong("layer_types", "full_attention or conv")),
        None => Ok(config.usizes("full_attn_idxs")?.contains(&layer)),
    }
}

fn rope_theta(config: &Config) -> Result<f32> {
    let nested = match config.child("rope_parameters")? {
        Some(nested) => nested.optional_f32("rope_theta")?,
        None => None,
    };
    match nested {
        Some(theta) => Ok(theta),
        None => config.f32_or("rope_theta", 1e6),
    }
}

/// Width of the feed-forward network: the file's, or two thirds of it, scaled and rounded up.
fn intermediate(config: &Config) -> Result<usize> {
    let width = match config.optional_usize("block_ff_dim")? {
        Some(width) => width,
        None => config.usize_or("intermediate_size", 12288)?,
    };
    if !config.bool_or("block_auto_adjust_ff_dim", true)? {
        return Ok(width);
    }
    let factor = config.f32_or("block_ffn_dim_multiplier", 1.0)?;
    let multiple = config.usize_or("block_multiple_of", 256)?;
    if multiple == 0 {
        return Err(config.wrong("block_multiple_of", "a number of one or more"));
    }
    let stretched = (f64::from(factor) * (2 * width / 3) as f64) as usize;
    Ok(stretched.div_ceil(multiple).saturating_mul(multiple))
}
