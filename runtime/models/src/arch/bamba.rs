//! Bamba, as saved by transformers: layers of Mamba-2, and a few of attention with positions on half of each head.

use std::sync::Arc;

use super::granite::is_attention;
use super::hugging_face::{attention, mlp, model, norm_eps};
use super::hybrid::{self, Kind};
use super::{Config, Family, mamba};
use crate::error::Result;
use crate::mixers::{Attention, Mixer};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    model_types: &["bamba"],
    spec,
    tensor: |_, weights, weight| mamba::tensor(weights, tensor_name(&weight.name)),
};

/// The checkpoint's name for one of our tensors.
fn tensor_name(name: &str) -> String {
    let mixer = if is_attention(name) {
        "self_attn."
    } else {
        "mamba."
    };
    renamed(name, &[("mixer.", mixer)])
}

/// The name in Bamba's and Falcon-H1's checkpoints, which differ only in the names of their `mixers`.
pub(super) fn renamed(name: &str, mixers: &[(&str, &str)]) -> String {
    let whole = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.final_layernorm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    let parts = [
        ("attn_norm.", "input_layernorm."),
        ("ffn_norm.", "pre_ff_layernorm."),
        ("ffn_gate.", "feed_forward.gate_proj."),
        ("ffn_up.", "feed_forward.up_proj."),
        ("ffn_down.", "feed_forward.down_proj."),
    ];
    let parts: Vec<_> = parts.iter().chain(mixers).copied().collect();
    hybrid::renamed(name, &whole, "model.layers", &parts)
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let attention = attention(config)?;
    // transformers rotates half of each head, regardless of the file.
    let attention: Arc<dyn Mixer> = Arc::new(Attention {
        rope_dim: Some(attention.head_dim / 2),
        ..attention
    });
    let mamba = hybrid::mamba2(config, hybrid::expanded(config)?, norm_eps(config)?)?;
    let mamba: Arc<dyn Mixer> = Arc::new(mamba);
    let mlp = mlp(config)?;
    let of_attention = match config.object().get("attn_layer_indices") {
        None | Some(serde_json::Value::Null) => Vec::new(),
        Some(_) => config.usizes("attn_layer_indices")?,
    };
    let usual = |layer| {
        if of_attention.contains(&layer) {
            Kind::Attention
        } else {
            Kind::Mamba
        }
    };
    let keys = ["layers_block_type", "layer_types"];
    let layers = hybrid::mixer_kinds(config, &keys, usual)?
        .into_iter()
        .map(|kind| {
            let mixer = if kind == Kind::Mamba {
                &mamba
            } else {
                &attention
            };
            LayerSpec::new(Arc::clone(mixer), Some(mlp))
        })
        .collect();
    model(config, layers)
}
