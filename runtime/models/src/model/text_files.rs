//! A model's text files, in any format: tokenizer, chat templates, the tokens that begin and end a text, sampling parameters, and
//! how a text becomes a vector.

use std::collections::{BTreeMap, BTreeSet};

use super::{Embedding, Sampling};

/// Name of the chat template for conversations, unless another template suits them better.
pub const DEFAULT_TEMPLATE: &str = "default";

/// A tokenizer, chat templates, the tokens that begin and end a text, sampling parameters, and how a text becomes a vector.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TextFiles {
    /// A Hugging Face `tokenizer.json`.
    pub tokenizer: Option<Vec<u8>>,
    /// Chat templates in Jinja by their names: `default`, and often `tool_use` for conversations with tools.
    pub templates: BTreeMap<String, String>,
    /// The token that begins a text; put before plain text if `adds_bos`.
    pub bos: Option<u32>,
    /// Whether the tokenizer prepends `bos` to plain text.
    pub adds_bos: bool,
    /// The token that ends a document; one of `ends`.
    pub eos: Option<u32>,
    /// The tokens that end a generation.
    pub ends: BTreeSet<u32>,
    /// The sampling parameters that the files recommend.
    pub sampling: Sampling,
    /// How a text becomes a vector.
    pub embedding: Embedding,
    /// The texts that templates insert for the beginning, the end and padding.
    pub names: TokenNames,
}

/// The texts of `bos_token`, `eos_token` and `pad_token` in templates; `None` for the text of the token with that id, if it exists.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct TokenNames {
    /// `bos_token`.
    pub bos: Option<String>,
    /// `eos_token`.
    pub eos: Option<String>,
    /// `pad_token`.
    pub pad: Option<String>,
}

impl TextFiles {
    /// The token before plain text, if any.
    pub fn begin(&self) -> Option<u32> {
        self.bos.filter(|_| self.adds_bos)
    }

    /// The chat template for conversations without tools.
    pub fn chat_template(&self) -> Option<&str> {
        let named = self.templates.get(DEFAULT_TEMPLATE);
        // A single template is used whatever its name.
        let only = || self.templates.values().next();
        let found = named.or_else(|| only().filter(|_| self.templates.len() == 1));
        found.map(String::as_str)
    }
}
