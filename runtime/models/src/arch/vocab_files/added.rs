//! The added tokens of a directory: `added_tokens_decoder` of `tokenizer_config.json`, and `added_tokens.json`.

use std::collections::{BTreeMap, HashSet};

use serde_json::{Value, json};
use waterline_quant::read_json;

use super::super::token_table::AddedToken;
use super::ReadFile;

/// Maximum number of values in one of the files.
const MOST_VALUES: usize = 1 << 17;

/// The added tokens by id.
pub(super) type Added = BTreeMap<u32, AddedToken>;

/// Reads the added tokens that the directory names; the error is a reason.
pub(super) fn read(file: ReadFile) -> Result<Added, String> {
    let config = json_of(file, "tokenizer_config.json")?;
    let map = json_of(file, "special_tokens_map.json")?;
    let special = specials([&config, &map]);
    let mut added = Added::new();
    let plain = json_of(file, "added_tokens.json")?;
    for (content, id) in plain.as_object().into_iter().flatten() {
        let id = super::super::token_table::id(id);
        let id = id.ok_or("added_tokens.json: an id is not a number")?;
        let is_special = special.contains(content.as_str());
        added.insert(id, AddedToken::new(id, content, is_special));
    }
    for (id, entry) in config["added_tokens_decoder"]
        .as_object()
        .into_iter()
        .flatten()
    {
        let wrong = || "tokenizer_config.json: added_tokens_decoder: expected tokens by id";
        let id: u32 = id.parse().map_err(|_| wrong())?;
        let content = entry["content"].as_str().ok_or_else(wrong)?;
        let flag = |name: &str| entry[name].as_bool();
        let mut token = AddedToken::new(id, content, flag("special").unwrap_or(false));
        token.single_word = flag("single_word").unwrap_or(false);
        token.lstrip = flag("lstrip").unwrap_or(false);
        token.rstrip = flag("rstrip").unwrap_or(false);
        token.normalized = flag("normalized").or(token.normalized);
        added.insert(id, token);
    }
    Ok(added)
}

/// The special token called `name`, such as `eos_token`, if the directory has one.
pub(super) fn named(file: ReadFile, name: &str) -> Result<Option<String>, String> {
    for source in ["tokenizer_config.json", "special_tokens_map.json"] {
        if let Some(text) = content(&json_of(file, source)?[name]) {
            return Ok(Some(text.to_string()));
        }
    }
    Ok(None)
}

/// A post-processor for a `tokenizer.json` that puts the token `id` before a text.
pub(super) fn begins_with(id: u32, content: &str) -> Value {
    let of_text = json!({ "Sequence": { "id": "A", "type_id": 0 } });
    json!({
        "type": "TemplateProcessing",
        "single": [{ "SpecialToken": { "id": content, "type_id": 0 } }, of_text],
        "pair": [],
        "special_tokens": { content: { "id": content, "ids": [id], "tokens": [content] } },
    })
}

/// The texts that files name as special tokens.
fn specials(files: [&Value; 2]) -> HashSet<&str> {
    let named = files.into_iter().filter_map(Value::as_object).flatten();
    let named =
        named.filter(|(key, _)| key.ends_with("_token") || *key == "additional_special_tokens");
    named
        .flat_map(|(_, value)| match value {
            Value::Array(list) => &list[..],
            one => std::slice::from_ref(one),
        })
        .filter_map(content)
        .collect()
}

/// The text of a token, which is written as a text or as an object with flags.
fn content(token: &Value) -> Option<&str> {
    token.as_str().or_else(|| token["content"].as_str())
}

/// A file as JSON; null if it is missing.
pub(super) fn json_of(file: ReadFile, name: &str) -> Result<Value, String> {
    match file(name).map_err(|error| error.to_string())? {
        Some(bytes) => {
            let text = bytes.strip_prefix(b"\xef\xbb\xbf").unwrap_or(&bytes);
            read_json(text, MOST_VALUES).map_err(|error| format!("{name}: {error}"))
        }
        None => Ok(Value::Null),
    }
}
