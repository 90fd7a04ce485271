//! Slot attention layers of flash-linear-attention: maps its keys to the mixers' hyperparameters.

use super::Config;
use super::fla::{scaled, taps};
use crate::error::Result;
use crate::functions::Activation;
use crate::mixers::{Abc, Gsa, Raven};

/// Width of each of `heads` heads of a projection that is `key` times as wide as the model. The library misspells the
/// key in a configuration that has not yet been read and written back.
fn per_head(config: &Config, heads: usize, key: &str, default: f32) -> Result<usize> {
    let misspelt = key.replace("expand", "exapnd");
    let key = if config.object().contains_key(key) {
        key
    } else {
        &misspelt
    };
    let width = scaled(config, config.usize("hidden_size")?, key, default)?;
    if heads == 0 || !width.is_multiple_of(heads) {
        let expected = format!("a divisor of the width {width} that {key} makes");
        return Err(config.wrong("num_heads", &expected));
    }
    Ok(width / heads)
}

/// The number of slots: 64 if the key is absent, the width of a head if it is null.
fn slots(config: &Config, head_dim: usize) -> Result<usize> {
    match config.object().get("num_slots") {
        None => Ok(64),
        Some(_) => config.usize_or("num_slots", head_dim),
    }
}

/// The feature map of queries and keys, and whether a learned matrix comes before it.
fn feature_map(config: &Config) -> Result<(Activation, bool)> {
    let maps = [
        ("swish", (Activation::Silu, false)),
        ("relu", (Activation::Relu, false)),
        ("t2r", (Activation::Relu, true)),
    ];
    config.one_of("feature_map", maps[0].1, &maps)
}

pub(super) fn gsa(config: &Config) -> Result<Gsa> {
    if config.bool_or("norm_first", false)? {
        let expected = "false: layers of earlier versions, which normalize their input themselves, give other results";
        return Err(config.wrong("norm_first", expected));
    }
    let heads = config.usize_or("num_heads", 4)?;
    let head_dim = per_head(config, heads, "expand_k", 1.0)?;
    let (feature_map, learned_map) = feature_map(config)?;
    Ok(Gsa {
        heads,
        kv_heads: config.usize_or("num_kv_heads", heads)?,
        head_dim,
        value_dim: per_head(config, heads, "expand_v", 1.0)?,
        slots: slots(config, head_dim)?,
        feature_map,
        learned_map,
        conv: taps(config, false)?,
        gate_normalizer: config.f32_or("gate_logit_normalizer", 8.0)?,
        written: config.optional_usize("row_topk")?,
        scores: None,
        fixed_decay: false,
    })
}

pub(super) fn abc(config: &Config) -> Result<Abc> {
    let heads = config.usize_or("num_heads", 4)?;
    let head_dim = per_head(config, heads, "expand_k", 0.5)?;
    let bound = |key: &str, default: f32| {
        if config.object().contains_key(key) {
            config.optional_f32(key)
        } else {
            Ok(Some(default))
        }
    };
    Ok(Abc {
        heads,
        head_dim,
        value_dim: per_head(config, heads, "expand_v", 1.0)?,
        slots: slots(config, head_dim)?,
        conv: taps(config, false)?,
        rope_theta: config.bool_or("use_rope", true)?.then_some(10000.0),
        min: bound("clamp_min", -32.0)?,
        max: bound("clamp_max", 32.0)?,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}

pub(super) fn raven(config: &Config) -> Result<Raven> {
    let heads = config.usize_or("num_heads", 4)?;
    let head_dim = per_head(config, heads, "expand_k", 1.0)?;
    let slots = slots(config, head_dim)?;
    let written = config.usize_or("topk", 32)?;
    let (feature_map, learned_map) = feature_map(config)?;
    config.one_of("router_type", (), &[("lin", ())])?;
    if config.bool_or("bias_rmm", false)? {
        return Err(config.wrong(
            "bias_rmm",
            "false: a bias that affects only the choice is not supported",
        ));
    }
    let softmax_router = config.one_of(
        "router_score",
        false,
        &[("sigmoid", false), ("softmax", true)],
    )?;
    let decays = [("Mamba2", false), ("GLA", true)];
    let slot_decay = if config.one_of("decay_type", false, &decays)? {
        Some(config.f32_or("gate_logit_normalizer", 8.0)?)
    } else {
        None
    };
    let rope_theta = if config.bool_or("use_rope", false)? {
        Some(config.f32_or("rope_theta", 10000.0)?)
    } else {
        None
    };
    // If the file's number of slots is null, a `topk` above the number of slots means all of them.
    let is_null = config
        .object()
        .get("num_slots")
        .is_some_and(serde_json::Value::is_null);
    Ok(Raven {
        heads,
        kv_heads: config.usize_or("num_kv_heads", heads)?,
        head_dim,
        value_dim: per_head(config, heads, "expand_v", 1.0)?,
        slots,
        written: if is_null { written.min(slots) } else { written },
        softmax_router,
        feature_map,
        learned_map,
        slot_decay,
        rope_theta,
        gate: config.bool_or("use_output_gate", false)?,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}
