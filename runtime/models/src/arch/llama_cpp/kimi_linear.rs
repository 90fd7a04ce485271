//! Kimi Linear: Kimi Delta Attention and latent attention without positions; the first layers have dense networks, the
//! others mixtures of experts (llama.cpp `src/models/kimi-linear.cpp`; `conversion/kimi_linear.py`).

use std::sync::Arc;

use super::feed_forward::{Mixture, dense_or_experts, sigmoid};
use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Kda, LatentAttention, Mixer};

pub(super) const FAMILY: Family = Family {
    architectures: &["kimi-linear"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let intermediate = keys.usize_or("feed_forward_length", 0)?;
    let dense_layers = keys.usize_or("leading_dense_block_count", 0)?;
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, kv_heads) in keys
        .per_layer("attention.head_count_kv")?
        .into_iter()
        .enumerate()
    {
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = match kv_heads {
            0 => (Arc::new(delta_attention(keys, eps)?), delta_names()),
            _ => {
                let latent = latent_attention(keys, eps)?;
                let names = latent_names(keys, i, &latent);
                (Arc::new(latent), names)
            }
        };
        let mixture = match i < dense_layers {
            true => None,
            false => Some(Mixture {
                bias: true,
                ..Mixture::new(sigmoid(keys, 0.0)?)
            }),
        };
        let ffn = dense_or_experts(keys, i, mixture, intermediate, &mut names)?;
        layers.push(layer(mixer, Some(ffn)));
        tables.push(names);
    }
    Ok(Description::new(model(keys, layers)?, tables.into_iter()))
}

pub(super) fn delta_attention(keys: &Keys, norm_eps: f32) -> Result<Kda> {
    let heads = keys.usize("attention.head_count")?;
    let head_dim = keys.usize("kda.head_dim")?;
    Ok(Kda {
        heads,
        value_heads: heads,
        head_dim,
        value_dim: head_dim,
        conv: Some(keys.usize("ssm.conv_kernel")?),
        negative_eigenvalues: false,
        decay_bound: None,
        gate_bias: false,
        full_rank: false,
        norm_eps,
    })
}

pub(super) fn delta_names() -> Vec<Name> {
    let mut names = as_stored(&[
        ("mixer.q_proj", "attn_q"),
        ("mixer.k_proj", "attn_k"),
        ("mixer.v_proj", "attn_v"),
        ("mixer.q_conv1d", "ssm_conv1d_q"),
        ("mixer.k_conv1d", "ssm_conv1d_k"),
        ("mixer.v_conv1d", "ssm_conv1d_v"),
        ("mixer.f_proj.0", "ssm_f_a"),
        ("mixer.f_proj.1", "ssm_f_b"),
        ("mixer.g_proj.0", "ssm_g_a"),
        ("mixer.g_proj.1", "ssm_g_b"),
        ("mixer.b_proj", "ssm_beta"),
        ("mixer.dt_bias", "ssm_dt.bias"),
        ("mixer.o_norm", "ssm_norm"),
        ("mixer.o_proj", "attn_output"),
    ]);
    // The file stores -exp(A_log).
    let rates = Take::Values(|a| (-a).ln());
    names.push(Name::new("mixer.A_log", "ssm_a", rates));
    names
}

/// Latent attention. The keys `key_length_mla` and `value_length_mla` are the widths of a head's key and value; `key_length` is
/// the width of the cached row.
pub(super) fn latent_attention(keys: &Keys, norm_eps: f32) -> Result<LatentAttention> {
    let key = keys.usize("attention.key_length_mla")?;
    let rope = keys.usize("rope.dimension_count")?;
    if rope >= key {
        let expected = format!("less than {key}, the width of a key");
        return Err(keys.wrong("rope.dimension_count", rope, expected));
    }
    let latent = keys.usize("attention.kv_lora_rank")?;
    let row = latent + rope;
    let found = keys.usize_or("attention.key_length", row)?;
    if found != row {
        let expected = format!("{row}, the width of the cached row");
        return Err(keys.wrong("attention.key_length", found, expected));
    }
    Ok(LatentAttention {
        heads: keys.usize("attention.head_count")?,
        latent,
        nope: key - rope,
        rope,
        value_dim: keys.usize("attention.value_length_mla")?,
        query_rank: None,
        rope_theta: None,
        norm_eps,
        head_gate: false,
    })
}

pub(super) fn latent_names(keys: &Keys, block: usize, latent: &LatentAttention) -> Vec<Name> {
    let mut names = as_stored(&[
        ("mixer.q_proj", "attn_q"),
        ("mixer.kv_a_proj", "attn_kv_a_mqa"),
        ("mixer.kv_a_norm", "attn_kv_a_norm"),
        ("mixer.o_proj", "attn_output"),
    ]);
    if keys.has_tensor(&format!("blk.{block}.attn_kv_b.weight")) {
        // Older files store, for each head, the rows of its keys, which must be transposed, then the rows of its values.
        let (count, keys) = (latent.heads, latent.nope);
        let [key, value] = [0..keys, keys..keys + latent.value_dim];
        names.extend([
            Name::new(
                "mixer.k_b",
                "attn_kv_b",
                Take::TransposedGroups { count, part: key },
            ),
            Name::new(
                "mixer.v_b",
                "attn_kv_b",
                Take::Groups { count, part: value },
            ),
        ]);
    } else {
        names.extend(as_stored(&[
            ("mixer.k_b", "attn_k_b"),
            ("mixer.v_b", "attn_v_b"),
        ]));
    }
    names
}
