//! Jamba: Mamba with normalized parameters, attention without positions, and mixtures of experts in some layers
//! (llama.cpp `src/models/jamba.cpp`; `conversion/jamba.py`).

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::{Mixture, dense_or_experts};
use super::mamba::{MAMBA, mamba_mixer};
use super::names::{Name, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Mamba, Mixer};
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["jamba"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let mamba = Mamba {
        norm_eps: Some(keys.f32("attention.layer_norm_rms_epsilon")?),
        norm_gains: true,
        ..mamba_mixer(keys)?
    };
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mixture = Mixture::new(Router::softmax(false));
    // Dense models have the keys of experts too, so they are always read.
    keys.experts()?;
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, kv_heads) in keys
        .per_layer("attention.head_count_kv")?
        .into_iter()
        .enumerate()
    {
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = match kv_heads {
            0 => (Arc::new(mamba.clone()), as_stored(MAMBA)),
            _ => {
                let attention = attention::unturned(attention::attention(keys, i)?);
                let names = attention::names(keys, i, &attention, Pairs::Halves);
                (Arc::new(attention), names)
            }
        };
        let has_experts = keys.has_tensor(&format!("blk.{i}.ffn_gate_inp.weight"));
        let mixture = has_experts.then_some(mixture);
        let ffn = dense_or_experts(keys, i, mixture, intermediate[i], &mut names)?;
        layers.push(layer(mixer, Some(ffn)));
        tables.push(names);
    }
    Ok(Description::new(model(keys, layers)?, tables.into_iter()))
}
