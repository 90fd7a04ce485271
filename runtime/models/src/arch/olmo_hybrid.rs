//! OLMo hybrids, as saved by transformers: Gated DeltaNet layers with norms before each part, attention layers with norms after.

use std::sync::Arc;

use super::hugging_face::{attention, layer_type, mlp, model, norm_eps};
use super::{Config, Family, hybrid};
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::Sublayer;
use crate::mixers::{Attention, GatedDeltaNet, Mixer};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["olmo_hybrid"],
    spec,
    tensor: |config, weights, weight| {
        let [saved, loaded] = tensor_names(config, &weight.name)?;
        let name = if weights.contains(&saved) {
            saved
        } else {
            loaded
        };
        Ok(weights.tensor(&name)?)
    },
};

/// The checkpoint's name for one of our tensors: as in files, and as in transformers' memory.
fn tensor_names(config: &Config, name: &str) -> Result<[String; 2]> {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    let number = name.split('.').nth(1).and_then(|layer| layer.parse().ok());
    let mixer = match number {
        Some(layer) if is_attention(config, layer)? => "self_attn.",
        _ => "linear_attn.",
    };
    let norms = [
        ["attention_layer_norm.", "feedforward_layer_norm."],
        ["input_layernorm.", "post_attention_layernorm."],
    ];
    Ok(norms.map(|[attn_norm, ffn_norm]| {
        let parts = [
            ("attn_norm.", attn_norm),
            ("ffn_norm.", ffn_norm),
            ("post_attention_norm.", "post_attention_layernorm."),
            ("post_ffw_norm.", "post_feedforward_layernorm."),
            ("ffn_gate.", "mlp.gate_proj."),
            ("ffn_up.", "mlp.up_proj."),
            ("ffn_down.", "mlp.down_proj."),
            ("mixer.", mixer),
        ];
        hybrid::renamed(name, &whole, "model.layers", &parts)
    }))
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let normed: Arc<dyn Mixer> = Arc::new(normed_attention(config)?);
    let delta: Arc<dyn Mixer> = Arc::new(gated_deltanet(config)?);
    let mlp = mlp(config)?;
    let behind = Sublayer {
        pre_norm: false,
        post_norm: true,
        ..Sublayer::default()
    };
    let layers = (0..config.layers()?)
        .map(|layer| {
            Ok(if is_attention(config, layer)? {
                LayerSpec {
                    mixer_sublayer: behind,
                    ffn_sublayer: behind,
                    ..LayerSpec::new(Arc::clone(&normed), Some(mlp))
                }
            } else {
                LayerSpec::new(Arc::clone(&delta), Some(mlp))
            })
        })
        .collect::<Result<_>>()?;
    model(config, layers)
}

fn is_attention(config: &Config, layer: usize) -> Result<bool> {
    match layer_type(config, layer)? {
        Some("full_attention") => Ok(true),
        Some("linear_attention") => Ok(false),
        Some(_) => Err(config.wrong("layer_types", "full_attention or linear_attention")),
        // Every fourth layer.
        None => Ok(layer % 4 == 3),
    }
}

/// Attention whose queries and keys are normalized over all heads. Without a rotary base there are no positions.
fn normed_attention(config: &Config) -> Result<Attention> {
    let attention = attention(config)?;
    let base = match config.child("rope_parameters")? {
        Some(rope) => rope.optional_f32("rope_theta")?,
        None => config.optional_f32("rope_theta")?,
    };
    Ok(Attention {
        rope_theta: attention.rope_theta.filter(|_| base.is_some()),
        head_norm_eps: Some(norm_eps(config)?),
        norm_over_heads: true,
        ..attention
    })
}

fn gated_deltanet(config: &Config) -> Result<GatedDeltaNet> {
    // The reference does not take this epsilon from the configuration.
    const NORM_EPS: f32 = 1e-5;
    let heads = config.usize("linear_num_key_heads")?;
    Ok(GatedDeltaNet {
        heads,
        value_heads: config.usize_or("linear_num_value_heads", heads)?,
        head_dim: config.usize("linear_key_head_dim")?,
        value_dim: config.usize("linear_value_head_dim")?,
        conv: Some(config.usize_or("linear_conv_kernel_dim", 4)?),
        conv_bias: false,
        gate: Some(Activation::Silu),
        negative_eigenvalues: config.bool_or("linear_allow_neg_eigval", true)?,
        decay: true,
        head_gates: None,
        read_gate_after_norm: false,
        norm_eps: NORM_EPS,
        tiled: false,
    })
}
