//! Final states of tokens, and vectors of texts. Neither needs logits, so none are computed.

use std::ops::Range;

use super::Session;
use crate::cpu::room;
use crate::error::{Error, Result};
use crate::loaded::Model;
use crate::model::{Embedding, Pooling};

/// Number of rows of the residual stream that are copied at once.
const ROWS: usize = 64;

/// How the vector of a text is computed. By default as the model's files state it ([`Model::embedding`]).
#[derive(Debug, Clone, Copy, Default)]
#[non_exhaustive]
pub struct EmbedOptions {
    /// How the states become one vector.
    pub pooling: Option<Pooling>,
    /// Whether the vector has unit length.
    pub normalize: Option<bool>,
    /// Length to which the vector is cut before it is normalized; the model's files must allow it ([`Embedding::lengths`]).
    pub dimensions: Option<usize>,
}

/// Combines the final states of a text's tokens into one vector.
#[derive(Debug, Clone)]
pub struct Pooler {
    pooling: Pooling,
    normalize: bool,
    dimensions: usize,
    /// The sum of the states, or the chosen state.
    pooled: Vec<f64>,
    states: usize,
}

impl Pooler {
    /// Adds the final state of the next token, `[hidden]`.
    pub fn add(&mut self, state: &[f32]) {
        let is_first = self.states == 0;
        self.states += 1;
        let values = self.pooled.iter_mut().zip(state);
        match self.pooling {
            Pooling::Mean => values.for_each(|(sum, x)| *sum += f64::from(*x)),
            Pooling::Cls if !is_first => {}
            Pooling::Cls | Pooling::Last => values.for_each(|(own, x)| *own = f64::from(*x)),
        }
    }

    /// The vector of the tokens so far.
    pub fn vector(&self) -> Vec<f32> {
        let pooled = &self.pooled[..self.dimensions];
        let squares: f64 = pooled.iter().map(|x| x * x).sum();
        let divisor = match (self.normalize, self.pooling) {
            // A vector of zeros stays what it is.
            (true, _) => squares.sqrt().max(f64::MIN_POSITIVE),
            (false, Pooling::Mean) => self.states.max(1) as f64,
            (false, _) => 1.0,
        };
        pooled.iter().map(|x| (x / divisor) as f32).collect()
    }

    /// The tokens of a chunk of `chunk` tokens of a text whose states are needed; `is_first` and `is_last` tell its place.
    fn rows(&self, chunk: usize, is_first: bool, is_last: bool) -> Range<usize> {
        match self.pooling {
            Pooling::Mean => 0..chunk,
            Pooling::Cls => 0..usize::from(is_first),
            Pooling::Last => chunk - usize::from(is_last)..chunk,
        }
    }
}

impl Model {
    /// The settings for vectors that the model's files state.
    pub fn embedding(&self) -> &Embedding {
        &self.files().embedding
    }

    /// Creates a pooler.
    ///
    /// # Errors
    /// [`Error::Invalid`] if neither `options` nor the files name a pooling, or if the vectors must not be cut to that length;
    /// [`Error::Unsupported`] if the files describe vectors that cannot be computed and `options` names no pooling.
    pub fn pooler(&self, options: &EmbedOptions) -> Result<Pooler> {
        let files = self.embedding();
        let pooling = match (options.pooling, &files.unsupported) {
            (Some(pooling), _) => pooling,
            (None, Some(what)) => {
                return Err(Error::Unsupported {
                    file: self.file().into(),
                    what: format!("vectors of texts: {what}"),
                });
            }
            (None, None) => files.pooling.ok_or_else(|| {
                let reason = "the model's files name none; expected mean, cls or last";
                Error::invalid("pooling", reason)
            })?,
        };
        let hidden = self.spec().hidden;
        let dimensions = options.dimensions.unwrap_or(hidden);
        let is_whole = dimensions == hidden;
        if dimensions == 0
            || dimensions > hidden
            || !(is_whole || files.lengths.contain(dimensions))
        {
            let reason = format!(
                "found {dimensions}, expected {hidden}, the length of the model's vectors, or a shorter length that its files allow"
            );
            return Err(Error::invalid("dimensions", reason));
        }
        Ok(Pooler {
            pooling,
            normalize: options.normalize.unwrap_or(files.normalize),
            dimensions,
            pooled: vec![0.0; hidden],
            states: 0,
        })
    }

    /// The tokens of a text for [`Session::embed`]: the text after the prompt of a task, between the tokens that the tokenizer adds.
    /// Without `task` the files' default is used, if they name one.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the files have no prompt for that task, and the errors of [`Model::tokenizer`].
    pub fn embedding_tokens(&self, text: &str, task: Option<&str>) -> Result<Vec<u32>> {
        let files = self.embedding();
        let prompt = match task.or(files.default_prompt.as_deref()) {
            None => "",
            Some(name) => files.prompts.get(name).ok_or_else(|| {
                let known: Vec<&str> = files.prompts.keys().map(String::as_str).collect();
                let known = match known.is_empty() {
                    true => "the model's files name none".to_string(),
                    false => format!("expected one of {}", known.join(", ")),
                };
                Error::invalid("task", format!("found {name:?}: {known}"))
            })?,
        };
        let text = self.tokenizer()?.encode(&format!("{prompt}{text}"))?;
        Ok(self
            .bos()
            .into_iter()
            .chain(text)
            .chain(files.after)
            .collect())
    }
}

impl Session {
    /// Reads tokens and calls `each(index, state)` with the final state `[hidden]` after each one: the residual stream after the
    /// final norm. No logits are computed (except on a GPU in exact mode); none are available until the next [`Session::feed`],
    /// and no later history continues from this state.
    ///
    /// # Errors
    /// See [`Session::feed`].
    pub fn feed_states(
        &mut self,
        tokens: &[u32],
        mut each: impl FnMut(usize, &[f32]),
    ) -> Result<()> {
        let rows = |_, length| 0..length;
        self.states(tokens, rows, |index, state| each(index, state), |_| ())
    }

    /// Forgets everything read so far and computes the vector of a text of these tokens ([`Model::embedding_tokens`]).
    ///
    /// # Errors
    /// See [`Model::pooler`] and [`Session::feed`]; [`Error::Invalid`] without tokens.
    pub fn embed(&mut self, tokens: &[u32], options: &EmbedOptions) -> Result<Vec<f32>> {
        self.embed_with_progress(tokens, options, |_| ())
    }

    /// Like [`Session::embed`], but calls `progress(read)` after every chunk with the number of tokens read so far.
    ///
    /// # Errors
    /// See [`Session::embed`].
    pub fn embed_with_progress(
        &mut self,
        tokens: &[u32],
        options: &EmbedOptions,
        progress: impl FnMut(usize),
    ) -> Result<Vec<f32>> {
        let mut pooler = self.model.pooler(options)?;
        if tokens.is_empty() {
            return Err(Error::invalid(
                "tokens",
                "found none, expected at least one",
            ));
        }
        self.reset()?;
        let choice = pooler.clone();
        let rows = |first, length| choice.rows(length, first == 0, first + length == tokens.len());
        let read = self.states(tokens, rows, |_, state| pooler.add(state), progress);
        // The next text begins in an empty session, whatever became of this one.
        self.reset()?;
        read?;
        Ok(pooler.vector())
    }

    /// Reads tokens without logits; `rows(first, length)` selects tokens of a chunk, whose final states `each` receives.
    fn states(
        &mut self,
        tokens: &[u32],
        rows: impl Fn(usize, usize) -> Range<usize>,
        mut each: impl FnMut(usize, &[f32]),
        mut progress: impl FnMut(usize),
    ) -> Result<()> {
        let model = std::sync::Arc::clone(&self.model);
        let (hidden, norm) = (model.spec().hidden, &model.program().logits.norm);
        // The norm of the program includes the multiplier of the logits.
        let multiplier = model.spec().logits_multiplier;
        let together = ROWS.min(self.options.chunk).min(tokens.len());
        let mut stream = room(together * hidden)?;
        self.read_by(
            |session, chunk| session.engine.read_layers(chunk),
            tokens,
            |_| usize::MAX,
            |session, _| {
                session.reading.forget_tokens();
                session.engine.invalidate_logits()
            },
            |session, (first, length)| {
                let wanted = rows(first, length);
                for start in wanted.clone().step_by(together.max(1)) {
                    let part = start..(start + together).min(wanted.end);
                    let stream = &mut stream[..part.len() * hidden];
                    session.engine.residual(part, stream)?;
                    for (row, state) in stream.chunks_exact_mut(hidden).enumerate() {
                        norm.apply_in_place(state);
                        if multiplier != 1.0 {
                            state.iter_mut().for_each(|x| *x /= multiplier);
                        }
                        each(first + start + row, state);
                    }
                }
                progress(first + length);
                Ok(())
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pooler(pooling: Pooling, normalize: bool, dimensions: usize) -> Pooler {
        Pooler {
            pooling,
            normalize,
            dimensions,
            pooled: vec![0.0; 3],
            states: 0,
        }
    }

    #[test]
    fn states_are_pooled_cut_and_normalized() {
        for (pooling, normalize, dimensions, expected) in [
            (Pooling::Mean, false, 3, &[2.0, 1.0, 2.0][..]),
            (Pooling::Cls, false, 3, &[3.0, 4.0, 0.0]),
            (Pooling::Last, false, 3, &[1.0, -2.0, 4.0]),
            (Pooling::Cls, true, 3, &[0.6, 0.8, 0.0]),
            (Pooling::Mean, true, 1, &[1.0]),
        ] {
            let mut pooler = pooler(pooling, normalize, dimensions);
            pooler.add(&[3.0, 4.0, 0.0]);
            pooler.add(&[1.0, -2.0, 4.0]);
            assert_eq!(pooler.vector(), expected, "{pooling} {normalize}");
        }
        assert_eq!(pooler(Pooling::Mean, true, 2).vector(), [0.0, 0.0]);
    }

    #[test]
    fn only_the_states_that_count_are_copied() {
        let rows = |pooling, is_first, is_last| pooler(pooling, true, 3).rows(5, is_first, is_last);
        assert_eq!(rows(Pooling::Mean, false, true), 0..5);
        assert_eq!(rows(Pooling::Last, true, false), 5..5);
        assert_eq!(rows(Pooling::Last, false, true), 4..5);
        assert_eq!(rows(Pooling::Cls, true, true), 0..1);
        assert_eq!(rows(Pooling::Cls, false, true), 0..0);
    }
}
