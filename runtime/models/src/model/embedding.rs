//! How the final states of a text become one vector, as a model's files state it.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

/// How the final states of a text's tokens become one vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// The mean of all states.
    Mean,
    /// The state of the first token.
    Cls,
    /// The state of the last token.
    Last,
}

impl Pooling {
    /// All kinds.
    pub const ALL: [Pooling; 3] = [Pooling::Mean, Pooling::Cls, Pooling::Last];

    /// The name, as llama.cpp spells it.
    pub fn name(self) -> &'static str {
        match self {
            Pooling::Mean => "mean",
            Pooling::Cls => "cls",
            Pooling::Last => "last",
        }
    }

    /// The value of llama.cpp's key `pooling_type`.
    pub fn number(self) -> u32 {
        match self {
            Pooling::Mean => 1,
            Pooling::Cls => 2,
            Pooling::Last => 3,
        }
    }
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Pooling {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        let found = Pooling::ALL.into_iter().find(|kind| kind.name() == name);
        found.ok_or_else(|| format!("expected mean, cls or last, found {name:?}"))
    }
}

/// Settings for vectors that a model's files state. The default states nothing.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding {
    /// The pooling; `None` if the files state none.
    pub pooling: Option<Pooling>,
    /// Whether vectors have unit length.
    pub normalize: bool,
    /// The lengths to which vectors may be cut, besides the full length.
    pub lengths: Lengths,
    /// The token that the tokenizer puts after a text.
    pub after: Option<u32>,
    /// Texts that come before a text, by the name of its task (`query`, `document`).
    pub prompts: BTreeMap<String, String>,
    /// The task of a text for which none is named.
    pub default_prompt: Option<String>,
    /// Why the files' vectors cannot be computed, if so.
    pub unsupported: Option<String>,
}

impl Default for Embedding {
    /// GGUF files do not state a length; llama.cpp normalizes by default.
    fn default() -> Self {
        Embedding {
            pooling: None,
            normalize: true,
            lengths: Lengths::Listed(Vec::new()),
            after: None,
            prompts: BTreeMap::new(),
            default_prompt: None,
            unsupported: None,
        }
    }
}

/// The lengths to which a vector may be cut (Matryoshka representations, arXiv 2205.13147).
#[derive(Debug, Clone, PartialEq)]
pub enum Lengths {
    /// Every length.
    Any,
    /// These lengths.
    Listed(Vec<usize>),
}

impl Lengths {
    /// Whether vectors may be cut to `length`.
    pub fn contain(&self, length: usize) -> bool {
        match self {
            Lengths::Any => true,
            Lengths::Listed(lengths) => lengths.contains(&length),
        }
    }
}
