use std::collections::HashMap;

use tokenizers::{Model, ModelWrapper};

use super::rwkv::Rwkv;
use super::sentencepiece::SentencePiece;

/// The algorithm that splits a word into tokens.
pub(super) enum Words {
    Crate(Box<ModelWrapper>),
    /// Like `Crate`, but line breaks that are a token as a whole are not merged.
    Lines(Box<ModelWrapper>, HashMap<String, u32>),
    SentencePiece(SentencePiece),
    Rwkv(Rwkv),
}

impl Words {
    /// Splits a word into tokens, each with its byte offset. The error is a reason.
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
