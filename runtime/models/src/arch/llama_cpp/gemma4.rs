//! Gemma 4: windowed and full attention with heads of different sizes, layers that read the keys and values of earlier ones, an own input
//! of each layer, and possibly a mixture of experts beside the dense network (llama.cpp `src/models/gemma4.cpp`; `conversion/gemma.py`).

use waterline_quant::NVFP4;

use super::attention::{Pairs, names};
use super::feed_forward::{Mixture, expert_names, experts};
use super::{Description, Family, Keys, model};
use crate::arch::gemma4::{block, experts as network, owner, reading};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpAndExperts, MlpSpec};
use crate::functions::Activation;
use crate::mixers::{Attention, RopeScaling};
use crate::model::{LayerSpec, ModelSpec};

pub(super) const FAMILY: Family = Family {
    architectures: &["gemma4"],
    read,
};

/// Without a list, every n-th layer attends to all tokens.
const PATTERN: usize = 6;
/// Divisors of rotary frequencies from here on mean pairs that do not turn.
const NEVER: f32 = 1e29;

fn read(keys: &Keys) -> Result<Description> {
    let hidden = keys.usize("embedding_length")?;
    let intermediate = keys.per_layer("feed_forward_length")?;
    let count = intermediate.len();
    let shared = keys.usize_or("attention.shared_kv_layers", 0)?;
    let Some(own) = count.checked_sub(shared) else {
        let expected = format!("at most {count} layers");
        return Err(keys.wrong("attention.shared_kv_layers", shared, expected));
    };
    let has_experts = keys.experts()? > 0;
    let slides = keys.slides(PATTERN)?;
    let (mut layers, mut tables) = (Vec::new(), Vec::new());
    for (number, intermediate) in intermediate.into_iter().enumerate() {
        let mixer = attention(keys, number, slides[number])?;
        let mixer = match number.checked_sub(own) {
            None => mixer,
            Some(_) => {
                let expected = "an earlier layer of each kind with its own keys and values";
                reading(
                    mixer,
                    owner(&slides, own, number).ok_or_else(|| {
                        keys.wrong("attention.shared_kv_layers", shared, expected)
                    })?,
                )
            }
        };
        let mut table = names(keys, number, &mixer, Pairs::Halves);
        let mlp = MlpSpec {
            intermediate,
            activation: Activation::Gelu,
            ..MlpSpec::default()
        };
        let has = |name: &str| keys.has_tensor(&format!("blk.{number}.{name}"));
        let ffn = if has_experts && has("ffn_gate_inp.weight") {
            let experts = mixture(keys, number)?;
            table.extend(expert_names(keys, number, &experts));
            FeedForward::Both(MlpAndExperts { mlp, experts })
        } else {
            FeedForward::Dense(mlp)
        };
        layers.push(LayerSpec {
            output_scale: has("layer_output_scale.weight"),
            ..block(mixer, ffn)
        });
        tables.push(table);
    }
    let softcap = keys.f32_or("final_logit_softcapping", 0.0)?;
    let width = keys.usize_or("embedding_length_per_layer_input", 0)?;
    let spec = ModelSpec {
        embedding_multiplier: (hidden as f32).sqrt(),
        logit_softcap: (softcap != 0.0).then_some(softcap),
        per_layer_inputs: (width > 0).then_some(width),
        ..model(keys, layers)?
    };
    Ok(Description::new(spec, tables.into_iter()))
}

fn attention(keys: &Keys, block: usize, slides: bool) -> Result<Attention> {
    // Keys of layers with a window have an ending.
    let key = |name: &str| format!("{name}{}", if slides { "_swa" } else { "" });
    let eps = keys.f32("attention.layer_norm_rms_epsilon")?;
    let head_dim = keys.usize(&key("attention.key_length"))?;
    let value_key = key("attention.value_length");
    let values = keys.usize_or(&value_key, head_dim)?;
    if values != head_dim {
        let expected = format!("{head_dim}, the width of the keys");
        return Err(keys.wrong(&value_key, values, expected));
    }
    let heads = keys.per_layer("attention.head_count")?[block];
    let turned = keys.usize_or(&key("rope.dimension_count"), head_dim)?;
    let theta = if slides { 1e4 } else { 1e6 };
    let has = |name: &str| keys.has_tensor(&format!("blk.{block}.{name}.weight"));
    Ok(Attention {
        heads,
        kv_heads: keys.per_layer_or("attention.head_count_kv", heads)?[block],
        head_dim,
        window: match slides {
            true => Some(keys.usize("attention.sliding_window")?),
            false => None,
        },
        rope_theta: Some(keys.f32_or(&key("rope.freq_base"), theta)?),
        rope_dim: (turned != head_dim).then_some(turned),
        rope_scaling: if slides { None } else { scaling(keys)? },
        head_norm_eps: Some(eps),
        value_norm_eps: Some(eps),
        values_are_keys: !has("attn_v") && !has("attn_qkv"),
        softmax_scale: Some(1.0),
        ..Attention::default()
    })
}

/// The scaling in `rope_freqs.weight`, a divisor of each frequency of the layers without a window.
fn scaling(keys: &Keys) -> Result<Option<RopeScaling>> {
    const NAME: &str = "rope_freqs.weight";
    if !keys.has_tensor(NAME) {
        return Ok(None);
    }
    let divisors = keys.gguf().tensor(NAME)?.to_f32();
    let turned = divisors.iter().take_while(|&&x| x == 1.0).count();
    Ok(Some(match divisors[turned..].iter().all(|&x| x >= NEVER) {
        true => RopeScaling::Proportional {
            turned: 2 * turned,
            factor: 1.0,
        },
        false => RopeScaling::Divided {
            divisors,
            magnitude: 1.0,
        },
    }))
}

fn mixture(keys: &Keys, block: usize) -> Result<ExpertsSpec> {
    let network = network();
    let found = experts(keys, block, Mixture::new(network.router))?;
    // NVFP4 needs the tensor's scale for itself, and the converter puts the experts' factors into it.
    let name = |part: &str| format!("blk.{block}.ffn_down_exps.{part}");
    let is_scaled = keys.gguf().tensor(&name("weight"))?.format == &NVFP4;
    Ok(ExpertsSpec {
        activation: network.activation,
        gains: keys.has_tensor(&name("scale")) && !is_scaled,
        ..found
    })
}
