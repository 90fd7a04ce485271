//! Lara 4 Mini (transformers `lara_mini`): layers of Gated DeltaNet, of windowed attention and of full attention without
//! positions, each with a mixture of experts and an ungated shared expert.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::ExpertNames;
use super::hugging_face::{attention, layer_type, model, norm_eps, tensor_name};
use super::tensors::rows;
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, SharedSpec};
use crate::functions::Activation;
use crate::mixers::{Attention, GatedDeltaNet, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["lara_mini"],
    spec,
    tensor,
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let sliding = Attention {
        window: Some(config.usize_or("sliding_window", 512)?),
        head_norm_eps: Some(norm_eps(config)?),
        ..attention(config)?
    };
    let full: Arc<dyn Mixer> = Arc::new(Attention {
        window: None,
        rope_theta: None,
        rope_dim: None,
        rope_scaling: None,
        ..sliding.clone()
    });
    let sliding: Arc<dyn Mixer> = Arc::new(sliding);
    let delta: Arc<dyn Mixer> = Arc::new(gated_deltanet(config)?);
    let experts = experts(config)?;
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer = match kind(config, layer)? {
                "sliding_attention" => &sliding,
                "full_attention" => &full,
                "linear_attention" => &delta,
                _ => {
                    let known = "linear_attention, sliding_attention or full_attention";
                    return Err(config.wrong("layer_types", known));
                }
            };
            Ok(LayerSpec {
                ffn: Some(FeedForward::Experts(experts)),
                ..LayerSpec::new(Arc::clone(mixer), None)
            })
        })
        .collect::<Result<_>>()?;
    let model = model(config, layers)?;
    let tied = config.bool_or("tie_word_embeddings", true)?;
    Ok(ModelSpec { tied, ..model })
}

/// The kind of a layer: by the configuration's list, or by its place in a period of five.
fn kind(config: &Config, layer: usize) -> Result<&str> {
    const PERIOD: [&str; 5] = [
        "linear_attention",
        "sliding_attention",
        "linear_attention",
        "full_attention",
        "sliding_attention",
    ];
    Ok(layer_type(config, layer)?.unwrap_or(PERIOD[layer % 5]))
}

fn gated_deltanet(config: &Config) -> Result<GatedDeltaNet> {
    Ok(GatedDeltaNet {
        heads: config.usize_or("linear_num_key_heads", 8)?,
        value_heads: config.usize_or("linear_num_value_heads", 16)?,
        head_dim: config.usize_or("linear_key_head_dim", 128)?,
        value_dim: config.usize_or("linear_value_head_dim", 128)?,
        conv: Some(config.usize_or("linear_conv_kernel_dim", 4)?),
        conv_bias: false,
        gate: Some(Activation::Silu),
        negative_eigenvalues: false,
        decay: true,
        head_gates: None,
        read_gate_after_norm: false,
        norm_eps: norm_eps(config)?,
        tiled: false,
    })
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    Ok(ExpertsSpec {
        experts: config.usize_or("num_experts", 128)?,
        chosen: config.usize_or("num_experts_per_tok", 4)?,
        intermediate: config.usize_or("moe_intermediate_size", 512)?,
        router: Router::softmax(config.bool_or("norm_topk_prob", true)?),
        shared: Some(SharedSpec {
            intermediate: config.usize_or("shared_expert_intermediate_size", 512)?,
            gate: false,
        }),
        ..ExpertsSpec::default()
    })
}

fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let name = weight.name.as_str();
    if let Some(tensor) = ExpertNames::USUAL.tensor(weight, "model.layers", &read) {
        return tensor;
    }
    let mixer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split_once(".mixer."));
    let Some((layer, part)) = mixer else {
        return read(&tensor_name(name, ""));
    };
    let is_delta = match layer.parse() {
        Ok(layer) => kind(config, layer)? == "linear_attention",
        Err(_) => false,
    };
    if !is_delta {
        return read(&tensor_name(name, "self_attn"));
    }
    let delta = gated_deltanet(config)?;
    let of_delta = |name: &str| read(&format!("model.layers.{layer}.linear_attn.{name}"));
    let (keys, heads) = (delta.heads * delta.head_dim, delta.value_heads);
    let values = heads * delta.value_dim;
    // One matrix holds queries, keys, values, gates, write strengths and decays; the first three share a convolution.
    let lengths = [
        ("q", keys),
        ("k", keys),
        ("v", values),
        ("g", values),
        ("b", heads),
        ("a", heads),
    ];
    let mut first = 0;
    for (letter, length) in lengths {
        let range = first..first + length;
        first += length;
        match part.strip_prefix(letter) {
            Some("_proj.weight") => return rows(name, &of_delta("in_proj.weight")?, &[range]),
            Some("_conv1d.weight") => return rows(name, &of_delta("conv1d.weight")?, &[range]),
            _ => (),
        }
    }
    match part {
        "o_norm.weight" => of_delta("out_norm.weight"),
        "o_proj.weight" => of_delta("out_proj.weight"),
        _ => of_delta(part),
    }
}
