//! Mamba, Falcon-Mamba and Mamba-2 (llama.cpp `src/models/mamba.cpp`, `mamba2.cpp`; `conversion/mamba.py`). A is stored as
//! used, with negative values.

use std::sync::Arc;

use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Mamba, Mamba2, Mixer};

pub(super) const FAMILY: Family = Family {
    architectures: &["mamba", "mamba2"],
    read,
};

/// The names of a Mamba layer's tensors.
pub(super) const MAMBA: &[(&str, &str)] = &[
    ("mixer.in_proj", "ssm_in"),
    ("mixer.conv1d", "ssm_conv1d"),
    ("mixer.x_proj", "ssm_x"),
    ("mixer.dt_proj", "ssm_dt"),
    ("mixer.dt_norm", "ssm_dt_norm"),
    ("mixer.b_norm", "ssm_b_norm"),
    ("mixer.c_norm", "ssm_c_norm"),
    ("mixer.A", "ssm_a"),
    ("mixer.D", "ssm_d"),
    ("mixer.out_proj", "ssm_out"),
];

/// The names of a Mamba-2 layer's tensors.
pub(super) const MAMBA2: &[(&str, &str)] = &[
    ("mixer.in_proj", "ssm_in"),
    ("mixer.conv1d", "ssm_conv1d"),
    ("mixer.dt_bias", "ssm_dt.bias"),
    ("mixer.A", "ssm_a"),
    ("mixer.D", "ssm_d"),
    ("mixer.norm", "ssm_norm"),
    ("mixer.out_proj", "ssm_out"),
];

/// The names of a Mamba-2 layer's tensors, and how they are stored.
pub(super) fn mamba2_names() -> Vec<Name> {
    // The norm is stored with one row per group.
    let mut names = vec![Name::new("mixer.norm", "ssm_norm", Take::Flat)];
    names.extend(as_stored(MAMBA2));
    names
}

/// The constants of llama.cpp's Mamba, with all sizes zero.
pub(super) fn mamba() -> Mamba {
    Mamba {
        inner: 0,
        state: 0,
        rank: 0,
        conv: 0,
        conv_bias: true,
        bias: false,
        norm_eps: None,
        norm_gains: false,
        hax: None,
    }
}

/// The constants of llama.cpp's Mamba-2, with all other sizes zero.
pub(super) fn mamba2(groups: usize, norm_eps: f32) -> Mamba2 {
    Mamba2 {
        heads: 0,
        head_dim: 0,
        groups,
        state: 0,
        conv: 0,
        conv_bias: true,
        bias: false,
        skip_per_channel: false,
        norm_groups: Some(groups),
        norm_before_gate: false,
        norm_eps,
        step_min: 0.0,
        step_max: None,
        out_bias: None,
        multipliers: None,
        hax: None,
    }
}

/// The hyperparameters of a Mamba layer.
pub(super) fn mamba_mixer(keys: &Keys) -> Result<Mamba> {
    Ok(Mamba {
        inner: keys.usize("ssm.inner_size")?,
        state: keys.usize("ssm.state_size")?,
        rank: keys.usize("ssm.time_step_rank")?,
        conv: keys.usize("ssm.conv_kernel")?,
        ..mamba()
    })
}

/// The hyperparameters of the Mamba-2 layer of block `block`.
pub(super) fn mamba2_mixer(keys: &Keys, block: usize) -> Result<Mamba2> {
    let (inner, heads) = (
        keys.usize("ssm.inner_size")?,
        keys.usize("ssm.time_step_rank")?,
    );
    if heads == 0 || !inner.is_multiple_of(heads) {
        let expected = format!("a number of heads that divides {inner} channels");
        return Err(keys.wrong("ssm.time_step_rank", heads, expected));
    }
    let norm_eps = keys.norm_eps()?;
    Ok(Mamba2 {
        heads,
        head_dim: inner / heads,
        state: keys.usize("ssm.state_size")?,
        conv: keys.usize("ssm.conv_kernel")?,
        conv_bias: keys.has_tensor(&format!("blk.{block}.ssm_conv1d.bias")),
        ..mamba2(keys.usize("ssm.group_count")?, norm_eps)
    })
}

fn read(keys: &Keys) -> Result<Description> {
    let (mixer, names): (Arc<dyn Mixer>, Vec<Name>) = match keys.architecture() {
        "mamba" => {
            let normed = keys.bool_or("ssm.dt_b_c_rms", false)?;
            let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
            let mixer = Mamba {
                norm_eps: normed.then_some(eps),
                ..mamba_mixer(keys)?
            };
            (Arc::new(mixer), as_stored(MAMBA))
        }
        _ => (Arc::new(mamba2_mixer(keys, 0)?), mamba2_names()),
    };
    let layers = vec![layer(mixer, None); keys.layers()?];
    let spec = model(keys, layers)?;
    let names = vec![names; spec.layers.len()];
    Ok(Description::new(spec, names.into_iter()))
}
