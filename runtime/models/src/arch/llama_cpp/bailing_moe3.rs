//! Ling 3.0: Kimi Delta Attention with a bounded decay and latent attention with positions; the first layers have dense
//! networks, the others mixtures of experts (llama.cpp `src/models/bailingmoe3.cpp`; `conversion/bailingmoe3.py`).

use std::sync::Arc;

use waterline_quant::gguf::{Array, Value};

use super::feed_forward::{Mixture, dense_or_experts, sigmoid};
use super::kimi_linear::{delta_attention, delta_names, latent_attention, latent_names};
use super::names::{Name, Take};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Kda, LatentAttention, Mixer};
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["bailingmoe3"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let intermediate = keys.usize_or("feed_forward_length", 0)?;
    let dense_layers = keys.usize_or("leading_dense_block_count", 0)?;
    let delta: Arc<dyn Mixer> = Arc::new(bounded(keys, delta_attention(keys, eps)?)?);
    let latent = LatentAttention {
        query_rank: keys
            .optional_usize("attention.q_lora_rank")?
            .filter(|&rank| rank > 0),
        rope_theta: Some(keys.f32_or("rope.freq_base", 10000.0)?),
        head_gate: true,
        ..latent_attention(keys, eps)?
    };
    for limits in ["swiglu_clamp_exp", "swiglu_clamp_shexp"] {
        unlimited(keys, limits)?;
    }
    let scaled = keys.optional_str("rope.scaling.type")?;
    if let Some(kind) = scaled.filter(|kind| *kind != "none") {
        return Err(keys.wrong("rope.scaling.type", kind, "none"));
    }
    let normalize = keys.bool_or("expert_weights_norm", false)?;
    let router = sigmoid(keys, 0.0)?;
    let router = Router {
        normalize: router.normalize.filter(|_| normalize),
        ..router
    };
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    let kv_heads = keys.per_layer("attention.head_count_kv")?;
    for (i, kv_heads) in kv_heads.into_iter().enumerate() {
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = match kv_heads {
            0 => (Arc::clone(&delta), bounded_names()),
            _ => (Arc::new(latent.clone()), turned_names(keys, i, &latent)),
        };
        let mixture = match i < dense_layers {
            true => None,
            false => Some(Mixture {
                bias: true,
                ..Mixture::new(router)
            }),
        };
        let ffn = dense_or_experts(keys, i, mixture, intermediate, &mut names)?;
        layers.push(layer(mixer, Some(ffn)));
        tables.push(names);
    }
    Ok(Description::new(model(keys, layers)?, tables.into_iter()))
}

fn bounded(keys: &Keys, kda: Kda) -> Result<Kda> {
    if !keys.bool_or("kda.safe_gate", true)? {
        return Err(keys.wrong("kda.safe_gate", false, "true"));
    }
    Ok(Kda {
        decay_bound: Some(keys.f32("kda.gate_lower_bound")?),
        full_rank: true,
        ..kda
    })
}

/// Refuses limits of the experts' gates, a number or a list of numbers, unless they are zero.
fn unlimited(keys: &Keys, key: &str) -> Result<()> {
    let limits = match keys.value(key) {
        Some(Value::Array(Array::F32(limits))) => limits.clone(),
        Some(_) => vec![keys.f32(key)?],
        None => Vec::new(),
    };
    match limits.iter().find(|&&limit| limit != 0.0) {
        Some(limit) => Err(keys.wrong(key, limit, "0, no limit")),
        None => Ok(()),
    }
}

/// The names where both gates have one matrix, which is stored under the name of the first of two.
fn bounded_names() -> Vec<Name> {
    let mut names = vec![
        // The file stores exp(A_log).
        Name::new("mixer.A_log", "ssm_a", Take::Values(f32::ln)),
        Name::new("mixer.f_proj", "ssm_f_a", Take::Whole),
        Name::new("mixer.g_proj", "ssm_g_a", Take::Whole),
    ];
    names.extend(delta_names());
    names
}

/// Channels that rotate together are adjacent, except in files of models that read images.
fn turned_names(keys: &Keys, block: usize, latent: &LatentAttention) -> Vec<Name> {
    let halves = |first: usize| {
        if keys.is_list("rope.dimension_sections") {
            Take::Whole
        } else {
            Take::Halves {
                head_dim: first + latent.rope,
                turned: first..first + latent.rope,
            }
        }
    };
    let mut names = vec![
        Name::new("mixer.q_proj", "attn_q", halves(latent.nope)),
        Name::new("mixer.q_b_proj", "attn_q_b", halves(latent.nope)),
        Name::new("mixer.q_a_proj", "attn_q_a", Take::Whole),
        Name::new("mixer.q_a_norm", "attn_q_a_norm", Take::Whole),
        Name::new("mixer.kv_a_proj", "attn_kv_a_mqa", halves(latent.latent)),
        Name::new("mixer.g_proj", "attn_gate", Take::Whole),
    ];
    names.extend(latent_names(keys, block, latent));
    names
}
