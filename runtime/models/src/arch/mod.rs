//! Frontends: from a Hugging Face configuration to a [`ModelSpec`] and the names that its tensors have there. One
//! file per family of configurations; one for the GGUF files that llama.cpp has of the same models.

mod bamba;
mod experts;
mod falcon_h1;
mod fla;
mod fla_linear;
mod fla_memories;
mod fla_slots;
#[cfg(test)]
mod flag_tests;
mod gemma3;
mod granite;
mod hugging_face;
mod hybrid;
mod jamba;
mod kimi_linear;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama_cpp;
mod llama_cpp_splits;
mod llama_cpp_vocab;
#[cfg(test)]
mod llama_cpp_vocab_tests;
mod mamba;
mod minimax;
mod nemotron_h;
mod olmo_hybrid;
mod open;
mod qwen3_next;
mod recurrent_gemma;
mod rwkv;
mod sse;
mod tensors;
mod unused;
mod unused_lists;
mod zamba2;

use std::path::Path;

use waterline_quant::{Tensor, read_file, safetensors};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::{Checkpoint, ModelSpec, OpenOptions, TextFiles};
use crate::weights::{Tensors, WeightSpec};

/// A family of configurations.
struct Family {
    /// The `model_type` values that it reads.
    model_types: &'static [&'static str],
    /// From the configuration to the dimensions.
    spec: fn(&Config) -> Result<ModelSpec>,
    /// Reads one of our tensors out of the checkpoint.
    tensor: fn(&Config, &safetensors::Checkpoint, &WeightSpec) -> Result<Tensor>,
}

const FAMILIES: &[Family] = &[
    bamba::FAMILY,
    falcon_h1::FAMILY,
    fla::FAMILY,
    gemma3::FAMILY,
    gemma3::WITH_IMAGES,
    granite::FAMILY,
    hugging_face::FAMILY,
    jamba::FAMILY,
    kimi_linear::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    lfm3::FAMILY,
    mamba::FAMILY,
    mamba::SAMBA,
    minimax::FAMILY,
    nemotron_h::FAMILY,
    olmo_hybrid::FAMILY,
    qwen3_next::FAMILY,
    qwen3_next::WITH_IMAGES,
    recurrent_gemma::FAMILY,
    rwkv::FAMILY,
    sse::FAMILY,
    zamba2::FAMILY,
];

/// Largest configuration, tokenizer or template that is read, in bytes; the largest tokenizers have a tenth of it.
const LARGEST_TEXT: u64 = 256 << 20;

/// Reads a Hugging Face directory: `config.json`, `*.safetensors`, and the tokenizer's files where they exist.
fn open_directory(dir: &Path, options: &OpenOptions) -> Result<Checkpoint> {
    let path = dir.join("config.json");
    let file = path.display().to_string();
    let text = read_file(&path, LARGEST_TEXT).map_err(|e| Error::io(&path, "cannot read", e))?;
    let config = Config::parse(&file, &text)?;
    let weights = safetensors::Checkpoint::open(dir);
    let config = match &weights {
        Ok(weights) => config.beside(weights.names()),
        Err(_) => config,
    };
    let model_type = config.string("model_type")?;
    let Some(family) = FAMILIES
        .iter()
        .find(|family| family.model_types.contains(&model_type))
    else {
        let known: Vec<&str> = FAMILIES
            .iter()
            .flat_map(|family| family.model_types)
            .copied()
            .collect();
        let what = format!("model_type {model_type:?}; known are {}", known.join(", "));
        return Err(Error::Unsupported { file, what });
    };
    let mut spec = (family.spec)(&config)?;
    if options.mtp {
        spec.mtp = Some(qwen3_next::mtp(&config)?);
    }
    spec.check(&file)?;
    let weights = weights?;
    let mut tensors = Tensors::new();
    for weight in spec.weights() {
        let mut tensor = (family.tensor)(&config, &weights, &weight)?;
        // Convolutions are stored with dimensions of one: [channels, 1, taps].
        if squeezed(&tensor.shape) == squeezed(&weight.shape) {
            tensor.shape = weight.shape;
        }
        tensors.insert(weight.name, tensor);
    }
    let text = text_files(dir, &config)?;
    if !options.allow_unused {
        unused::check_config(&config)?;
        unused::check_tensors(&config, &weights, &tensors, options.mtp)?;
    }
    let name = config
        .optional_string("_name_or_path")
        .filter(|name| !name.is_empty())
        .map_or_else(
            || {
                dir.file_name().map_or_else(
                    || model_type.to_string(),
                    |name| name.to_string_lossy().into_owned(),
                )
            },
            str::to_string,
        );
    Ok(Checkpoint {
        file: dir.display().to_string(),
        name,
        spec,
        tensors,
        text,
    })
}

/// A shape without its dimensions of one.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&n| n != 1).collect()
}

/// The tokenizer's files beside a checkpoint: `tokenizer.json`, `tokenizer_config.json`, `chat_template.jinja`.
fn text_files(dir: &Path, config: &Config) -> Result<TextFiles> {
    let read = |name: &str| -> Result<Option<Vec<u8>>> {
        let path = dir.join(name);
        match read_file(&path, LARGEST_TEXT) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(Error::io(path, "cannot read", e)),
        }
    };
    let mut text = TextFiles {
        tokenizer: read("tokenizer.json")?,
        ..TextFiles::default()
    };
    text.bos = config.optional_usize("bos_token_id")?.map(|id| id as u32);
    text.eos = config
        .optional_usize("eos_token_id")
        .ok()
        .flatten()
        .map(|id| id as u32);
    if let Some(bytes) = read("tokenizer_config.json")? {
        let file = dir.join("tokenizer_config.json").display().to_string();
        let json: serde_json::Value =
            serde_json::from_slice(&bytes).map_err(|e| Error::Config {
                file: file.clone(),
                key: "the file".into(),
                found: e.to_string(),
                expected: "JSON".into(),
            })?;
        text.chat_template = json
            .get("chat_template")
            .and_then(|v| v.as_str())
            .map(str::to_string);
    }
    if let Some(bytes) = read("chat_template.jinja")? {
        text.chat_template = Some(String::from_utf8(bytes).map_err(|e| Error::Template {
            reason: e.to_string(),
        })?);
    }
    Ok(text)
}
