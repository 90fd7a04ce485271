//! Granite and Bamba: Mamba-2, attention, multipliers, dense networks or mixtures of experts (llama.cpp
//! `src/models/granite-hybrid.cpp`, `granite.cpp`, `granite-moe.cpp`, `granite-swa.cpp`; `conversion/granite.py`). A hybrid whose layers are all
//! attention is written as a Transformer.

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::{Mixture, dense_or_experts};
use super::mamba::{mamba2_mixer, mamba2_names};
use super::names::Name;
use super::{Description, Family, Keys, layer, model};
use crate::arch::granite_swa::PATTERN;
use crate::error::Result;
use crate::lowering::Sublayer;
use crate::mixers::{Attention, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["granite", "granitemoe", "granitehybrid", WINDOWED],
    read,
};

/// Granite's Transformers with windows, dense or with experts.
const WINDOWED: &str = "granite_swa";

fn read(keys: &Keys) -> Result<Description> {
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mixture = Mixture::new(Router::softmax(true));
    let has_experts = keys.experts()? > 0;
    let multiplier = |key: &str| -> Result<f32> {
        let multiplier = keys.f32_or(key, 0.0)?;
        Ok(if multiplier == 0.0 { 1.0 } else { multiplier })
    };
    let sublayer = Sublayer {
        multiplier: multiplier("residual_scale")?,
        ..Sublayer::default()
    };
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, kv_heads) in keys
        .per_layer("attention.head_count_kv")?
        .into_iter()
        .enumerate()
    {
        let (mixer, mut names): (Arc<dyn Mixer>, Vec<Name>) = match kv_heads {
            0 => (Arc::new(mamba2_mixer(keys, i)?), mamba2_names()),
            _ => {
                let attention = scaled_attention(keys, i)?;
                let names = attention::names(keys, i, &attention, Pairs::Neighbours);
                (Arc::new(attention), names)
            }
        };
        let mixture = has_experts.then_some(mixture);
        let ffn = dense_or_experts(keys, i, mixture, intermediate[i], &mut names)?;
        layers.push(LayerSpec {
            mixer_sublayer: sublayer,
            ffn_sublayer: sublayer,
            ..layer(mixer, Some(ffn))
        });
        tables.push(names);
    }
    let spec = ModelSpec {
        embedding_multiplier: multiplier("embedding_scale")?,
        logits_multiplier: 1.0 / multiplier("logit_scale")?,
        ..model(keys, layers)?
    };
    Ok(Description::new(spec, tables.into_iter()))
}

/// The attention of block `block`, with positions unless `rope.scaling.finetuned` is false.
fn scaled_attention(keys: &Keys, block: usize) -> Result<Attention> {
    let scale = keys.f32_or("attention.scale", 0.0)?;
    let attention = Attention {
        softmax_scale: (scale != 0.0).then_some(scale),
        ..attention::attention(keys, block)?
    };
    let attention = Attention {
        window: window(keys, block)?,
        ..attention
    };
    Ok(if keys.bool_or("rope.scaling.finetuned", true)? {
        attention
    } else {
        attention::unturned(attention)
    })
}

/// The window of block `block`, if it has one.
fn window(keys: &Keys, block: usize) -> Result<Option<usize>> {
    if keys.architecture() != WINDOWED {
        return Ok(None);
    }
    let slides = keys.slides_after_first(PATTERN)?[block];
    let window = keys.usize_or("attention.sliding_window", 0)?;
    Ok((slides && window > 0).then_some(window))
}
