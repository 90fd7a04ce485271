//! Log-probabilities of the tokens of prompts. The prompts of an evaluation share beginnings; a beginning that was
//! scored is not read again.

use std::collections::VecDeque;

use waterline::{Result, Session, TokenIds};

use super::logprobs::TokenLogprob;

/// Maximum number of log-probabilities to keep.
const MOST_TOKENS: usize = 1 << 16;

/// The most recently scored prompts, newest first.
#[derive(Default)]
pub struct Scores {
    prompts: VecDeque<Scored>,
}

struct Scored {
    owner: u64,
    tokens: Vec<u32>,
    /// Number of alternatives for each token.
    top: usize,
    logprobs: Vec<TokenLogprob>,
}

impl Scored {
    /// The number of tokens that `prompt` shares with the beginning of this prompt.
    fn common(&self, prompt: &[u32]) -> usize {
        let both = self.tokens.iter().zip(prompt);
        both.take_while(|(own, other)| own == other).count()
    }
}

impl Scores {
    /// Reads a prompt into the session. Returns the number of tokens that were not read again, and the
    /// log-probabilities of all tokens, with `top` alternatives each. Calls `between` between chunks.
    ///
    /// # Errors
    /// The errors of [`Session::read_history`].
    pub fn read(
        &mut self,
        session: &mut Session,
        prompt: &TokenIds,
        top: usize,
        mut between: impl FnMut(),
    ) -> Result<(usize, Vec<TokenLogprob>)> {
        let owner = session.options().owner;
        let scored = self.prompts.iter();
        let scored = scored.filter(|scored| (scored.owner, scored.top) == (owner, top));
        let best = scored.max_by_key(|scored| scored.common(prompt));
        let mut logprobs = match best {
            Some(best) => best.logprobs[..best.common(prompt)].to_vec(),
            None => Vec::new(),
        };
        let (start, mut reused) = (logprobs.len(), 0);
        if start == 0 {
            session.reset()?;
            logprobs.push(TokenLogprob::unknown(prompt[0]));
        } else {
            let known = session.read_history_with(&prompt[..start], &[], |_, _| between())?;
            reused = known.reused;
            if let Some(&next) = prompt.get(start) {
                logprobs.push(TokenLogprob::new(session.logits()?, next, top));
            }
        }
        let chunk = session.options().chunk.max(1);
        let mut at = start;
        while at < prompt.len() {
            if at > start {
                between();
            }
            let end = ((at / chunk + 1) * chunk).min(prompt.len());
            session.feed_each(&prompt[at..end], |index, logits| {
                if let Some(&next) = prompt.get(at + index + 1) {
                    logprobs.push(TokenLogprob::new(logits, next, top));
                }
            })?;
            at = end;
            if at < prompt.len() {
                session.checkpoint()?;
            }
        }
        self.keep(owner, prompt, top, &logprobs);
        Ok((reused, logprobs))
    }

    fn keep(&mut self, owner: u64, prompt: &[u32], top: usize, logprobs: &[TokenLogprob]) {
        // A longer prompt would remove all others and itself.
        if prompt.len().saturating_mul(1 + top) > MOST_TOKENS {
            return;
        }
        self.prompts.push_front(Scored {
            owner,
            tokens: prompt.to_vec(),
            top,
            logprobs: logprobs.to_vec(),
        });
        let mut tokens = 0;
        self.prompts.retain(|scored| {
            tokens += scored.tokens.len() * (1 + scored.top);
            tokens <= MOST_TOKENS
        });
    }
}
