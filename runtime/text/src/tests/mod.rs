//! Tests of the tokenizer, chat templates and turns on real files.

mod template;
mod tokenizer;
mod turns;

use crate::{ChatTemplate, Tokenizer};
use serde_json::{Value, json};
use std::path::Path;

fn data(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR"))
            .join("tests/data")
            .join(name),
    )
    .unwrap()
}

fn template_source(name: &str) -> String {
    if name == "tok4096" {
        let config: Value = serde_json::from_slice(&data("tok4096/tokenizer_config.json")).unwrap();
        return config["chat_template"].as_str().unwrap().to_string();
    }
    String::from_utf8(data(&format!("templates/{name}.jinja"))).unwrap()
}

fn template(name: &str) -> ChatTemplate {
    ChatTemplate::new(&template_source(name), "<s>", "</s>").unwrap()
}

/// The byte-level tokenizer with additional special tokens; the flag is whether a token strips white space.
fn json_with_specials(specials: &[(&str, bool)]) -> Vec<u8> {
    let mut tokenizer: Value = serde_json::from_slice(&data("tok4096/tokenizer.json")).unwrap();
    let added = tokenizer["added_tokens"].as_array_mut().unwrap();
    for (index, (content, strips)) in specials.iter().enumerate() {
        added.push(json!({
            "id": 4096 + index, "content": content, "single_word": false, "lstrip": strips,
            "rstrip": strips, "normalized": false, "special": true
        }));
    }
    serde_json::to_vec(&tokenizer).unwrap()
}

fn tokenizer_with(specials: &[&str]) -> Tokenizer {
    let specials: Vec<_> = specials.iter().map(|&content| (content, false)).collect();
    Tokenizer::from_json(&json_with_specials(&specials), "test").unwrap()
}

/// The text of tokens, including the names of special ones.
fn spell(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens
        .iter()
        .flat_map(|&t| tokenizer.token_bytes(t))
        .copied()
        .collect();
    String::from_utf8(bytes).unwrap()
}
