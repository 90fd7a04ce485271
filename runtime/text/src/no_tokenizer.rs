//! The tokenizer in a build without the feature `tokenizer`: sessions work with tokens only, not text.

use crate::error::{Error, Result};
pub use runs::{Run, Runs};

#[path = "tokenizer/runs.rs"]
mod runs;

/// Text to tokens and tokens to bytes. Not available in this build: the feature `tokenizer` is off.
pub struct Tokenizer {
    none: std::convert::Infallible,
}

/// A part of a rendered prompt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<'a> {
    /// Template text, in which the names of special tokens stand for the tokens.
    Template(&'a str),
    /// Text of a user or a model, in which such names are ordinary text.
    Content(&'a str),
}

impl Tokenizer {
    /// Refuses a `tokenizer.json`; `source_name` names it in errors.
    ///
    /// # Errors
    /// Always [`Error::Tokenizer`].
    pub fn from_json(_: &[u8], source_name: &str) -> Result<Self> {
        Err(Error::Tokenizer {
            source_name: source_name.into(),
            reason: "this build cannot read tokenizers; build it with the feature `tokenizer`"
                .into(),
        })
    }

    /// See [`from_json`](Self::from_json).
    ///
    /// # Errors
    /// Always [`Error::Tokenizer`].
    #[doc(hidden)]
    pub fn for_rows(bytes: &[u8], source_name: &str, _: usize) -> Result<Self> {
        Self::from_json(bytes, source_name)
    }

    /// Encodes plain text.
    ///
    /// # Errors
    /// None: no value of this type exists.
    pub fn encode(&self, _: &str) -> Result<Vec<u32>> {
        match self.none {}
    }

    /// Encodes a template's text.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub fn encode_with_special(&self, _: &str) -> Result<Vec<u32>> {
        match self.none {}
    }

    /// Encodes text composed of template and content pieces.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub(crate) fn encode_pieces(&self, _: &[Piece], _: bool) -> Result<Vec<u32>> {
        match self.none {}
    }

    /// Encodes text composed of template and content pieces, reusing known runs.
    ///
    /// # Errors
    /// See [`encode`](Self::encode).
    pub(crate) fn encode_runs(
        &self,
        _: &[Piece],
        _: bool,
        _: Option<&Runs>,
    ) -> Result<(Vec<u32>, Run)> {
        match self.none {}
    }

    /// The exact bytes of a token.
    pub fn token_bytes(&self, _: u32) -> &[u8] {
        match self.none {}
    }

    /// The number of tokens.
    pub fn vocab_size(&self) -> usize {
        match self.none {}
    }

    /// The id of a token.
    pub fn token_id(&self, _: &str) -> Option<u32> {
        match self.none {}
    }

    /// Whether a token has a visible name.
    pub(crate) fn is_mark(&self, _: u32) -> bool {
        match self.none {}
    }

    /// Whether a token is special.
    pub fn is_special(&self, _: u32) -> bool {
        match self.none {}
    }
}
