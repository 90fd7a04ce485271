//! Speculation by prompt lookup (arXiv 2304.04487; Saxena 2023): where the last tokens have occurred before, those that followed
//! them are a draft of what comes next. A draft is read in one pass over the weights, and of it as much stands as steps would have
//! chosen one by one; each token's ops on the state run in their order, so that tokens, logits and state are those of plain steps
//! to the bit, whatever the sampler; on a GPU, those of recorded steps.
//!
//! The memory is fixed: one more state, to return to where a draft went wrong, and of every draft token what the ops with a state
//! read. Where a draft is not accepted whole, only these ops run again over the accepted tokens: a recurrence repeats its rank-one
//! updates, and no matrix is read twice.

use super::{Session, SessionOptions};
use crate::engine::{Ahead, Engine, Together};
use crate::error::{Error, Result};
use crate::model::Model;
use crate::sampler::SamplerState;

/// Longest run of tokens that has to have occurred before.
const LONGEST: usize = 3;

/// What a session needs to read ahead.
pub(super) struct Lookup {
    ahead: Box<dyn Ahead>,
    /// The tokens that were read last, and the random numbers' state after each was chosen.
    tokens: Vec<u32>,
    random: Vec<SamplerState>,
    /// Longest draft.
    draft: usize,
}

impl Lookup {
    /// For a session with such options; none without drafts.
    pub fn new(engine: &dyn Engine, options: &SessionOptions) -> Result<Option<Self>> {
        let draft = draft_of(options)?;
        if draft == 0 {
            return Ok(None);
        }
        let ahead = engine.ahead(draft + 1)?;
        let most = ahead.most();
        Ok(Some(Lookup {
            ahead,
            tokens: Vec::with_capacity(most),
            random: Vec::with_capacity(most),
            draft: most - 1,
        }))
    }

    /// Bytes that a session with such options would allocate for it, and states besides.
    pub fn plan(model: &Model, threads: usize, options: &SessionOptions) -> Result<(usize, usize)> {
        Ok(match draft_of(options)? {
            0 => (0, 0),
            draft => (Together::plan(model.program(), threads, draft + 1), 1),
        })
    }

    /// Bytes besides the state.
    pub fn bytes(&self) -> usize {
        self.ahead.bytes()
    }
}

impl Session {
    /// Chooses tokens and reads them: at least one, at most `most`, and none behind one of `ends`. They are those of as many
    /// [`Session::step`]s; [`Session::ahead`] has them.
    ///
    /// # Errors
    /// As [`Session::step`].
    pub(crate) fn step_ahead(&mut self, most: usize, ends: &[u32]) -> Result<()> {
        let Some(mut lookup) = self.lookup.take() else {
            return Err(Error::invalid("lookup", "the session was made without"));
        };
        let outcome = self.step_by(&mut lookup, most, ends);
        if outcome.is_err() {
            lookup.tokens.clear();
        }
        self.lookup = Some(lookup);
        outcome
    }

    fn step_by(&mut self, lookup: &mut Lookup, most: usize, ends: &[u32]) -> Result<()> {
        lookup.tokens.clear();
        let known = self
            .engine
            .next()
            .filter(|_| self.sampler.params().is_greedy());
        let first = known.map_or_else(|| self.sample(), Ok)?;
        self.check(&[first])?;
        lookup.random.clear();
        lookup.random.push(self.random());
        lookup.tokens.push(first);
        if !ends.contains(&first) {
            let most = lookup.draft.min(most.saturating_sub(1));
            let (older, newer) = self.recent();
            draft(older, newer, &mut lookup.tokens, most);
            let end = lookup.tokens.iter().position(|token| ends.contains(token));
            lookup
                .tokens
                .truncate(end.map_or(usize::MAX, |end| end + 1));
            while self.check(&lookup.tokens).is_err() {
                lookup.tokens.pop();
            }
        }
        if self.canceller.take() {
            return Err(Error::Cancelled { fed: 0 });
        }
        let count = lookup.tokens.len();
        let greedy = self.sampler.params().is_greedy();
        let tokens = &lookup.tokens;
        lookup.ahead.read(&mut *self.engine, tokens, greedy)?;
        for row in 0..count {
            self.advance(&lookup.tokens[row..=row]);
            if row + 1 < count {
                let chosen = match lookup.ahead.chosen(row) {
                    Some(chosen) => Ok(chosen),
                    None => self.choose(Some(lookup.ahead.logits(row)?)),
                };
                if !chosen.is_ok_and(|chosen| chosen == lookup.tokens[row + 1]) {
                    return self.commit(lookup, row + 1);
                }
                lookup.random.push(self.random());
            }
        }
        lookup.ahead.end(&mut *self.engine, count - 1)
    }

    /// Of the tokens that were read ahead, which are two or more, the first `count` stand.
    fn commit(&mut self, lookup: &mut Lookup, count: usize) -> Result<()> {
        lookup.tokens.truncate(count);
        lookup.ahead.commit(&mut *self.engine, &lookup.tokens)?;
        self.advance(&lookup.tokens);
        self.set_random(lookup.random[count - 1]);
        lookup.ahead.end(&mut *self.engine, count - 1)
    }

    /// Whether [`Session::step_ahead`] can be called.
    pub(crate) fn looks_ahead(&self) -> bool {
        self.lookup.is_some()
    }

    /// The tokens that [`Session::step_ahead`] read last.
    pub(crate) fn ahead(&self) -> &[u32] {
        self.lookup.as_ref().map_or(&[], |lookup| &lookup.tokens)
    }

    /// Of the tokens that were read ahead only the first `count` stand, which are one at least.
    ///
    /// # Errors
    /// [`Error::Device`] if the device was lost.
    pub(crate) fn keep_ahead(&mut self, count: usize) -> Result<()> {
        let Some(mut lookup) = self.lookup.take() else {
            return Ok(());
        };
        let outcome = match (1..lookup.tokens.len()).contains(&count) {
            true => self.commit(&mut lookup, count),
            false => Ok(()),
        };
        lookup.tokens.clear();
        self.lookup = Some(lookup);
        outcome
    }
}

/// Appends up to `most` tokens to `next`: those that followed the last tokens of the history and `next` where these occurred last,
/// the longest run first.
fn draft(older: &[u32], newer: &[u32], next: &mut Vec<u32>, most: usize) {
    let at = |index: usize| match index.checked_sub(older.len()) {
        None => older[index],
        Some(index) if index < newer.len() => newer[index],
        Some(index) => next[index - newer.len()],
    };
    let length = older.len() + newer.len() + next.len();
    let longest = LONGEST.min(length.saturating_sub(1));
    let occurs = |end: usize, run: usize| (1..=run).all(|back| at(end - back) == at(length - back));
    let found = (1..=longest).rev().find_map(|run| {
        let ends = (run..length).rev();
        ends.into_iter().find(|&end| occurs(end, run))
    });
    if let Some(end) = found {
        let tokens: [u32; MOST_DRAFT] = std::array::from_fn(|i| match end + i < length {
            true => at(end + i),
            false => 0,
        });
        next.extend_from_slice(&tokens[..most.min(length - end).min(MOST_DRAFT)]);
    }
}

/// Longest draft that a session can be made for.
const MOST_DRAFT: usize = 64;

fn draft_of(options: &SessionOptions) -> Result<usize> {
    match options.lookup {
        draft @ ..=MOST_DRAFT => Ok(draft),
        _ => Err(Error::invalid(
            "lookup",
            format!("must be at most {MOST_DRAFT} tokens"),
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::Arc;

    use super::draft;
    use crate::{Model, SamplerParams, Session, SessionOptions};

    /// A session that has read text which repeats.
    fn session(model: &Arc<Model>, lookup: usize, temperature: f32) -> Session {
        let options = SessionOptions {
            threads: 2,
            chunk: 16,
            lookup,
            sampler: SamplerParams {
                temperature,
                seed: 3,
                ..SamplerParams::default()
            },
            ..SessionOptions::default()
        };
        let mut session = Session::new(Arc::clone(model), options).expect("a session");
        let vocab = model.spec().vocab;
        let prompt: Vec<u32> = (0..24).map(|i| (i % 8 * 5 % vocab) as u32).collect();
        session.feed(&prompt).expect("a prompt");
        session
    }

    fn bytes(session: &Session) -> Vec<u8> {
        let mut bytes = Vec::new();
        let snapshot = session.snapshot().expect("a snapshot");
        snapshot.write(&mut bytes).expect("bytes");
        bytes
    }

    /// Whatever is accepted, refused or taken back: the same tokens and, to the bit, the same state as step by step.
    #[test]
    fn reading_ahead_is_stepping() {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../tests/fixtures");
        let (mut accepted, mut refused, mut cases) = (0, 0, 0);
        for entry in std::fs::read_dir(folder).expect("cases") {
            let path = entry.expect("an entry").path();
            if !path.join("meta.json").exists() {
                continue;
            }
            cases += 1;
            let model = Model::open(&path).expect("a model");
            // Drafts of more tokens than a product sums in another order, and of fewer.
            for (temperature, most) in [(0.0, 12), (0.3, 5)] {
                let mut plain = session(&model, 0, temperature);
                let mut ahead = session(&model, most + 1, temperature);
                let mut tokens = Vec::new();
                for round in 0..12 {
                    ahead.step_ahead(most, &[1]).expect("tokens");
                    let read = ahead.ahead().to_vec();
                    assert!((1..=most).contains(&read.len()));
                    assert!(!read[..read.len() - 1].contains(&1), "behind an end");
                    accepted += read.len() - 1;
                    refused += usize::from(read.len() == 1);
                    let kept = if round % 3 == 2 {
                        read.len().min(2)
                    } else {
                        read.len()
                    };
                    ahead.keep_ahead(kept).expect("a state");
                    tokens.extend_from_slice(&read[..kept]);
                    assert!(ahead.ahead().is_empty());
                }
                for token in tokens {
                    assert_eq!(plain.step().expect("a token"), token, "{}", path.display());
                }
                assert!(bytes(&plain) == bytes(&ahead), "{}", path.display());
            }
        }
        assert!(
            cases > 15 && accepted > cases && refused > cases,
            "{accepted} {refused}"
        );
    }

    #[test]
    fn a_draft_follows_the_last_occurrence_of_the_longest_run() {
        let drafted = |older: &[u32], newer: &[u32], token: u32, most: usize| {
            let mut next = vec![token];
            draft(older, newer, &mut next, most);
            next.split_off(1)
        };
        assert_eq!(drafted(&[1, 2, 3, 4, 9, 2, 3], &[5, 1, 2], 3, 3), [4, 9, 2]);
        assert_eq!(drafted(&[7, 3, 8, 6, 3], &[5], 3, 2), [5, 3]);
        assert_eq!(drafted(&[4, 4], &[], 4, 8), [4]);
        assert!(drafted(&[1, 2], &[3], 9, 4).is_empty());
        assert!(drafted(&[], &[], 9, 4).is_empty());
        assert!(drafted(&[9, 1], &[], 9, 0).is_empty());
    }
}
