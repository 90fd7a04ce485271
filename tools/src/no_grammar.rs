//! The form of answers in a build without constraints: any.

use waterline::{Constraint, Model};

use crate::error::Result;

/// No flags.
#[derive(clap::Args, Clone)]
pub struct GrammarArgs {}

impl GrammarArgs {
    /// None.
    pub fn constraint(&self, _: &Model, _: Option<u32>) -> Result<Option<Constraint>> {
        Ok(None)
    }
}
