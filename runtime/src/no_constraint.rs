//! Constraints in a build without them: none can be made.

use std::convert::Infallible;

use crate::error::Result;

/// How far an answer has come in its grammar. This build has none: the feature `constraints` is off.
#[derive(Clone)]
pub struct Constraint {
    none: Infallible,
}

impl Constraint {
    /// As this one.
    pub fn after_thought(self) -> Self {
        match self.none {}
    }

    /// Forbids tokens that cannot follow.
    ///
    /// # Errors
    /// None: there is no value to call it on.
    pub fn apply(&mut self, _: &mut [f32]) -> Result<()> {
        match self.none {}
    }

    /// Goes on by a token.
    ///
    /// # Errors
    /// As [`Constraint::apply`].
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
