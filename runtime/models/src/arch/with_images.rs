//! The language models of Transformers that also read images: Mistral or Ministral 3 (transformers `mistral3`), Qwen3 (`qwen3_vl`).

use super::hugging_face::{self, tensor_name};
use super::{Config, Family};
use crate::error::Result;
use crate::model::ModelSpec;

pub(super) const FAMILY: Family = Family {
    model_types: &["mistral3", "qwen3_vl"],
    spec,
    tensor: |_, weights, weight| {
        let theirs = tensor_name(&weight.name, "self_attn");
        // Newer files put the prefix after `model.`.
        let newer = theirs.replacen("model.", "model.language_model.", 1);
        let known = weights.contains(&newer);
        let older = || format!("language_model.{theirs}");
        Ok(weights.tensor(&if known { newer } else { older() })?)
    },
};

fn spec(config: &Config) -> Result<ModelSpec> {
    const TIED: &str = "tie_word_embeddings";
    let missing = || config.wrong("text_config", "the configuration of the language model");
    let text = config.child("text_config")?.ok_or_else(missing)?;
    let known: &[&str] = match config.string("model_type")? {
        "mistral3" => &["mistral", "ministral3"],
        _ => &["qwen3_vl_text"],
    };
    if !known.contains(&text.string("model_type")?) {
        return Err(text.wrong("model_type", &known.join(" or ")));
    }
    let spec = hugging_face::spec(&text)?;
    Ok(ModelSpec {
        tied: spec.tied || config.bool_or(TIED, false)?,
        ..spec
    })
}
