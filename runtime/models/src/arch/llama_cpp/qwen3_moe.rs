//! Qwen3 with mixtures of experts, and Mellum 2, whose layers with a window have plain rotary positions of another base (llama.cpp
//! `src/models/qwen3moe.cpp`, `mellum.cpp`).

use std::sync::Arc;

use super::attention::{Pairs, attention, names};
use super::feed_forward::{Mixture, dense, expert_names, experts};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::feed_forward::FeedForward;
use crate::mixers::Attention;
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["mellum", "qwen3moe"],
    read,
};

/// Without a list, every n-th layer attends to all tokens.
const PATTERN: usize = 4;

fn read(keys: &Keys) -> Result<Description> {
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let intermediate = keys.per_layer_or("feed_forward_length", 0)?;
    let window = match keys.architecture() {
        "mellum" => keys.usize_or("attention.sliding_window", 0)?,
        _ => 0,
    };
    let slides = match window {
        0 => vec![false; intermediate.len()],
        _ => keys.slides(PATTERN)?,
    };
    let mixture = Mixture::new(Router::softmax(true));
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (block, intermediate) in intermediate.into_iter().enumerate() {
        let mut mixer = Attention {
            head_norm_eps: Some(eps),
            ..attention(keys, block)?
        };
        if slides[block] {
            mixer.window = Some(window);
            mixer.rope_theta = keys
                .optional_f32("rope.freq_base_swa")?
                .or(mixer.rope_theta);
            mixer.rope_scaling = None;
        }
        let mut table = names(keys, block, &mixer, Pairs::Halves);
        let ffn = match keys.has_tensor(&format!("blk.{block}.ffn_gate_inp.weight")) {
            true => {
                let experts = experts(keys, block, mixture)?;
                table.extend(expert_names(keys, block, &experts));
                FeedForward::Experts(experts)
            }
            false => dense(keys, block, intermediate),
        };
        layers.push(layer(Arc::new(mixer), Some(ffn)));
        tables.push(table);
    }
    let spec = model(keys, layers)?;
    Ok(Description::new(spec, tables.into_iter()))
}
