//! Qwen3 with mixtures of experts and Mellum 2, as saved by transformers. Mellum's layers with a window have rotary positions of their own.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, is_listed_sparse, is_sparse};
use super::hugging_face::{
    attention, attention_without_positions, mlp, model, norm_eps, tensor_name,
};
use super::rotary::with_kind;
use super::{Config, Family};
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
        let attention = Attention {
            head_norm_eps: Some(norm_eps(config)?),
            ..attention_without_positions(config)?
        };
        let layers = (0..config.layers()?).map(|layer| {
            let ffn = feed_forward(
                config,
                experts,
                is_listed_sparse(config, layer)?.unwrap_or(true),
            )?;
            Ok(block(with_kind(config, layer, attention.clone())?, ffn))
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
