//! Constraints in a build without them: none can be made.

use std::convert::Infallible;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// Compiles grammars for a model's vocabulary. This build cannot: the feature `constraints` is off.
pub struct Constraints {
    none: Infallible,
}

impl Constraints {
    /// [`Error::Unsupported`].
    pub(crate) fn new(file: &str, _: Arc<Tokenizer>, _: usize, _: Vec<u32>) -> Result<Arc<Self>> {
        Err(Error::Unsupported {
            file: file.into(),
            what: "constraints by a build without the feature `constraints`".into(),
        })
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// None: there is no value to call it on.
    pub fn compile(&self, _: &Grammar) -> Result<Constraint> {
        match self.none {}
    }
}

/// How far an answer has come in its grammar. This build has none.
#[derive(Clone)]
pub struct Constraint {
    none: Infallible,
}

impl Constraint {
    /// As this one.
    pub fn after_thought(self) -> Self {
        match self.none {}
    }

    /// The tokens that end the answer.
    pub(crate) fn ends(&self) -> &[u32] {
        match self.none {}
    }

    /// Forbids tokens that cannot follow.
    ///
    /// # Errors
    /// As [`Constraints::compile`].
    pub fn apply(&mut self, _: &mut [f32]) -> Result<()> {
        match self.none {}
    }

    /// Goes on by a token.
    ///
    /// # Errors
    /// As [`Constraints::compile`].
    pub fn take(&mut self, _: u32) -> Result<()> {
        match self.none {}
    }

    /// Tokens of the text that has to follow.
    pub(crate) fn forced(&mut self) -> Vec<u32> {
        match self.none {}
    }

    /// How many of the first tokens can follow.
    pub(crate) fn allowed(&mut self, _: &[u32]) -> usize {
        match self.none {}
    }
}
