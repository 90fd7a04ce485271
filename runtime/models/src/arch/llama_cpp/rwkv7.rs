//! RWKV-7 (llama.cpp `src/models/rwkv7.cpp`; `conversion/rwkv.py`). Each block is two layers of ours: time mixing and
//! channel mixing. The first block's `v0`, `v1` and `v2` are unused, because there are no earlier values to mix with.

use std::sync::Arc;

use super::names::{Name, Take, as_stored};
use super::{Description, Family, Keys, Place, layer, model};
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::NormKind;
use crate::mixers::{Mixer, Rwkv7, RwkvChannelMix};
use crate::model::ModelSpec;

pub(super) const FAMILY: Family = Family {
    architectures: &["rwkv7"],
    read,
};

/// Epsilon of the output norm, for which there is no key.
const OUTPUT_NORM_EPS: f32 = 64e-5;

const TIME_MIX: &[(&str, &str)] = &[
    ("mixer.r_proj", "time_mix_receptance"),
    ("mixer.k_proj", "time_mix_key"),
    ("mixer.v_proj", "time_mix_value"),
    ("mixer.o_proj", "time_mix_output"),
    ("mixer.k_k", "time_mix_k_k.weight"),
    ("mixer.k_a", "time_mix_k_a.weight"),
    ("mixer.w_lora.lora.0", "time_mix_w1"),
    ("mixer.w_lora.lora.2.bias", "time_mix_w0.weight"),
    ("mixer.w_lora.lora.2", "time_mix_w2"),
    ("mixer.a_lora.lora.0", "time_mix_a1"),
    ("mixer.a_lora.lora.2.bias", "time_mix_a0.weight"),
    ("mixer.a_lora.lora.2", "time_mix_a2"),
    ("mixer.v_lora.lora.0", "time_mix_v1"),
    ("mixer.v_lora.lora.2.bias", "time_mix_v0.weight"),
    ("mixer.v_lora.lora.2", "time_mix_v2"),
    ("mixer.g_lora.lora.0", "time_mix_g1"),
    ("mixer.g_lora.lora.2", "time_mix_g2"),
    ("mixer.g_norm", "time_mix_ln"),
];

const CHANNEL_MIX: &[(&str, &str)] = &[
    ("attn_norm", "attn_norm_2"),
    ("mixer.x_k", "channel_mix_lerp_k.weight"),
    ("mixer.key", "channel_mix_key"),
    ("mixer.value", "channel_mix_value"),
];

/// The rows of `time_mix_lerp_fused`.
const SHIFTS: [&str; 6] = [
    "mixer.x_r",
    "mixer.x_w",
    "mixer.x_k",
    "mixer.x_v",
    "mixer.x_a",
    "mixer.x_g",
];

/// Time mixing, without the differences of the first block.
pub(super) fn time_mix(keys: &Keys, gate_rank: Option<usize>, norm: bool) -> Result<Rwkv7> {
    let hidden = keys.usize("embedding_length")?;
    let head_dim = keys.usize("wkv.head_size")?;
    if head_dim == 0 || !hidden.is_multiple_of(head_dim) {
        let expected = format!("a divisor of the embedding length {hidden}");
        return Err(keys.wrong("wkv.head_size", head_dim, expected));
    }
    let rank = |name: &str| keys.usize(&format!("attention.{name}_lora_rank"));
    Ok(Rwkv7 {
        heads: hidden / head_dim,
        head_dim,
        value_dim: head_dim,
        first: false,
        decay_rank: rank("decay")?,
        rate_rank: rank("iclr")?,
        value_rank: rank("value_residual_mix")?,
        gate_rank,
        key_eps: 1e-24,
        norm_eps: norm.then_some(OUTPUT_NORM_EPS),
    })
}

/// The names of time mixing's tensors.
pub(super) fn time_mix_names() -> Vec<Name> {
    let mut names = as_stored(TIME_MIX);
    let row = |(i, name)| Name::of_rows(name, "time_mix_lerp_fused.weight", i..i + 1);
    names.extend(SHIFTS.into_iter().enumerate().map(row));
    names.push(Name::new("mixer.r_k", "time_mix_r_k.weight", Take::Flat));
    names
}

fn read(keys: &Keys) -> Result<Description> {
    let hidden = keys.usize("embedding_length")?;
    let gate_rank = keys.usize("attention.gate_lora_rank")?;
    let time_mix = time_mix(keys, Some(gate_rank), true)?;
    let time_names = time_mix_names();
    let mut layers = Vec::new();
    let mut places = Vec::new();
    for (block, intermediate) in keys
        .per_layer("feed_forward_length")?
        .into_iter()
        .enumerate()
    {
        let time_mix: Arc<dyn Mixer> = Arc::new(Rwkv7 {
            first: block == 0,
            ..time_mix.clone()
        });
        let channel_mix: Arc<dyn Mixer> = Arc::new(RwkvChannelMix {
            hidden,
            intermediate,
            activation: Activation::SquaredRelu,
            receptance: false,
        });
        let names = [time_names.clone(), as_stored(CHANNEL_MIX)];
        layers.extend([time_mix, channel_mix].map(|mixer| layer(mixer, None)));
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
