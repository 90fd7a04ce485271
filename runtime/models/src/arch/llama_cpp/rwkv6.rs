//! RWKV-6 (llama.cpp `src/models/rwkv6.cpp`; `conversion/rwkv.py`). Each block is two layers of ours: time mixing and channel mixing.

use std::sync::Arc;

use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, Place, layer, model};
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::{NormKind, Sublayer};
use crate::mixers::{Mixer, Rwkv6, RwkvChannelMix};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    architectures: &["rwkv6"],
    read,
};

/// Epsilon of the output norm, for which there is no key.
const OUTPUT_NORM_EPS: f32 = 64e-5;

const TIME_MIX: &[(&str, &str)] = &[
    ("mixer.r_proj", "time_mix_receptance"),
    ("mixer.k_proj", "time_mix_key"),
    ("mixer.v_proj", "time_mix_value"),
    ("mixer.g_proj", "time_mix_gate"),
    ("mixer.o_proj", "time_mix_output"),
    ("mixer.x_x", "time_mix_lerp_x.weight"),
    ("mixer.mix_a", "time_mix_w1"),
    ("mixer.w_lora.0", "time_mix_decay_w1"),
    ("mixer.w_lora.2.bias", "time_mix_decay.weight"),
    ("mixer.w_lora.2", "time_mix_decay_w2"),
    ("mixer.bonus", "time_mix_first.weight"),
    ("mixer.g_norm", "time_mix_ln"),
];

const CHANNEL_MIX: &[(&str, &str)] = &[
    ("attn_norm", "attn_norm_2"),
    ("mixer.x_k", "channel_mix_lerp_k.weight"),
    ("mixer.x_r", "channel_mix_lerp_r.weight"),
    ("mixer.key", "channel_mix_key"),
    ("mixer.value", "channel_mix_value"),
    ("mixer.receptance", "channel_mix_receptance"),
];

/// The mixed inputs, in the order of the fused tensors: our vector and matrix, and the vector's name in older
/// files.
const MIXED: [(&str, &str, &str); 5] = [
    ("mixer.x_w", "mixer.mix_b.w", "time_mix_lerp_w.weight"),
    ("mixer.x_k", "mixer.mix_b.k", "time_mix_lerp_k.weight"),
    ("mixer.x_v", "mixer.mix_b.v", "time_mix_lerp_v.weight"),
    ("mixer.x_r", "mixer.mix_b.r", "time_mix_lerp_r.weight"),
    ("mixer.x_g", "mixer.mix_b.g", "time_mix_lerp_g.weight"),
];

fn time_names(keys: &Keys, block: usize, hidden: usize) -> Vec<Name> {
    let mut names = as_stored(TIME_MIX);
    let fused = keys.has_tensor(&format!("blk.{block}.time_mix_lerp_fused.weight"));
    for (i, (vector, matrix, alone)) in MIXED.into_iter().enumerate() {
        let rows = i * hidden..(i + 1) * hidden;
        names.push(Name::of_rows(matrix, "time_mix_w2", rows));
        names.push(if fused {
            Name::of_rows(vector, "time_mix_lerp_fused.weight", i..i + 1)
        } else {
            Name::new(vector, alone, Take::Flat)
        });
    }
    names
}

fn read(keys: &Keys) -> Result<Description> {
    let hidden = keys.usize("embedding_length")?;
    let head_dim = keys.usize("wkv.head_size")?;
    if head_dim == 0 || !hidden.is_multiple_of(head_dim) {
        let expected = format!("a divisor of the embedding length {hidden}");
        return Err(keys.wrong("wkv.head_size", head_dim, expected));
    }
    let time_mix: Arc<dyn Mixer> = Arc::new(Rwkv6 {
        heads: hidden / head_dim,
        head_dim,
        mix_rank: keys.usize("time_mix_extra_dim")?,
        decay_rank: keys.usize("time_decay_extra_dim")?,
        norm_eps: OUTPUT_NORM_EPS,
    });
    // Sums of later blocks are stored divided by powers of two, and llama.cpp halves the residual stream as often.
    let rescaled = keys.usize_or("rescale_every_n_layers", 0)?;
    let mut layers = Vec::new();
    let mut places = Vec::new();
    let widths = keys.per_layer("feed_forward_length")?;
    for (block, intermediate) in widths.into_iter().enumerate() {
        let channel_mix: Arc<dyn Mixer> = Arc::new(RwkvChannelMix {
            hidden,
            intermediate,
            activation: Activation::SquaredRelu,
            receptance: true,
        });
        let halved = block.checked_div(rescaled).unwrap_or(0);
        let sublayer = Sublayer {
            multiplier: (halved as f32).exp2(),
            ..Sublayer::default()
        };
        layers.extend([Arc::clone(&time_mix), channel_mix].map(|mixer| LayerSpec {
            mixer_sublayer: sublayer,
            ..layer(mixer, None)
        }));
        let names = [time_names(keys, block, hidden), as_stored(CHANNEL_MIX)];
        places.extend(names.map(|names| Place { block, names }));
    }
    let spec = ModelSpec {
        norm: NormKind::Layer { bias: true },
        norm_eps: keys.f32("attention.layer_norm_epsilon")?,
        embedding_norm: true,
        ..model(keys, layers)?
    };
    Ok(Description {
        spec,
        places,
        whole: &[],
        ones: &[],
    })
}
