//! Qwen3.5, Qwen3-Next and models with their text part: Gated DeltaNet, attention with an output gate, dense networks or
//! mixtures of experts (llama.cpp `src/models/qwen35.cpp`, `qwen35moe.cpp`, `qwen3next.cpp`; `conversion/qwen.py`).
//!
//! Norms are stored as gains. Value heads of Qwen3.5 are stored in another order than in transformers: value head t reads key
//! head `t % heads`. The block after the last layer, which predicts the token after the next one, is attention regardless of the
//! interval.

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::{Mixture, dense_or_experts};
use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::functions::Activation;
use crate::mixers::{Attention, GatedDeltaNet, Mixer};
use crate::model::{LayerSpec, MtpSpec};
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["qwen35", "qwen35moe", "qwen3next"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let delta = gated_deltanet(keys, eps)?;
    let intermediate = keys.per_layer_or("feed_forward_length", 0)?;
    let mixture = Mixture {
        gate: true,
        length_is_total: true,
        ..Mixture::new(Router::softmax(true))
    };
    let has_experts = keys.experts()? > 0;
    let block = |i: usize, recurrent: bool| -> Result<(LayerSpec, Vec<Name>)> {
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = if recurrent {
            (Arc::new(delta.clone()), delta_names(keys, i, &delta))
        } else {
            let attention = Attention {
                head_norm_eps: Some(eps),
                gate: true,
                ..attention::attention(keys, i)?
            };
            check_sections(keys, &attention)?;
            let names = attention::names(keys, i, &attention, Pairs::Halves);
            (Arc::new(attention), names)
        };
        names.extend(as_stored(&[("ffn_norm", "post_attention_norm")]));
        let mixture = has_experts.then_some(mixture);
        let ffn = dense_or_experts(keys, i, mixture, intermediate[i], &mut names)?;
        Ok((layer(mixer, Some(ffn)), names))
    };
    let recurrent = recurrent(keys)?.into_iter().enumerate();
    let blocks = recurrent.map(|(i, recurrent)| block(i, recurrent));
    let (layers, mut tables): (Vec<_>, Vec<_>) =
        blocks.collect::<Result<Vec<_>>>()?.into_iter().unzip();
    let mut spec = model(keys, layers)?;
    if let Some(i) = keys.mtp_block()? {
        let (layer, names) = block(i, false)?;
        tables.push(names);
        let has = |name: &str| keys.has_tensor(&format!("blk.{i}.nextn.{name}.weight"));
        spec.mtp = Some(MtpSpec {
            layer,
            own_embedding: has("embed_tokens"),
            own_norm: has("shared_head_norm"),
            own_head: has("shared_head_head"),
        });
    }
    Ok(Description::new(spec, tables.into_iter()))
}

/// Fails unless sections of time and image axes cover all angles; in a text, all of these axes have the token's position.
pub(super) fn check_sections(keys: &Keys, attention: &Attention) -> Result<()> {
    const KEY: &str = "rope.dimension_sections";
    let sections = keys.numbers(KEY)?;
    let pairs = attention.rope_dim.unwrap_or(attention.head_dim) / 2;
    let placed: usize = sections
        .iter()
        .take(3)
        .fold(0, |sum, &n| sum.saturating_add(n));
    if sections.is_empty() || placed >= pairs {
        Ok(())
    } else {
        Err(keys.wrong(
            KEY,
            format!("{sections:?}"),
            format!("three sections of {pairs} angles in total"),
        ))
    }
}

/// Which layers are recurrent.
fn recurrent(keys: &Keys) -> Result<Vec<bool>> {
    // Newer files have both keys, and the list alone decides.
    let interval = keys.usize_or("full_attention_interval", 4)?;
    if let Some(listed) = keys.optional_flags("attention.recurrent_layers")? {
        return Ok(listed);
    }
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
        read_gate_after_norm: false,
        norm_eps,
        tiled: keys.architecture() != "qwen3next",
    })
}

fn delta_names(keys: &Keys, block: usize, delta: &GatedDeltaNet) -> Vec<Name> {
    let (heads, key) = (delta.heads, delta.head_dim);
    let shared = delta.value_heads / heads.max(1);
    let value = shared * delta.value_dim;
    let (all_keys, all_values) = (heads * key, delta.value_heads * delta.value_dim);
    // The rows of q, k and v are adjacent.
    let q = 0..all_keys;
    let k = all_keys..2 * all_keys;
    let v = 2 * all_keys..2 * all_keys + all_values;
    let of_head = |part| Take::Groups { count: heads, part };
    let mut names = vec![
        Name::of_rows("mixer.q_conv1d", "ssm_conv1d", q.clone()),
        Name::of_rows("mixer.k_conv1d", "ssm_conv1d", k.clone()),
        Name::of_rows("mixer.v_conv1d", "ssm_conv1d", v.clone()),
        // The file stores -exp(A_log).
        Name::new("mixer.A_log", "ssm_a", Take::Values(|a| (-a).ln())),
    ];
    let has = |name: &str| keys.has_tensor(&format!("blk.{block}.{name}.weight"));
    if has("ssm_in") {
        // Older files store, for each key head, its query and key, then the values and gates of its value heads.
        let gates = 2 * key + value..2 * (key + value);
        names.extend([
            Name::new("mixer.q_proj", "ssm_in", of_head(0..key)),
            Name::new("mixer.k_proj", "ssm_in", of_head(key..2 * key)),
            Name::new("mixer.v_proj", "ssm_in", of_head(2 * key..2 * key + value)),
            Name::new("mixer.g_proj", "ssm_in", of_head(gates)),
        ]);
    } else {
        names.extend([
            Name::of_rows("mixer.q_proj", "attn_qkv", q),
            Name::of_rows("mixer.k_proj", "attn_qkv", k),
            Name::of_rows("mixer.v_proj", "attn_qkv", v),
            Name::new("mixer.g_proj", "attn_gate", Take::Whole),
        ]);
    }
    if has("ssm_ba") {
        names.extend([
            Name::new("mixer.b_proj", "ssm_ba", of_head(0..shared)),
            Name::new("mixer.a_proj", "ssm_ba", of_head(shared..2 * shared)),
        ]);
    }
    names.extend(as_stored(&[
        ("mixer.a_proj", "ssm_alpha"),
        ("mixer.b_proj", "ssm_beta"),
        ("mixer.dt_bias", "ssm_dt.bias"),
        ("mixer.o_norm", "ssm_norm"),
        ("mixer.o_proj", "ssm_out"),
    ]));
    names
}
