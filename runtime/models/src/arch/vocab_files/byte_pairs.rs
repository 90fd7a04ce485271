//! GPT-2's two files: `vocab.json` with the ids of the tokens, and `merges.txt` with one merge per line.

use serde::{Serialize, Serializer};
use serde_json::{Value, json};
use waterline_quant::{MOST_TOKENS, Vocabulary};

use super::super::llama_cpp_splits::splits;
use super::{Description, ReadFile, added, byte_level, byte_level_splits, check_count};

#[derive(Serialize)]
#[serde(tag = "type", rename = "BPE")]
struct Model<'t> {
    #[serde(serialize_with = "by_name")]
    vocab: Vec<(String, u32)>,
    merges: Vec<&'t str>,
}

fn by_name<S: Serializer>(tokens: &[(String, u32)], to: S) -> Result<S::Ok, S::Error> {
    to.collect_map(tokens.iter().map(|(token, id)| (token, id)))
}

/// Reads the files; the error is a reason.
pub(super) fn parse(bytes: &[u8], file: ReadFile) -> Result<Vec<u8>, String> {
    let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(bytes);
    let vocab = serde_json::from_slice(text).map_err(|error| error.to_string())?;
    let Vocabulary::Ids(vocab) = vocab else {
        return Err("expected an object of tokens and their ids".into());
    };
    let merges = file("merges.txt").map_err(|error| error.to_string())?;
    let merges = String::from_utf8(merges.ok_or("merges.txt is missing next to it")?)
        .map_err(|error| format!("merges.txt: {error}"))?;
    let merges: Vec<&str> = merges
        .lines()
        .map(str::trim_end)
        .filter(|line| !line.is_empty() && !line.starts_with("#version"))
        .take(MOST_TOKENS + 1)
        .collect();
    check_count(merges.len())?;
    let config = added::json_of(file, "tokenizer_config.json")?;
    let class = config["tokenizer_class"].as_str().unwrap_or_default();
    // The two files do not specify how text is split; the tokenizer's class does.
    let (pre_tokenizer, normalizer) = match class.trim_end_matches("Fast") {
        "Qwen2Tokenizer" => (split_as("qwen2"), json!({ "type": "NFC" })),
        "Qwen3_5Tokenizer" => (split_as("qwen35"), json!({ "type": "NFC" })),
        _ => (byte_level(true), Value::Null),
    };
    let added = added::read(file)?.into_values().collect();
    Description {
        normalizer,
        pre_tokenizer,
        decoder: byte_level(false),
        ..Description::new(Model { vocab, merges }, added)
    }
    .to_json()
}

fn split_as(name: &str) -> Value {
    byte_level_splits(splits(name).map_or(&[][..], |splits| splits.patterns))
}
