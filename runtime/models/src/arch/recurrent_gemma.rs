//! RecurrentGemma, as saved by transformers: Griffin's recurrent blocks mixed with local attention. Norms are stored as
//! their distance from one.

use std::sync::Arc;

use super::hugging_face::attention;
use super::tensors::one_plus;
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::functions::Activation;
use crate::mixers::{Attention, Mixer, RgLru};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["recurrent_gemma"],
    spec,
    tensor: |_, weights, weight| {
        let mut name = tensor_name(&weight.name);
        // Recurrent blocks have another name for the output projection.
        if !weights.contains(&name) {
            name = name.replace(".temporal_block.o_proj.", ".temporal_block.linear_out.");
        }
        let tensor = weights.tensor(&name)?;
        if weight.name.ends_with("norm.weight") {
            one_plus(&tensor)
        } else {
            Ok(tensor)
        }
    },
};

/// Names of the only supported activation: gelu in its tanh approximation.
pub(super) const GELU: &[(&str, Activation)] = &[
    ("gelu_pytorch_tanh", Activation::Gelu),
    ("gelu_tanh", Activation::Gelu),
    ("gelu_new", Activation::Gelu),
];

/// The checkpoint's name for one of our tensors.
fn tensor_name(name: &str) -> String {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.final_norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = whole.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let unit = ".temporal_block.rg_lru.";
    let parts = [
        (".attn_norm.", ".temporal_pre_norm."),
        (".ffn_norm.", ".channel_pre_norm."),
        (".ffn_gate.", ".mlp_block.gate_proj."),
        (".ffn_up.", ".mlp_block.up_proj."),
        (".ffn_down.", ".mlp_block.down_proj."),
        (".mixer.x_proj.", ".temporal_block.linear_x."),
        (".mixer.y_proj.", ".temporal_block.linear_y."),
        (".mixer.conv1d.", ".temporal_block.conv_1d."),
        (".mixer.input_gate.", &format!("{unit}input_gate_")),
        (".mixer.recurrence_gate.", &format!("{unit}recurrent_gate_")),
        (".mixer.decay", &format!("{unit}recurrent_param")),
        (".mixer.", ".temporal_block."),
    ];
    let theirs = name.replacen("blk.", "model.layers.", 1);
    match parts.iter().find(|(ours, _)| theirs.contains(ours)) {
        Some((ours, part)) => theirs.replacen(ours, part, 1),
        None => theirs,
    }
}

/// Whether layer `layer` is attention: by a list that repeats over all layers, under one of two keys.
fn is_attention(config: &Config, layer: usize) -> Result<bool> {
    let published = "_block_types";
    let has_published = config.object().contains_key(published);
    let key = if has_published {
        published
    } else {
        "block_types"
    };
    let kinds = if config.object().contains_key(key) {
        config
            .array(key)?
            .iter()
            .map(|kind| kind.as_str())
            .collect()
    } else {
        vec![Some("recurrent"), Some("recurrent"), Some("attention")]
    };
    match kinds.get(layer % kinds.len().max(1)) {
        Some(Some("attention")) => Ok(true),
        Some(Some("recurrent")) => Ok(false),
        _ => Err(config.wrong(key, "a list of recurrent and attention")),
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let attention = attention(config)?;
    let attention = Attention {
        window: Some(config.usize_or("attention_window_size", 2048)?),
        rope_dim: attention.rope_dim.or(Some(attention.head_dim / 2)),
        out_bias: true,
        ..attention
    };
    let recurrent = RgLru {
        width: config.usize_or("lru_width", hidden)?,
        heads: attention.heads,
        conv: config.usize_or("conv1d_width", 4)?,
    };
    let mlp = MlpSpec {
        // The file's width covers both halves, gate and value.
        intermediate: config.usize("intermediate_size")? / 2,
        activation: config.one_of("hidden_activation", Activation::Gelu, GELU)?,
        bias: true,
        ..MlpSpec::default()
    };
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer: Arc<dyn Mixer> = if is_attention(config, layer)? {
                Arc::new(attention.clone())
            } else {
                Arc::new(recurrent.clone())
            };
            Ok(LayerSpec::new(mixer, Some(mlp)))
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden,
        norm_eps: config.f32_or("rms_norm_eps", 1e-6)?,
        // The reference rounds the factor to bf16, whatever type it computes in.
        embedding_multiplier: half::bf16::from_f32((hidden as f32).sqrt()).to_f32(),
        logit_softcap: Some(config.f32_or("logits_soft_cap", 30.0)?),
        tied: config.bool_or("tie_word_embeddings", true)?,
        layers,
        ..ModelSpec::default()
    })
}
