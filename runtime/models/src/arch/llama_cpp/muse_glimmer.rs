//! Muse Glimmer: windowed attention with rotary positions and full attention without, gated outputs, norms around every part
//! (llama.cpp `src/models/muse-glimmer.cpp`). Norms are stored as gains; that of the embedding has none.

use std::sync::Arc;

use super::attention::{Pairs, attention, names, unturned};
use super::feed_forward::dense;
use super::{Description, Family, Keys, layer, model};
use crate::arch::muse_glimmer::POST_EPS;
use crate::error::Result;
use crate::lowering::Sublayer;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    architectures: &["muse-glimmer"],
    read,
};

/// Without a list, every n-th layer attends to all tokens.
const PATTERN: usize = 4;

fn read(keys: &Keys) -> Result<Description> {
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let intermediate = keys.per_layer("feed_forward_length")?;
    let slides = keys.slides(PATTERN)?;
    let window = keys.usize_or("attention.sliding_window", 0)?;
    let around = Sublayer {
        post_norm: true,
        post_norm_eps: Some(POST_EPS),
        ..Sublayer::default()
    };
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (block, intermediate) in intermediate.into_iter().enumerate() {
        let all = Attention {
            head_norm_eps: Some(eps),
            gate: true,
            ..attention(keys, block)?
        };
        let mixer = match slides[block] {
            true => Attention {
                window: (window > 0).then_some(window),
                ..all
            },
            false => unturned(all),
        };
        tables.push(names(keys, block, &mixer, Pairs::Neighbours));
        layers.push(LayerSpec {
            mixer_sublayer: around,
            ffn_sublayer: around,
            ..layer(Arc::new(mixer), Some(dense(keys, block, intermediate)))
        });
    }
    let softcap = keys.f32_or("final_logit_softcapping", 0.0)?;
    let spec = ModelSpec {
        embedding_norm: true,
        logits_multiplier: keys.f32_or("logit_scale", 1.0)?,
        logit_softcap: (softcap != 0.0).then_some(softcap),
        ..model(keys, layers)?
    };
    Ok(Description {
        ones: &["token_embd_norm.weight"],
        ..Description::new(spec, tables.into_iter())
    })
}
