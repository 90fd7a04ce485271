//! Token choice in a generation: the sampler chooses among the tokens that a constraint allows, after the thought of the answer.

use super::thought::Thought;
use super::{LogitsHook, Session};
use crate::constraint::Constraint;
use crate::error::Result;

/// An optional thought and an optional constraint, and a buffer for logits that the constraint or a hook changes.
#[derive(Default)]
pub(crate) struct Choice {
    pub thought: Option<Thought>,
    pub constraint: Option<Constraint>,
    /// Number of tokens that the thought and the constraint have advanced past.
    pub taken: usize,
    /// Tokens that must not be chosen where no constraint decides.
    pub forbidden: Vec<u32>,
    /// The changed logits, `[vocab]`; empty until needed.
    logits: Vec<f32>,
}

impl Choice {
    /// Whether the sampler alone chooses the next token.
    pub fn is_free(&self) -> bool {
        self.free() > 0
    }

    /// A number of next tokens that the sampler alone chooses. Where a thought ends, a constraint begins to apply.
    pub fn free(&self) -> usize {
        let free = self.thought.as_ref().map_or(usize::MAX, Thought::free);
        match &self.constraint {
            Some(_) if self.is_thinking() => free.min(1),
            Some(_) => 0,
            None if !self.forbidden.is_empty() => 0,
            None => free,
        }
    }

    fn is_thinking(&self) -> bool {
        self.thought.as_ref().is_some_and(Thought::is_open)
    }

    /// The tokens that follow whatever the model's choice.
    fn forced(&self) -> &[u32] {
        self.thought.as_ref().map_or(&[], Thought::forced)
    }

    /// The constraint, unless the answer is still in its thought.
    fn applied(&mut self) -> Option<&mut Constraint> {
        let is_thinking = self.is_thinking();
        self.constraint.as_mut().filter(|_| !is_thinking)
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
        if let Some(&token) = self.forced().first() {
            return Ok(token);
        }
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
        let is_thinking = self.is_thinking();
        if let Some(constraint) = self.constraint.as_mut().filter(|_| !is_thinking) {
            constraint.apply(&mut self.logits)?;
        } else {
            for &token in &self.forbidden {
                if let Some(logit) = self.logits.get_mut(token as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        session.sample_from(&self.logits)
    }

    /// Advances past a chosen token.
    ///
    /// # Errors
    /// See [`Constraint::take`].
    pub fn take(&mut self, token: u32) -> Result<()> {
        if let Some(constraint) = self.applied() {
            constraint.take(token)?;
        }
        if let Some(thought) = &mut self.thought {
            thought.take(token);
        }
        self.taken += 1;
        Ok(())
    }

    /// Appends up to `most` tokens that the thought or the constraint forces.
    pub fn draft(&mut self, tokens: &mut Vec<u32>, most: usize) {
        let forced = self.forced();
        tokens.extend(forced.iter().take(most));
        if forced.is_empty()
            && let Some(constraint) = self.applied()
        {
            tokens.extend(constraint.forced().into_iter().take(most));
        }
    }

    /// Whether the answer may end here: it is a complete text of the constraint.
    pub fn is_complete(&mut self) -> bool {
        let is_thinking = self.is_thinking();
        let constraint = self.constraint.as_mut();
        constraint.is_none_or(|constraint| !is_thinking && constraint.is_complete())
    }

    /// Returns the length of the longest prefix of `tokens` that the constraint allows.
    pub fn allowed(&mut self, tokens: &[u32]) -> usize {
        match self.applied() {
            Some(constraint) => constraint.allowed(tokens),
            None => tokens.len(),
        }
    }
}
