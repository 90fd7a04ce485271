//! Nemotron-H: layers with a single part, either Mamba-2, attention without positions, a feed-forward network or a mixture
//! of experts (llama.cpp `src/models/nemotron-h.cpp`; `conversion/nemotron.py`).

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::{Mixture, expert_names, experts, sigmoid};
use super::mamba::{mamba2_mixer, mamba2_names};
use super::names::as_stored;
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpSpec};
use crate::functions::Activation;
use crate::model::LayerSpec;
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["nemotron_h", "nemotron_h_moe"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let kv_heads = keys.per_layer("attention.head_count_kv")?;
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, (kv_heads, intermediate)) in kv_heads.into_iter().zip(intermediate).enumerate() {
        // A block's only norm is named after attention, whatever the block is.
        let mut names = as_stored(&[("ffn_norm", "attn_norm")]);
        let spec = match (kv_heads, intermediate) {
            (0, 0) => {
                names.extend(mamba2_names());
                layer(Arc::new(mamba2_mixer(keys, i)?), None)
            }
            (0, _) if keys.has_tensor(&format!("blk.{i}.ffn_gate_inp.weight")) => {
                let experts = squared_relu_experts(keys, i)?;
                names.extend(expert_names(keys, i, &experts));
                alone(FeedForward::Experts(experts))
            }
            (0, intermediate) => alone(FeedForward::Dense(MlpSpec {
                intermediate,
                gated: false,
                activation: Activation::SquaredRelu,
                bias: keys.has_tensor(&format!("blk.{i}.ffn_up.bias")),
                ..MlpSpec::default()
            })),
            _ => {
                let attention = attention::unturned(attention::attention(keys, i)?);
                names.extend(attention::names(keys, i, &attention, Pairs::Halves));
                layer(Arc::new(attention), None)
            }
        };
        layers.push(spec);
        tables.push(names);
    }
    Ok(Description::new(model(keys, layers)?, tables.into_iter()))
}

/// A layer without a mixer.
fn alone(ffn: FeedForward) -> LayerSpec {
    LayerSpec {
        ffn: Some(ffn),
        ..LayerSpec::default()
    }
}

fn squared_relu_experts(keys: &Keys, block: usize) -> Result<ExpertsSpec> {
    let normed = keys.bool_or("expert_weights_norm", false)?;
    let latent = keys.usize_or("moe_latent_size", 0)?;
    let router = sigmoid(keys, 1e-20)?;
    let router = Router {
        normalize: router.normalize.filter(|_| normed),
        ..router
    };
    Ok(ExpertsSpec {
        gated: false,
        activation: Activation::SquaredRelu,
        bias: true,
        latent: (latent > 0).then_some(latent),
        ..experts(keys, block, Mixture::new(router))?
    })
}
