//! Qwen2 and Qwen3 with mixtures of experts, the language model of Qwen3-VL with them, and Mellum 2, whose layers with a window have plain
//! rotary positions of another base (llama.cpp `src/models/qwen2moe.cpp`, `qwen3moe.cpp`, `qwen3vlmoe.cpp`, `mellum.cpp`).

use std::sync::Arc;

use super::attention::{Pairs, attention, names};
use super::feed_forward::{Mixture, dense_or_experts};
use super::qwen35::check_sections;
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::mixers::Attention;
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["mellum", QWEN2, "qwen3moe", "qwen3vlmoe"],
    read,
};

/// Qwen2's mixtures, with a gated shared expert and without norms of the heads.
const QWEN2: &str = "qwen2moe";
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
    let is_qwen2 = keys.architecture() == QWEN2;
    let mixture = Mixture {
        gate: is_qwen2,
        length_is_total: is_qwen2,
        ..Mixture::new(Router::softmax(!is_qwen2))
    };
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (block, intermediate) in intermediate.into_iter().enumerate() {
        let mut mixer = Attention {
            head_norm_eps: (!is_qwen2).then_some(eps),
            ..attention(keys, block)?
        };
        if slides[block] {
            mixer.window = Some(window);
            mixer.rope_theta = keys
                .optional_f32("rope.freq_base_swa")?
                .or(mixer.rope_theta);
            mixer.rope_scaling = None;
        }
        if keys.architecture() == "qwen3vlmoe" {
            check_sections(keys, &mixer)?;
        }
        let mut table = names(keys, block, &mixer, Pairs::Halves);
        let has_experts = keys.has_tensor(&format!("blk.{block}.ffn_gate_inp.weight"));
        let mixture = has_experts.then_some(mixture);
        let ffn = dense_or_experts(keys, block, mixture, intermediate, &mut table)?;
        layers.push(layer(Arc::new(mixer), Some(ffn)));
        tables.push(table);
    }
    let spec = model(keys, layers)?;
    Ok(Description::new(spec, tables.into_iter()))
}
