//! The choice of a generation's tokens: the sampler chooses among those that a constraint allows.

use super::{LogitsHook, Session};
use crate::constraint::Constraint;
use crate::error::Result;

/// A constraint, if there is one, and room for the logits that it or a hook changes.
#[derive(Default)]
pub(crate) struct Choice {
    pub constraint: Option<Constraint>,
    /// `[vocab]`, once they were changed.
    logits: Vec<f32>,
}

impl Choice {
    /// True if every token can be chosen.
    pub fn is_free(&self) -> bool {
        self.constraint.is_none()
    }

    /// Chooses a token by `logits` `[vocab]`, or else by the session's last ones, without reading it.
    ///
    /// # Errors
    /// As [`Session::sample`] and [`Constraint::apply`].
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

    /// Goes on by a token that was chosen.
    ///
    /// # Errors
    /// As [`Constraint::take`].
    pub fn take(&mut self, token: u32) -> Result<()> {
        match &mut self.constraint {
            Some(constraint) => constraint.take(token),
            None => Ok(()),
        }
    }

    /// Appends up to `most` tokens that the constraint leaves no choice about.
    pub fn draft(&mut self, tokens: &mut Vec<u32>, most: usize) {
        if let Some(constraint) = &mut self.constraint {
            tokens.extend(constraint.forced().into_iter().take(most));
        }
    }

    /// How many of the first `tokens` the constraint allows.
    pub fn allowed(&mut self, tokens: &[u32]) -> usize {
        match &mut self.constraint {
            Some(constraint) => constraint.allowed(tokens),
            None => tokens.len(),
        }
    }
}
