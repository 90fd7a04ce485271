//! Sparse state expansion as in `sse_swa_moba` models: layers of SSE, alone (`sse_layer` is `pure`) or in parallel with
//! sliding-window attention, and layers of attention. Other orders of layers are read from `layer_types`, a list of `sse`,
//! `sse_swa`, `sliding_attention` and `full_attention`.
//!
//! `sse`, the model type that the paper's first author proposes to flash-linear-attention (pull request 882), has the keys of that
//! library: layers of SSE alone with other defaults, and layers of windowed attention where `attn.layers` lists them.
//!
//! Layers of MoBA (arXiv 2502.13189), which the reference repository lists in `attn.layers` but not in `attn.full_layers`, attend to
//! all tokens here. So does the reference when it decodes, and in prompts of up to `moba_topk` chunks of `moba_chunk_size` tokens
//! (2,048 as published); in longer prompts its queries see only the chunks that they choose.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::fla::{self, mlp, scaled, taps, tensor_name};
use super::{Config, Family};
use crate::error::Result;
use crate::mixers::{Attention, HeadMap, Mixer, Sse, SseSwa, StateUpdate};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["sse_swa_moba", "sse"],
    spec,
    tensor,
};

#[derive(Clone, Copy)]
enum Layer {
    Sse,
    SseSwa,
    Sliding,
    Full,
    /// Attention as in other hybrids of flash-linear-attention.
    Attention,
}

/// Whether the model is of the type `sse`.
fn is_alone(config: &Config) -> Result<bool> {
    Ok(config.string("model_type")? == "sse")
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    let mlp = Some(mlp(config, hidden)?);
    note_moba(config)?;
    let layers = (0..config.layers()?)
        .map(|layer| {
            let mixer: Arc<dyn Mixer> = match layer_of(config, layer)? {
                Layer::Sse => Arc::new(sse(config, false)?),
                Layer::SseSwa => Arc::new(SseSwa {
                    sse: sse(config, true)?,
                    swa: parallel_attention(config)?,
                }),
                Layer::Sliding => Arc::new(attention(config, true)?),
                Layer::Full => Arc::new(attention(config, false)?),
                Layer::Attention => Arc::new(fla::attention(&attn(config)?, hidden)?),
            };
            Ok(LayerSpec::new(mixer, mlp))
        })
        .collect::<Result<_>>()?;
    Ok(ModelSpec {
        vocab: fla::vocab(config)?,
        hidden,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
        tied: config.bool_or("tie_word_embeddings", false)?,
        layers,
        ..ModelSpec::default()
    })
}

/// Adds a note if there are layers of MoBA, which attend to all tokens. `layer_types` cannot list any.
fn note_moba(config: &Config) -> Result<()> {
    if is_alone(config)? {
        return Ok(());
    }
    let has_kinds = config.object().get("layer_types");
    let Some(attn) = config.child("attn")? else {
        return Ok(());
    };
    if has_kinds.is_some_and(|kinds| !kinds.is_null()) {
        return Ok(());
    }
    let listed = |key: &str| match attn.object().get(key) {
        Some(serde_json::Value::Array(layers)) => layers.as_slice(),
        _ => &[],
    };
    let full = listed("full_layers");
    if listed("layers").iter().any(|layer| !full.contains(layer)) {
        let file = config.file();
        config.note(format!(
            "{file} has layers of block attention (MoBA): they attend to all tokens here, even in prompts where the reference skips blocks"
        ));
    }
    Ok(())
}

fn layer_of(config: &Config, layer: usize) -> Result<Layer> {
    if config
        .object()
        .get("layer_types")
        .is_some_and(|v| !v.is_null())
    {
        return match config
            .array("layer_types")?
            .get(layer)
            .and_then(|v| v.as_str())
        {
            Some("sse") => Ok(Layer::Sse),
            Some("sse_swa") => Ok(Layer::SseSwa),
            Some("sliding_attention") => Ok(Layer::Sliding),
            Some("full_attention") => Ok(Layer::Full),
            _ => Err(config.wrong(
                "layer_types",
                "sse, sse_swa, sliding_attention or full_attention for every layer",
            )),
        };
    }
    if let Some(attn) = config.child("attn")? {
        let is_there = attn.object().contains_key("layers");
        if is_there && attn.usizes("layers")?.contains(&layer) {
            return Ok(if is_alone(config)? {
                Layer::Attention
            } else {
                Layer::Full
            });
        }
    }
    if is_alone(config)? {
        return Ok(Layer::Sse);
    }
    let known = [("pure", Layer::Sse), ("sse+swa fused", Layer::SseSwa)];
    config.one_of("sse_layer", Layer::SseSwa, &known)
}

fn attn(config: &Config) -> Result<Config> {
    let attn = config.child("attn")?;
    attn.ok_or_else(|| config.wrong("attn", "the hyperparameters of the attention"))
}

/// The attention of a layer with attention only.
fn attention(config: &Config, sliding: bool) -> Result<Attention> {
    let attn = attn(config)?;
    let heads = attn.usize("num_heads")?;
    let window = if sliding {
        Some(attn.usize("window_size")?)
    } else {
        None
    };
    attention_of(config, &attn, heads, window)
}

/// The attention in parallel with SSE: it has SSE's number of heads, and a window if the file sets one.
fn parallel_attention(config: &Config) -> Result<Attention> {
    let attn = attn(config)?;
    let window = attn.optional_usize("window_size")?;
    attention_of(config, &attn, heads(config)?, window)
}

fn attention_of(
    config: &Config,
    attn: &Config,
    heads: usize,
    window: Option<usize>,
) -> Result<Attention> {
    let norm = attn.bool_or("qk_norm", false)?;
    Ok(Attention {
        heads,
        kv_heads: attn.usize_or("num_kv_heads", heads)?,
        head_dim: head_dim(config)?,
        window,
        rope_theta: Some(attn.f32_or("rope_theta", 10000.0)?),
        bias: attn.bool_or("qkv_bias", false)?,
        head_norm_eps: if norm {
            Some(config.f32_or("norm_eps", 1e-6)?)
        } else {
            None
        },
        ..Attention::default()
    })
}

fn heads(config: &Config) -> Result<usize> {
    config.usize_or("num_heads", if is_alone(config)? { 6 } else { 4 })
}

fn head_dim(config: &Config) -> Result<usize> {
    config.usize_or("head_dim", if is_alone(config)? { 256 } else { 64 })
}

/// The rank of the LoRA: that of the file's matrices, or the width of a value head, as the authors' code makes it.
fn lora_rank(config: &Config, value_dim: usize) -> usize {
    let rank = config.rows_of(".lora_q_proj.0.weight");
    rank.unwrap_or(value_dim)
}

/// SSE alone, or `parallel` to attention, where it has as many value heads as heads.
fn sse(config: &Config, parallel: bool) -> Result<Sse> {
    let empty = Config::new(config.file(), serde_json::json!({}))?;
    let options = config.child("sse_layer_defaults")?.unwrap_or(empty);
    let (heads, head_dim) = (heads(config)?, head_dim(config)?);
    let value_dim = scaled(config, head_dim, "expand_v", 1.0)?;
    let known = [("gdn", true), ("gla", false)];
    let delta = config.one_of("linear_attn_type", !is_alone(config)?, &known)?;
    let plain = if config.bool_or("sse_qk_relu", false)? {
        HeadMap::Relu
    } else {
        HeadMap::Silu
    };
    let map = |key: &str, softmax: bool| -> Result<HeadMap> {
        Ok(if options.bool_or(key, softmax)? {
            HeadMap::Softmax
        } else {
            plain
        })
    };
    let writers = config.usize_or("num_writer", 2)?;
    let readers = config.usize_or("num_reader", 2)?;
    // The reference masks Gated DeltaNet's decays and write strengths by the partitions read, so none is only written.
    if delta && readers != writers {
        let expected = format!("{writers}, as num_writer says; only gla has another number");
        return Err(config.wrong("num_reader", &expected));
    }
    let biased = parallel && !delta && attn(config)?.bool_or("qkv_bias", false)?;
    Ok(Sse {
        heads,
        value_heads: if parallel {
            heads
        } else {
            config.usize_or("num_v_heads", heads)?
        },
        head_dim,
        value_dim,
        partitions: config.usize_or("num_sparse_partition", 4)?,
        writers,
        readers,
        update: if delta {
            StateUpdate::GatedDelta {
                negative_eigenvalues: config.bool_or("allow_neg_eigval", false)?,
            }
        } else {
            StateUpdate::Gla {
                rank: options.usize_or("gate_low_rank_dim", 16)?,
                normalizer: options.f32_or("gate_logit_normalizer", 16.0)?,
            }
        },
        query_map: map("use_q_softmax", false)?,
        key_map: map("use_k_softmax", !delta)?,
        weigh_queries: options.bool_or("emulq", true)?,
        weigh_keys: options.bool_or("emulk", true)?,
        lora_rank: config
            .bool_or("sse_lora", true)?
            .then(|| lora_rank(config, value_dim)),
        separate: false,
        conv: taps(config, false)?,
        gate_rank: config
            .bool_or("use_output_gate", true)?
            .then_some(value_dim),
        bias: biased,
        norm_eps: config.f32_or("norm_eps", 1e-6)?,
    })
}

/// Reads one of our tensors. Next to attention, SSE's tensors are called `sse_*`, except those that attention lacks.
fn tensor(_: &Config, weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Result<Tensor> {
    let name = tensor_name(&weight.name);
    let bare = ["lora_", "A_log", "dt_bias", "q_conv1d", "k_conv1d"];
    let name = match name.split_once(".sse_") {
        Some((layer, part)) if bare.iter().any(|b| part.starts_with(b)) => {
            format!("{layer}.{part}")
        }
        _ => name,
    };
    Ok(weights.tensor(&name)?)
}
