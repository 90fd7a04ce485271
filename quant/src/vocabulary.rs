//! The tokens of a `tokenizer.json`, deserialized directly into strings and numbers: as JSON values they would take ten times the memory.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};

/// Largest number of tokens, and of merges, of a model: twice that of the largest published tokenizers.
pub const MOST_TOKENS: usize = 1 << 20;
/// Largest number of added tokens, with the same margin.
pub const MOST_ADDED: usize = 1 << 16;

/// The tokens of a model, in one of the forms that tokenizer models use.
#[derive(Default)]
pub enum Vocabulary {
    #[default]
    /// No tokens.
    None,
    /// Tokens with their ids.
    Ids(Vec<(String, u32)>),
    /// Tokens with their scores, in the order of their ids.
    Scored(Vec<(String, f64)>),
    /// Tokens in the order of their ids.
    Listed(Vec<String>),
}

impl Vocabulary {
    /// Number of tokens.
    pub fn len(&self) -> usize {
        match self {
            Vocabulary::None => 0,
            Vocabulary::Ids(tokens) => tokens.len(),
            Vocabulary::Scored(tokens) => tokens.len(),
            Vocabulary::Listed(tokens) => tokens.len(),
        }
    }

    /// Whether it has no tokens.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the id of a token, by linear search.
    pub fn id(&self, name: &str) -> Option<u32> {
        let at = |place: Option<usize>| place.and_then(|id| u32::try_from(id).ok());
        match self {
            Vocabulary::None => None,
            Vocabulary::Ids(tokens) => {
                let mut ids = tokens.iter().rev();
                ids.find(|(token, _)| token == name).map(|&(_, id)| id)
            }
            Vocabulary::Scored(tokens) => at(tokens.iter().rposition(|(token, _)| token == name)),
            Vocabulary::Listed(tokens) => at(tokens.iter().rposition(|token| token == name)),
        }
    }
}

impl<'de> Deserialize<'de> for Vocabulary {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Tokens;
        impl<'de> Visitor<'de> for Tokens {
            type Value = Vocabulary;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("an object or a list of tokens")
            }

            fn visit_unit<E>(self) -> Result<Vocabulary, E> {
                Ok(Vocabulary::None)
            }

            fn visit_map<A: MapAccess<'de>>(self, mut from: A) -> Result<Vocabulary, A::Error> {
                let mut tokens: Vec<(String, u32)> = Vec::new();
                while let Some(token) = from.next_key::<String>()? {
                    let id = from.next_value().map_err(|error| {
                        Error::custom(format!("the id of {token:.40?}: {error}"))
                    })?;
                    check_count(tokens.len())?;
                    tokens.push((token, id));
                }
                Ok(Vocabulary::Ids(tokens))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Vocabulary, A::Error> {
                let (mut listed, mut scored) = (Vec::new(), Vec::new());
                while let Some(token) = from.next_element()? {
                    match token {
                        Token::Listed(token) => listed.push(token),
                        Token::Scored(token, score) => scored.push((token, score)),
                    }
                    check_count(listed.len().max(scored.len()) - 1)?;
                }
                match (listed.is_empty(), scored.is_empty()) {
                    (_, true) => Ok(Vocabulary::Listed(listed)),
                    (true, false) => Ok(Vocabulary::Scored(scored)),
                    (false, false) => Err(Error::custom("found tokens with and without a score")),
                }
            }
        }
        from.deserialize_any(Tokens)
    }
}

fn check_count<E: Error>(count: usize) -> Result<(), E> {
    if count < MOST_TOKENS {
        return Ok(());
    }
    Err(E::custom(format!(
        "found more than the {MOST_TOKENS} allowed tokens"
    )))
}

/// An element of a list of tokens.
enum Token {
    Listed(String),
    Scored(String, f64),
}

impl<'de> Deserialize<'de> for Token {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct One;
        impl<'de> Visitor<'de> for One {
            type Value = Token;

            fn expecting(&self, to: &mut fmt::Formatter) -> fmt::Result {
                to.write_str("a token, or a pair of a token and its score")
            }

            fn visit_str<E>(self, token: &str) -> Result<Token, E> {
                Ok(Token::Listed(token.into()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut from: A) -> Result<Token, A::Error> {
                let (token, score): (Option<String>, Option<f64>) =
                    (from.next_element()?, from.next_element()?);
                while from.next_element::<IgnoredAny>()?.is_some() {}
                match token.zip(score) {
                    Some((token, score)) if score.is_finite() => Ok(Token::Scored(token, score)),
                    _ => Err(Error::custom("expected pairs of a token and its score")),
                }
            }
        }
        from.deserialize_any(One)
    }
}
