//! LFM2 with mixtures of experts in all but the first few layers, as saved by transformers.

use waterline_quant::{Tensor, safetensors};

use super::experts::ExpertNames;
use super::{Config, Family, lfm2};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpSpec};
use crate::model::ModelSpec;
use crate::ops::{Router, Scoring};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["lfm2_moe"],
    spec,
    tensor,
};

/// The reference adds this to the sum of the chosen experts' scores.
const SUM_EPS: f32 = 1e-6;

fn spec(config: &Config) -> Result<ModelSpec> {
    let mut spec = lfm2::spec(config)?;
    let dense = MlpSpec {
        intermediate: config.usize("intermediate_size")?,
        ..MlpSpec::default()
    };
    let dense_layers = config.usize_or("num_dense_layers", 2)?;
    let experts = experts(config)?;
    for (i, layer) in spec.layers.iter_mut().enumerate() {
        layer.ffn = Some(if i < dense_layers {
            FeedForward::Dense(dense)
        } else {
            FeedForward::Experts(experts)
        });
    }
    Ok(spec)
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    let normalize = config.bool_or("norm_topk_prob", true)?;
    Ok(ExpertsSpec {
        experts: config.usize("num_experts")?,
        chosen: config.usize("num_experts_per_tok")?,
        intermediate: config.usize("moe_intermediate_size")?,
        router: Router {
            softcap: None,
            scoring: Scoring::Sigmoid,
            normalize: normalize.then_some(SUM_EPS),
            scale: config.f32_or("routed_scaling_factor", 1.0)?,
            groups: None,
        },
        bias: config.bool_or("use_expert_bias", true)?,
        ..ExpertsSpec::default()
    })
}

const EXPERTS: ExpertNames = ExpertNames {
    block: "feed_forward",
    bias: "expert_bias",
    parts: ["w1", "w3", "w2"],
    ..ExpertNames::USUAL
};

fn tensor(_: &Config, weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let read = |name: &str| Ok(weights.tensor(name)?);
    let of_experts = EXPERTS.tensor(weight, "model.layers", &read);
    of_experts.unwrap_or_else(|| read(&lfm2::tensor_name(&weight.name)))
}
