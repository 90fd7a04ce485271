//! Nemotron-H, as saved by transformers: every layer is one sublayer, either Mamba-2, attention without positions, or a
//! feed-forward network or mixture of experts with squared ReLU and no gates.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::ExpertNames;
use super::hugging_face::attention_without_positions;
use super::hybrid::{self, Kind};
use super::{Config, Family, mamba};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, MlpSpec, SharedSpec};
use crate::functions::Activation;
use crate::mixers::{Attention, Mamba2};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::{Groups, Router, Scoring};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["nemotron_h"],
    spec,
    tensor: |_, weights, weight| tensor(weights, weight),
};

/// The reference adds this to the sum of the chosen experts' scores.
const SCORE_EPS: f32 = 1e-20;

const EXPERTS: ExpertNames = ExpertNames {
    block: "mixer",
    shared: "mixer.shared_experts",
    ..ExpertNames::USUAL
};

fn tensor(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let model = weights.contains("model.embed_tokens.weight");
    let layers = if model {
        "model.layers"
    } else {
        "backbone.layers"
    };
    let of_experts = EXPERTS.tensor(weight, layers, &|name| Ok(weights.tensor(name)?));
    of_experts.unwrap_or_else(|| mamba::tensor(weights, tensor_name(&weight.name, model)))
}

/// The checkpoint's name for one of our tensors; some files use other names outside the layers.
fn tensor_name(name: &str, model: bool) -> String {
    let backbone = [
        ("token_embd.weight", "backbone.embeddings.weight"),
        ("output_norm.weight", "backbone.norm_f.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    let usual = [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm_f.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    let parts = [
        ("attn_norm.", "norm."),
        ("ffn_norm.", "norm."),
        ("ffn_up.", "mixer.up_proj."),
        ("ffn_down.", "mixer.down_proj."),
    ];
    if model {
        hybrid::renamed(name, &usual, "model.layers", &parts)
    } else {
        hybrid::renamed(name, &backbone, "backbone.layers", &parts)
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let mamba = Arc::new(mamba2(config)?);
    let attention = Arc::new(Attention {
        // No bias, regardless of attention_bias.
        bias: false,
        out_bias: false,
        ..attention_without_positions(config)?
    });
    let mlp = mlp(config)?;
    let layers = kinds(config)?
        .into_iter()
        .map(|kind| match kind {
            Kind::Mamba => Ok(LayerSpec::new(mamba.clone(), None)),
            Kind::Attention => Ok(LayerSpec::new(attention.clone(), None)),
            Kind::Mlp => Ok(LayerSpec {
                ffn: Some(mlp.into()),
                ..LayerSpec::default()
            }),
            Kind::Experts => Ok(LayerSpec {
                ffn: Some(FeedForward::Experts(experts(config)?)),
                ..LayerSpec::default()
            }),
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden: config.usize("hidden_size")?,
        norm_eps: config.f32_or("layer_norm_epsilon", 1e-5)?,
        layers,
        ..ModelSpec::default()
    })
}

/// The kind of every layer; older files use one letter per layer.
fn kinds(config: &Config) -> Result<Vec<Kind>> {
    if let Some(kinds) = hybrid::kinds(config, &["layers_block_type", "layer_types"])? {
        return Ok(kinds);
    }
    let letters = config.string("hybrid_override_pattern")?.chars();
    let kind = |letter| match letter {
        'M' => Ok(Kind::Mamba),
        '*' => Ok(Kind::Attention),
        '-' => Ok(Kind::Mlp),
        'E' => Ok(Kind::Experts),
        _ => Err(config.wrong("hybrid_override_pattern", "letters M, *, - and E")),
    };
    letters.map(kind).collect()
}

fn mamba2(config: &Config) -> Result<Mamba2> {
    config.one_of("mamba_hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let groups = config.usize_or("n_groups", 8)?;
    let (step_min, step_max) = config.limits("time_step_limit", (0.0, f32::INFINITY))?;
    Ok(Mamba2 {
        heads: config.usize_or("mamba_num_heads", 128)?,
        head_dim: config.usize_or("mamba_head_dim", 64)?,
        groups,
        state: config.usize_or("ssm_state_size", 128)?,
        conv: config.usize_or("conv_kernel", 4)?,
        conv_bias: config.bool_or("use_conv_bias", true)?,
        bias: config.bool_or("use_bias", false)?,
        skip_per_channel: false,
        norm_groups: Some(groups),
        norm_before_gate: false,
        norm_eps: config.f32_or("layer_norm_epsilon", 1e-5)?,
        step_min,
        step_max: step_max.is_finite().then_some(step_max),
        out_bias: None,
        multipliers: None,
        hax: None,
    })
}

fn mlp(config: &Config) -> Result<MlpSpec> {
    config.one_of("mlp_hidden_act", (), &[("relu2", ())])?;
    Ok(MlpSpec {
        intermediate: config.usize("intermediate_size")?,
        gated: false,
        activation: Activation::SquaredRelu,
        bias: config.bool_or("mlp_bias", false)?,
        ..MlpSpec::default()
    })
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    let groups = config.usize_or("n_group", 1)?;
    let top_k = config.usize_or("topk_group", 1)?;
    let normalize = config.bool_or("norm_topk_prob", true)?;
    let shared = config.usize_or("n_shared_experts", 1)?;
    Ok(ExpertsSpec {
        experts: config.usize("n_routed_experts")?,
        chosen: config.usize("num_experts_per_tok")?,
        intermediate: config.usize("moe_intermediate_size")?,
        router: Router {
            softcap: None,
            scoring: Scoring::Sigmoid,
            normalize: normalize.then_some(SCORE_EPS),
            scale: config.f32_or("routed_scaling_factor", 1.0)?,
            groups: (groups > 1).then_some(Groups {
                count: groups,
                top_k,
            }),
        },
        bias: true,
        gated: false,
        activation: mlp(config)?.activation,
        latent: config.optional_usize("moe_latent_size")?,
        shared: match shared {
            0 => None,
            _ => Some(SharedSpec {
                intermediate: config.usize("moe_shared_expert_intermediate_size")?,
                gate: false,
            }),
        },
        ..ExpertsSpec::default()
    })
}
