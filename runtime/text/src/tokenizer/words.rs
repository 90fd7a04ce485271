use std::collections::HashMap;

use tokenizers::{Model, ModelWrapper};

use super::rwkv::Rwkv;
use super::sentencepiece::SentencePiece;

/// The algorithm that turns a word into tokens.
pub(super) enum Words {
    Crate(Box<ModelWrapper>),
    /// As `Crate`, but line breaks that are a token as a whole are not merged.
    Lines(Box<ModelWrapper>, HashMap<String, u32>),
    SentencePiece(SentencePiece),
    Rwkv(Rwkv),
}

impl Words {
    /// Tokens of a word, each with the place in bytes where it begins; the error is a reason.
    pub fn tokenize(&self, word: &str) -> Result<Vec<(u32, usize)>, String> {
        match self {
            Words::Lines(_, breaks) if breaks.contains_key(word) => Ok(vec![(breaks[word], 0)]),
            Words::Crate(model) | Words::Lines(model, _) => {
                let tokens = model.tokenize(word).map_err(|error| error.to_string())?;
                Ok(tokens
                    .into_iter()
                    .map(|token| (token.id, token.offsets.0))
                    .collect())
            }
            Words::SentencePiece(model) => model.tokenize(word),
            Words::Rwkv(model) => model.tokenize(word),
        }
    }
}
