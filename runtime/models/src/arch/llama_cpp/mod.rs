//! GGUF files of llama.cpp's architectures (llama.cpp `src/llama-arch.cpp`, `src/models`, `conversion`).
//!
//! Each family is one file. It maps the keys to a [`ModelSpec`] and provides, for each layer, a table of names: where
//! our tensors are, and how the stored ones are converted to ours. The specification is the same as for the model's
//! Hugging Face directory.

mod arwkv7;
mod attention;
mod bailing_moe3;
mod dense;
mod divisors;
mod falcon_h1;
mod feed_forward;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod granite;
mod jamba;
mod keys;
mod kimi_linear;
mod laguna;
mod lfm2;
mod mamba;
mod minimax;
mod muse_glimmer;
mod names;
mod nemotron_h;
mod qwen35;
mod qwen3_moe;
mod refusal;
mod rwkv6;
mod rwkv7;
mod write;

use std::sync::Arc;

use waterline_quant::gguf::Gguf;
use waterline_quant::{BF16_IN_BF16, F16_IN_F16, NVFP4, PTQ1_0, Tensor, nvfp4_with_scales};

use crate::arch::coverage::Coverage;
use crate::arch::tensors::filled;
use crate::error::{Error, Result};
use crate::feed_forward::FeedForward;
use crate::mixers::Mixer;
use crate::model::{LayerSpec, ModelSpec};
use crate::weights::Tensors;
use keys::Keys;
use names::Name;
pub(crate) use write::LlamaCpp;

/// A family of architectures.
struct Family {
    /// The family's values of `general.architecture`.
    architectures: &'static [&'static str],
    /// Reads the model that the keys describe.
    read: fn(&Keys) -> Result<Description>,
}

/// Architectures whose block that predicts the token after the next one is supported.
const WITH_MTP: &[&str] = qwen35::FAMILY.architectures;

const FAMILIES: &[Family] = &[
    arwkv7::FAMILY,
    bailing_moe3::FAMILY,
    dense::FAMILY,
    falcon_h1::FAMILY,
    gemma3::FAMILY,
    gemma4::FAMILY,
    gpt_oss::FAMILY,
    granite::FAMILY,
    jamba::FAMILY,
    kimi_linear::FAMILY,
    laguna::FAMILY,
    lfm2::FAMILY,
    mamba::FAMILY,
    minimax::FAMILY,
    muse_glimmer::FAMILY,
    nemotron_h::FAMILY,
    qwen35::FAMILY,
    qwen3_moe::FAMILY,
    rwkv6::FAMILY,
    rwkv7::FAMILY,
];

/// A file's model, and where its tensors are.
struct Description {
    spec: ModelSpec,
    /// For each layer of ours, where its tensors are.
    places: Vec<Place>,
    /// Names of tensors outside the layers that differ from ours.
    whole: &'static [(&'static str, &'static str)],
    /// Our names of gains that no file stores, since they are one.
    ones: &'static [&'static str],
}

/// Where the tensors of a layer are.
struct Place {
    /// Number of the block, whose tensor names begin with `blk.{block}.`.
    block: usize,
    /// The names that differ from ours, or whose tensors are converted.
    names: Vec<Name>,
}

impl Description {
    /// A model in which each layer is one block.
    fn new(spec: ModelSpec, names: impl Iterator<Item = Vec<Name>>) -> Self {
        let places = names
            .enumerate()
            .map(|(block, names)| Place { block, names })
            .collect();
        Description {
            spec,
            places,
            whole: &[],
            ones: &[],
        }
    }

    /// The name of our tensor `name` in the file, and its conversion to ours.
    fn find(&self, name: &str) -> (String, Name) {
        let part = || {
            let (layer, part) = name.strip_prefix("blk.")?.split_once('.')?;
            let place = self.places.get(layer.parse::<usize>().ok()?)?;
            Some((place, part))
        };
        let Some((place, part)) = part() else {
            let other = self.whole.iter().find(|(ours, _)| *ours == name);
            let stored = other.map_or(name, |(_, theirs)| theirs);
            return (stored.into(), Name::same());
        };
        let found = place
            .names
            .iter()
            .find_map(|name| Some((name.stored(part)?, name.clone())));
        let (stored, how) = found.unwrap_or_else(|| (part.into(), Name::same()));
        (format!("blk.{}.{stored}", place.block), how)
    }
}

/// A layer of `mixer`, with a feed-forward network if it has one.
fn layer(mixer: Arc<dyn Mixer>, ffn: Option<FeedForward>) -> LayerSpec {
    LayerSpec {
        mixer: Some(mixer),
        ffn,
        ..LayerSpec::default()
    }
}

/// Builds the model from `layers` and the model-wide keys that files of all families share.
fn model(keys: &Keys, layers: Vec<LayerSpec>) -> Result<ModelSpec> {
    let embedding = keys.gguf().tensor("token_embd.weight")?;
    Ok(ModelSpec {
        vocab: embedding.shape.first().copied().unwrap_or(0),
        hidden: keys.usize("embedding_length")?,
        norm_eps: keys.norm_eps()?,
        tied: !keys.has_tensor("output.weight"),
        layers,
        ..ModelSpec::default()
    })
}

/// Reads a file of one of these architectures and, with `mtp`, its block that predicts the token after the next one.
pub(crate) fn open(gguf: &Gguf, mtp: bool) -> Result<(ModelSpec, Tensors)> {
    let architecture = gguf.get_str("general.architecture")?;
    let known = |family: &&Family| family.architectures.contains(&architecture);
    let Some(family) = FAMILIES.iter().find(known) else {
        return Err(refusal::explain(gguf, architecture));
    };
    if gguf.parts() == 1 {
        refusal::of_parts(gguf)?;
    }
    rotations(gguf)?;
    let keys = Keys::new(gguf, architecture, mtp);
    if mtp && !WITH_MTP.contains(&architecture) {
        let known = WITH_MTP.join(", ");
        return Err(keys.unsupported(format!(
            "an MTP block of architecture {architecture}, expected one of {known}"
        )));
    }
    let description = (family.read)(&keys)?;
    description.spec.check(gguf.name())?;
    let mut tensors = Tensors::new();
    let mut coverage = Coverage::default();
    for weight in description.spec.weights() {
        if description.ones.contains(&weight.name.as_str()) {
            let ones = filled(weight.len(), 1.0)?;
            tensors.insert(weight.name, ones);
            continue;
        }
        let (stored, name) = description.find(&weight.name);
        let whole = with_scale(gguf, &stored, gguf.tensor(&stored)?)?;
        let values = whole.len();
        let tensor = name.take(gguf.name(), &stored, whole, &weight)?;
        coverage.add(vec![(stored, values)], tensor.len());
        tensors.insert(weight.name, tensor);
    }
    coverage.check(gguf.name())?;
    round_beside_quantized(&mut tensors);
    Ok((description.spec, tensors))
}

/// Refuses weights that are stored rotated: without the rotation of their inputs, a file reads well and writes nonsense. Type 143 has this
/// meaning only beside the keys of the rotation.
fn rotations(gguf: &Gguf) -> Result<()> {
    let unsupported = |what| {
        Err(Error::Unsupported {
            file: gguf.name().into(),
            what,
        })
    };
    let mut keys = gguf.metadata().iter().map(|(key, _)| key);
    if let Some(key) = keys.find(|key| key.starts_with("prism.hadamard.")) {
        return unsupported(format!("{key}: weights in a rotated basis"));
    }
    match gguf
        .tensors()
        .iter()
        .find(|tensor| tensor.format() == Some(&PTQ1_0))
    {
        None => Ok(()),
        Some(tensor) => unsupported(format!(
            "tensor '{}' in ggml type 143 without keys prism.hadamard.*",
            tensor.name
        )),
    }
}

/// Multiplies a tensor in NVFP4 by the scale beside it, if the file has one. The scale of the tensor's input, which a GPU with 4-bit
/// products needs, is not used.
fn with_scale(gguf: &Gguf, stored: &str, tensor: Tensor) -> Result<Tensor> {
    let beside = |ending| {
        stored
            .strip_suffix(".weight")
            .map(|stem| format!("{stem}.{ending}"))
    };
    let Some(name) =
        beside("scale").filter(|name| tensor.format == &NVFP4 && gguf.has_tensor(name))
    else {
        return Ok(tensor);
    };
    if let Some(input) = beside("input_scale").filter(|name| gguf.has_tensor(name)) {
        gguf.tensor(&input)?;
    }
    let scales = gguf.tensor(&name)?;
    let (rows, _) = tensor.rows_cols();
    if scales.is_empty() || !rows.is_multiple_of(scales.len()) {
        return Err(Error::Tensor {
            file: gguf.name().into(),
            name,
            found: format!("shape {:?}", scales.shape),
            expected: format!("one scale, or one for each matrix of the {rows} rows"),
        });
    }
    Ok(nvfp4_with_scales(&tensor, &scales.to_f32())?)
}

/// In a file whose products round their inputs, multiplies matrices in f16 by inputs in f16, and matrices in bf16 by inputs in
/// bf16, as llama.cpp does; it does not quantize rows that are not a whole number of blocks. A file in f16 or bf16 keeps its
/// inputs in f32.
fn round_beside_quantized(tensors: &mut Tensors) {
    let mut all = tensors.values();
    if !all.any(|tensor| tensor.format.is_integer_dot()) {
        return;
    }
    for tensor in tensors.values_mut() {
        for format in [&F16_IN_F16, &BF16_IN_BF16] {
            if tensor.format == format {
                tensor.format = format;
            }
        }
    }
}
