//! Qwen3 with mixtures of experts and Mellum 2, as saved by transformers. Mellum's layers with a window have rotary positions of their own.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, is_sparse};
use super::hugging_face::{
    attention, attention_without_positions, mlp, model, norm_eps, slides_by_list, tensor_name,
};
use super::{Config, Family, rotary};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward};
use crate::mixers::Attention;
use crate::model::LayerSpec;
use crate::ops::Router;
use crate::weights::WeightSpec;

pub(super) const QWEN: Family = Family {
    model_types: &["qwen3_moe"],
    spec: |config| {
        let window = config.optional_usize("sliding_window")?;
        let slides = config.bool_or("use_sliding_window", false)?;
        let attention = Attention {
            head_norm_eps: Some(norm_eps(config)?),
            window: window.filter(|_| slides),
            ..attention(config)?
        };
        let experts = experts(config, config.usize_or("num_experts", 128)?)?;
        let layers = (0..config.layers()?).map(|layer| {
            let ffn = feed_forward(config, experts, is_sparse(config, layer, experts.experts)?)?;
            Ok(block(attention.clone(), ffn))
        });
        model(config, layers.collect::<Result<_>>()?)
    },
    tensor,
};

pub(super) const MELLUM: Family = Family {
    model_types: &["mellum"],
    spec: |config| {
        let experts = experts(config, config.usize_or("num_local_experts", 64)?)?;
        let layers = (0..config.layers()?).map(|layer| {
            let ffn = feed_forward(config, experts, is_listed(config, layer)?)?;
            Ok(block(windowed(config, layer)?, ffn))
        });
        model(config, layers.collect::<Result<_>>()?)
    },
    tensor,
};

fn tensor(_: &Config, weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let of_experts = ExpertNames::USUAL.tensor(weight, "model.layers", &read);
    of_experts.unwrap_or_else(|| read(&tensor_name(&weight.name, "self_attn")))
}

fn block(attention: Attention, ffn: FeedForward) -> LayerSpec {
    LayerSpec {
        mixer: Some(Arc::new(attention)),
        ffn: Some(ffn),
        ..LayerSpec::default()
    }
}

fn feed_forward(config: &Config, experts: ExpertsSpec, is_sparse: bool) -> Result<FeedForward> {
    Ok(match is_sparse {
        true => FeedForward::Experts(experts),
        false => FeedForward::Dense(mlp(config)?),
    })
}

fn experts(config: &Config, experts: usize) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    Ok(ExpertsSpec {
        experts,
        chosen: config.usize_or("num_experts_per_tok", 8)?,
        intermediate: config.usize("moe_intermediate_size")?,
        router: Router::softmax(config.bool_or("norm_topk_prob", false)?),
        ..ExpertsSpec::default()
    })
}

/// Whether a layer of Mellum has a mixture of experts.
fn is_listed(config: &Config, layer: usize) -> Result<bool> {
    const KEY: &str = "mlp_layer_types";
    if config.object().get(KEY).is_none_or(|kinds| kinds.is_null()) {
        return Ok(true);
    }
    match config.array(KEY)?.get(layer).and_then(|kind| kind.as_str()) {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(config.wrong(KEY, "sparse or dense for every layer")),
    }
}

/// The attention of a layer of Mellum, with the window and the rotary positions of the layer's kind.
fn windowed(config: &Config, layer: usize) -> Result<Attention> {
    let window = config.optional_usize("sliding_window")?;
    let (kind, window) = match slides_by_list(config, layer)? {
        Some(true) => ("sliding_attention", window),
        _ => ("full_attention", None),
    };
    let expected = "rotary positions for each kind of layer";
    let rope = config.child("rope_parameters")?;
    let rope = rope.ok_or_else(|| config.wrong("rope_parameters", expected))?;
    let rope = rope
        .child(kind)?
        .ok_or_else(|| rope.wrong(kind, expected))?;
    Ok(Attention {
        window,
        head_norm_eps: Some(norm_eps(config)?),
        rope_theta: Some(rope.f32_or("rope_theta", 10000.0)?),
        rope_scaling: rotary::scaling(&rope, config)?,
        ..attention_without_positions(config)?
    })
}
