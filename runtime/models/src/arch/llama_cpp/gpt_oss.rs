//! gpt-oss: attention with sinks, where every other layer from the first has a window, and mixtures with biases and a clamped unit
//! (llama.cpp `src/models/openai-moe.cpp`).

use std::sync::Arc;

use super::attention::{Pairs, attention, names};
use super::feed_forward::{Mixture, expert_names, experts};
use super::names::as_stored;
use super::{Description, Family, Keys, layer, model};
use crate::arch::gpt_oss::UNIT;
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward};
use crate::mixers::Attention;
use crate::ops::Router;

pub(super) const FAMILY: Family = Family {
    architectures: &["gpt-oss"],
    read,
};

/// Without a list, every n-th layer attends to all tokens.
const PATTERN: usize = 2;

fn read(keys: &Keys) -> Result<Description> {
    let slides = keys.slides(PATTERN)?;
    let window = keys.usize_or("attention.sliding_window", 0)?;
    let mixture = Mixture::new(Router::softmax(true));
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (block, slides) in slides.into_iter().enumerate() {
        let all = attention(keys, block)?;
        let mixer = match slides && window > 0 {
            true => Attention {
                window: Some(window),
                rope_theta: keys.optional_f32("rope.freq_base_swa")?.or(all.rope_theta),
                ..all
            },
            false => all,
        };
        let experts = ExpertsSpec {
            router_bias: true,
            expert_biases: true,
            clamped: Some(UNIT),
            ..experts(keys, block, mixture)?
        };
        let mut table = names(keys, block, &mixer, Pairs::Halves);
        table.extend(as_stored(&[("ffn_norm", "post_attention_norm")]));
        table.extend(expert_names(keys, block, &experts));
        layers.push(layer(Arc::new(mixer), Some(FeedForward::Experts(experts))));
        tables.push(table);
    }
    let spec = model(keys, layers)?;
    Ok(Description::new(spec, tables.into_iter()))
}
