//! GPT-2's two files: `vocab.json`, the ids of the tokens, and `merges.txt`, a merge in each line.

use serde_json::{Value, json};

use super::super::llama_cpp_splits::splits;
use super::{ReadFile, added, byte_level, byte_level_splits};

/// Reads the files; the error is a reason.
pub(super) fn parse(bytes: &[u8], file: ReadFile) -> Result<Value, String> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let vocab: Value = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let merges = file("merges.txt").map_err(|error| error.to_string())?;
    let merges = String::from_utf8(merges.ok_or("merges.txt is missing next to it")?)
        .map_err(|error| format!("merges.txt: {error}"))?;
    let merges: Vec<&str> = merges
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.starts_with("#version"))
        .collect();
    let config = added::json_of(file, "tokenizer_config.json")?;
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    // The two files say nothing of how text is split: the class does.
    let (pre_tokenizer, normalizer) = match class.trim_end_matches("Fast") {
        "Qwen2Tokenizer" => (split_as("qwen2"), json!({ "type": "NFC" })),
        "Qwen3_5Tokenizer" => (split_as("qwen35"), json!({ "type": "NFC" })),
        _ => (byte_level(true), Value::Null),
    };
    Ok(json!({
        "version": "1.0",
        "added_tokens": added::read(file)?.into_values().collect::<Vec<_>>(),
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": byte_level(false),
        "model": { "type": "BPE", "vocab": vocab, "merges": merges },
    }))
}

fn split_as(name: &str) -> Value {
    byte_level_splits(splits(name).map_or(&[][..], |splits| splits.patterns))
}
