//! Token choice in a generation: the sampler chooses among the tokens that a constraint allows.

use super::{LogitsHook, Session};
use crate::constraint::Constraint;
use crate::error::Result;

/// An optional constraint, and a buffer for logits that the constraint or a hook changes.
#[derive(Default)]
pub(crate) struct Choice {
    pub constraint: Option<Constraint>,
    /// The changed logits, `[vocab]`; empty until needed.
    logits: Vec<f32>,
}

impl Choice {
    /// Whether every token is allowed.
    pub fn is_free(&self) -> bool {
        self.constraint.is_none()
    }

    /// Chooses a token from `logits` `[vocab]`, or from the session's last logits, without reading it.
    ///
    /// # Errors
    /// See [`Session::sample`] and [`Constraint::apply`].
    pub fn choose(
        &mut self,
        session: &mut Session,
        logits: Option<&[f32]>,
        hook: Option<&mut LogitsHook<'_>>,
    ) -> Result<u32> {
        if hook.is_none() && self.is_free() {
            return session.choose(logits);
        }
        self.logits.clear();
        match logits {
            Some(logits) => self.logits.extend_from_slice(logits),
            None => self.logits.extend_from_slice(session.logits()?),
        }
        if let Some(hook) = hook {
            hook(&mut self.logits);
        }
        if let Some(constraint) = &mut self.constraint {
            constraint.apply(&mut self.logits)?;
        }
        session.sample_from(&self.logits)
    }

    /// Advances the constraint past a chosen token.
    ///
    /// # Errors
    /// See [`Constraint::take`].
    pub fn take(&mut self, token: u32) -> Result<()> {
        match &mut self.constraint {
            Some(constraint) => constraint.take(token),
            None => Ok(()),
        }
    }

    /// Appends up to `most` tokens that the constraint forces.
    pub fn draft(&mut self, tokens: &mut Vec<u32>, most: usize) {
        if let Some(constraint) = &mut self.constraint {
            tokens.extend(constraint.forced().into_iter().take(most));
        }
    }

    /// Returns the length of the longest prefix of `tokens` that the constraint allows.
    pub fn allowed(&mut self, tokens: &[u32]) -> usize {
        match &mut self.constraint {
            Some(constraint) => constraint.allowed(tokens),
            None => tokens.len(),
        }
    }
}
