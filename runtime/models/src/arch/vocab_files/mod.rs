//! Vocabularies of directories without a `tokenizer.json`. Each kind of file becomes the JSON that the tokenizer reads, with
//! the added tokens that the directory's other files name.

mod added;
mod byte_pairs;
mod python;
mod rwkv;
mod sentencepiece;
#[cfg(test)]
mod tests;
mod tiktoken;

pub(super) use tiktoken::merges_by_rank;

use serde_json::{Value, json};

use crate::error::Result;

/// Reads a file of the directory by its name; none if it is missing.
pub(super) type ReadFile<'r> = &'r dyn Fn(&str) -> Result<Option<Vec<u8>>>;

/// The content of a file as a description of a tokenizer, and the added tokens; the error is a reason.
type Parse = fn(&[u8], ReadFile) -> std::result::Result<Value, String>;

/// The files that hold a vocabulary, the first that exists is read.
const FILES: [(&str, Parse); 4] = [
    ("rwkv_vocab_v20230424.txt", rwkv::parse),
    ("tiktoken.model", tiktoken::parse),
    ("tokenizer.model", sentencepiece::parse),
    ("vocab.json", byte_pairs::parse),
];

/// Largest file that is read, in bytes: six times the largest published one.
const LARGEST: usize = 32 << 20;

/// The vocabulary of a directory as a `tokenizer.json`, if it has one. A file that cannot be read becomes a description that
/// holds the reason, so that the model still runs on token ids.
pub(super) fn read(file: ReadFile) -> Result<Option<Vec<u8>>> {
    for (name, parse) in FILES {
        if let Some(bytes) = file(name)? {
            let parsed = if bytes.len() > LARGEST {
                Err(format!(
                    "found {} bytes, at most {LARGEST} are read",
                    bytes.len()
                ))
            } else {
                parse(&bytes, file)
            };
            let parsed = parsed
                .unwrap_or_else(|reason| json!({ "unreadable": format!("{name}: {reason}") }));
            return Ok(Some(parsed.to_string().into_bytes()));
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

/// The steps that split text at these patterns, then spell its bytes.
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
