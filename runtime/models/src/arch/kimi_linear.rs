//! Kimi Linear, as saved by transformers: layers of Kimi Delta Attention and of latent attention without positions, each
//! with a feed-forward network or a mixture of experts.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, layer_part};
use super::hugging_face::{layer_type, mlp, model, norm_eps, tensor_name};
use super::tensors::{rows_of_groups, transposed};
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, SharedSpec};
use crate::mixers::{Kda, LatentAttention, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::{Groups, Router, Scoring};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["kimi_linear"],
    spec,
    tensor,
};

/// Epsilon of the norms inside latent attention, as in the reference.
pub(super) const LATENT_EPS: f32 = 1e-6;
/// The reference adds this to the sum of the chosen experts' scores.
pub(super) const SCORE_EPS: f32 = 1e-20;

const EXPERTS: ExpertNames = ExpertNames {
    block: "block_sparse_moe",
    parts: ["w1", "w3", "w2"],
    shared: "block_sparse_moe.shared_experts",
    ..ExpertNames::USUAL
};

fn spec(config: &Config) -> Result<ModelSpec> {
    let delta: Arc<dyn Mixer> = Arc::new(delta_attention(config)?);
    let latent: Arc<dyn Mixer> = Arc::new(latent_attention(config)?);
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer = if is_full(config, layer)? {
                Arc::clone(&latent)
            } else {
                Arc::clone(&delta)
            };
            let ffn = if is_sparse(config, layer)? {
                FeedForward::Experts(experts(config)?)
            } else {
                FeedForward::Dense(mlp(config)?)
            };
            Ok(LayerSpec {
                mixer: Some(mixer),
                ffn: Some(ffn),
                ..LayerSpec::default()
            })
        })
        .collect::<Result<_>>()?;
    let model = model(config, layers)?;
    // The reference never ties, so an output matrix is used even if the file claims a tied one.
    let tied = model.tied && !config.has_tensor("lm_head.weight");
    Ok(ModelSpec { tied, ..model })
}

/// Whether a layer is latent attention. Published files list the layers' numbers, counted from one.
fn is_full(config: &Config, layer: usize) -> Result<bool> {
    match layer_type(config, layer)? {
        Some("full_attention") => Ok(true),
        Some("linear_attention") => Ok(false),
        Some(_) => Err(config.wrong("layer_types", "full_attention or linear_attention")),
        None => {
            let linear = linear_config(config)?;
            Ok(linear.usizes("full_attn_layers")?.contains(&(layer + 1)))
        }
    }
}

fn linear_config(config: &Config) -> Result<Config> {
    let key = "linear_attn_config";
    let linear = config.child(key)?;
    linear.ok_or_else(|| {
        config.wrong(
            key,
            "an object with the linear layers, or the key layer_types",
        )
    })
}

fn is_sparse(config: &Config, layer: usize) -> Result<bool> {
    let key = "mlp_layer_types";
    if config.object().contains_key(key) {
        let kinds = config.array(key)?;
        return match kinds.get(layer).and_then(|kind| kind.as_str()) {
            Some("sparse") => Ok(true),
            Some("dense") => Ok(false),
            _ => Err(config.wrong(key, "dense or sparse for every layer")),
        };
    }
    let dense = config.usize_or("first_k_dense_replace", 0)?;
    let every = config.usize_or("moe_layer_freq", 1)?;
    Ok(layer >= dense && layer.is_multiple_of(every))
}

fn delta_attention(config: &Config) -> Result<Kda> {
    let linear = config.child("linear_attn_config")?;
    let number = |key: &str, published: &str, usual: usize| match &linear {
        Some(linear) => linear.usize_or(published, usual),
        None => config.usize_or(key, usual),
    };
    let heads = number("linear_num_heads", "num_heads", 32)?;
    let head_dim = number("linear_head_dim", "head_dim", 128)?;
    Ok(Kda {
        heads,
        value_heads: heads,
        head_dim,
        value_dim: head_dim,
        conv: Some(number(
            "linear_conv_kernel_dim",
            "short_conv_kernel_size",
            4,
        )?),
        negative_eigenvalues: false,
        decay_bound: None,
        gate_bias: false,
        full_rank: false,
        norm_eps: norm_eps(config)?,
    })
}

fn latent_attention(config: &Config) -> Result<LatentAttention> {
    if !config.bool_or("mla_use_nope", true)? {
        return Err(config.wrong("mla_use_nope", "true"));
    }
    Ok(LatentAttention {
        heads: config.usize("num_attention_heads")?,
        latent: config.usize_or("kv_lora_rank", 512)?,
        nope: config.usize_or("qk_nope_head_dim", 128)?,
        rope: config.usize_or("qk_rope_head_dim", 64)?,
        value_dim: config.usize_or("v_head_dim", 128)?,
        query_rank: config.optional_usize("q_lora_rank")?,
        rope_theta: None,
        norm_eps: LATENT_EPS,
        head_gate: false,
    })
}

fn experts(config: &Config) -> Result<ExpertsSpec> {
    config.one_of("moe_router_activation_func", (), &[("sigmoid", ())])?;
    let intermediate = config.usize("moe_intermediate_size")?;
    let groups = config.usize_or("num_expert_group", 1)?;
    let shared = config.usize_or("num_shared_experts", 1)?;
    let normalize = config.bool_or("moe_renormalize", true)?;
    Ok(ExpertsSpec {
        experts: config.usize("num_experts")?,
        chosen: config.usize_or("num_experts_per_token", 8)?,
        intermediate,
        router: Router {
            softcap: None,
            scoring: Scoring::Sigmoid,
            normalize: normalize.then_some(SCORE_EPS),
            scale: config.f32_or("routed_scaling_factor", 1.0)?,
            groups: match groups {
                0 | 1 => None,
                _ => Some(Groups {
                    count: groups,
                    top_k: config.usize_or("topk_group", 1)?,
                }),
            },
        },
        bias: true,
        shared: (shared > 0).then(|| SharedSpec {
            intermediate: intermediate.saturating_mul(shared),
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
    let Some((layer, part)) = layer_part(name) else {
        return read(&tensor_name(name, ""));
    };
    let of_layer = |name: &str| read(&format!("model.layers.{layer}.{name}"));
    if let Some(tensor) = EXPERTS.tensor(weight, "model.layers", &read) {
        return tensor;
    }
    let Some(part) = part.strip_prefix("mixer.") else {
        let theirs = tensor_name(name, "");
        // transformers uses the experts' prefix for dense networks too.
        return if weights.contains(&theirs) {
            read(&theirs)
        } else {
            read(&theirs.replace(".mlp.", ".block_sparse_moe."))
        };
    };
    let of_mixer = |name: &str| of_layer(&format!("self_attn.{name}"));
    let of_heads = |part: LatentPart| {
        let latent = latent_attention(config)?;
        part_of_heads(name, &of_mixer("kv_b_proj.weight")?, &latent, part)
    };
    match part {
        "f_proj.0.weight" => of_mixer("f_a_proj.weight"),
        "f_proj.1.weight" => of_mixer("f_b_proj.weight"),
        "g_proj.0.weight" => of_mixer("g_a_proj.weight"),
        "g_proj.1.weight" => of_mixer("g_b_proj.weight"),
        "kv_a_proj.weight" => of_mixer("kv_a_proj_with_mqa.weight"),
        "kv_a_norm.weight" => of_mixer("kv_a_layernorm.weight"),
        "q_a_norm.weight" => of_mixer("q_a_layernorm.weight"),
        "k_b.weight" => of_heads(LatentPart::Keys),
        "v_b.weight" => of_heads(LatentPart::Values),
        _ => of_mixer(part),
    }
}

/// A part of the matrix from the latent to keys and values.
#[derive(Clone, Copy, PartialEq)]
pub(super) enum LatentPart {
    /// The keys' rows, transposed because the queries are multiplied by them.
    Keys,
    /// The values' rows.
    Values,
}

/// Extracts keys or values from a matrix that holds both for each head, one after the other.
pub(super) fn part_of_heads(
    name: &str,
    both: &Tensor,
    latent: &LatentAttention,
    part: LatentPart,
) -> Result<Tensor> {
    let (heads, nope) = (latent.heads, latent.nope);
    match part {
        LatentPart::Keys => transposed(name, &rows_of_groups(name, both, heads, 0..nope)?, heads),
        LatentPart::Values => rows_of_groups(name, both, heads, nope..nope + latent.value_dim),
    }
}
