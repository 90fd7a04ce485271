//! MiniCPM-SALA (openbmb/MiniCPM-SALA `modeling_minicpm_sala.py`): layers of lightning attention with rotary positions and of gated
//! softmax attention without positions; embeddings, sums and logits are multiplied.
//!
//! The softmax layers attend to all tokens. So does the reference without its sparse kernels, and with them up to the
//! `sparse_config.dense_len` of 8,192 tokens; beyond that, these kernels skip blocks of tokens.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::hugging_face::{attention, mlp, model, norm_eps, tensor_name};
use super::{Config, Family};
use crate::error::Result;
use crate::lowering::Sublayer;
use crate::mixers::{Attention, LightningAttention, Mixer, Unmapped};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["minicpm_sala"],
    spec,
    tensor,
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let softmax: Arc<dyn Mixer> = Arc::new(softmax_attention(config)?);
    let lightning: Arc<dyn Mixer> = Arc::new(lightning_attention(config)?);
    let count = config.layers()?;
    let sublayer = Sublayer {
        multiplier: config.f32_or("scale_depth", 1.4)? / (count as f32).sqrt(),
        ..Sublayer::default()
    };
    let mlp = mlp(config)?;
    let layers = (0..count)
        .map(|layer| {
            let mixer = if is_softmax(config, layer)? {
                Arc::clone(&softmax)
            } else {
                Arc::clone(&lightning)
            };
            Ok(LayerSpec {
                mixer_sublayer: sublayer,
                ffn_sublayer: sublayer,
                ..LayerSpec::new(mixer, Some(mlp))
            })
        })
        .collect::<Result<_>>()?;
    let model = model(config, layers)?;
    Ok(ModelSpec {
        embedding_multiplier: config.f32_or("scale_emb", 12.0)?,
        logits_multiplier: config.f32_or("dim_model_base", 256.0)? / model.hidden as f32,
        ..model
    })
}

fn is_softmax(config: &Config, layer: usize) -> Result<bool> {
    let key = "mixer_types";
    match config.array(key)?.get(layer).and_then(|kind| kind.as_str()) {
        Some("minicpm4") => Ok(true),
        Some("lightning" | "lightning_attn" | "lightning-attn") => Ok(false),
        _ => Err(config.wrong(key, "minicpm4 or lightning-attn for every layer")),
    }
}

fn softmax_attention(config: &Config) -> Result<Attention> {
    let attention = attention(config)?;
    let positions = config.bool_or("attn_use_rope", false)?;
    Ok(Attention {
        rope_theta: attention.rope_theta.filter(|_| positions),
        rope_scaling: attention.rope_scaling.filter(|_| positions),
        gate: config.bool_or("attn_use_output_gate", true)?,
        ..attention
    })
}

fn lightning_attention(config: &Config) -> Result<LightningAttention> {
    let attention = attention(config)?;
    for key in ["use_output_gate", "use_output_norm"] {
        if !config.bool_or(key, true)? {
            return Err(config.wrong(key, "true"));
        }
    }
    let positions = config.bool_or("lightning_use_rope", true)?;
    if positions && attention.rope_scaling.is_some() {
        return Err(config.wrong(
            "rope_scaling",
            "null: lightning attention supports only unscaled positions",
        ));
    }
    let norm_eps = norm_eps(config)?;
    let head_dim = config.usize_or("lightning_head_dim", attention.head_dim)?;
    let root = (head_dim as f32).sqrt().recip();
    let scales = [
        ("1/sqrt(d)", root),
        ("1/d", (head_dim as f32).recip()),
        ("1", 1.0),
    ];
    Ok(LightningAttention {
        heads: config.usize_or("lightning_nh", attention.heads)?,
        head_dim,
        slope: 1.0,
        norm_eps,
        unmapped: Some(Unmapped {
            kv_heads: config.usize_or("lightning_nkv", attention.kv_heads)?,
            head_norm_eps: config.bool_or("qk_norm", true)?.then_some(norm_eps),
            rope_theta: attention.rope_theta.filter(|_| positions),
            scale: config.one_of("lightning_scale", root, &scales)?,
        }),
    })
}

/// Reads one of our tensors. The gate is `o_gate` in softmax attention and `z_proj` in lightning attention.
fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let name = tensor_name(&weight.name, "self_attn");
    let layer = name
        .strip_prefix("model.layers.")
        .and_then(|rest| rest.split('.').next()?.parse().ok());
    let gate = match layer {
        Some(layer) if is_softmax(config, layer)? => "o_gate.",
        _ => "z_proj.",
    };
    Ok(weights.tensor(&name.replacen("g_proj.", gate, 1))?)
}
