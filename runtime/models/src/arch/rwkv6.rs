//! RWKV-6 (RWKV/rwkv-6-world `modeling_rwkv6.py`). Each of its layers is two of ours: time mixing and channel mixing.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::layer_part;
use super::tensors::{rows, transposed};
use super::{Config, Family};
use crate::error::Result;
use crate::functions::Activation;
use crate::lowering::NormKind;
use crate::mixers::{Mixer, Rwkv6, RwkvChannelMix};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["rwkv6"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let head_dim = config.usize_or("head_size", 64)?;
    if head_dim == 0 || !hidden.is_multiple_of(head_dim) {
        let expected = format!("a divisor of the hidden size {hidden}");
        return Err(config.wrong("head_size", &expected));
    }
    if config.usize_or("attention_hidden_size", hidden)? != hidden {
        return Err(config.wrong("attention_hidden_size", "the hidden size"));
    }
    // Ranks follow from the width; the reference divides sums of deep layers by powers of two, which norms cancel.
    let small = hidden != 4096;
    let norm_eps = config.f32_or("layer_norm_epsilon", 1e-5)?;
    let divisor = config.f32_or("head_size_divisor", 8.0)?;
    let time_mix: Arc<dyn Mixer> = Arc::new(Rwkv6 {
        heads: hidden / head_dim,
        head_dim,
        mix_rank: config.usize_or("time_mix_extra_dim", if small { 32 } else { 64 })?,
        decay_rank: config.usize_or("time_decay_extra_dim", if small { 64 } else { 128 })?,
        norm_eps: 1e-5 * divisor * divisor,
    });
    let channel_mix: Arc<dyn Mixer> = Arc::new(RwkvChannelMix {
        hidden,
        intermediate: config.usize_or("intermediate_size", (hidden * 7 / 2) / 32 * 32)?,
        activation: Activation::SquaredRelu,
        receptance: true,
    });
    let block = [time_mix, channel_mix].map(|mixer| LayerSpec::new(mixer, None));
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden,
        norm: NormKind::Layer { bias: true },
        norm_eps,
        embedding_norm: true,
        tied: config.bool_or("tie_word_embeddings", false)?,
        layers: (0..config.layers()?).flat_map(|_| block.clone()).collect(),
        ..ModelSpec::default()
    })
}

/// Names of time mixing's tensors: ours, and the checkpoint's.
const TIME_MIX: [(&str, &str); 10] = [
    ("r_proj.weight", "receptance.weight"),
    ("k_proj.weight", "key.weight"),
    ("v_proj.weight", "value.weight"),
    ("g_proj.weight", "gate.weight"),
    ("o_proj.weight", "output.weight"),
    ("bonus", "time_faaaa"),
    ("w_lora.2.bias", "time_decay"),
    ("w_lora.0.weight", "time_decay_w1"),
    ("w_lora.2.weight", "time_decay_w2"),
    ("mix_a.weight", "time_maa_w1"),
];

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let name = weight.name.as_str();
    let read = |name: &str| Ok(weights.tensor(&format!("rwkv.{name}"))?);
    let Some((layer, part)) = layer_part(name) else {
        return match name.split_once('.') {
            Some(("token_embd", _)) => read("embeddings.weight"),
            Some(("token_embd_norm", end)) => read(&format!("blocks.0.pre_ln.{end}")),
            Some(("output_norm", end)) => read(&format!("ln_out.{end}")),
            _ => Ok(weights.tensor("head.weight")?),
        };
    };
    let (is_time, block) = (layer.is_multiple_of(2), layer / 2);
    if let Some(end) = part.strip_prefix("attn_norm.") {
        let norm = if is_time { "ln1" } else { "ln2" };
        return read(&format!("blocks.{block}.{norm}.{end}"));
    }
    let part = part.strip_prefix("mixer.").unwrap_or(part);
    let mixer = if is_time { "attention" } else { "feed_forward" };
    let of_mixer = |part: &str| read(&format!("blocks.{block}.{mixer}.{part}"));
    if let Some(mixed) = part.strip_prefix("x_") {
        return of_mixer(&format!("time_maa_{mixed}"));
    }
    if !is_time {
        return of_mixer(part);
    }
    // The checkpoint stores these matrices transposed, with one row per input.
    if let Some(mixed) = part.strip_prefix("mix_b.") {
        let all = of_mixer("time_maa_w2")?;
        let index = ["w", "k", "v", "r", "g"]
            .iter()
            .position(|c| mixed.starts_with(c));
        let index = index.unwrap_or(0);
        let mut one = rows(name, &all, std::slice::from_ref(&(index..index + 1)))?;
        one.shape.remove(0);
        return transposed(name, &one, 1);
    }
    if let Some(end) = part.strip_prefix("g_norm.") {
        return of_mixer(&format!("ln_x.{end}"));
    }
    let known = TIME_MIX.iter().find(|(ours, _)| *ours == part);
    let theirs = known.map_or(part, |(_, theirs)| theirs);
    match theirs {
        "time_decay_w1" | "time_decay_w2" | "time_maa_w1" => {
            transposed(name, &of_mixer(theirs)?, 1)
        }
        _ => of_mixer(theirs),
    }
}
