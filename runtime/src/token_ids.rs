//! Token ids from callers and requests, checked against a model's vocabulary once.

use std::ops::Deref;

use crate::error::{Error, Result};
use crate::loaded::Model;

/// Token ids of a model: each has a row in the model's matrices and a logit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TokenIds(Vec<u32>);

impl Deref for TokenIds {
    type Target = [u32];

    fn deref(&self) -> &[u32] {
        &self.0
    }
}

impl Model {
    /// Checks token ids from outside.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id beyond the vocabulary.
    pub fn token_ids(&self, ids: Vec<u32>) -> Result<TokenIds> {
        self.check_token_ids(&ids)?;
        Ok(TokenIds(ids))
    }

    /// Like [`token_ids`](Self::token_ids), for ids that the caller keeps.
    ///
    /// # Errors
    /// [`Error::Invalid`] for an id beyond the vocabulary.
    pub fn check_token_ids(&self, ids: &[u32]) -> Result<()> {
        let vocab = self.spec().vocab;
        match ids.iter().find(|&&id| id as usize >= vocab) {
            None => Ok(()),
            Some(id) => Err(Error::invalid(
                format!("token {id}"),
                format!("expected a token below {vocab}, the size of the model's vocabulary"),
            )),
        }
    }
}
