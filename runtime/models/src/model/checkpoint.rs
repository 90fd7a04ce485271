//! A model's files in any supported format: description, tensors under this crate's names, text files.

use waterline_quant::FileAccess;

use super::{ModelSpec, TextFiles};
use crate::error::{Error, Result};
use crate::state::Identity;
use crate::weights::{Precision, Tensors};

/// How a model is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Whether to ignore tensors in the file that the model does not use. By default they are an error, except for tensors
    /// known to be irrelevant: without them, the model may differ from the one that was trained.
    pub allow_unused: bool,
    /// Copies the files into memory, so that they may be rewritten or truncated afterwards. Otherwise they are mapped and must not
    /// change; renaming another file over one of them is safe.
    pub copy: bool,
    /// Whether to read the block that predicts the token after the next one (MTP), for [`crate::SessionOptions::mtp`]; an error
    /// if the file has no supported one. Sessions then keep a state for it, whether they draft or not.
    pub mtp: bool,
}

impl OpenOptions {
    /// How the files are read.
    pub(crate) fn access(&self) -> FileAccess {
        if self.copy {
            FileAccess::Copy
        } else {
            FileAccess::Map
        }
    }
}

/// A model as stored in its files. Tensors are mapped, not read, unless [`OpenOptions::copy`] is set.
#[derive(Clone)]
pub struct Checkpoint {
    /// The file or directory.
    pub file: String,
    /// The model's name.
    pub name: String,
    /// The model's dimensions.
    pub spec: ModelSpec,
    /// The model's tensors.
    pub tensors: Tensors,
    /// The tokenizer, the chat templates, and the tokens that begin and end a text.
    pub text: TextFiles,
    /// Length in tokens of the longest texts that the model was trained on, if its files state it.
    pub trained_context: Option<usize>,
    /// Notes on the files for users, each a sentence: unread keys, ids without a token.
    pub notes: Vec<String>,
}

impl Checkpoint {
    /// Checks that every tensor of the description exists in its shape, in f32 or another float format if it may not be
    /// quantized, and that the begin and end tokens are in the vocabulary.
    pub(crate) fn check(&self) -> Result<()> {
        for weight in self.spec.weights() {
            let wrong = |found: String, expected: String| Error::Tensor {
                file: self.file.clone(),
                name: weight.name.clone(),
                found,
                expected,
            };
            let Some(tensor) = self.tensors.get(&weight.name) else {
                return Err(wrong(
                    "nothing".into(),
                    format!("a tensor of shape {:?}", weight.shape),
                ));
            };
            if tensor.shape != weight.shape {
                return Err(wrong(
                    format!("shape {:?}", tensor.shape),
                    format!("shape {:?}", weight.shape),
                ));
            }
            // llama.cpp quantizes some matrices that stay f32 in this project's files.
            let full = !tensor.format.is_integer_dot() || weight.shape.len() == 2;
            if weight.precision == Precision::Full && !full {
                return Err(wrong(
                    format!("format {}", tensor.format.name),
                    "F32, because it must not be quantized".into(),
                ));
            }
        }
        let vocab = self.spec.vocab;
        let beyond = |id: &u32| *id as usize >= vocab;
        let begin = self.text.begin().map(|id| ("bos_token_id", id));
        let ends = self.text.ends.iter().map(|&id| ("eos_token_id", id));
        if let Some((key, id)) = begin.into_iter().chain(ends).find(|(_, id)| beyond(id)) {
            return Err(Error::Config {
                file: self.file.clone(),
                key: key.into(),
                found: id.to_string(),
                expected: format!("a token below {vocab}, the size of the vocabulary"),
            });
        }
        Ok(())
    }

    /// The model's identity: its description and tensors. The MTP block is excluded, so that a model is the same with and without it.
    pub fn identity(&self) -> Identity {
        let spec = ModelSpec {
            mtp: None,
            ..self.spec.clone()
        };
        let names = spec.weights().into_iter().map(|weight| weight.name);
        Identity::new(spec.to_json().to_string(), names.collect(), &self.tensors)
    }
}
