//! Opens a directory or a GGUF file as a [`Checkpoint`], and describes a checkpoint as the metadata of a GGUF file.

use std::path::Path;

use serde_json::Value as Json;
use waterline_quant::gguf::{Gguf, Value};
use waterline_quant::{Bytes, ask_room_for_text, read_json};

use super::llama_cpp::{self, LlamaCpp};
use super::{companion, embedding, open_directory, text_keys, typed_keys, unread_keys, unused};
use crate::error::{Error, Result};
use crate::model::{Checkpoint, ModelSpec, OpenOptions};
use crate::weights::{Tensors, WeightSpec};

/// The key, after the architecture's name, of the length of the longest training texts.
const CONTEXT_LENGTH: &str = "context_length";
/// The value of `general.architecture` in this project's files.
const ARCHITECTURE: &str = "waterline";
const KEY: &str = "general.architecture";
/// Maximum length of an architecture's name, which error messages repeat.
const LONGEST_NAME: usize = 64;
/// Maximum number of values in `waterline.spec`; a model has some tens for each layer.
const MOST_VALUES: usize = 1 << 22;

impl Checkpoint {
    /// Opens a GGUF file or a Hugging Face directory.
    ///
    /// # Errors
    /// Among others [`Error::Unused`] if the file has a tensor that the model does not use.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Like [`Checkpoint::open`], but with options.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        if path.is_dir() {
            return open_directory(path, options)?.checked();
        }
        let gguf = Gguf::open_by(path, options.access())?;
        let gguf = if options.mtp {
            companion::with_mtp_block(gguf, path)?
        } else {
            gguf
        };
        Self::from_gguf(gguf, options)?.checked()
    }

    /// Opens a GGUF file in memory, aligned to 64 bytes; `name` is the file's name in errors.
    ///
    /// # Errors
    /// Same as [`Checkpoint::open`].
    pub fn from_bytes(bytes: Bytes, name: &str, options: &OpenOptions) -> Result<Self> {
        Self::from_gguf(Gguf::parse(bytes, name)?, options)?.checked()
    }

    /// Checks the checkpoint and adds the notes of its mixers.
    fn checked(mut self) -> Result<Self> {
        self.check()?;
        let mixers = self
            .spec
            .layers
            .iter()
            .filter_map(|layer| layer.mixer.as_ref());
        for note in mixers.filter_map(|mixer| mixer.note()) {
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
        }
        Ok(self)
    }

    fn from_gguf(gguf: Gguf, options: &OpenOptions) -> Result<Self> {
        ask_room_for_text(gguf.description_bytes())?;
        let file = gguf.name().to_string();
        let known = |value| Value::as_str(value).filter(|name| name.len() <= LONGEST_NAME);
        gguf.optional(KEY, "the name of an architecture", known)?;
        let (spec, tensors) = match gguf.get_str(KEY)? {
            ARCHITECTURE => Self::own(&gguf, options.mtp)?,
            _ => llama_cpp::open(&gguf, options.mtp)?,
        };
        let architecture = gguf.get_str("general.architecture")?;
        let trained = gguf.get(&format!("{architecture}.{CONTEXT_LENGTH}"));
        let trained = trained
            .and_then(Value::as_u64)
            .and_then(|length| usize::try_from(length).ok());
        typed_keys::check(&gguf)?;
        let (text, mut notes) = text_keys::from_gguf(&gguf, spec.vocab)?;
        notes.extend(gguf.notes().iter().cloned());
        notes.extend(unread_keys::of_gguf(&gguf)?);
        if !options.allow_unused {
            unused::check_gguf(&gguf, options.mtp)?;
        }
        let name = gguf.get("general.name").and_then(Value::as_str);
        Ok(Checkpoint {
            name: name.unwrap_or("unnamed model").into(),
            file,
            spec,
            tensors,
            text,
            trained_context: trained,
            notes,
        })
    }

    /// Reads the description and the tensors of a file with this project's architecture.
    fn own(gguf: &Gguf, mtp: bool) -> Result<(ModelSpec, Tensors)> {
        let json: Json = read_json(gguf.get_str("waterline.spec")?.as_bytes(), MOST_VALUES)
            .map_err(|found| Error::Config {
                file: gguf.name().into(),
                key: "waterline.spec".into(),
                found,
                expected: "JSON".into(),
            })?;
        let mut spec = ModelSpec::from_json(gguf.name(), &json)?;
        if mtp && spec.mtp.is_none() {
            return Err(Error::Unsupported {
                file: gguf.name().into(),
                what: "drafts by an MTP block: waterline.spec describes none".into(),
            });
        }
        let mut tensors = Tensors::new();
        // `check` reports missing tensors later.
        for weight in spec.weights() {
            if gguf.has_tensor(&weight.name) {
                let tensor = gguf.tensor(&weight.name)?;
                tensors.insert(weight.name, tensor);
            }
        }
        if !mtp {
            spec.mtp = None;
        }
        Ok((spec, tensors))
    }

    /// The metadata of a GGUF file with this model: llama.cpp's if it has the architecture, otherwise this project's.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let (architecture, description) = match LlamaCpp::for_spec(&self.spec) {
            Some(known) => (known.name(), known.metadata(&self.spec, &self.text)),
            None => {
                let spec = Value::String(self.spec.to_json().to_string());
                (ARCHITECTURE, vec![("waterline.spec".to_string(), spec)])
            }
        };
        let string = |text: &str| Value::String(text.into());
        let mut metadata = vec![
            ("general.architecture".to_string(), string(architecture)),
            ("general.name".to_string(), string(&self.name)),
        ];
        metadata.extend(description);
        if let Some(length) = self
            .trained_context
            .and_then(|length| u32::try_from(length).ok())
        {
            let key = format!("{architecture}.{CONTEXT_LENGTH}");
            metadata.retain(|(name, _)| *name != key);
            metadata.push((key, Value::U32(length)));
        }
        metadata.extend(text_keys::to_gguf(&self.text));
        metadata.extend(embedding::to_gguf(&self.text.embedding, architecture));
        metadata
    }

    /// Every tensor of the description, with its name and shape in a GGUF file of this model.
    pub fn stored(&self) -> Vec<(WeightSpec, WeightSpec)> {
        let known = LlamaCpp::for_spec(&self.spec);
        let stored = |weight: &WeightSpec| match &known {
            Some(known) => known.stored(weight),
            None => weight.clone(),
        };
        let weights = self.spec.weights().into_iter();
        weights
            .map(|weight| (weight.clone(), stored(&weight)))
            .collect()
    }
}
