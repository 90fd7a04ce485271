//! Gemma 3's text models, as saved by transformers: windowed and full attention with separate rotary positions, and
//! norms before and after every part. Norms are stored as their distance from one.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::hugging_face::{slides_by_list, tensor_name};
use super::recurrent_gemma::GELU;
use super::tensors::one_plus;
use super::{Config, Family, rotary};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::functions::Activation;
use crate::lowering::Sublayer;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["gemma3_text"],
    spec,
    tensor: |_, weights, weight| tensor(weights, &weight.name, &[""]),
};

/// The language model of a model that also reads images.
pub(super) const WITH_IMAGES: Family = Family {
    model_types: &["gemma3"],
    spec: |config| {
        let text = config.child("text_config")?;
        spec(&text.ok_or_else(|| {
            config.wrong("text_config", "the configuration of the language model")
        })?)
    },
    tensor: |_, weights, weight| {
        let prefixes = ["language_model.", "model.language_model."];
        tensor(weights, &weight.name, &prefixes)
    },
};

/// The checkpoint's name for one of our tensors, in a text-only model.
pub(super) fn their_name(name: &str) -> String {
    let norms = [
        (".post_attention_norm.", ".post_attention_layernorm."),
        (".ffn_norm.", ".pre_feedforward_layernorm."),
        (".post_ffw_norm.", ".post_feedforward_layernorm."),
    ];
    match norms.iter().find(|(ours, _)| name.contains(ours)) {
        Some((ours, theirs)) => {
            let name = name.replacen("blk.", "model.layers.", 1);
            name.replacen(ours, theirs, 1)
        }
        None => tensor_name(name, "self_attn"),
    }
}

/// Reads one of our tensors; its name in the checkpoint has one of these prefixes.
fn tensor(weights: &safetensors::Checkpoint, name: &str, prefixes: &[&str]) -> Result<Tensor> {
    let theirs = their_name(name);
    // Newer files put the prefix after `model.`.
    let names = prefixes
        .iter()
        .map(|prefix| match prefix.strip_prefix("model.") {
            Some(_) => theirs.replacen("model.", prefix, 1),
            None => format!("{prefix}{theirs}"),
        });
    let names: Vec<String> = names.collect();
    let found = names.iter().find(|name| weights.contains(name));
    let tensor = weights.tensor(found.unwrap_or(&names[0]))?;
    if name.ends_with("norm.weight") {
        one_plus(&tensor)
    } else {
        Ok(tensor)
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let norm_eps = config.f32_or("rms_norm_eps", 1e-6)?;
    let full = full_attention(config, norm_eps)?;
    let sliding = Attention {
        window: Some(config.usize_or("sliding_window", 4096)?),
        rope_theta: Some(local_theta(config)?),
        rope_scaling: None,
        ..full.clone()
    };
    let mlp = MlpSpec {
        intermediate: config.usize("intermediate_size")?,
        activation: config.one_of("hidden_activation", Activation::Gelu, GELU)?,
        ..MlpSpec::default()
    };
    let around = Sublayer {
        post_norm: true,
        ..Sublayer::default()
    };
    let layers = (0..config.layers()?)
        .map(|layer| {
            let attention = if slides(config, layer)? {
                sliding.clone()
            } else {
                full.clone()
            };
            Ok(LayerSpec {
                mixer_sublayer: around,
                ffn_sublayer: around,
                ..LayerSpec::new(Arc::new(attention), Some(mlp))
            })
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: config.usize_or("vocab_size", 262_208)?,
        hidden,
        norm_eps,
        embedding_multiplier: (hidden as f32).sqrt(),
        logit_softcap: config.optional_f32("final_logit_softcapping")?,
        tied: config.bool_or("tie_word_embeddings", true)?,
        layers,
        ..ModelSpec::default()
    })
}

/// Whether layer `layer` has a window: by `layer_types`, or for all but every n-th layer.
fn slides(config: &Config, layer: usize) -> Result<bool> {
    match slides_by_list(config, layer)? {
        Some(slides) => Ok(slides),
        None => {
            let newer = config.usize_or("_sliding_window_pattern", 6)?;
            let pattern = config.usize_or("sliding_window_pattern", newer)?;
            Ok(!(layer + 1).is_multiple_of(pattern))
        }
    }
}

/// The base of the rotary positions of layers with a window.
fn local_theta(config: &Config) -> Result<f32> {
    let own = match config.child("rope_parameters")? {
        Some(nested) => nested.child("sliding_attention")?,
        None => None,
    };
    let theta = match &own {
        Some(own) => own.optional_f32("rope_theta")?,
        None => None,
    };
    match theta {
        Some(theta) => Ok(theta),
        None => config.f32_or("rope_local_base_freq", 10000.0),
    }
}

/// The attention of layers without a window. `attn_logit_softcapping` is not read, because the reference does not apply it.
fn full_attention(config: &Config, norm_eps: f32) -> Result<Attention> {
    let own = match config.child("rope_parameters")? {
        Some(nested) => nested.child("full_attention")?,
        None => None,
    };
    let theta = match &own {
        Some(own) => own.optional_f32("rope_theta")?,
        None => None,
    };
    let rope = match own {
        Some(own) => Some(own),
        None => config.child("rope_scaling")?,
    };
    let scalar = config.f32_or("query_pre_attn_scalar", 256.0)?;
    if scalar <= 0.0 {
        return Err(config.wrong("query_pre_attn_scalar", "a number above zero"));
    }
    let bias = config.bool_or("attention_bias", false)?;
    Ok(Attention {
        heads: config.usize_or("num_attention_heads", 8)?,
        kv_heads: config.usize_or("num_key_value_heads", 4)?,
        head_dim: config.usize_or("head_dim", 256)?,
        rope_theta: Some(match theta {
            Some(theta) => theta,
            None => config.f32_or("rope_theta", 1e6)?,
        }),
        rope_scaling: match &rope {
            Some(rope) => rotary::scaling(rope, config)?,
            None => None,
        },
        bias,
        out_bias: bias,
        softmax_scale: Some(scalar.powf(-0.5)),
        head_norm_eps: Some(norm_eps),
        ..Attention::default()
    })
}
