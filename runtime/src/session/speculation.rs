//! Speculative decoding: one pass over the weights reads a draft of the next tokens, and the prefix that single steps would have chosen
//! is accepted. The ops with a state run token by token in order, so tokens, logits and state are bit-identical to those of plain steps
//! with any sampler. Drafts come from [`lookup`] or from the model's MTP block. Without a draft the session makes a plain step.
//!
//! On a GPU the decode kernel also reads drafts of up to three tokens. Longer ones have the bits of recorded steps.
//!
//! The memory is fixed: one more state to return to after a wrong draft, and the inputs of the ops with a state for every draft token.
//! If only part of a draft is accepted, only these ops run again over the accepted tokens: a recurrence repeats its rank-one updates,
//! and no matrix is read twice. The decode kernel reads the accepted tokens again in full.
//!
//! Under a constraint, the tokens that it forces are drafted first, and each token is chosen among those that it allows.

use super::choice::Choice;
use super::reading::Reading;
use super::{Session, SessionOptions, lookup};
use crate::engine::{Engine, Verifier, plan_verifier};
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::sampler::SamplerState;

/// The longest supported draft.
pub(super) const MOST_DRAFT: usize = 64;

/// Where drafts come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Drafter {
    Lookup,
    Mtp,
}

/// The source of drafts and their length for a session on `model`; `None` without drafts.
fn source(model: &Model, options: &SessionOptions) -> Result<Option<(Drafter, usize)>> {
    let (source, name, draft) = match (options.lookup, options.mtp) {
        (0, 0) => return Ok(None),
        (draft, 0) => (Drafter::Lookup, "lookup", draft),
        (0, draft) => (Drafter::Mtp, "mtp", draft),
        _ => return Err(Error::invalid("lookup and mtp", "choose one of the two")),
    };
    if draft > MOST_DRAFT {
        let reason = format!("must be at most {MOST_DRAFT} tokens");
        return Err(Error::invalid(name, reason));
    }
    let unsupported = |what: &str| Error::Unsupported {
        file: model.file().into(),
        what: what.into(),
    };
    if model.spec().shares_keys() {
        return Err(unsupported(
            "drafts for a model whose layers share keys and values",
        ));
    }
    match source {
        Drafter::Mtp if model.draft().is_none() => Err(unsupported(
            "MTP drafts: the model was opened without its MTP block; open it with OpenOptions::mtp",
        )),
        _ => Ok(Some((source, draft))),
    }
}

/// State of a session that reads ahead.
pub(super) struct Speculation {
    verifier: Box<dyn Verifier>,
    source: Drafter,
    /// The tokens read by the last call, and the random number state after each choice.
    tokens: Vec<u32>,
    random: Vec<SamplerState>,
    /// The session's [`Reading`] before these tokens.
    before: Reading,
    /// The longest draft, in tokens.
    draft: usize,
    /// Total number of drafted tokens, and how many of them were accepted.
    drafted: u64,
    accepted: u64,
}

impl Speculation {
    /// Allocates the buffers for a session on `model`; `None` without drafts.
    pub fn new(
        model: &Model,
        engine: &dyn Engine,
        options: &SessionOptions,
    ) -> Result<Option<Self>> {
        let Some((source, draft)) = source(model, options)? else {
            return Ok(None);
        };
        let verifier = engine.verifier(draft + 1, source == Drafter::Mtp)?;
        let most = verifier.most();
        Ok(Some(Speculation {
            verifier,
            source,
            tokens: Vec::with_capacity(most),
            random: Vec::with_capacity(most),
            before: Reading::new(),
            draft: most - 1,
            drafted: 0,
            accepted: 0,
        }))
    }

    /// Fails if a session on `model` cannot draft with these options.
    pub fn check(model: &Model, options: &SessionOptions) -> Result<()> {
        source(model, options).map(|_| ())
    }

    /// Size in bytes of the buffers that a session would allocate, and the number of additional states.
    pub fn plan(model: &Model, threads: usize, options: &SessionOptions) -> Result<(usize, usize)> {
        Ok(match source(model, options)? {
            None => (0, 0),
            Some((source, draft)) => {
                let drafts = source == Drafter::Mtp;
                (plan_verifier(model, threads, draft + 1, drafts), 1)
            }
        })
    }

    /// Size of the buffers in bytes, without the additional state.
    pub fn bytes(&self) -> usize {
        self.verifier.bytes()
    }
}

impl Session {
    /// Chooses and reads tokens: between one and `most`, and none after one of `ends`. They are the tokens that single steps would
    /// choose; [`Session::ahead`] returns them.
    ///
    /// # Errors
    /// See [`Session::step`] and [`Choice::choose`].
    pub(crate) fn step_ahead(
        &mut self,
        choice: &mut Choice,
        most: usize,
        ends: &[u32],
    ) -> Result<()> {
        let Some(mut speculation) = self.speculation.take() else {
            return Err(Error::invalid(
                "drafts",
                "the session was created without drafts",
            ));
        };
        let outcome = self.step_by(&mut speculation, choice, most, ends);
        if outcome.is_ok() {
            speculation.accepted += speculation.tokens.len() as u64 - 1
        } else {
            speculation.tokens.clear()
        }
        self.speculation = Some(speculation);
        outcome
    }

    fn step_by(
        &mut self,
        speculation: &mut Speculation,
        choice: &mut Choice,
        most: usize,
        ends: &[u32],
    ) -> Result<()> {
        speculation.tokens.clear();
        let free = choice.free();
        if free > 0 && (most == 1 || !self.expects_draft(speculation)) {
            let token = self.step()?;
            speculation.tokens.push(token);
            choice.take(token)?;
            return Ok(());
        }
        self.make_room()?;
        let before = self.random();
        let by_logits =
            free == 0 || choice.constraint.is_some() || !self.sampler.params().is_greedy();
        // The device chooses tokens only as far as it chooses them alone.
        let most = if by_logits { most } else { most.min(free) };
        let known = self.engine.next().filter(|_| !by_logits);
        let first = known.map_or_else(|| choice.choose(self, None, None), Ok)?;
        self.check(&[first])?;
        choice.take(first)?;
        speculation.random.clear();
        speculation.random.push(self.random());
        speculation.tokens.push(first);
        if !ends.contains(&first) {
            let most = speculation.draft.min(most.saturating_sub(1));
            choice.draft(&mut speculation.tokens, most);
            self.draft(speculation, most)?;
            let tokens = &mut speculation.tokens;
            let end = tokens.iter().position(|token| ends.contains(token));
            tokens.truncate(end.map_or(usize::MAX, |end| end + 1));
            tokens.truncate(1 + choice.allowed(&tokens[1..]));
            tokens.truncate(self.room());
            while self.check(&speculation.tokens).is_err() {
                speculation.tokens.pop();
            }
        }
        let count = speculation.tokens.len();
        if count == 1 {
            return self.feed(&[first]).inspect_err(|_| self.set_random(before));
        }
        if self.canceller.take() {
            return Err(Error::Cancelled { fed: 0 });
        }
        speculation.drafted += count as u64 - 1;
        let tokens = &speculation.tokens;
        speculation.before = self.reading;
        speculation
            .verifier
            .read(&mut *self.engine, tokens, !by_logits)?;
        for row in 0..count {
            self.advance(&speculation.tokens[row..=row]);
            if row + 1 < count {
                let drafted = speculation.tokens[row + 1];
                let chosen = match speculation.verifier.chosen(row) {
                    Some(chosen) => Ok(chosen),
                    None => choice.choose(self, Some(speculation.verifier.logits(row)?), None),
                };
                // The next step reports the error again.
                let is_right = chosen.is_ok_and(|chosen| chosen == drafted);
                if !is_right || choice.take(drafted).is_err() {
                    return self.commit(speculation, row + 1);
                }
                speculation.random.push(self.random());
            }
        }
        speculation.verifier.end(&mut *self.engine, count - 1)
    }

    /// Whether a draft is likely: with an MTP block always, with lookup if the last token has occurred before.
    fn expects_draft(&self, speculation: &Speculation) -> bool {
        match speculation.source {
            Drafter::Mtp => true,
            Drafter::Lookup => {
                let (older, newer) = self.recent();
                lookup::is_known(older, newer)
            }
        }
    }

    /// Extends `speculation.tokens` with a draft, up to one token plus `most`.
    fn draft(&mut self, speculation: &mut Speculation, most: usize) -> Result<()> {
        let tokens = &mut speculation.tokens;
        let most = (1 + most).saturating_sub(tokens.len());
        match speculation.source {
            // The block can only draft after a single token that the state has not read.
            Drafter::Mtp if tokens.len() > 1 => Ok(()),
            Drafter::Mtp => speculation.verifier.draft(&mut *self.engine, tokens, most),
            Drafter::Lookup => {
                let (older, newer) = self.recent();
                lookup::draft(older, newer, tokens, most);
                Ok(())
            }
        }
    }

    /// Number of tokens drafted since the session was created, and how many of them were accepted.
    pub fn drafts(&self) -> (u64, u64) {
        let speculation = self.speculation.as_ref();
        speculation.map_or((0, 0), |drafts| (drafts.drafted, drafts.accepted))
    }

    /// Accepts the first `count` of the (two or more) tokens that were read ahead.
    fn commit(&mut self, speculation: &mut Speculation, count: usize) -> Result<()> {
        speculation.tokens.truncate(count);
        speculation
            .verifier
            .commit(&mut *self.engine, &speculation.tokens)?;
        self.reading = speculation.before;
        for token in &speculation.tokens {
            self.advance(std::slice::from_ref(token));
        }
        self.set_random(speculation.random[count - 1]);
        speculation.verifier.end(&mut *self.engine, count - 1)
    }

    /// Whether [`Session::step_ahead`] is available.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.speculation.is_some()
    }

    /// The tokens that the last [`Session::step_ahead`] read.
    pub(crate) fn ahead(&self) -> &[u32] {
        self.speculation.as_ref().map_or(&[], |ahead| &ahead.tokens)
    }

    /// Keeps only the first `count` (at least one) of the tokens that were read ahead.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub(crate) fn keep_ahead(&mut self, count: usize) -> Result<()> {
        let Some(mut speculation) = self.speculation.take() else {
            return Ok(());
        };
        let outcome = if (1..speculation.tokens.len()).contains(&count) {
            self.commit(&mut speculation, count)
        } else {
            Ok(())
        };
        speculation.tokens.clear();
        self.speculation = Some(speculation);
        outcome
    }
}

#[cfg(test)]
#[path = "speculation_tests.rs"]
mod tests;
