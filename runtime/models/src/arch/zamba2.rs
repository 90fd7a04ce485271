//! Zamba2, as saved by transformers: Mamba-2 layers, some of them after one of a few shared Transformer blocks.
//!
//! The tensors of a shared block are stored in the first layer that uses it, with the corrections of all its uses; published
//! files may repeat them in its other layers.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::layer_part;
use super::hugging_face::tensor_name;
use super::tensors::rows;
use super::{Config, Family, mamba};
use crate::error::Result;
use crate::mixers::{Mamba2, Mixer, SharedBlock, SharedBlockSpec};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::{WeightSpec, shared_name};

pub(super) const FAMILY: Family = Family {
    model_types: &["zamba2"],
    spec,
    tensor,
};

/// Epsilon of Mamba-2's output norm, as in the reference.
const OUTPUT_EPS: f32 = 1e-5;

fn spec(config: &Config) -> Result<ModelSpec> {
    let mamba: Arc<dyn Mixer> = Arc::new(mamba2(config)?);
    let mut uses = 0;
    let mut layers = Vec::new();
    for shared in kinds(config)? {
        let mixer: Arc<dyn Mixer> = if shared {
            Arc::new(SharedBlock {
                block: block(config, uses)?,
                mixer: Arc::clone(&mamba),
            })
        } else {
            Arc::clone(&mamba)
        };
        uses += usize::from(shared);
        layers.push(LayerSpec::new(mixer, None));
    }
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden: config.usize("hidden_size")?,
        norm_eps: config.f32_or("rms_norm_eps", 1e-5)?,
        tied: config.bool_or("tie_word_embeddings", true)?,
        layers,
        ..ModelSpec::default()
    })
}

/// Which layers use a shared block.
fn kinds(config: &Config) -> Result<Vec<bool>> {
    let key = "layers_block_type";
    let kind = |name: &serde_json::Value| match name.as_str() {
        Some("hybrid") => Some(true),
        Some("mamba" | "linear_attention") => Some(false),
        _ => None,
    };
    let kinds: Option<Vec<bool>> = config.array(key)?.iter().map(kind).collect();
    let layers = config.layers()?;
    let kinds = kinds.filter(|kinds| kinds.len() == layers);
    let expected = format!("mamba, linear_attention or hybrid for each of {layers} layers");
    kinds.ok_or_else(|| config.wrong(key, &expected))
}

/// The shared block of use number `uses`.
fn block(config: &Config, uses: usize) -> Result<SharedBlockSpec> {
    config.one_of("hidden_act", (), &[("gelu", ())])?;
    let blocks = config.usize_or("num_mem_blocks", 1)?;
    if blocks == 0 {
        return Err(config.wrong("num_mem_blocks", "one block or more"));
    }
    let heads = config.usize("num_attention_heads")?;
    let width = config.usize("hidden_size")?.saturating_mul(2);
    let given = config.usize_or("attention_hidden_size", width)?;
    if given != width {
        let expected = format!("{width}, twice the hidden size");
        return Err(config.wrong("attention_hidden_size", &expected));
    }
    let head_dim = config.usize_or("attention_head_dim", width / heads.max(1))?;
    let rank = config.usize_or("adapter_rank", 128)?;
    let theta = match config.child("rope_parameters")? {
        Some(rope) => {
            rope.one_of("rope_type", (), &[("default", ())])?;
            rope.f32_or("rope_theta", 1e4)?
        }
        None => config.f32_or("rope_theta", 1e4)?,
    };
    let positions = config.bool_or("use_mem_rope", false)?;
    let corrected = config.bool_or("use_shared_attention_adapter", false)?;
    Ok(SharedBlockSpec {
        number: uses % blocks,
        heads,
        kv_heads: config.usize_or("num_key_value_heads", heads)?,
        head_dim,
        rope_theta: positions.then_some(theta),
        intermediate: config.usize("intermediate_size")?,
        rank: Some(rank),
        attention_rank: corrected.then_some(rank),
        bias: config.bool_or("add_bias_linear", false)?,
    })
}

fn mamba2(config: &Config) -> Result<Mamba2> {
    let channels = config
        .usize_or("mamba_expand", 2)?
        .saturating_mul(config.usize("hidden_size")?);
    let heads = config.usize_or("n_mamba_heads", 8)?;
    if heads == 0 || !channels.is_multiple_of(heads) {
        let expected = format!("a divisor of the {channels} channels");
        return Err(config.wrong("n_mamba_heads", &expected));
    }
    let head_dim = channels / heads;
    if config.usize_or("mamba_headdim", head_dim)? != head_dim {
        let expected = format!("{head_dim}, for {heads} heads of {channels} channels");
        return Err(config.wrong("mamba_headdim", &expected));
    }
    let groups = config.usize_or("mamba_ngroups", 1)?;
    Ok(Mamba2 {
        heads,
        head_dim,
        groups,
        state: config.usize_or("mamba_d_state", 64)?,
        conv: config.usize_or("mamba_d_conv", 4)?,
        conv_bias: config.bool_or("use_conv_bias", true)?,
        bias: config.bool_or("add_bias_linear", false)?,
        skip_per_channel: false,
        norm_groups: Some(groups),
        norm_before_gate: false,
        norm_eps: OUTPUT_EPS,
        step_min: 0.0,
        step_max: None,
        out_bias: None,
        multipliers: None,
        hax: None,
    })
}

/// The layers that use shared blocks, in order.
fn uses(config: &Config) -> Result<Vec<usize>> {
    let kinds = kinds(config)?.into_iter().enumerate();
    Ok(kinds
        .filter_map(|(layer, shared)| shared.then_some(layer))
        .collect())
}

/// Names of the parts of a shared block in the checkpoint.
const BLOCK: [(&str, &str); 8] = [
    ("attn_norm.weight", "input_layernorm.weight"),
    ("q_proj.weight", "self_attn.q_proj.weight"),
    ("k_proj.weight", "self_attn.k_proj.weight"),
    ("v_proj.weight", "self_attn.v_proj.weight"),
    ("o_proj.weight", "self_attn.o_proj.weight"),
    ("ffn_norm.weight", "pre_ff_layernorm.weight"),
    ("ffn_down.weight", "feed_forward.down_proj.weight"),
    ("ffn_down.bias", "feed_forward.down_proj.bias"),
];

fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let name = weight.name.as_str();
    let uses = uses(config)?;
    let of_block = |number: usize, part: &str| {
        let layer = uses.get(number).copied().unwrap_or(0);
        Ok(weights.tensor(&format!("model.layers.{layer}.shared_transformer.{part}"))?)
    };
    // The gates' rows come first, then the up projection's.
    let half = |both: Tensor, of_gates: bool| {
        let inner = both.shape.first().copied().unwrap_or(0) / 2;
        let range = if of_gates { 0..inner } else { inner..2 * inner };
        rows(name, &both, &[range])
    };
    let shared = name.strip_prefix(shared_name("shared_block.").as_str());
    if let Some((number, part)) = shared.and_then(|rest| rest.split_once('.')) {
        let number: usize = number.parse().unwrap_or(0);
        return match BLOCK.iter().find(|(ours, _)| *ours == part) {
            Some((_, theirs)) => of_block(number, theirs),
            None => {
                let end = if part.ends_with(".bias") {
                    "bias"
                } else {
                    "weight"
                };
                let both = of_block(number, &format!("feed_forward.gate_up_proj.{end}"))?;
                half(both, part.starts_with("ffn_gate."))
            }
        };
    }
    let Some((layer, part)) = layer_part(name) else {
        let theirs = match name {
            "output_norm.weight" => "model.final_layernorm.weight".into(),
            _ => tensor_name(name, ""),
        };
        return Ok(weights.tensor(&theirs)?);
    };
    let Some(number) = uses.iter().position(|&shared| shared == layer) else {
        let part = match part.strip_prefix("mixer.") {
            Some(part) => format!("mamba.{part}"),
            None => "input_layernorm.weight".into(),
        };
        return mamba::tensor(weights, format!("model.layers.{layer}.{part}"));
    };
    let blocks = config.usize_or("num_mem_blocks", 1)?;
    let correction = |of: &str, index: usize| {
        let list = format!("{of}_adapter_list.{number}.{index}.weight");
        of_block(number % blocks.max(1), &list)
    };
    let of_attention = |part: &str| {
        let (projection, end) = part.strip_suffix(".weight")?.split_once("_proj_")?;
        Some((
            format!("self_attn.linear_{projection}"),
            usize::from(end == "b"),
        ))
    };
    match part.strip_prefix("mixer.") {
        None => Ok(weights.tensor(&format!(
            "model.layers.{layer}.mamba_decoder.input_layernorm.weight"
        ))?),
        Some("block_out.weight") => {
            Ok(weights.tensor(&format!("model.layers.{layer}.linear.weight"))?)
        }
        Some("ffn_a.weight") => correction("feed_forward.gate_up_proj", 0),
        Some(part @ ("ffn_gate_b.weight" | "ffn_up_b.weight")) => half(
            correction("feed_forward.gate_up_proj", 1)?,
            part == "ffn_gate_b.weight",
        ),
        Some(part) => match (part.strip_prefix("mamba2."), of_attention(part)) {
            (Some(part), _) => mamba::tensor(
                weights,
                format!("model.layers.{layer}.mamba_decoder.mamba.{part}"),
            ),
            (None, Some((of, index))) => correction(&of, index),
            (None, None) => Ok(weights.tensor(name)?),
        },
    }
}
