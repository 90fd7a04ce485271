//! Constraints in a build without the feature `constraints`: none can be created.

use std::convert::Infallible;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// Compiles grammars for a model's vocabulary. Not available in this build: the feature `constraints` is off.
pub struct Constraints {
    none: Infallible,
}

impl Constraints {
    /// Always fails with [`Error::Unsupported`].
    pub(crate) fn new(file: &str, _: Arc<Tokenizer>, _: usize, _: Vec<u32>) -> Result<Arc<Self>> {
        Err(Error::Unsupported {
            file: file.into(),
            what: "constraints; this build lacks the feature `constraints`".into(),
        })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// None: no value of this type exists.
    pub fn compile(&self, _: &Grammar) -> Result<Constraint> {
        match self.none {}
    }

    /// Prepares a schema for a lenient grammar.
    pub fn relax(&self, _: &serde_json::Value) -> (serde_json::Value, Vec<String>) {
        match self.none {}
    }
}

/// The progress of an answer in its grammar. No value of this type exists in this build.
#[derive(Clone)]
pub struct Constraint {
    none: Infallible,
}

impl Constraint {
    /// Sentences about what the grammar leaves to the model.
    pub fn warnings(&mut self) -> Vec<String> {
        match self.none {}
    }

    /// The tokens that end the answer.
    pub(crate) fn ends(&self) -> &[u32] {
        match self.none {}
    }

    /// Masks the tokens that cannot follow.
    ///
    /// # Errors
    /// See [`Constraints::compile`].
    pub fn apply(&mut self, _: &mut [f32]) -> Result<()> {
        match self.none {}
    }

    /// Advances past a token.
    ///
    /// # Errors
    /// See [`Constraints::compile`].
    pub fn take(&mut self, _: u32) -> Result<()> {
        match self.none {}
    }

    /// Whether the answer so far is a complete text of the grammar.
    pub(crate) fn is_complete(&mut self) -> bool {
        match self.none {}
    }

    /// The tokens of the text that the grammar forces next.
    pub(crate) fn forced(&mut self) -> Vec<u32> {
        match self.none {}
    }

    /// The length of the longest prefix that can follow.
    pub(crate) fn allowed(&mut self, _: &[u32]) -> usize {
        match self.none {}
    }
}
