//! Log-probabilities of tokens under the model alone: before bias, penalties and temperature.

use serde_json::{Value, json};
use waterline::Tokenizer;
use waterline::internal::LogSoftmax;

/// A token's log-probability, and the most probable tokens with theirs.
#[derive(Clone)]
pub struct TokenLogprob {
    pub token: u32,
    /// `None` for the first token of a text, which nothing precedes.
    pub logprob: Option<f32>,
    pub top: Vec<(u32, f32)>,
}

impl TokenLogprob {
    /// Computes the log-probabilities of `token` and of the `top` most probable tokens from the preceding logits `[vocab]`.
    pub fn new(logits: &[f32], token: u32, top: usize) -> Self {
        let softmax = LogSoftmax::new(logits);
        let of = |token: u32| softmax.log_probability(logits[token as usize]);
        let mut best: Vec<u32> = Vec::with_capacity(top + 1);
        for id in 0..logits.len() as u32 {
            let is_above = |&other: &u32| logits[other as usize] >= logits[id as usize];
            let place = best.partition_point(is_above);
            if place < top {
                best.insert(place, id);
                best.truncate(top);
            }
        }
        TokenLogprob {
            token,
            logprob: Some(of(token)),
            top: best.into_iter().map(|id| (id, of(id))).collect(),
        }
    }

    /// An entry for a text's first token, which has no log-probability.
    pub fn unknown(token: u32) -> Self {
        TokenLogprob {
            token,
            logprob: None,
            top: Vec::new(),
        }
    }

    /// The length of the token's text, in characters.
    pub fn characters(&self, tokenizer: &Tokenizer) -> usize {
        text(tokenizer, self.token).chars().count()
    }

    /// Returns an entry of `logprobs.content` of a chat completion.
    pub fn entry(&self, tokenizer: &Tokenizer) -> Value {
        let of = |token: u32, logprob: Option<f32>| {
            json!({
                "id": token,
                "token": text(tokenizer, token),
                "logprob": logprob,
                "bytes": tokenizer.token_bytes(token),
            })
        };
        let mut entry = of(self.token, self.logprob);
        let top = self.top.iter().map(|&(token, x)| of(token, Some(x)));
        entry["top_logprobs"] = top.collect();
        entry
    }
}

/// The text of a token; incomplete UTF-8 becomes replacement characters.
fn text(tokenizer: &Tokenizer, token: u32) -> String {
    String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned()
}

/// Returns `logprobs` of a text completion. `offset` is the length of the preceding text, in characters.
pub fn of_completion(tokenizer: &Tokenizer, tokens: &[TokenLogprob], mut offset: usize) -> Value {
    let (mut texts, mut offsets, mut tops) = (Vec::new(), Vec::new(), Vec::new());
    for token in tokens {
        let own = text(tokenizer, token.token);
        offsets.push(offset);
        offset += own.chars().count();
        let all = token.top.iter().copied();
        let all = all.chain(token.logprob.map(|x| (token.token, x)));
        let top: serde_json::Map<String, Value> =
            all.map(|(id, x)| (text(tokenizer, id), json!(x))).collect();
        tops.push(match token.logprob {
            Some(_) => Value::Object(top),
            None => Value::Null,
        });
        texts.push(own);
    }
    json!({
        "tokens": texts,
        "token_logprobs": tokens.iter().map(|token| token.logprob).collect::<Vec<_>>(),
        "top_logprobs": tops,
        "text_offset": offsets,
    })
}
