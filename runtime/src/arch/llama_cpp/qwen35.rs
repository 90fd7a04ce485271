//! Qwen3.5 and what shares its text model: Gated DeltaNet, and attention with an output gate (llama.cpp
//! `src/models/qwen35.cpp`; `conversion/qwen.py`).
//!
//! Norms are stored as the gains that they are. Value heads are stored in another order than in transformers: value head
//! t reads key head `t % heads`.

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Attention, GatedDeltaNet, Mixer};
use crate::ops::Activation;

pub(super) const FAMILY: Family = Family {
    architectures: &["qwen35"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let delta = gated_deltanet(keys, eps)?;
    let kv_heads = keys.per_layer("attention.head_count_kv")?;
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, recurrent) in recurrent(keys)?.into_iter().enumerate() {
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = if recurrent {
            (Arc::new(delta.clone()), delta_names(&delta))
        } else {
            let attention = Attention {
                head_norm_eps: Some(eps),
                gate: true,
                ..attention::attention(keys, kv_heads[i])?
            };
            let names = attention::names(&attention, Pairs::Halves);
            (Arc::new(attention), names)
        };
        names.extend(as_stored(&[("ffn_norm", "post_attention_norm")]));
        layers.push(layer(mixer, Some(intermediate[i])));
        tables.push(names);
    }
    Ok(Description::of(model(keys, layers)?, tables.into_iter()))
}

/// Which layers are recurrent.
fn recurrent(keys: &Keys) -> Result<Vec<bool>> {
    if let Some(listed) = keys.optional_flags("attention.recurrent_layers")? {
        return Ok(listed);
    }
    let interval = keys.usize_or("full_attention_interval", 4)?;
    let layers = 1..=keys.layers()?;
    Ok(layers
        .map(|layer| !layer.is_multiple_of(interval))
        .collect())
}

fn gated_deltanet(keys: &Keys, norm_eps: f32) -> Result<GatedDeltaNet> {
    let (values, value_heads) = (
        keys.usize("ssm.inner_size")?,
        keys.usize("ssm.time_step_rank")?,
    );
    if value_heads == 0 || !values.is_multiple_of(value_heads) {
        let expected = format!("a number of value heads that divides {values} channels");
        return Err(keys.wrong("ssm.time_step_rank", value_heads, expected));
    }
    Ok(GatedDeltaNet {
        heads: keys.usize("ssm.group_count")?,
        value_heads,
        head_dim: keys.usize("ssm.state_size")?,
        value_dim: values / value_heads,
        conv: Some(keys.usize("ssm.conv_kernel")?),
        conv_bias: false,
        gate: Some(Activation::Silu),
        negative_eigenvalues: false,
        decay: true,
        head_gates: None,
        norm_eps,
        tiled: true,
    })
}

fn delta_names(delta: &GatedDeltaNet) -> Vec<Name> {
    let keys = delta.heads * delta.head_dim;
    let values = delta.value_heads * delta.value_dim;
    // q, k and v lie side by side.
    let [q, k, v] = [0..keys, keys..2 * keys, 2 * keys..2 * keys + values];
    let mut names = vec![
        Name::new("mixer.q_proj", "attn_qkv", Take::Rows(q.clone())),
        Name::new("mixer.k_proj", "attn_qkv", Take::Rows(k.clone())),
        Name::new("mixer.v_proj", "attn_qkv", Take::Rows(v.clone())),
        Name::new("mixer.q_conv1d", "ssm_conv1d", Take::Rows(q)),
        Name::new("mixer.k_conv1d", "ssm_conv1d", Take::Rows(k)),
        Name::new("mixer.v_conv1d", "ssm_conv1d", Take::Rows(v)),
        // Stored is -exp(A_log).
        Name::new("mixer.A_log", "ssm_a", Take::Values(|a| (-a).ln())),
    ];
    names.extend(as_stored(&[
        ("mixer.g_proj", "attn_gate"),
        ("mixer.a_proj", "ssm_alpha"),
        ("mixer.b_proj", "ssm_beta"),
        ("mixer.dt_bias", "ssm_dt.bias"),
        ("mixer.o_norm", "ssm_norm"),
        ("mixer.o_proj", "ssm_out"),
    ]));
    names
}
