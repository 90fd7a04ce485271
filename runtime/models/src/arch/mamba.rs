//! Configurations of Mamba, Falcon-Mamba, Mamba-2 and Samba, as written by flash-linear-attention and by transformers, with or
//! without the sparse attention of HAX; Mamba-3 as written by flash-linear-attention.

use std::sync::Arc;

use waterline_quant::{Tensor, safetensors};

use super::{Config, Family, fla, tensors};
use crate::error::{Error, Result};
use crate::mixers::{Hax, KeySource, Mamba, Mamba2, Mamba3, Mixer};
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::WeightSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &[
        "mamba",
        "falcon_mamba",
        "mamba2",
        "mamba3",
        "hax_mamba",
        "hax_mamba2",
    ],
    spec,
    tensor: |_, weights, weight| match drawn(weights, weight) {
        Some(hash) => hash,
        None => {
            let name = tensor_name(&weight.name);
            // The authors' program uses the singular.
            let singular = name.replacen(".embeddings.", ".embedding.", 1);
            if weights.contains(&singular) {
                tensor(weights, singular)
            } else {
                tensor(weights, name)
            }
        }
    },
};

pub(super) const SAMBA: Family = Family {
    model_types: &["samba"],
    spec: samba,
    tensor: |_, weights, weight| tensor(weights, samba_tensor_name(&weight.name)),
};

/// Draws a layer's hash matrix, if `weight` is one and the checkpoint lacks it.
fn drawn(weights: &safetensors::Checkpoint, weight: &WeightSpec) -> Option<Result<Tensor>> {
    let is_missing = weight.name.ends_with(HASH)
        && !weights.contains(&inside(weights, tensor_name(&weight.name)));
    let layer = weight.name.split('.').find_map(|part| part.parse().ok());
    let seed = u64::from(HASH_SEED) << 32 | layer.unwrap_or(0u64);
    is_missing.then(|| tensors::normal(&weight.shape, seed))
}

/// Translates the configuration of a checkpoint of the authors' own program (state-spaces/mamba
/// `mamba_ssm/models/config_mamba.py`), which has no model type, to the keys of transformers; `None` if it is of another kind.
pub(super) fn of_authors(config: &Config) -> Result<Option<Config>> {
    let has = |key: &str| config.object().contains_key(key);
    if has("model_type") || !has("d_model") || !has("n_layer") {
        return Ok(None);
    }
    let empty = || Config::new(config.file(), serde_json::json!({}));
    let ssm = match config.child("ssm_cfg")? {
        Some(ssm) => ssm,
        None => empty()?,
    };
    let second = ssm.one_of("layer", false, &[("Mamba1", false), ("Mamba2", true)])?;
    for key in ["attn_layer_idx", "d_intermediate"] {
        let is_none = |value: &serde_json::Value| {
            value.as_u64() == Some(0) || value.as_array().is_some_and(Vec::is_empty)
        };
        if !config.object().get(key).is_none_or(is_none) {
            return Err(config.wrong(key, "a model with only Mamba layers"));
        }
    }
    if !config.bool_or("rms_norm", true)? {
        return Err(config.wrong("rms_norm", "true"));
    }
    let multiple = config.usize_or("pad_vocab_size_multiple", 8)?.max(1);
    let vocab = config.usize("vocab_size")?;
    let mut keys = serde_json::json!({
        "model_type": if second { "mamba2" } else { "mamba" },
        "hidden_size": config.usize("d_model")?,
        "num_hidden_layers": config.usize("n_layer")?,
        "vocab_size": vocab.div_ceil(multiple).saturating_mul(multiple),
        "tie_word_embeddings": config.bool_or("tie_embeddings", true)?,
        "layer_norm_epsilon": 1e-5,
    });
    let mut names = vec![
        ("d_state", "state_size"),
        ("d_conv", "conv_kernel"),
        ("expand", "expand"),
        ("bias", "use_bias"),
        ("conv_bias", "use_conv_bias"),
    ];
    if second {
        keys["n_groups"] = 1.into();
        names.extend([
            ("ngroups", "n_groups"),
            ("headdim", "head_dim"),
            ("rmsnorm", "rmsnorm"),
        ]);
    } else {
        names.push(("dt_rank", "time_step_rank"));
    }
    for (theirs, ours) in names {
        if let Some(value) = ssm.object().get(theirs) {
            keys[ours] = value.clone();
        }
    }
    Config::new(config.file(), keys).map(Some)
}

/// Reads the tensor called `name`, except for A, which a checkpoint stores as the logarithm of `-A`.
pub(super) fn tensor(weights: &safetensors::Checkpoint, name: String) -> Result<Tensor> {
    match name.strip_suffix(".A") {
        None => Ok(weights.tensor(&inside(weights, name))?),
        Some(mixer) => {
            let name = inside(weights, format!("{mixer}.A_log"));
            tensors::minus_exp(&weights.tensor(&name)?)
        }
    }
}

/// The name of a tensor in a checkpoint whose model is a part of another module, as HAX's models of joint recall are.
fn inside(weights: &safetensors::Checkpoint, name: String) -> String {
    let inner = name.replacen("backbone.", "model.", 1);
    if !weights.contains(&name) && weights.contains(&inner) {
        inner
    } else {
        name
    }
}

/// The checkpoint's name for one of our tensors.
fn tensor_name(name: &str) -> String {
    match name {
        "token_embd.weight" => "backbone.embeddings.weight".into(),
        "output_norm.weight" => "backbone.norm_f.weight".into(),
        "output.weight" => "lm_head.weight".into(),
        _ => name
            .replacen("blk.", "backbone.layers.", 1)
            .replacen(".attn_norm.", ".norm.", 1),
    }
}

fn samba_tensor_name(name: &str) -> String {
    let parts = [
        (".norm.", ".mixer_norm."),
        (".ffn_norm.", ".mlp_norm."),
        (".ffn_gate.", ".mlp.gate_proj."),
        (".ffn_up.", ".mlp.up_proj."),
        (".ffn_down.", ".mlp.down_proj."),
    ];
    let theirs = tensor_name(name);
    match parts.iter().find(|(ours, _)| theirs.contains(ours)) {
        Some((ours, part)) => theirs.replacen(ours, part, 1),
        None => theirs,
    }
}

fn spec(config: &Config) -> Result<ModelSpec> {
    let layer = LayerSpec::new(mixer(config)?, None);
    let layers = config.layers()?;
    // transformers ties Mamba's matrices by default; flash-linear-attention does not.
    let transformers = config.object().contains_key("layer_norm_epsilon");
    let tied = transformers && ["mamba", "falcon_mamba"].contains(&config.string("model_type")?);
    model(config, vec![layer; layers], tied)
}

fn samba(config: &Config) -> Result<ModelSpec> {
    let hidden = config.usize("hidden_size")?;
    if config.optional_usize("attnres_block_size")?.is_some() {
        return Err(Error::Unsupported {
            file: config.file().into(),
            what: "attnres_block_size (attention over residuals), expected null".into(),
        });
    }
    if !config.object().contains_key("attn") {
        return Err(config.wrong("attn", "the attention layers, or null"));
    }
    let attention = config.children("attn")?;
    let attention_layers = attention
        .iter()
        .map(|attention| attention.usizes("layers"))
        .collect::<Result<Vec<_>>>()?;
    let mlp = Some(fla::mlp_of_ratio(config, hidden)?);
    // The reference leaves Samba's convolutions at their default, with a bias.
    let mamba = Mamba {
        conv_bias: true,
        ..mamba(config)?
    };
    let mamba: Arc<dyn Mixer> = Arc::new(mamba);
    let layer_spec = |layer| {
        let index = attention_layers
            .iter()
            .position(|layers| layers.contains(&layer));
        let mixer = match index {
            Some(index) => Arc::new(fla::attention(&attention[index], hidden)?),
            None => Arc::clone(&mamba),
        };
        Ok(LayerSpec::new(mixer, mlp))
    };
    let layers = (0..config.layers()?)
        .map(layer_spec)
        .collect::<Result<_>>()?;
    model(config, layers, false)
}

fn model(config: &Config, layers: Vec<LayerSpec>, tied: bool) -> Result<ModelSpec> {
    // HAX's models of joint recall have no head: the logits are products with the embedding.
    let headless =
        config.object().contains_key("sparse_arch") && config.lacks_tensor("lm_head.weight");
    Ok(ModelSpec {
        vocab: config.usize("vocab_size")?,
        hidden: config.usize("hidden_size")?,
        norm_eps: norm_eps(config)?,
        tied: config.bool_or("tie_word_embeddings", tied)? || headless,
        layers,
        ..ModelSpec::default()
    })
}

fn mixer(config: &Config) -> Result<Arc<dyn Mixer>> {
    match config.string("model_type")? {
        "mamba2" | "hax_mamba2" => Ok(Arc::new(mamba2(config)?)),
        "mamba3" => Ok(Arc::new(mamba3(config)?)),
        _ => Ok(Arc::new(mamba(config)?)),
    }
}

fn mamba(config: &Config) -> Result<Mamba> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let hidden = config.usize("hidden_size")?;
    let rank = either(config, ["time_step_rank", "dt_rank"]);
    Ok(Mamba {
        inner: inner(config)?,
        state: config.usize_or("state_size", 16)?,
        rank: match config.optional_string(rank) {
            Some("auto") => hidden.div_ceil(16),
            _ => config.usize_or(rank, hidden.div_ceil(16))?,
        },
        conv: config.usize_or("conv_kernel", 4)?,
        conv_bias: config.bool_or("use_conv_bias", true)?,
        bias: config.bool_or("use_bias", false)?,
        norm_eps: match config.string("model_type")? {
            "falcon_mamba" => Some(config.f32_or("mixer_rms_eps", 1e-6)?),
            _ => None,
        },
        norm_gains: false,
        hax: hax(config)?,
    })
}

fn mamba2(config: &Config) -> Result<Mamba2> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    let (heads, head_dim) = heads(config)?;
    let transformers = config.object().contains_key("layer_norm_epsilon");
    let groups = config.usize_or("n_groups", if transformers { 8 } else { 1 })?;
    // HAX is based on a release whose norm had no groups.
    let norm_groups = if config.object().contains_key("sparse_arch") {
        1
    } else {
        groups
    };
    let limits = either(config, ["time_step_limit", "dt_limit"]);
    let (step_min, step_max) = config.limits(limits, (0.0, f32::INFINITY))?;
    Ok(Mamba2 {
        heads,
        head_dim,
        groups,
        state: config.usize_or("state_size", 128)?,
        conv: config.usize_or("conv_kernel", 4)?,
        conv_bias: config.bool_or("use_conv_bias", true)?,
        bias: config.bool_or("use_bias", false)?,
        skip_per_channel: config.bool_or("D_has_hdim", false)?,
        norm_groups: config.bool_or("rmsnorm", true)?.then_some(norm_groups),
        // transformers writes the key, but its code always normalizes after the gate.
        norm_before_gate: !transformers && config.bool_or("norm_before_gate", false)?,
        norm_eps: norm_eps(config)?,
        step_min,
        step_max: step_max.is_finite().then_some(step_max),
        out_bias: None,
        multipliers: None,
        hax: hax(config)?,
    })
}

/// Number of heads, and channels of each.
fn heads(config: &Config) -> Result<(usize, usize)> {
    let inner = inner(config)?;
    let head_dim = config.usize_or("head_dim", 64)?;
    if head_dim == 0 || !inner.is_multiple_of(head_dim) {
        return Err(config.wrong("head_dim", &format!("a divisor of the {inner} channels")));
    }
    let heads = inner / head_dim;
    if config.usize_or("num_heads", heads)? != heads {
        return Err(config.wrong(
            "num_heads",
            &format!("{heads}, of {head_dim} channels each"),
        ));
    }
    Ok((heads, head_dim))
}

fn mamba3(config: &Config) -> Result<Mamba3> {
    config.one_of("hidden_act", (), &[("silu", ()), ("swish", ())])?;
    if config.bool_or("is_mimo", false)? {
        return Err(config.wrong("is_mimo", "false: one input and output per head"));
    }
    let (heads, head_dim) = heads(config)?;
    let state = config.usize_or("state_size", 128)?;
    let pairs = match config.f32_or("rope_fraction", 0.5)? {
        0.5 => state / 4,
        1.0 => state / 2,
        _ => return Err(config.wrong("rope_fraction", "0.5 or 1")),
    };
    Ok(Mamba3 {
        heads,
        head_dim,
        groups: config.usize_or("n_groups", 1)?,
        state,
        pairs,
        bias: config.bool_or("use_bias", false)?,
        least_rate: config.f32_or("A_floor", 1e-4)?,
        norm: config.bool_or("is_outproj_norm", false)?,
        norm_eps: norm_eps(config)?,
    })
}

/// Name of a layer's hash matrix, which the released code draws anew for every sequence. If a checkpoint lacks it, it is
/// drawn once from this seed and the layer's number; the model's description records the seed.
const HASH: &str = ".lsh_hash";
const HASH_SEED: u32 = 1;

/// The sparse attention of HAX. In its released code, `none` means attention over the entire sequence, including later
/// tokens; here it means no such attention.
fn hax(config: &Config) -> Result<Option<Hax>> {
    let names = match config.optional_text("sparse_arch")? {
        None | Some("" | "none") => return Ok(None),
        Some("full") => {
            return Err(Error::Unsupported {
                file: config.file().into(),
                what: "sparse_arch full: attention over the whole context in parallel with a scan"
                    .into(),
            });
        }
        Some(names) => names,
    };
    let number = names.split('+').count();
    let keys = config.usize_or("sparse_keys", 64)? / number;
    if keys == 0 {
        return Err(config.wrong(
            "sparse_keys",
            &format!("at least one key for each of {number} sources"),
        ));
    }
    // The released code centres and normalises over the entire sequence, including later tokens.
    let running = || {
        match config.optional_text("hax_stats")? {
        None | Some("running") => Ok(()),
        Some("sequence") => Err(Error::Unsupported {
            file: config.file().into(),
            what: "hax_stats sequence, whose scores depend on later tokens; expected running, from a model trained with it".into(),
        }),
        Some(_) => Err(config.wrong("hax_stats", "running")),
    }
    };
    let source = |name| {
        if let "sign_bin_lsh" | "argmax_lsh" | "key_selection" = name {
            running()?;
        }
        match name {
        "sliding_window" => Ok(KeySource::Window),
        "sink" => Ok(KeySource::Sink),
        "dilated" => {
            let length = config.usize_or("data_max_length", 2048)?;
            let every = length / keys;
            if every == 0 {
                return Err(config.wrong("data_max_length", &format!("at least {keys}, the number of keys")));
            }
            // The number of keys in a sequence of that length.
            let keys = length / every;
            Ok(KeySource::Dilated { every, keys })
        }
        "sign_bin_lsh" => Ok(KeySource::SignBins {
            bits: config.usize_or("num_hash", 64)?,
        }),
        "argmax_lsh" => Ok(KeySource::ArgmaxBins {
            bins: config.usize_or("num_hash", 64)?,
        }),
        "key_selection" => Ok(KeySource::Best),
        _ => Err(config.wrong(
            "sparse_arch",
            "sliding_window, sink, dilated, sign_bin_lsh, argmax_lsh and key_selection, joined by +",
        )),
    }
    };
    let sources = names.split('+').map(source).collect::<Result<_>>()?;
    Ok(Some(Hax {
        keys,
        sources,
        hash_seed: config.lacks_tensor(HASH).then_some(HASH_SEED),
    }))
}

/// Inner channels of a mixer.
fn inner(config: &Config) -> Result<usize> {
    let expanded = config.usize("hidden_size")? as f64 * f64::from(config.f32_or("expand", 2.0)?);
    config.usize_or("intermediate_size", expanded as usize)
}

fn norm_eps(config: &Config) -> Result<f32> {
    config.f32_or(either(config, ["layer_norm_epsilon", "norm_eps"]), 1e-5)
}

/// The first of the keys that the configuration has; transformers and flash-linear-attention name some keys differently.
fn either(config: &Config, keys: [&'static str; 2]) -> &'static str {
    let has = |key: &&&str| config.object().contains_key(**key);
    keys.iter().find(has).unwrap_or(&keys[0])
}
