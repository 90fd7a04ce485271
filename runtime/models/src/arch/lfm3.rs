//! LFM3, as saved by transformers: layers of gated short convolutions, of windowed attention and of full attention, with norms
//! before and after each part and a gate for each head.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::hugging_face::{attention_without_positions, layer_type};
use super::{Config, Family, lfm2, rotary};
use crate::error::Result;
use crate::feed_forward::MlpSpec;
use crate::lowering::Sublayer;
use crate::mixers::{Attention, GatedConv, Mixer, RopeScaling};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm3"],
    spec,
    tensor: |_, weights, weight| tensor(weights, &weight.name),
};

/// Reads one of our tensors. The gates of heads have one name in files and another in transformers' memory.
fn tensor(weights: &safetensors::Checkpoint, name: &str) -> Result<Tensor> {
    let theirs = tensor_name(name);
    let in_files = theirs.replace(".g_proj.", ".gate_proj.");
    let found = if weights.contains(&in_files) {
        in_files
    } else {
        theirs
    };
    Ok(weights.tensor(&found)?)
}

/// The checkpoint's name for one of our tensors: LFM2's, except for the norms and attention.
fn tensor_name(name: &str) -> String {
    let parts = [
        (".post_attention_norm.", ".post_operator_norm."),
        (".post_ffw_norm.", ".post_ffn_norm."),
        (".mixer.q_norm.", ".self_attn.q_norm."),
        (".mixer.k_norm.", ".self_attn.k_norm."),
        (".mixer.o_proj.", ".self_attn.o_proj."),
    ];
    match parts.iter().find(|(ours, _)| name.contains(ours)) {
        Some((ours, theirs)) => {
            let name = name.replacen("blk.", "model.layers.", 1);
            name.replacen(ours, theirs, 1)
        }
        None => lfm2::tensor_name(name),
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let norm_eps = config.f32_or("norm_eps", 1e-5)?;
    let gated = config.bool_or("use_attention_gate", true)?;
    let attention = Attention {
        gate: gated,
        gate_per_head: gated,
        head_norm_eps: Some(norm_eps),
        ..attention_without_positions(config)?
    };
    let conv = GatedConv {
        channels: hidden,
        conv: config.usize_or("conv_L_cache", 7)?,
        bias: config.bool_or("conv_bias", false)?,
    };
    let mlp = MlpSpec {
        intermediate: config.usize("intermediate_size")?,
        ..MlpSpec::default()
    };
    let around = Sublayer {
        post_norm: config.bool_or("use_sandwich_norm", true)?,
        ..Sublayer::default()
    };
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer: Arc<dyn Mixer> = match kind(config, layer)? {
                CONV => Arc::new(conv.clone()),
                kind => Arc::new(with_positions(config, &attention, kind)?),
            };
            Ok(LayerSpec {
                mixer_sublayer: around,
                ffn_sublayer: around,
                ..LayerSpec::new(mixer, Some(mlp))
            })
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden,
        norm_eps,
        tied: config.bool_or("tie_word_embeddings", true)?,
        layers,
        ..ModelSpec::default()
    })
}

const CONV: &str = "conv";
const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";

/// The kind of layer `layer`: by the file's list, or by its place in a group of four. There, the third layer has full attention,
/// and the first has a window, unless it is the model's first layer.
fn kind(config: &Config, layer: usize) -> Result<&'static str> {
    let listed = layer_type(config, layer)?;
    let known = [CONV, SLIDING, FULL];
    match listed {
        Some(kind) => known
            .into_iter()
            .find(|known| *known == kind)
            .ok_or_else(|| config.wrong("layer_types", &known.join(", "))),
        None if layer % 4 == 2 => Ok(FULL),
        None if layer.is_multiple_of(4) && layer > 0 => Ok(SLIDING),
        None => Ok(CONV),
    }
}

/// `attention` with the window and the rotary positions of layers of this kind.
fn with_positions(config: &Config, attention: &Attention, kind: &str) -> Result<Attention> {
    let window = match kind {
        SLIDING => config.optional_usize("sliding_window")?,
        _ => None,
    };
    let own = match config.child("rope_parameters")? {
        Some(kinds) => kinds.child(kind)?,
        None => None,
    };
    let half = RopeScaling::Proportional {
        turned: attention.head_dim / 4 * 2,
        factor: 1.0,
    };
    let (theta, scaling) = match &own {
        Some(own) => (
            own.f32_or("rope_theta", 1e6)?,
            rotary::scaling_of_heads(own, config, attention.head_dim)?,
        ),
        None if kind == SLIDING => (1e4, None),
        None => (1e6, Some(half)),
    };
    Ok(Attention {
        window,
        rope_theta: Some(theta),
        rope_scaling: scaling,
        ..attention.clone()
    })
}
