//! GGUF files of the architectures that llama.cpp knows as well: Mamba and Mamba-2 (llama.cpp `src/models/mamba.cpp`
//! and `mamba2.cpp`; `conversion/mamba.py` writes such files).
//!
//! A model that llama.cpp can run keeps its metadata and names, so that one file runs in both. It can run layers that
//! are all alike, with biases at the convolutions and nowhere else.

use std::sync::Arc;

use waterline_quant::gguf::{Gguf, Value};

use super::{llama_cpp_vocab, squeezed};
use crate::checkpoint::TextFiles;
use crate::error::{Error, Result};
use crate::mixers::{Mamba, Mamba2, Mixer};
use crate::program::Tensors;
use crate::spec::{LARGEST, LayerSpec, ModelSpec, NormKind, WeightSpec};

/// An architecture with the hyperparameters of its layers.
pub(crate) enum LlamaCpp {
    Mamba(Mamba),
    Mamba2(Mamba2),
}

/// What our tensors are called there, after the block's number.
const NAMES: &[(&str, &str)] = &[
    ("mixer.in_proj.weight", "ssm_in.weight"),
    ("mixer.conv1d.weight", "ssm_conv1d.weight"),
    ("mixer.conv1d.bias", "ssm_conv1d.bias"),
    ("mixer.x_proj.weight", "ssm_x.weight"),
    ("mixer.dt_proj.weight", "ssm_dt.weight"),
    ("mixer.dt_proj.bias", "ssm_dt.bias"),
    ("mixer.dt_bias", "ssm_dt.bias"),
    ("mixer.A", "ssm_a"),
    ("mixer.D", "ssm_d"),
    ("mixer.norm.weight", "ssm_norm.weight"),
    ("mixer.out_proj.weight", "ssm_out.weight"),
];

/// Recurrent models have no context length; this is the one that llama.cpp's converter writes.
const CONTEXT_LENGTH: u32 = 1 << 20;

impl LlamaCpp {
    /// The architecture by which llama.cpp knows this model, if it does.
    pub fn of(spec: &ModelSpec) -> Option<Self> {
        let first = spec.layers.first()?;
        let numbers = first.mixer.to_json();
        let alike = |layer: &LayerSpec| {
            layer.mlp.is_none()
                && layer.mixer.kind() == first.mixer.kind()
                && layer.mixer.to_json() == numbers
        };
        let plain = spec.norm == NormKind::Rms && !spec.embedding_norm;
        if !plain || !spec.layers.iter().all(alike) {
            return None;
        }
        match first.mixer.kind() {
            "mamba" => {
                let mixer: Mamba = serde_json::from_value(numbers).ok()?;
                let Mamba {
                    inner,
                    state,
                    rank,
                    conv,
                    ..
                } = mixer;
                let known = Mamba {
                    inner,
                    state,
                    rank,
                    conv,
                    ..mamba()
                };
                (inner == 2 * spec.hidden && same(&mixer, &known)).then_some(Self::Mamba(mixer))
            }
            "mamba2" => {
                let mixer: Mamba2 = serde_json::from_value(numbers).ok()?;
                let Mamba2 {
                    heads,
                    head_dim,
                    groups,
                    state,
                    conv,
                    ..
                } = mixer;
                let known = Mamba2 {
                    heads,
                    head_dim,
                    groups,
                    state,
                    conv,
                    ..mamba2(groups, spec.norm_eps)
                };
                same(&mixer, &known).then_some(Self::Mamba2(mixer))
            }
            _ => None,
        }
    }

    /// Its name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mamba(_) => "mamba",
            Self::Mamba2(_) => "mamba2",
        }
    }

    /// The description of `spec`, which has this architecture, and the vocabulary.
    pub fn metadata(&self, spec: &ModelSpec, text: &TextFiles) -> Vec<(String, Value)> {
        let mut numbers = vec![
            ("context_length", CONTEXT_LENGTH as usize),
            ("vocab_size", spec.vocab),
            ("embedding_length", spec.hidden),
            ("block_count", spec.layers.len()),
            // Not used, but looked for.
            ("feed_forward_length", 0),
            ("attention.head_count", 0),
        ];
        match self {
            Self::Mamba(mixer) => numbers.extend([
                ("ssm.conv_kernel", mixer.conv),
                ("ssm.inner_size", mixer.inner),
                ("ssm.state_size", mixer.state),
                ("ssm.time_step_rank", mixer.rank),
            ]),
            Self::Mamba2(mixer) => numbers.extend([
                ("ssm.conv_kernel", mixer.conv),
                ("ssm.inner_size", mixer.heads * mixer.head_dim),
                ("ssm.state_size", mixer.state),
                ("ssm.time_step_rank", mixer.heads),
                ("ssm.group_count", mixer.groups),
            ]),
        }
        let key = |key: &str| format!("{}.{key}", self.name());
        let mut metadata: Vec<_> = numbers
            .into_iter()
            .map(|(name, number)| (key(name), Value::U32(number as u32)))
            .collect();
        let epsilon = Value::F32(spec.norm_eps);
        metadata.push((key("attention.layer_norm_rms_epsilon"), epsilon));
        let tokenizer = text.tokenizer.as_deref();
        metadata.extend(llama_cpp_vocab::to_gguf(tokenizer, spec.vocab));
        metadata
    }

    /// The name and shape of one of our tensors there.
    pub fn stored(&self, weight: &WeightSpec) -> WeightSpec {
        let mut stored = weight.clone();
        let Some((block, part)) = weight.name.split_once(".mixer.") else {
            return stored;
        };
        let part = format!("mixer.{part}");
        if let Some((_, theirs)) = NAMES.iter().find(|(ours, _)| *ours == part) {
            stored.name = format!("{block}.{theirs}");
        }
        if let Self::Mamba2(mixer) = self {
            match part.as_str() {
                "mixer.A" | "mixer.D" => stored.shape.push(1),
                "mixer.norm.weight" => {
                    let inner = mixer.heads * mixer.head_dim;
                    stored.shape = vec![mixer.groups, inner / mixer.groups];
                }
                _ => {}
            }
        }
        stored
    }
}

/// What llama.cpp's Mamba has beside its sizes.
fn mamba() -> Mamba {
    Mamba {
        inner: 0,
        state: 0,
        rank: 0,
        conv: 0,
        conv_bias: true,
        bias: false,
        hax: None,
    }
}

/// What llama.cpp's Mamba-2 has beside its sizes.
fn mamba2(groups: usize, norm_eps: f32) -> Mamba2 {
    Mamba2 {
        heads: 0,
        head_dim: 0,
        groups,
        state: 0,
        conv: 0,
        conv_bias: true,
        bias: false,
        skip_per_channel: false,
        norm_groups: Some(groups),
        norm_before_gate: false,
        norm_eps,
        step_min: 0.0,
        step_max: None,
        hax: None,
    }
}

fn same(a: &dyn Mixer, b: &dyn Mixer) -> bool {
    a.to_json() == b.to_json()
}

/// Reads a file of one of these architectures.
pub(crate) fn open(gguf: &Gguf) -> Result<(ModelSpec, Tensors)> {
    let architecture = gguf.get_str("general.architecture")?;
    let unsupported = |what: String| Error::Unsupported {
        file: gguf.name().into(),
        what,
    };
    let usize = |key: &str| {
        let key = format!("{architecture}.{key}");
        match gguf.get_usize(&key)? {
            number if number <= LARGEST => Ok(number),
            number => Err(Error::Config {
                file: gguf.name().into(),
                key,
                found: number.to_string(),
                expected: format!("a number up to {LARGEST}"),
            }),
        }
    };
    if !["mamba", "mamba2"].contains(&architecture) {
        return Err(unsupported(format!(
            "general.architecture {architecture:?}; known are waterline, mamba and mamba2"
        )));
    }
    let norm_eps = gguf.get_f32(&format!("{architecture}.attention.layer_norm_rms_epsilon"))?;
    let (inner, state) = (usize("ssm.inner_size")?, usize("ssm.state_size")?);
    let (rank, conv) = (usize("ssm.time_step_rank")?, usize("ssm.conv_kernel")?);
    let known = match architecture {
        "mamba" => {
            let normed = gguf.get("mamba.ssm.dt_b_c_rms").and_then(Value::as_bool);
            if normed == Some(true) {
                return Err(unsupported("mamba.ssm.dt_b_c_rms: norms of b and c".into()));
            }
            LlamaCpp::Mamba(Mamba {
                inner,
                state,
                rank,
                conv,
                ..mamba()
            })
        }
        _ => {
            if rank == 0 || !inner.is_multiple_of(rank) {
                return Err(Error::Config {
                    file: gguf.name().into(),
                    key: "mamba2.ssm.time_step_rank".into(),
                    found: rank.to_string(),
                    expected: format!("a number of heads that divides {inner} channels"),
                });
            }
            LlamaCpp::Mamba2(Mamba2 {
                heads: rank,
                head_dim: inner / rank,
                state,
                conv,
                ..mamba2(usize("ssm.group_count")?, norm_eps)
            })
        }
    };
    let mixer: Arc<dyn Mixer> = match &known {
        LlamaCpp::Mamba(mixer) => Arc::new(mixer.clone()),
        LlamaCpp::Mamba2(mixer) => Arc::new(mixer.clone()),
    };
    let blocks = usize("block_count")?;
    if blocks > gguf.tensors().len() {
        return Err(Error::Config {
            file: gguf.name().into(),
            key: format!("{architecture}.block_count"),
            found: blocks.to_string(),
            expected: format!("no more than the {} tensors", gguf.tensors().len()),
        });
    }
    let hidden = usize("embedding_length")?;
    let embedding = gguf.tensor("token_embd.weight")?;
    let spec = ModelSpec {
        vocab: embedding.shape.first().copied().unwrap_or(0),
        hidden,
        norm: NormKind::Rms,
        norm_eps,
        embedding_norm: false,
        tied: !gguf
            .tensors()
            .iter()
            .any(|info| info.name == "output.weight"),
        layers: vec![LayerSpec { mixer, mlp: None }; blocks],
    };
    spec.check(gguf.name())?;
    let mut tensors = Tensors::new();
    for weight in spec.weights() {
        let stored = known.stored(&weight);
        let mut tensor = gguf.tensor(&stored.name)?;
        if squeezed(&tensor.shape) == squeezed(&stored.shape) {
            tensor.shape = weight.shape;
        }
        tensors.insert(weight.name, tensor);
    }
    Ok((spec, tensors))
}
