//! Writes files of architectures that llama.cpp supports too: Mamba and Mamba-2 (llama.cpp `src/models/mamba.cpp` and
//! `mamba2.cpp`; `conversion/mamba.py` writes such files).
//!
//! A model that llama.cpp can run gets llama.cpp's metadata and names, so that one file runs in both. llama.cpp
//! supports layers that are all alike, with biases only in the convolutions.

use std::sync::Arc;

use waterline_quant::gguf::Value;

use super::mamba::{MAMBA, MAMBA2, mamba, mamba2};
use super::names::stored_name;
use crate::arch::llama_cpp_vocab;
use crate::mixers::{Mamba, Mamba2, Mixer};
use crate::model::{LayerSpec, ModelSpec, TextFiles};
use crate::weights::WeightSpec;

/// An architecture with the hyperparameters of its layers.
pub(crate) enum LlamaCpp {
    Mamba(Mamba),
    Mamba2(Mamba2),
}

/// Recurrent models have no context length; llama.cpp's converter writes this one.
const CONTEXT_LENGTH: u32 = 1 << 20;

impl LlamaCpp {
    /// llama.cpp's architecture of this model, if it has one.
    pub fn for_spec(spec: &ModelSpec) -> Option<Self> {
        let first = spec.layers.first()?;
        let mixer = first.mixer.as_ref()?;
        let numbers = mixer.to_json();
        // Only layers that consist of this mixer, with all else at its default.
        let plain = ModelSpec {
            layers: vec![LayerSpec::new(Arc::clone(mixer), None); spec.layers.len()],
            vocab: spec.vocab,
            hidden: spec.hidden,
            norm_eps: spec.norm_eps,
            tied: spec.tied,
            ..ModelSpec::default()
        };
        if plain.to_json() != spec.to_json() {
            return None;
        }
        match mixer.kind() {
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

    /// The architecture's name.
    pub fn name(&self) -> &'static str {
        match self {
            Self::Mamba(_) => "mamba",
            Self::Mamba2(_) => "mamba2",
        }
    }

    /// The metadata of the vocabulary and of `spec`, which has this architecture.
    pub fn metadata(&self, spec: &ModelSpec, text: &TextFiles) -> Vec<(String, Value)> {
        let mut numbers = vec![
            ("context_length", CONTEXT_LENGTH as usize),
            ("vocab_size", spec.vocab),
            ("embedding_length", spec.hidden),
            ("block_count", spec.layers.len()),
            // Unused, but required by llama.cpp.
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

    /// The name and shape of one of our tensors in llama.cpp's files.
    pub fn stored(&self, weight: &WeightSpec) -> WeightSpec {
        let mut stored = weight.clone();
        let Some((block, part)) = weight.name.split_once(".mixer.") else {
            return stored;
        };
        let part = format!("mixer.{part}");
        let names = match self {
            Self::Mamba(_) => MAMBA,
            Self::Mamba2(_) => MAMBA2,
        };
        let theirs = names
            .iter()
            .find_map(|(ours, theirs)| stored_name(&part, ours, theirs));
        if let Some(theirs) = theirs {
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

fn same(a: &dyn Mixer, b: &dyn Mixer) -> bool {
    a.to_json() == b.to_json()
}
