//! Transformers: Llama, Mistral and Mixtral, Ministral 3, Qwen2, Qwen3 and the language model of Qwen3-VL, SmolLM3 (llama.cpp
//! `src/models/llama.cpp`, `mistral3.cpp`, `qwen2.cpp`, `qwen3.cpp`, `qwen3vl.cpp`, `smollm3.cpp`).

use std::sync::Arc;

use super::attention::{Pairs, attention, names, trained_length, unturned};
use super::feed_forward::{Mixture, dense_or_experts};
use super::qwen35::check_sections;
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::Attention;
use crate::ops::{Growth, Router};

pub(super) const FAMILY: Family = Family {
    architectures: &["llama", "mistral3", "qwen2", "qwen3", "qwen3vl", "smollm3"],
    read,
};

/// Every n-th layer of SmolLM3 has no positions.
const UNTURNED: usize = 4;

fn read(keys: &Keys) -> Result<Description> {
    let architecture = keys.architecture();
    let has_experts = keys.experts()? > 1;
    if has_experts && !["llama", "mistral3"].contains(&architecture) {
        return Err(keys.unsupported("a mixture of experts, expected a dense network"));
    }
    let pairs = match architecture {
        "llama" | "mistral3" | "smollm3" => Pairs::Neighbours,
        _ => Pairs::Halves,
    };
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let normed = ["qwen3", "qwen3vl"].contains(&architecture);
    let intermediate = keys.per_layer("feed_forward_length")?;
    let mixer = |layer: usize| -> Result<Attention> {
        let attention = Attention {
            head_norm_eps: normed.then_some(eps),
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
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (block, intermediate) in intermediate.into_iter().enumerate() {
        let mixer = mixer(block)?;
        if architecture == "qwen3vl" {
            check_sections(keys, &mixer)?;
        }
        let mut table = names(keys, block, &mixer, pairs);
        let mixture = has_experts.then_some(Mixture::new(Router::softmax(true)));
        let ffn = dense_or_experts(keys, block, mixture, intermediate, &mut table)?;
        layers.push(layer(Arc::new(mixer), Some(ffn)));
        tables.push(table);
    }
    let spec = model(keys, layers)?;
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
