//! Vocabularies of directories without a `tokenizer.json`. Each kind of file is converted to the JSON that the tokenizer
//! reads, with the added tokens from the directory's other files.

mod added;
mod byte_pairs;
mod python;
mod rwkv;
mod sentencepiece;
#[cfg(test)]
mod tests;
mod tiktoken;

pub(super) use tiktoken::merges_by_rank;

use serde::Serialize;
use serde_json::{Value, json};
use waterline_quant::{MOST_ADDED, MOST_TOKENS};

use super::token_table::AddedToken;
use crate::error::Result;

/// Reads a file of the directory by its name; `None` if it is missing.
pub(super) type ReadFile<'r> = &'r dyn Fn(&str) -> Result<Option<Vec<u8>>>;

/// Converts the content of a file and the added tokens to a `tokenizer.json`; the error is a reason.
type Parse = fn(&[u8], ReadFile) -> std::result::Result<Vec<u8>, String>;

/// A `tokenizer.json` under construction. `M` is its model, whose long lists are serialized without intermediate JSON values.
#[derive(Serialize)]
pub(super) struct Description<M> {
    pub added_tokens: Vec<AddedToken>,
    pub normalizer: Value,
    pub pre_tokenizer: Value,
    pub post_processor: Value,
    pub decoder: Value,
    pub model: M,
}

impl<M: Serialize> Description<M> {
    /// A description without steps before and after the model.
    pub fn new(model: M, added_tokens: Vec<AddedToken>) -> Self {
        Description {
            added_tokens,
            normalizer: Value::Null,
            pre_tokenizer: Value::Null,
            post_processor: Value::Null,
            decoder: Value::Null,
            model,
        }
    }

    /// Serializes the description; the error is a reason.
    pub fn to_json(&self) -> std::result::Result<Vec<u8>, String> {
        check_added(self.added_tokens.len())?;
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }
}

/// Refuses more tokens or merges than the maximum.
pub(super) fn check_count(count: usize) -> std::result::Result<(), String> {
    if count <= MOST_TOKENS {
        return Ok(());
    }
    Err(format!(
        "found more than the {MOST_TOKENS} allowed tokens or merges"
    ))
}

/// Refuses more added tokens than the maximum.
pub(super) fn check_added(count: usize) -> std::result::Result<(), String> {
    if count <= MOST_ADDED {
        return Ok(());
    }
    Err(format!(
        "found more than the {MOST_ADDED} allowed added tokens"
    ))
}

/// Files that may hold a vocabulary; the first one that exists is read.
const FILES: [(&str, Parse); 4] = [
    ("rwkv_vocab_v20230424.txt", rwkv::parse),
    ("tiktoken.model", tiktoken::parse),
    ("tokenizer.model", sentencepiece::parse),
    ("vocab.json", byte_pairs::parse),
];

/// Maximum size in bytes of a vocabulary file: six times the largest published one.
const LARGEST: usize = 32 << 20;

/// Reads the vocabulary of a directory as a `tokenizer.json`, if it has one. A file that cannot be read becomes a
/// description that holds the reason, so that the model still runs on token ids.
pub(super) fn read(file: ReadFile) -> Result<Option<Vec<u8>>> {
    for (name, parse) in FILES {
        if let Some(bytes) = file(name)? {
            let parsed = if bytes.len() > LARGEST {
                Err(format!(
                    "found {} bytes, expected at most {LARGEST}",
                    bytes.len()
                ))
            } else {
                parse(&bytes, file)
            };
            return Ok(Some(parsed.unwrap_or_else(|reason| {
                let reason = json!({ "unreadable": format!("{name}: {reason}") });
                reason.to_string().into_bytes()
            })));
        }
    }
    Ok(None)
}

/// A step of byte-level vocabularies: each byte becomes a character of GPT-2's alphabet.
pub(super) fn byte_level(use_regex: bool) -> Value {
    json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": use_regex,
    })
}

/// Steps that split text at these patterns, then spell its bytes.
pub(super) fn byte_level_splits(patterns: &[&str]) -> Value {
    let split = |pattern: &&str| {
        json!({
            "type": "Split",
            "pattern": { "Regex": pattern },
            "behavior": "Isolated",
            "invert": false,
        })
    };
    let mut steps: Vec<Value> = patterns.iter().map(split).collect();
    steps.push(byte_level(false));
    json!({ "type": "Sequence", "pretokenizers": steps })
}
