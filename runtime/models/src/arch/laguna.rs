//! Laguna, as saved by transformers: windowed and full attention with heads and rotary positions of their own and softplus gates, dense
//! layers, then mixtures.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, is_listed_sparse};
use super::hugging_face::{attention_without_positions, mlp, model, norm_eps, tensor_name};
use super::rotary::with_kind;
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, SharedSpec};
use crate::functions::Activation;
use crate::mixers::Attention;
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::{Router, Scoring};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["laguna"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

const NAMES: ExpertNames = ExpertNames {
    bias: "experts.e_score_correction_bias",
    ..ExpertNames::USUAL
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let layers = (0..config.layers()?).map(|layer| {
        let ffn = match is_listed_sparse(config, layer)?.unwrap_or(layer > 0) {
            true => FeedForward::Experts(experts(config)?),
            false => FeedForward::Dense(mlp(config)?),
        };
        Ok(LayerSpec {
            ffn: Some(ffn),
            ..LayerSpec::new(Arc::new(layer_attention(config, layer)?), None)
        })
    });
    model(config, layers.collect::<Result<_>>()?)
}

/// The attention of layer `layer`, with the heads of the layer and the positions of its kind.
fn layer_attention(config: &Config, layer: usize) -> Result<Attention> {
    const HEADS: &str = "num_attention_heads_per_layer";
    let attention = attention_without_positions(config)?;
    let heads = match config.object().get(HEADS) {
        None | Some(serde_json::Value::Null) => attention.heads,
        Some(_) => {
            let heads = config.usizes(HEADS)?.get(layer).copied();
            heads.ok_or_else(|| config.wrong(HEADS, "a number for every layer"))?
        }
    };
    let (gate, gate_per_head) = gating(config)?;
    with_kind(
        config,
        layer,
        Attention {
            heads,
            head_norm_eps: Some(norm_eps(config)?),
            gate,
            gate_per_head,
            gate_function: gate.then_some(Activation::Softplus),
            ..attention
        },
    )
}

/// Whether the output of attention is gated, and whether by one value for each head.
fn gating(config: &Config) -> Result<(bool, bool)> {
    const KEY: &str = "gating";
    match config.object().get(KEY) {
        Some(serde_json::Value::String(_)) => match config.string(KEY)? {
            "per-head" | "per_head" => Ok((true, true)),
            "per-element" | "per_element" => Ok((true, false)),
            _ => Err(config.wrong(KEY, "true, false, per-head or per-element")),
        },
        _ => {
            let gate = config.bool_or(KEY, true)?;
            Ok((gate, gate))
        }
    }
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let shared = config.usize_or("shared_expert_intermediate_size", 0)?;
    Ok(ExpertsSpec {
        experts: config.usize_or("num_experts", 256)?,
        chosen: config.usize_or("num_experts_per_tok", 8)?,
        intermediate: config.usize("moe_intermediate_size")?,
        router: Router {
            softcap: config
                .optional_f32("moe_router_logit_softcapping")?
                .filter(|&cap| cap > 0.0),
            scoring: Scoring::Sigmoid,
            scale: config.f32_or("moe_routed_scaling_factor", 1.0)?,
            ..Router::softmax(true)
        },
        bias: true,
        shared: (shared > 0).then_some(SharedSpec {
            intermediate: shared,
            gate: false,
        }),
        ..ExpertsSpec::default()
    })
}

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let of_experts = NAMES.tensor(weight, "model.layers", &read);
    of_experts.unwrap_or_else(|| read(&tensor_name(&weight.name, "self_attn")))
}
