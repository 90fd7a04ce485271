//! A model's files, whatever their format: description, tensors by our names, tokenizer.

use std::path::Path;

use serde_json::Value as Json;
use waterline_quant::Bytes;
use waterline_quant::gguf::{Gguf, Value};

use crate::arch::{self, llama_cpp::LlamaCpp};
use crate::error::{Error, Result};
use crate::program::Tensors;
use crate::spec::{ModelSpec, Precision, WeightSpec};

/// The value of `general.architecture` in our files.
pub const ARCHITECTURE: &str = "waterline";

/// What a tokenizer is made from.
#[derive(Debug, Clone, Default)]
pub struct TextFiles {
    /// A Hugging Face `tokenizer.json`.
    pub tokenizer: Option<Vec<u8>>,
    /// A chat template in Jinja.
    pub chat_template: Option<String>,
    /// The token that begins every sequence.
    pub bos: Option<u32>,
    /// Whether plain text begins without it all the same.
    pub omits_bos: bool,
    /// The token that ends an answer.
    pub eos: Option<u32>,
}

/// How a model is opened.
#[derive(Debug, Clone, Default)]
pub struct OpenOptions {
    /// Whether tensors and keys of the file that the model does not use are passed over. Without it they are an error, but
    /// for those that are known to mean nothing: a model without them may be another one than was trained.
    pub allow_unused: bool,
}

/// A model as it lies in its files. Tensors are mapped, not read.
#[derive(Clone)]
pub struct Checkpoint {
    /// The file or directory.
    pub file: String,
    /// The model's name.
    pub name: String,
    /// Its dimensions.
    pub spec: ModelSpec,
    /// Its tensors.
    pub tensors: Tensors,
    /// Its tokenizer.
    pub text: TextFiles,
}

impl Checkpoint {
    /// Opens a GGUF file or a Hugging Face directory.
    ///
    /// # Errors
    /// Among others [`Error::Unused`] if the file has a tensor or a key that the model does not use.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// As [`Checkpoint::open`], with options.
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let checkpoint = if path.is_dir() {
            arch::open_directory(path, options)?
        } else {
            Self::from_gguf(Gguf::open(path)?, options)?
        };
        checkpoint.check()?;
        Ok(checkpoint)
    }

    /// Opens a GGUF file in memory; `name` stands for the file in errors.
    pub fn from_bytes(bytes: Bytes, name: &str) -> Result<Self> {
        Self::from_bytes_with(bytes, name, &OpenOptions::default())
    }

    /// As [`Checkpoint::from_bytes`], with options.
    pub fn from_bytes_with(bytes: Bytes, name: &str, options: &OpenOptions) -> Result<Self> {
        let checkpoint = Self::from_gguf(Gguf::parse(bytes, name)?, options)?;
        checkpoint.check()?;
        Ok(checkpoint)
    }

    fn from_gguf(gguf: Gguf, options: &OpenOptions) -> Result<Self> {
        let file = gguf.name().to_string();
        let (spec, tensors) = match gguf.get_str("general.architecture")? {
            ARCHITECTURE => Self::own(&gguf)?,
            _ => arch::llama_cpp::open(&gguf)?,
        };
        let optional = |key: &str| gguf.get(key).and_then(Value::as_str).map(str::to_string);
        let token = |key: &str| {
            gguf.get(key)
                .and_then(Value::as_u64)
                .and_then(|id| u32::try_from(id).ok())
        };
        let text = TextFiles {
            tokenizer: optional("tokenizer.huggingface.json")
                .map(String::into_bytes)
                .or_else(|| arch::llama_cpp_vocab::from_gguf(&gguf)),
            chat_template: optional("tokenizer.chat_template"),
            bos: token("tokenizer.ggml.bos_token_id"),
            omits_bos: gguf.get("tokenizer.huggingface.json").is_none()
                && !arch::llama_cpp_vocab::adds_bos(&gguf),
            eos: token("tokenizer.ggml.eos_token_id"),
        };
        let name = optional("general.name").unwrap_or_else(|| "a model without a name".into());
        if !options.allow_unused {
            arch::unused::check_gguf(&gguf)?;
        }
        Ok(Checkpoint {
            file,
            name,
            spec,
            tensors,
            text,
        })
    }

    /// The description and the tensors of a file of our own architecture.
    fn own(gguf: &Gguf) -> Result<(ModelSpec, Tensors)> {
        let json: Json =
            serde_json::from_str(gguf.get_str("waterline.spec")?).map_err(|e| Error::Config {
                file: gguf.name().into(),
                key: "waterline.spec".into(),
                found: e.to_string(),
                expected: "JSON".into(),
            })?;
        let spec = ModelSpec::from_json(gguf.name(), &json)?;
        let mut tensors = Tensors::new();
        // What is missing is named when the whole is checked.
        for weight in spec.weights() {
            if gguf.has_tensor(&weight.name) {
                let tensor = gguf.tensor(&weight.name)?;
                tensors.insert(weight.name, tensor);
            }
        }
        Ok((spec, tensors))
    }

    /// The metadata of a GGUF file with this model: llama.cpp's where it knows the architecture, or else ours.
    pub fn metadata(&self) -> Vec<(String, Value)> {
        let (architecture, description) = match LlamaCpp::of(&self.spec) {
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
        let mut text = |key: &str, value: Option<Value>| {
            metadata.extend(value.map(|value| (key.to_string(), value)))
        };
        let tokenizer = self
            .text
            .tokenizer
            .as_ref()
            .map(|json| String::from_utf8_lossy(json).into_owned());
        text("tokenizer.huggingface.json", tokenizer.map(Value::String));
        text(
            "tokenizer.chat_template",
            self.text.chat_template.clone().map(Value::String),
        );
        text("tokenizer.ggml.bos_token_id", self.text.bos.map(Value::U32));
        text("tokenizer.ggml.eos_token_id", self.text.eos.map(Value::U32));
        metadata
    }

    /// Every tensor of the description, and the name and shape that it has in a GGUF file with this model.
    pub fn stored(&self) -> Vec<(WeightSpec, WeightSpec)> {
        let known = LlamaCpp::of(&self.spec);
        let stored = |weight: &WeightSpec| match &known {
            Some(known) => known.stored(weight),
            None => weight.clone(),
        };
        let weights = self.spec.weights().into_iter();
        weights
            .map(|weight| (weight.clone(), stored(&weight)))
            .collect()
    }

    /// Every tensor of the description must be there, in its shape, and in f32 or another float format where it is no
    /// matrix and may not be quantized.
    fn check(&self) -> Result<()> {
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
            // llama.cpp quantizes some matrices that stay f32 in files of ours.
            let full = !tensor.format.is_integer_dot() || weight.shape.len() == 2;
            if weight.precision == Precision::Full && !full {
                return Err(wrong(
                    format!("format {}", tensor.format.name),
                    "F32, since it may not be quantized".into(),
                ));
            }
        }
        for (key, token) in [
            ("bos_token_id", self.text.bos),
            ("eos_token_id", self.text.eos),
        ] {
            if let Some(id) = token.filter(|&id| id as usize >= self.spec.vocab) {
                return Err(Error::Config {
                    file: self.file.clone(),
                    key: key.into(),
                    found: id.to_string(),
                    expected: format!("a token below the vocabulary's {}", self.spec.vocab),
                });
            }
        }
        Ok(())
    }

    /// A number that differs for different models: of the description, and of each tensor's format and first bytes.
    pub fn fingerprint(&self) -> u64 {
        const SAMPLE: usize = 4096;
        let mut hash = Fnv::new();
        hash.add(self.spec.to_json().to_string().as_bytes());
        for weight in self.spec.weights() {
            if let Some(tensor) = self.tensors.get(&weight.name) {
                hash.add(tensor.format.name.as_bytes());
                hash.add(&tensor.data[..tensor.data.len().min(SAMPLE)]);
            }
        }
        hash.0
    }
}

/// The 64-bit FNV-1a hash.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}
