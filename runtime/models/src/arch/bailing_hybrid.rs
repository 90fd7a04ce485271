//! Ling 3.0 (transformers `bailing_hybrid`): layers of Kimi Delta Attention with a bounded decay, and layers of latent
//! attention with positions and a gate for each head. Each has a feed-forward network or a mixture of experts in groups.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::experts::{ExpertNames, layer_part};
use super::hugging_face::{layer_type, mlp, model, norm_eps, tensor_name};
use super::kimi_linear::{LATENT_EPS, LatentPart, SCORE_EPS, part_of_heads};
use super::tensors::halves;
use super::{Config, Family};
use crate::error::Result;
use crate::feed_forward::{ExpertsSpec, FeedForward, SharedSpec};
use crate::mixers::{Kda, LatentAttention, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::ops::{Groups, Router, Scoring};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["bailing_hybrid"],
    spec,
    tensor,
};

const EXPERTS: ExpertNames = ExpertNames {
    bias: "gate.expert_bias",
    shared: "mlp.shared_experts",
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
    model(config, layers)
}

/// Whether layer `layer` is latent attention: by `layer_types`, or as the last of its group or after the last complete group.
fn is_full(config: &Config, layer: usize) -> Result<bool> {
    match layer_type(config, layer)? {
        Some("full_attention") => Ok(true),
        Some("linear_attention") => Ok(false),
        Some(_) => Err(config.wrong("layer_types", "full_attention or linear_attention")),
        None => {
            let (layers, group) = (config.layers()?, config.usize_or("layer_group_size", 6)?);
            if group == 0 {
                return Err(config.wrong("layer_group_size", "a group of at least one layer"));
            }
            Ok((layer + 1).is_multiple_of(group) || layer >= layers / group * group)
        }
    }
}

fn is_sparse(config: &Config, layer: usize) -> Result<bool> {
    let key = "mlp_layer_types";
    if config.object().get(key).is_none_or(|kinds| kinds.is_null()) {
        return Ok(layer >= config.usize_or("first_k_dense_replace", 2)?);
    }
    let kinds = config.array(key)?;
    match kinds.get(layer).and_then(|kind| kind.as_str()) {
        Some("sparse") => Ok(true),
        Some("dense") => Ok(false),
        _ => Err(config.wrong(key, "dense or sparse for every layer")),
    }
}

fn delta_attention(config: &Config) -> Result<Kda> {
    if !config.bool_or("no_kda_lora", true)? {
        return Err(config.wrong("no_kda_lora", "true"));
    }
    // When transformers saves a model, `head_dim` is the rotary width.
    let head_dim = match config.optional_usize("linear_head_dim")? {
        Some(head_dim) => head_dim,
        None => config.usize_or("head_dim", 128)?,
    };
    let heads = match config.optional_usize("linear_num_heads")? {
        Some(heads) => heads,
        None => config.usize("num_attention_heads")?,
    };
    let bound = config.f32_or("kda_lower_bound", -5.0)?;
    Ok(Kda {
        heads,
        value_heads: heads,
        head_dim,
        value_dim: head_dim,
        conv: Some(config.usize_or("short_conv_kernel_size", 4)?),
        negative_eigenvalues: false,
        decay_bound: config.bool_or("kda_safe_gate", true)?.then_some(bound),
        gate_bias: false,
        full_rank: true,
        norm_eps: norm_eps(config)?,
    })
}

fn latent_attention(config: &Config) -> Result<LatentAttention> {
    let gates = "gated_attention_proj_granularity_type";
    config.one_of(gates, (), &[("head_wise", ())])?;
    if config.bool_or("attention_bias", false)? {
        return Err(config.wrong("attention_bias", "false"));
    }
    let mut theta = config.f32_or("rope_theta", 6e6)?;
    for key in ["rope_parameters", "rope_scaling"] {
        if let Some(rope) = config.child(key)? {
            for kind in ["rope_type", "type"] {
                rope.one_of(kind, (), &[("default", ()), ("mrope", ())])?;
            }
            theta = rope.f32_or("rope_theta", theta)?;
        }
    }
    Ok(LatentAttention {
        heads: config.usize("num_attention_heads")?,
        latent: config.usize_or("kv_lora_rank", 512)?,
        nope: config.usize_or("qk_nope_head_dim", 128)?,
        rope: config.usize_or("qk_rope_head_dim", 64)?,
        value_dim: config.usize_or("v_head_dim", 128)?,
        query_rank: config.optional_usize("q_lora_rank")?,
        rope_theta: Some(theta),
        norm_eps: LATENT_EPS,
        head_gate: true,
    })
}

/// The mixture of experts; published files and transformers use different names for some keys.
fn experts(config: &Config) -> Result<ExpertsSpec> {
    let number = |published: &str, saved: &str, usual: usize| match config.optional_usize(saved)? {
        Some(number) => Ok(number),
        None => config.usize_or(published, usual),
    };
    config.one_of("score_function", (), &[("sigmoid", ())])?;
    for limits in ["expert_swiglu_limit_list", "share_expert_swiglu_limit_list"] {
        let limits_are_zero = |limit: &serde_json::Value| limit.as_f64().unwrap_or(0.0) == 0.0;
        let is_there = config
            .object()
            .get(limits)
            .is_some_and(|list| !list.is_null());
        if is_there && !config.array(limits)?.iter().all(limits_are_zero) {
            return Err(config.wrong(
                limits,
                "zeros: limits on the experts' gates are not supported",
            ));
        }
    }
    let intermediate = config.usize("moe_intermediate_size")?;
    let shared = config.usize_or("num_shared_experts", 1)?;
    let shared_width = config.usize_or(
        "moe_shared_expert_intermediate_size",
        intermediate.saturating_mul(shared),
    )?;
    let groups = number("n_group", "num_expert_group", 8)?;
    let saved = config.bool_or("moe_renormalize", true)?;
    let normalize = config.bool_or("norm_topk_prob", saved)?;
    Ok(ExpertsSpec {
        experts: config.usize("num_experts")?,
        chosen: number("num_experts_per_tok", "num_experts_per_token", 8)?,
        intermediate,
        router: Router {
            softcap: None,
            scoring: Scoring::Sigmoid,
            normalize: normalize.then_some(SCORE_EPS),
            scale: config.f32_or("routed_scaling_factor", 2.5)?,
            groups: match groups {
                0 | 1 => None,
                _ => Some(Groups {
                    count: groups,
                    top_k: config.usize_or("topk_group", 4)?,
                }),
            },
        },
        bias: config.bool_or("moe_router_enable_expert_bias", true)?,
        shared: (shared > 0).then_some(SharedSpec {
            intermediate: shared_width,
            gate: false,
        }),
        ..ExpertsSpec::default()
    })
}

/// Names in memory, as transformers has them, and names in files.
const SPELLINGS: [(&str, &str); 4] = [
    ("model.embed_tokens.", "model.word_embeddings."),
    (".self_attn.o_proj.", ".attention.dense."),
    (".self_attn.", ".attention."),
    ("gate.e_score_correction_bias", "gate.expert_bias"),
];

fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let read = |name: &str| {
        let spelt = SPELLINGS.iter().find_map(|(in_memory, in_file)| {
            let published = name.replacen(in_memory, in_file, 1);
            weights.contains(&published).then_some(published)
        });
        Ok(weights.tensor(spelt.as_deref().unwrap_or(name))?)
    };
    let name = weight.name.as_str();
    if let Some(tensor) = EXPERTS.tensor(weight, "model.layers", &read) {
        return tensor;
    }
    let mixer =
        layer_part(name).and_then(|(layer, part)| Some((layer, part.strip_prefix("mixer.")?)));
    let Some((layer, part)) = mixer else {
        return read(&tensor_name(name, ""));
    };
    let of_mixer = |name: &str| read(&format!("model.layers.{layer}.self_attn.{name}"));
    if !is_full(config, layer)? {
        return of_mixer(part);
    }
    let latent = latent_attention(config)?;
    let LatentAttention {
        latent: width,
        nope,
        rope,
        ..
    } = latent;
    // With `rope_interleave`, channels that rotate together are adjacent in the file.
    let turned = |theirs: &str, first: usize| {
        let tensor = of_mixer(theirs)?;
        if config.bool_or("rope_interleave", true)? {
            halves(name, &tensor, first + rope, first..first + rope)
        } else {
            Ok(tensor)
        }
    };
    match part {
        "q_proj.weight" | "q_b_proj.weight" => turned(part, nope),
        "kv_a_proj.weight" => turned("kv_a_proj_with_mqa.weight", width),
        "kv_a_norm.weight" => of_mixer("kv_a_layernorm.weight"),
        "q_a_norm.weight" => of_mixer("q_a_layernorm.weight"),
        "k_b.weight" => part_of_heads(
            name,
            &of_mixer("kv_b_proj.weight")?,
            &latent,
            LatentPart::Keys,
        ),
        "v_b.weight" => part_of_heads(
            name,
            &of_mixer("kv_b_proj.weight")?,
            &latent,
            LatentPart::Values,
        ),
        _ => of_mixer(part),
    }
}
