//! LFM2: gated short convolutions and attention, dense networks or mixtures of experts (llama.cpp
//! `src/models/lfm2.cpp`, `lfm2moe.cpp`; `conversion/lfm2.py`). The final norm is named after the embedding.

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::feed_forward::{Mixture, dense_or_experts, sigmoid};
use super::names::{Name, as_stored};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::{Attention, GatedConv, Mixer};

pub(super) const FAMILY: Family = Family {
    architectures: &["lfm2", "lfm2moe"],
    read,
};

fn read(keys: &Keys) -> Result<Description> {
    let intermediate = keys.per_layer("feed_forward_length")?;
    let dense_layers = match keys.experts()? {
        0 => usize::MAX,
        _ => keys.usize_or("leading_dense_block_count", 0)?,
    };
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, kv_heads) in keys
        .per_layer("attention.head_count_kv")?
        .into_iter()
        .enumerate()
    {
        let (mixer, mut names) = mixer(keys, i, kv_heads)?;
        let mixture = match i < dense_layers {
            true => None,
            false => Some(Mixture {
                bias: true,
                ..Mixture::new(sigmoid(keys, 1e-6)?)
            }),
        };
        let ffn = dense_or_experts(keys, i, mixture, intermediate[i], &mut names)?;
        layers.push(layer(mixer, Some(ffn)));
        tables.push(names);
    }
    Ok(Description {
        whole: &[("output_norm.weight", "token_embd_norm.weight")],
        ..Description::new(model(keys, layers)?, tables.into_iter())
    })
}

/// The mixer of block `block` and its names: attention if there are key and value heads, else a convolution.
fn mixer(keys: &Keys, block: usize, kv_heads: usize) -> Result<(Arc<dyn Mixer>, Vec<Name>)> {
    if kv_heads == 0 {
        let conv = GatedConv {
            channels: keys.usize("embedding_length")?,
            conv: keys.usize("shortconv.l_cache")?,
            bias: keys.has_tensor(&format!("blk.{block}.shortconv.conv.bias")),
        };
        let names = as_stored(&[
            ("mixer.in_proj", "shortconv.in_proj"),
            ("mixer.conv", "shortconv.conv"),
            ("mixer.out_proj", "shortconv.out_proj"),
        ]);
        return Ok((Arc::new(conv), names));
    }
    let window = keys.usize_or("attention.sliding_window", 0)?;
    let attention = Attention {
        head_norm_eps: Some(keys.f32("attention.layer_norm_rms_epsilon")?),
        window: (window > 0).then_some(window),
        ..attention::attention(keys, block)?
    };
    let names = attention::names(keys, block, &attention, Pairs::Halves);
    Ok((Arc::new(attention), names))
}
