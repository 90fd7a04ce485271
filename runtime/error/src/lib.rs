//! The library's single error type. Every message names the file, the key or tensor, the value found and the expected one.

pub mod alphabet;
pub mod base64;
pub mod cancel;

use std::path::PathBuf;

/// Result type of the library.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Everything that can go wrong, as a sentence that a user can act on.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A problem with a number format, GGUF or safetensors.
    #[error(transparent)]
    Quant(waterline_quant::Error),
    /// The operating system refused a file operation.
    #[error("{}: {action}: {}", path.display(), waterline_quant::reason(source))]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The action that failed, such as "cannot write".
        action: &'static str,
        /// The reason given by the system.
        source: std::io::Error,
    },
    /// A configuration or metadata key has a value that cannot be used.
    #[error("{file}: {key}: found {found}, expected {expected}")]
    Config {
        /// The file that holds the key.
        file: String,
        /// The key.
        key: String,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// A tensor is missing or has a shape or type other than the description requires.
    #[error("{file}: tensor {name}: found {found}, expected {expected}")]
    Tensor {
        /// The file that holds, or should hold, the tensor.
        file: String,
        /// The tensor's name in that file.
        name: String,
        /// The value that was found.
        found: String,
        /// The value that was expected.
        expected: String,
    },
    /// The model is well-formed, but this library cannot run it.
    #[error("{file}: not supported: {what}")]
    Unsupported {
        /// The file that needs it.
        file: String,
        /// The feature that the file needs, and the supported alternative.
        what: String,
    },
    /// The file has tensors that the model does not use, so it may be a different model.
    #[error(
        "{file}: the model does not use {what}: {names}; it may be a variant that is not supported; open it with allow-unused to ignore \
         unused tensors"
    )]
    Unused {
        /// The file or folder.
        file: String,
        /// "the tensor" or "the tensors".
        what: &'static str,
        /// The tensor names; only the first ones if there are many.
        names: String,
    },
    /// The tokenizer is missing, malformed or refuses a text.
    #[error("{source_name}: tokenizer: {reason}")]
    Tokenizer {
        /// Where the tokenizer came from.
        source_name: String,
        /// The reason.
        reason: String,
    },
    /// The chat template is missing, malformed or cannot render the conversation.
    #[error("chat template: {reason}")]
    Template {
        /// The reason.
        reason: String,
    },
    /// A parameter is outside its valid range.
    #[error("{what}: {reason}")]
    Invalid {
        /// The parameter.
        what: String,
        /// Why it cannot be used.
        reason: String,
    },
    /// No token can be chosen from the computed logits: one is NaN or positive infinity, or all are negative infinity.
    #[error("logits: {reason}")]
    Logits {
        /// The unusable values, and the likely cause.
        reason: String,
    },
    /// The tokens do not fit into the session's context.
    #[error(
        "the context is full: {position} of {context} tokens are used and {requested} more were given; \
         open the session with a larger context or let the oldest tokens drop out"
    )]
    ContextFull {
        /// The session's context size in tokens.
        context: usize,
        /// Tokens already read.
        position: u64,
        /// Tokens of the call that did not fit.
        requested: usize,
    },
    /// A snapshot cannot be restored into this session.
    #[error("{file}: snapshot: {reason}")]
    Snapshot {
        /// The snapshot's file, or "memory".
        file: String,
        /// The difference.
        reason: String,
    },
    /// A rewind position cannot be reached.
    #[error("cannot rewind to position {position}: {reason}")]
    Rewind {
        /// The requested position.
        position: u64,
        /// The missing part.
        reason: String,
    },
    /// The system refused memory or a thread. Nothing else changed.
    #[error("{what} cannot be allocated: {advice}")]
    Memory {
        /// The failed allocation and its size.
        what: String,
        /// An alternative to choose.
        advice: &'static str,
    },
    /// A device is missing, full, too old or lost, or its kernels cannot be compiled.
    #[error("{device}: {reason}")]
    Device {
        /// The device.
        device: String,
        /// The reason and a remedy.
        reason: String,
    },
    /// Reading was cancelled at a token boundary; the session can continue.
    #[error("cancelled after {fed} tokens")]
    Cancelled {
        /// Tokens of the call that were read before it stopped.
        fed: usize,
    },
}

impl From<waterline_quant::Error> for Error {
    fn from(error: waterline_quant::Error) -> Self {
        match error {
            waterline_quant::Error::Memory { bytes } => {
                let what = format!("{bytes} bytes of working memory");
                Error::memory(what, "choose a smaller chunk or a smaller model")
            }
            other => Error::Quant(other),
        }
    }
}

impl Error {
    /// The error for logits on a device that are not finite; the device does not report which ones.
    #[doc(hidden)]
    pub fn not_finite() -> Self {
        Error::Logits {
            reason: "found NaN or infinity, expected finite numbers (the weights or the state are damaged)"
                .into(),
        }
    }

    /// The error for an unusable parameter `what`.
    #[doc(hidden)]
    pub fn invalid(what: impl Into<String>, reason: impl Into<String>) -> Self {
        Error::Invalid {
            what: what.into(),
            reason: reason.into(),
        }
    }

    /// The error for memory or a thread `what` that the system refused, with an alternative.
    #[doc(hidden)]
    pub fn memory(what: impl Into<String>, advice: &'static str) -> Self {
        Error::Memory {
            what: what.into(),
            advice,
        }
    }

    /// The error for a failed file operation on `path`.
    #[doc(hidden)]
    pub fn io(path: impl Into<PathBuf>, action: &'static str, source: std::io::Error) -> Self {
        Error::Io {
            path: path.into(),
            action,
            source,
        }
    }
}
