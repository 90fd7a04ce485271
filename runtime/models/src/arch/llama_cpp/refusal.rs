//! Errors for files that cannot be run: what is missing, and the nearest supported architecture.

use waterline_quant::gguf::{Gguf, Value};

use super::FAMILIES;
use crate::error::{Error, Result};

/// Architectures that cannot be run: the name, what is missing, and the nearest supported one.
const MISSING: &[(&str, &str, &str)] = &[
    (
        "rwkv6qwen2",
        "RWKV-6's recurrence with Qwen2's feed-forward network",
        "rwkv7",
    ),
    (
        "plamo2",
        "PLaMo-2's norms around both parts of a layer",
        "mamba2",
    ),
    (
        "qwen4exp",
        "several residual streams and attention to selected blocks",
        "qwen35",
    ),
    ("kimi-k3", "KDA with several residual streams", "qwen35"),
    ("glm5-next", "KDA with sparse latent attention", "qwen35"),
    ("gemma", "Gemma's scaled embedding and GELU", "llama"),
    (
        "gemma2",
        "norms after both parts of a layer and capped logits",
        "llama",
    ),
    (
        "gemma3n",
        "several residual streams beside the inputs of each layer",
        "gemma4",
    ),
    (
        "gemma4-assistant",
        "drafts from another model's keys, values and hidden states",
        "gemma4",
    ),
    (
        "phi3",
        "fused projections and scaled rotary positions",
        "llama",
    ),
];

/// The error for a file of an unsupported architecture.
pub(super) fn explain(gguf: &Gguf, architecture: &str) -> Error {
    let file_type = gguf.get("general.type").and_then(Value::as_str);
    let projects = architecture == "clip" || file_type == Some("mmproj");
    let missing = MISSING.iter().find(|(name, ..)| *name == architecture);
    let what = if projects {
        format!(
            "general.architecture {architecture:?}: this file turns images or sounds into a language model's inputs; \
             open the file of the language model, which runs on text without it"
        )
    } else if let Some((_, missing, nearest)) = missing {
        format!(
            "general.architecture {architecture:?}: missing support for {missing}; the nearest supported architecture is {nearest}"
        )
    } else {
        let known: Vec<&str> = FAMILIES
            .iter()
            .flat_map(|family| family.architectures)
            .copied()
            .collect();
        format!(
            "general.architecture {architecture:?}; expected one of waterline, {}",
            known.join(", ")
        )
    };
    Error::Unsupported {
        file: gguf.name().into(),
        what,
    }
}

/// Refuses bytes in memory that are one part of a split model, whose other parts have no path.
pub(super) fn of_parts(gguf: &Gguf) -> Result<()> {
    let parts = gguf.get("split.count").and_then(Value::as_u64).unwrap_or(0);
    if parts < 2 {
        return Ok(());
    }
    Err(Error::Unsupported {
        file: gguf.name().into(),
        what: format!(
            "one of {parts} files of a split model; open it by its path, which opens the others too"
        ),
    })
}
