//! MiniMax-01: layers of lightning attention and of softmax attention, each with a mixture of experts; a layer's residual is its
//! normed input (llama.cpp `src/models/minimax-01.cpp`; `conversion/minimax.py`).

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::{Mixture, expert_names, experts};
use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::arch::minimax::lightning_of_depth;
use crate::error::Result;
use crate::feed_forward::FeedForward;
use crate::lowering::Sublayer;
use crate::mixers::{LightningAttention, Mixer};
use crate::model::LayerSpec;
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["minimax-01"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let sublayer = Sublayer {
        normed_residual: Some(keys.f32("residual_scale")?),
        ..Sublayer::default()
    };
    let count = keys.layers()?;
    let lightning = recurrent(keys, count)?;
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, is_lightning) in lightning.into_iter().enumerate() {
        let softmax = attention::attention(keys, i)?;
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = if is_lightning {
            let mixer = lightning_of_depth(softmax.heads, softmax.head_dim, i, count);
            let names = lightning_names(&mixer);
            (Arc::new(mixer), names)
        } else {
            let names = attention::names(keys, i, &softmax, Pairs::Halves);
            (Arc::new(softmax), names)
        };
        let experts = experts(keys, i, Mixture::new(Router::softmax(true)))?;
        names.extend(expert_names(keys, i, &experts));
        layers.push(LayerSpec {
            mixer_sublayer: sublayer,
            ffn_sublayer: sublayer,
            ..layer(mixer, Some(FeedForward::Experts(experts)))
        });
        tables.push(names);
    }
    Ok(Description::new(model(keys, layers)?, tables.into_iter()))
}

/// Which layers are lightning attention: as listed in the file, or all but every n-th.
fn recurrent(keys: &Keys, count: usize) -> Result<Vec<bool>> {
    if let Some(flags) = keys.optional_flags("attention.recurrent_layers")? {
        return Ok(flags);
    }
    const KEY: &str = "full_attention_interval";
    match keys.usize_or(KEY, 8)? {
        0 => Err(keys.wrong(KEY, 0, "an interval of one layer or more")),
        interval => Ok((1..=count).map(|i| !i.is_multiple_of(interval)).collect()),
    }
}

/// The names of lightning attention; the file stores each head's query, key and value next to each other.
fn lightning_names(mixer: &LightningAttention) -> Vec<Name> {
    let mut names = as_stored(&[
        ("mixer.g_proj", "attn_gate"),
        ("mixer.o_norm", "attn_norm_2"),
        ("mixer.o_proj", "attn_output"),
    ]);
    let (count, width) = (mixer.heads, mixer.head_dim);
    let projections = ["mixer.q_proj", "mixer.k_proj", "mixer.v_proj"];
    names.extend(projections.into_iter().enumerate().map(|(i, ours)| {
        let part = i * width..(i + 1) * width;
        Name::new(ours, "attn_qkv", Take::Groups { count, part })
    }));
    names
}
