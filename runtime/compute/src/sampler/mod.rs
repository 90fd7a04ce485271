//! Chooses the next token from the logits.
//!
//! The order is fixed:
//! 1. logit bias is added;
//! 2. penalties over the last `penalty_window` tokens: repetition (a positive logit is divided,
//!    a negative one multiplied), then `frequency * count + presence` is subtracted;
//! 3. temperature: 0 returns the largest logit (the lowest token wins a tie) and stops here,
//!    otherwise the logits are divided by it;
//! 4. top-k keeps the k largest logits (again the lowest token wins a tie);
//! 5. top-p keeps the shortest run of the most probable tokens whose probabilities sum to at
//!    least p, where probabilities are renormalised over the tokens that top-k left;
//! 6. min-p keeps the tokens at least min_p times as probable as the most probable one, a ratio
//!    that no renormalisation changes;
//! 7. one uniform number picks from the rest, renormalised and ordered by ascending token, so that
//!    the choice depends on no sorting order and equals that of a prefix sum over the vocabulary.
//!
//! Temperature comes before the truncations, as in most inference APIs, so a high temperature also makes top-p and min-p keep more tokens.
//!
//! A device chooses the same token from the same logits (`cuda/token/sample.cu`): the weights come from an f32 `exp` made only of additions
//! and multiplications, and their sums are integers, which do not depend on the order of summation.

mod params;
mod random;
#[cfg(test)]
mod reference_tests;
mod select;
#[cfg(test)]
pub(crate) mod tests;

pub use params::SamplerParams;
pub use random::SamplerState;

use crate::error::{Error, Result};
use select::Candidate;

/// Largest vocabulary: this many weights of at most 2^40 units can be summed in 64 bits.
const LARGEST_VOCABULARY: usize = 1 << 23;

/// Validated parameters with the scratch space for sampling. Between tokens the only state is [`SamplerState`], which a saved session
/// holds.
#[derive(Clone, Debug)]
pub struct Sampler {
    params: SamplerParams,
    vocab: usize,
    /// Biased and penalised logits `[vocab]`; empty if the parameters change no logit.
    adjusted: Vec<f32>,
    /// The penalised tokens, sorted so that equal tokens are adjacent.
    window: Vec<u32>,
    candidates: Vec<Candidate>,
}

impl Sampler {
    /// Checks `params` and allocates everything that [`sample`](Self::sample) needs for `vocab`
    /// logits.
    ///
    /// # Errors
    /// [`Error::Memory`], and [`Error::Invalid`] for a parameter out of range, a bias on a token past `vocab`, or more biases than tokens.
    pub fn new(params: SamplerParams, vocab: usize) -> Result<Self> {
        params.validate()?;
        if vocab == 0 || vocab > LARGEST_VOCABULARY {
            return Err(Error::Invalid {
                what: "vocabulary".into(),
                reason: format!("found {vocab} tokens, expected 1 to {LARGEST_VOCABULARY}"),
            });
        }
        if let Some((token, _)) = params.logit_bias.iter().find(|b| b.0 as usize >= vocab) {
            return Err(Error::Invalid {
                what: "logit_bias".into(),
                reason: format!("token {token} does not exist; the model has {vocab} tokens"),
            });
        }
        if params.logit_bias.len() > vocab {
            let found = params.logit_bias.len();
            return Err(Error::Invalid {
                what: "logit_bias".into(),
                reason: format!(
                    "found {found} entries, expected at most one for each of {vocab} tokens"
                ),
            });
        }
        let adjusts = params.penalizes() || !params.logit_bias.is_empty();
        let candidates = match params.temperature {
            0.0 => 0,
            _ => select::capacity(params.top_k, vocab),
        };
        Ok(Self {
            vocab,
            adjusted: empty(if adjusts { vocab } else { 0 })?,
            window: empty(if params.penalizes() {
                params.penalty_window
            } else {
                0
            })?,
            candidates: empty(candidates)?,
            params,
        })
    }

    /// The parameters of this sampler.
    pub fn params(&self) -> &SamplerParams {
        &self.params
    }

    /// Picks a token from `logits` `[vocab]`.
    ///
    /// `recent` is the token history, oldest first, as the two halves of a ring; only its last `penalty_window` tokens count. Takes one
    /// random number from `state` if the temperature is above zero; otherwise, and on an error, takes none. Does not allocate.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the number of logits is not `vocab`; [`Error::Logits`] if one is NaN or +inf (before or
    /// after bias and penalties), or if all are -inf.
    pub fn sample(
        &mut self,
        logits: &[f32],
        recent: (&[u32], &[u32]),
        state: &mut SamplerState,
    ) -> Result<u32> {
        if logits.len() != self.vocab {
            return Err(Error::Invalid {
                what: "logits".into(),
                reason: format!("found {} values, expected {}", logits.len(), self.vocab),
            });
        }
        let params = &self.params;
        let logits = if params.penalizes() || !params.logit_bias.is_empty() {
            self.adjusted.clear();
            self.adjusted.extend_from_slice(logits);
            for &(token, bias) in &params.logit_bias {
                self.adjusted[token as usize] += bias;
            }
            if params.penalizes() {
                last_tokens(recent, params.penalty_window, &mut self.window);
                penalize(&mut self.adjusted, &mut self.window, params);
            }
            &self.adjusted[..]
        } else {
            logits
        };
        if params.temperature == 0.0 {
            return most_probable(logits);
        }
        let max = select::maximum(logits)?;
        let candidates = &mut self.candidates;
        select::top_k(logits, params.top_k, candidates);
        select::weigh(candidates, max, params.temperature);
        select::truncate(candidates, params.top_p, params.min_p);
        Ok(select::draw(candidates, state.draw()))
    }
}

/// Returns an empty list with room for `room` elements.
fn empty<T>(room: usize) -> Result<Vec<T>> {
    let mut list = Vec::new();
    let refused = |_| {
        let what = format!("{} bytes for sampling", room.saturating_mul(size_of::<T>()));
        Error::memory(what, "choose a smaller model")
    };
    list.try_reserve_exact(room).map_err(refused)?;
    Ok(list)
}

/// Returns the token with the largest logit, the lowest token if there are several.
///
/// # Errors
/// [`Error::Logits`] if a logit is NaN or +inf, or if all are -inf.
pub fn most_probable(logits: &[f32]) -> Result<u32> {
    Ok(select::first_equal(logits, select::maximum(logits)?))
}

/// Copies the last `count` tokens of the ring's halves, older half first, into `window`.
fn last_tokens((older, newer): (&[u32], &[u32]), count: usize, window: &mut Vec<u32>) {
    let from_newer = newer.len().min(count);
    let from_older = older.len().min(count - from_newer);
    window.clear();
    window.extend_from_slice(&older[older.len() - from_older..]);
    window.extend_from_slice(&newer[newer.len() - from_newer..]);
}

/// Applies the three penalties once per distinct token of `window`, which it sorts. Tokens without a logit are skipped.
fn penalize(logits: &mut [f32], window: &mut [u32], params: &SamplerParams) {
    window.sort_unstable();
    for run in window.chunk_by(|a, b| a == b) {
        let Some(logit) = logits.get_mut(run[0] as usize) else {
            continue;
        };
        if *logit > 0.0 {
            *logit /= params.repetition_penalty;
        } else {
            *logit *= params.repetition_penalty;
        }
        *logit -= run.len() as f32 * params.frequency_penalty + params.presence_penalty;
    }
}
