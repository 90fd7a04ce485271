//! Laguna: heads and rotary positions of their own in layers with and without a window, softplus gates, leading dense layers and
//! mixtures (llama.cpp `src/models/laguna.cpp`).

use std::sync::Arc;

use super::attention::{Pairs, attention, names};
use super::feed_forward::{Mixture, dense_or_experts, sigmoid};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::functions::Activation;
use crate::mixers::Attention;

pub(super) const FAMILY: Family = Family {
    architectures: &["laguna"],
    read,
};

/// Without a list, every n-th layer from the first attends to all tokens.
const PATTERN: usize = 4;

fn read(keys: &Keys) -> Result<Description> {
    let intermediate = keys.per_layer_or("feed_forward_length", 0)?;
    let leading = keys.usize_or("leading_dense_block_count", 0)?;
    let mixture = Mixture {
        bias: true,
        ..Mixture::new(sigmoid(keys, 0.0)?)
    };
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (block, slides) in keys.slides_after_first(PATTERN)?.into_iter().enumerate() {
        let mixer = gated_attention(keys, block, slides)?;
        let mut table = names(keys, block, &mixer, Pairs::Halves);
        let mixture = (block >= leading).then_some(mixture);
        let ffn = dense_or_experts(keys, block, mixture, intermediate[block], &mut table)?;
        layers.push(layer(Arc::new(mixer), Some(ffn)));
        tables.push(table);
    }
    let spec = model(keys, layers)?;
    Ok(Description::new(spec, tables.into_iter()))
}

/// The attention of block `block`, which has a window if it `slides` and the file has windows. The rows of the gate's matrix say whether
/// there is one gate for each head.
fn gated_attention(keys: &Keys, block: usize, slides: bool) -> Result<Attention> {
    let all = attention(keys, block)?;
    let gate = keys
        .gguf()
        .tensor(&format!("blk.{block}.attn_gate.weight"))?;
    let gated = Attention {
        head_norm_eps: Some(keys.f32("attention.layer_norm_rms_epsilon")?),
        gate: true,
        gate_per_head: gate.shape.first() == Some(&all.heads),
        gate_function: Some(Activation::Softplus),
        ..all
    };
    let window = keys.usize_or("attention.sliding_window", 0)?;
    if !slides || window == 0 {
        return Ok(gated);
    }
    let turned = keys.usize_or("rope.dimension_count_swa", gated.head_dim)?;
    Ok(Attention {
        window: Some(window),
        rope_theta: keys
            .optional_f32("rope.freq_base_swa")?
            .or(gated.rope_theta),
        rope_dim: (turned != gated.head_dim).then_some(turned),
        rope_scaling: None,
        ..gated
    })
}
