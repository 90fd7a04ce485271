//! Configurations of flash-linear-attention: keys common to all its models, Transformer and Gated DeltaNet, attention
//! layers in hybrids and, in the learnable-token-eviction fork, eviction. Softmax linear attention (arXiv 2602.01744) has
//! no published checkpoints; the names of its models are `softmax_` and the base's name, with the base's keys,
//! `sla_gate_input` and `sla_gate_after_norm`. Row-sparse updates (arXiv 2507.16577) have none either; they add the key `row_topk` to the keys of
//! `gla` and `gsa`.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::{Config, Family, fla_linear, fla_memories, fla_slots, tensors};
use crate::error::{Error, Result};
use crate::feed_forward::MlpSpec;
use crate::functions::Activation;
use crate::mixers::{
    Attention, GatedDeltaNet, Lte, Mixer, NativeSparseAttention, RouterScope, ScoreMap,
};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &[
        "transformer",
        "nsa",
        "gated_deltanet",
        "hybrid_gated_deltanet",
        "softmax_gated_deltanet",
        "gla",
        "softmax_gla",
        "simple_gla",
        "retnet",
        "softmax_retnet",
        "delta_net",
        "hgrn2",
        "kda",
        "gdn2",
        "gsa",
        "abc",
        "raven",
        "mom",
    ],
    spec,
    tensor,
};

/// Reads the mixer of a layer, unless the layer is one of a hybrid's attention layers.
fn mixer(config: &Config, layer: usize) -> Result<Arc<dyn Mixer>> {
    Ok(match config.string("model_type")? {
        "transformer" => Arc::new(attention(config, config.usize("hidden_size")?)?),
        "nsa" => Arc::new(native_sparse_attention(config)?),
        "gla" | "softmax_gla" => Arc::new(fla_linear::gla(config)?),
        "simple_gla" => Arc::new(fla_linear::simple_gla(config)?),
        "retnet" | "softmax_retnet" => Arc::new(fla_linear::retnet(config)?),
        "delta_net" => Arc::new(fla_linear::delta_net(config)?),
        "hgrn2" => Arc::new(fla_linear::hgrn2(config, layer)?),
        "kda" => Arc::new(fla_linear::kda(config)?),
        "gdn2" => Arc::new(fla_linear::gdn2(config)?),
        "gsa" => Arc::new(fla_slots::gsa(config)?),
        "abc" => Arc::new(fla_slots::abc(config)?),
        "raven" => Arc::new(fla_slots::raven(config)?),
        "mom" => Arc::new(fla_memories::mom(config)?),
        _ => Arc::new(gated_deltanet(config)?),
    })
}

/// Reads one of our tensors from the checkpoint.
fn tensor(
    config: &Config,
    weights: &safetensors::Checkpoint,
    weight: &WeightSpec,
) -> Result<Tensor> {
    let name = tensor_name(&weight.name);
    if let Some(block) = name.strip_suffix("attn.lower_bound") {
        return fla_linear::lower_bound(weights, block);
    }
    if let Some(mixer) = name.strip_suffix("o_norm.weight") {
        let theirs = ["o_norm.weight", "g_norm_swish_gate.weight", "g_norm.weight"]
            .map(|norm| format!("{mixer}{norm}"));
        if let Some(name) = theirs.iter().find(|name| weights.contains(name)) {
            return Ok(weights.tensor(name)?);
        }
    }
    let is_head_norm = ["o_norm", "q_norm", "k_norm"]
        .iter()
        .any(|norm| name.ends_with(&format!(".attn.{norm}.weight")));
    if is_head_norm && !weights.contains(&name) && !config.bool_or("elementwise_affine", true)? {
        return tensors::from_f32(&weight.shape, &vec![1.0; weight.len()]);
    }
    if config.string("model_type")? == "mom"
        && let Some(tensor) = fla_memories::of_memories(config, weights, &name, weight)?
    {
        return Ok(tensor);
    }
    let tensor = weights.tensor(&name)?;
    let gate = name.ends_with(".gate_q_proj.weight") || name.ends_with(".gate_k_proj.weight");
    if gate && config.optional_text("sla_gate_input")? == Some("head") {
        return fla_linear::block_diagonal(&name, &tensor, weight);
    }
    Ok(tensor)
}

/// The checkpoint's name for one of our tensors.
pub(super) fn tensor_name(name: &str) -> String {
    let whole = [
        ("token_embd.weight", "model.embeddings.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("output.weight", "lm_head.weight"),
    ];
    if let Some((_, theirs)) = whole.iter().find(|(ours, _)| *ours == name) {
        return (*theirs).into();
    }
    let parts = [
        (".ffn_norm.", ".mlp_norm."),
        (".ffn_gate.", ".mlp.gate_proj."),
        (".ffn_up.", ".mlp.up_proj."),
        (".ffn_down.", ".mlp.down_proj."),
        (".mixer.", ".attn."),
    ];
    let theirs = name.replacen("blk.", "model.layers.", 1);
    match parts.iter().find(|(ours, _)| theirs.contains(ours)) {
        Some((ours, part)) => theirs.replacen(ours, part, 1),
        None => theirs,
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let norm_eps = config.f32_or("norm_eps", 1e-6)?;
    let mlp = mlp(config, hidden)?;
    if config.optional_usize("attnres_block_size")?.is_some() {
        return Err(Error::Unsupported {
            file: config.file().into(),
            what: "attnres_block_size (attention over residuals), expected null".into(),
        });
    }
    let attention_configs = config.children("attn")?;
    let attention_layers = attention_configs
        .iter()
        .map(|attention| attention.usizes("layers"))
        .collect::<Result<Vec<_>>>()?;
    let layers = (0..config.layers()?)
        .map(|layer| {
            let hybrid = attention_layers
                .iter()
                .position(|layers| layers.contains(&layer));
            let mixer = match hybrid {
                Some(index) => attention_layer(&attention_configs[index], hidden)?,
                None => mixer(config, layer)?,
            };
            Ok(LayerSpec::new(mixer, Some(mlp)))
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: vocab(config)?,
        hidden,
        norm_eps,
        tied: config.bool_or("tie_word_embeddings", false)?,
        layers,
        ..ModelSpec::default()
    })
}

/// The size of the vocabulary. A configuration that was never saved lacks what its class presets.
pub(super) fn vocab(config: &Config) -> Result<usize> {
    Ok(match config.optional_usize("vocab_size")? {
        Some(vocab) => vocab,
        None => config.rows_of("embeddings.weight").unwrap_or(32_000),
    })
}

pub(super) fn mlp(config: &Config, hidden: usize) -> Result<MlpSpec> {
    match config.optional_usize("intermediate_size")? {
        Some(intermediate) => {
            config.one_of("hidden_act", (), &[("swish", ()), ("silu", ())])?;
            Ok(MlpSpec {
                intermediate,
                ..MlpSpec::default()
            })
        }
        None => mlp_of_ratio(config, hidden),
    }
}

/// A feed-forward network whose width follows from the hidden size and `hidden_ratio`.
pub(super) fn mlp_of_ratio(config: &Config, hidden: usize) -> Result<MlpSpec> {
    config.one_of("hidden_act", (), &[("swish", ()), ("silu", ())])?;
    let ratio = config.usize_or("hidden_ratio", 4)?;
    let intermediate = (hidden.saturating_mul(ratio).saturating_mul(2) / 3).div_ceil(256) * 256;
    Ok(MlpSpec {
        intermediate,
        ..MlpSpec::default()
    })
}

/// Reads the attention of a hybrid's attention layer: plain, with eviction, or sparse.
fn attention_layer(config: &Config, hidden: usize) -> Result<Arc<dyn Mixer>> {
    match config.optional_text("attn_type")?.unwrap_or("attn") {
        "attn" => Ok(Arc::new(attention(config, hidden)?)),
        "lte" => Ok(Arc::new(lte(config, attention(config, hidden)?)?)),
        "nsa" => Ok(Arc::new(native_sparse_attention(config)?)),
        _ => Err(config.wrong("attn_type", "attn, lte or nsa")),
    }
}

pub(super) fn attention(config: &Config, hidden: usize) -> Result<Attention> {
    let heads = config.usize_or("num_heads", 32)?;
    if heads == 0 || !hidden.is_multiple_of(heads) {
        return Err(config.wrong(
            "num_heads",
            &format!("a divisor of the hidden size {hidden}"),
        ));
    }
    Ok(Attention {
        heads,
        kv_heads: config.usize_or("num_kv_heads", heads)?,
        head_dim: hidden / heads,
        window: config.optional_usize("window_size")?,
        rope_theta: Some(config.f32_or("rope_theta", 10000.0)?),
        bias: config.bool_or("qkv_bias", false)?,
        // The head norms keep the reference's default epsilon, regardless of norm_eps.
        head_norm_eps: config.bool_or("qk_norm", false)?.then_some(1e-5),
        ..Attention::default()
    })
}

fn native_sparse_attention(config: &Config) -> Result<NativeSparseAttention> {
    let heads = config.usize_or("num_heads", 64)?;
    let block_count = config.usize_or("block_counts", 16)?;
    Ok(NativeSparseAttention {
        attention: Attention {
            heads,
            kv_heads: config.usize_or("num_kv_heads", heads)?,
            head_dim: config.usize("head_dim")?,
            rope_theta: Some(config.f32_or("rope_theta", 10000.0)?),
            bias: config.bool_or("qkv_bias", false)?,
            ..Attention::default()
        },
        block_size: config.usize_or("block_size", 64)?,
        // The reference's kernel rounds up to a power of two.
        block_count: block_count.min(1 << 32).next_power_of_two(),
        window: config.usize_or("window_size", 512)?,
    })
}

fn lte(config: &Config, attention: Attention) -> Result<Lte> {
    let window = config.usize("window_size")?;
    let expected = "head or layer; a router shared by all layers is not supported";
    Ok(Lte {
        // In this fork's eviction layers, a query sees `window_size` keys in addition to its own.
        attention: Attention {
            window: window.checked_add(1),
            ..attention
        },
        capacity: config.usize("buffer_size")?,
        sink: config.usize("sink_size")?,
        router_taps: config.usizes("conv_size")?,
        router_dilations: config.usizes("conv_dilation")?,
        router_scope: match config.string("routing_shared")? {
            "head" => RouterScope::Head,
            "layer" => RouterScope::Layer,
            _ => return Err(config.wrong("routing_shared", expected)),
        },
        score: config.one_of(
            "routing_method",
            ScoreMap::Sigmoid,
            &[("sigmoid", ScoreMap::Sigmoid), ("relu", ScoreMap::Relu)],
        )?,
    })
}

fn gated_deltanet(config: &Config) -> Result<GatedDeltaNet> {
    let heads = config.usize_or("num_heads", 6)?;
    let head_dim = config.usize_or("head_dim", 256)?;
    let activation = [
        ("swish", Activation::Silu),
        ("silu", Activation::Silu),
        ("sigmoid", Activation::Sigmoid),
    ];
    let activation = config.one_of("output_gate_activation", Activation::Silu, &activation)?;
    let head_gates = fla_linear::head_gates(config)?;
    Ok(GatedDeltaNet {
        heads,
        value_heads: config.usize_or("num_v_heads", heads)?,
        head_dim,
        value_dim: scaled(config, head_dim, "expand_v", 2.0)?,
        conv: taps(config, true)?,
        conv_bias: config.bool_or("conv_bias", false)?,
        gate: config.bool_or("use_gate", true)?.then_some(activation),
        negative_eigenvalues: config.bool_or("allow_neg_eigval", false)?,
        decay: head_gates.is_none() || config.bool_or("sla_gdn_decay", true)?,
        read_gate_after_norm: fla_linear::gate_after_norm(config, head_gates)?,
        head_gates,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
        tiled: false,
    })
}

/// `base` times the factor at `key`; the result must be an integer.
pub(super) fn scaled(config: &Config, base: usize, key: &str, default: f32) -> Result<usize> {
    let scaled = base as f64 * f64::from(config.f32_or(key, default)?);
    let whole = scaled.round();
    if (scaled - whole).abs() > 1e-5 * whole || !(1.0..1e9).contains(&whole) {
        return Err(config.wrong(
            key,
            &format!("a factor whose product with {base} is a whole number"),
        ));
    }
    Ok(whole as usize)
}

/// Taps of the short convolutions, if there are any.
pub(super) fn taps(config: &Config, default: bool) -> Result<Option<usize>> {
    Ok(if config.bool_or("use_short_conv", default)? {
        Some(config.usize_or("conv_size", 4)?)
    } else {
        None
    })
}
