//! Transformers: Llama and Mistral, Ministral 3, Qwen2, Qwen3, SmolLM3 (llama.cpp `src/models/llama.cpp`, `mistral3.cpp`, `qwen2.cpp`,
//! `qwen3.cpp`, `smollm3.cpp`).

use std::sync::Arc;

use super::attention::{Pairs, attention, names, trained_length, unturned};
use super::feed_forward::dense;
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::Attention;
use crate::ops::Growth;

pub(super) const FAMILY: Family = Family {
    architectures: &["llama", "mistral3", "qwen2", "qwen3", "smollm3"],
    read,
};

/// Every n-th layer of SmolLM3 has no positions.
const UNTURNED: usize = 4;

fn read(keys: &Keys) -> Result<Description> {
    let architecture = keys.architecture();
    if keys.experts()? > 1 {
        return Err(keys.unsupported("a mixture of experts in a Transformer, expected a dense one"));
    }
    let pairs = match architecture {
        "llama" | "mistral3" | "smollm3" => Pairs::Neighbours,
        _ => Pairs::Halves,
    };
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mixer = |layer: usize| -> Result<Attention> {
        let attention = Attention {
            head_norm_eps: (architecture == "qwen3").then_some(eps),
            query_growth: match architecture {
                "mistral3" => growth(keys)?,
                _ => None,
            },
            ..attention(keys, layer)?
        };
        let is_unturned = architecture == "smollm3" && (layer + 1).is_multiple_of(UNTURNED);
        Ok(if is_unturned {
            unturned(attention)
        } else {
            attention
        })
    };
    let mixers = (0..keys.layers()?).map(mixer).collect::<Result<Vec<_>>>()?;
    let names = |(block, mixer)| names(keys, block, mixer, pairs);
    let tables: Vec<_> = mixers.iter().enumerate().map(names).collect();
    let layers = mixers.into_iter().zip(intermediate).enumerate();
    let layers = layers.map(|(block, (mixer, intermediate))| {
        layer(Arc::new(mixer), Some(dense(keys, block, intermediate)))
    });
    let spec = model(keys, layers.collect())?;
    Ok(Description::new(spec, tables.into_iter()))
}

/// The growth of Ministral 3's queries with their positions.
fn growth(keys: &Keys) -> Result<Option<Growth>> {
    let rate = keys.f32_or("attention.temperature_scale", 0.0)?;
    if rate == 0.0 {
        return Ok(None);
    }
    let period = u32::try_from(trained_length(keys)?).unwrap_or(u32::MAX);
    Ok(Some(Growth { rate, period }))
}
