//! Frontends: map a Hugging Face configuration to a [`ModelSpec`], and our tensor names to the checkpoint's. There is
//! one file per family of configurations, and one module for llama.cpp's GGUF files of the same models.

mod bailing_hybrid;
mod bamba;
mod companion;
mod coverage;
mod embedding;
mod end_tokens;
mod experts;
mod falcon_h1;
mod fla;
mod fla_linear;
mod fla_memories;
mod fla_slots;
#[cfg(test)]
mod flag_tests;
mod gemma3;
mod gemma4;
mod gpt_oss;
mod granite;
mod granite_swa;
mod hugging_face;
mod hybrid;
mod jamba;
mod key_lists;
mod kimi_linear;
mod laguna;
mod lara_mini;
mod lfm2;
mod lfm2_moe;
mod lfm3;
mod llama_cpp;
mod llama_cpp_splits;
mod llama_cpp_vocab;
#[cfg(test)]
mod llama_cpp_vocab_tests;
mod mamba;
mod minicpm_sala;
mod minimax;
mod muse_glimmer;
mod nemotron_h;
mod olmo_hybrid;
mod open;
mod quantization;
mod qwen3_moe;
mod qwen3_next;
mod recurrent_gemma;
mod rotary;
mod rwkv;
mod rwkv6;
mod sampling_keys;
mod sse;
mod tensors;
mod text_files;
mod text_keys;
mod token_table;
mod typed_keys;
mod unread_keys;
mod unused;
mod unused_lists;
mod vocab_files;
mod with_images;
mod zamba2;

use std::path::Path;

use waterline_quant::{Tensor, ask_room, read_file, safetensors};

use crate::config::Config;
use crate::error::{Error, Result};
use crate::model::{Checkpoint, ModelSpec, OpenOptions};
use crate::weights::{Tensors, WeightSpec};
use coverage::Coverage;

/// A family of configurations.
struct Family {
    /// The family's `model_type` values.
    model_types: &'static [&'static str],
    /// Reads the dimensions from the configuration.
    spec: fn(&Config) -> Result<ModelSpec>,
    /// Reads one of our tensors from the checkpoint.
    tensor: fn(&Config, &safetensors::Checkpoint, &WeightSpec) -> Result<Tensor>,
}

const FAMILIES: &[Family] = &[
    bailing_hybrid::FAMILY,
    bamba::FAMILY,
    falcon_h1::FAMILY,
    fla::FAMILY,
    gemma3::FAMILY,
    gemma3::WITH_IMAGES,
    gemma4::FAMILY,
    gemma4::WITH_IMAGES,
    gpt_oss::FAMILY,
    granite::DENSE,
    granite::FAMILY,
    granite_swa::FAMILY,
    hugging_face::FAMILY,
    jamba::FAMILY,
    kimi_linear::FAMILY,
    laguna::FAMILY,
    lara_mini::FAMILY,
    lfm2::FAMILY,
    lfm2_moe::FAMILY,
    lfm3::FAMILY,
    mamba::FAMILY,
    mamba::SAMBA,
    minicpm_sala::FAMILY,
    minimax::FAMILY,
    muse_glimmer::FAMILY,
    nemotron_h::FAMILY,
    olmo_hybrid::FAMILY,
    qwen3_moe::MELLUM,
    qwen3_moe::QWEN,
    qwen3_next::FAMILY,
    qwen3_next::WITH_IMAGES,
    recurrent_gemma::FAMILY,
    rwkv::FAMILY,
    rwkv6::FAMILY,
    sse::FAMILY,
    with_images::FAMILY,
    zamba2::FAMILY,
];

/// Maximum size in bytes of a configuration, tokenizer or template; the largest tokenizers have a tenth of it.
const LARGEST_TEXT: u64 = 256 << 20;

/// Estimated memory of a tensor's name, shape and location, in bytes.
const OF_TENSOR: usize = 1 << 9;

/// Reads a Hugging Face directory: `config.json`, `*.safetensors`, and the tokenizer's files if they exist.
fn open_directory(dir: &Path, options: &OpenOptions) -> Result<Checkpoint> {
    let path = dir.join("config.json");
    let file = path.display().to_string();
    let text = read_file(&path, LARGEST_TEXT).map_err(|e| Error::io(&path, "cannot read", e))?;
    let config = Config::parse(&file, &text)?;
    let weights = safetensors::Checkpoint::open_by(dir, options.access());
    let config = match &weights {
        Ok(weights) => {
            let rows = |name| weights.shape(name)?.first().copied();
            config.beside(weights.names().map(|name| (name, rows(name).unwrap_or(1))))
        }
        Err(_) => config,
    };
    quantization::check(dir, &config, weights.as_ref().ok())?;
    let config = match mamba::of_authors(&config)? {
        Some(translated) => translated,
        None => config,
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
        let what = format!(
            "model_type {model_type:?}, expected one of {}",
            known.join(", ")
        );
        return Err(Error::Unsupported { file, what });
    };
    let known = weights
        .as_ref()
        .map_or(0, |weights| weights.names().count());
    ask_room(known.saturating_mul(OF_TENSOR))?;
    embedding::check_causal(&config)?;
    let mut spec = (family.spec)(&config)?;
    if options.mtp {
        spec.mtp = Some(qwen3_next::mtp(&config)?);
    }
    spec.check(&file)?;
    let weights = weights?;
    let mut tensors = Tensors::new();
    let mut coverage = Coverage::default();
    weights.take_reads();
    for weight in spec.weights() {
        let mut tensor = (family.tensor)(&config, &weights, &weight)?;
        coverage.add(weights.take_reads(), tensor.len());
        // Convolutions are stored with dimensions of one: [channels, 1, taps].
        if squeezed(&tensor.shape) == squeezed(&weight.shape) {
            tensor.shape = weight.shape;
        }
        tensors.insert(weight.name, tensor);
    }
    coverage.check(weights.name())?;
    let (text, mut notes) = text_files::read(dir, &config, spec.vocab)?;
    notes.extend(config.notes());
    notes.extend(unread_keys::of_config(&config)?);
    if !options.allow_unused {
        unused::check_tensors(&config, &weights, &tensors, options.mtp)?;
    }
    let name = config
        .optional_text("_name_or_path")?
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
        trained_context: trained_context(&config),
        notes,
    })
}

/// Length in tokens of the longest training texts, if a configuration states it.
fn trained_context(config: &Config) -> Option<usize> {
    const KEYS: [&str; 3] = [
        "max_position_embeddings",
        "n_positions",
        "max_sequence_length",
    ];
    // Beyond the original training length, LongRoPE uses other divisors.
    const ORIGINAL: &str = "original_max_position_embeddings";
    const INNER: [&str; 2] = ["text_config", "llm_config"];
    let whole = config.object();
    let inner = INNER.iter().filter_map(|key| whole.get(*key)?.as_object());
    let mut objects = std::iter::once(whole).chain(inner);
    let length = |value: &serde_json::Value| usize::try_from(value.as_u64()?).ok();
    objects.find_map(|object| {
        let rope = ["rope_parameters", "rope_scaling"]
            .iter()
            .find_map(|key| object.get(*key)?.as_object());
        let is_long = rope.is_some_and(|rope| rope.contains_key("long_factor"));
        let original = || object.get(ORIGINAL).or_else(|| rope?.get(ORIGINAL));
        let original = is_long.then(original).flatten();
        original
            .or_else(|| KEYS.iter().find_map(|key| object.get(*key)))
            .and_then(length)
    })
}

/// A shape without its dimensions of one.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|&n| n != 1).collect()
}
