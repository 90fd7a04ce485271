//! Gemma 3: windowed attention except in every sixth layer, norms before and after each part (llama.cpp
//! `src/models/gemma3.cpp`; `conversion/gemma.py`). Norms are stored as gains.

use std::sync::Arc;

use super::attention::{self, Pairs};
use super::{Description, Family, Keys, layer, model};
use crate::error::Result;
use crate::feed_forward::{FeedForward, MlpSpec};
use crate::functions::Activation;
use crate::lowering::Sublayer;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    architectures: &["gemma3"],
    read,
};

/// Every n-th layer attends to all tokens.
const PATTERN: usize = 6;
/// Number of layers of the one size whose scores are scaled by `hidden / heads` instead of the head's width.
const LARGEST_LAYERS: usize = 62;

fn read(keys: &Keys) -> Result<Description> {
    let (hidden, heads) = (
        keys.usize("embedding_length")?,
        keys.usize("attention.head_count")?,
    );
    let intermediate = keys.per_layer("feed_forward_length")?;
    let slides = keys.slides(PATTERN)?;
    let part = hidden as f32 / heads.max(1) as f32;
    let around = Sublayer {
        post_norm: true,
        ..Sublayer::default()
    };
    let mut layers = Vec::new();
    let mut tables = Vec::new();
    for (i, intermediate) in intermediate.into_iter().enumerate() {
        let all = Attention {
            head_norm_eps: Some(keys.f32("attention.layer_norm_rms_epsilon")?),
            softmax_scale: (slides.len() == LARGEST_LAYERS).then_some(part.powf(-0.5)),
            ..attention::attention(keys, i)?
        };
        let window = keys.usize_or("attention.sliding_window", 0)?;
        let attention = if slides[i] && window > 0 {
            Attention {
                window: Some(window),
                rope_theta: Some(keys.f32_or("rope.freq_base_swa", 10000.0)?),
                rope_scaling: None,
                ..all
            }
        } else {
            all
        };
        tables.push(attention::names(keys, i, &attention, Pairs::Halves));
        let mlp = MlpSpec {
            intermediate,
            activation: Activation::Gelu,
            ..MlpSpec::default()
        };
        layers.push(LayerSpec {
            mixer_sublayer: around,
            ffn_sublayer: around,
            ..layer(Arc::new(attention), Some(FeedForward::Dense(mlp)))
        });
    }
    let softcap = keys.f32_or("final_logit_softcapping", 0.0)?;
    let spec = ModelSpec {
        embedding_multiplier: (hidden as f32).sqrt(),
        logit_softcap: (softcap != 0.0).then_some(softcap),
        ..model(keys, layers)?
    };
    Ok(Description::new(spec, tables.into_iter()))
}
