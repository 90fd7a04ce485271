//! Tests vocabularies of GGUF files against llama.cpp's tokens, and against the `tokenizers` package where llama.cpp only
//! approximates the model's own expression (gpt-4o, tekken, kimi-k2, superbpe).

use std::collections::BTreeSet;

use serde_json::Value as Json;
use waterline_quant::gguf::{Array, Gguf, Value, Writer};

use super::llama_cpp_vocab::{adds_bos, from_gguf};
use crate::text::Tokenizer;

fn recorded() -> Json {
    serde_json::from_str(include_str!("../../tests/data/gguf_vocab.json")).expect("JSON")
}

fn strings(json: &Json) -> Vec<String> {
    let items = json.as_array().expect("an array").iter();
    items
        .map(|item| item.as_str().expect("a string").to_string())
        .collect()
}

/// A file with these keys under `tokenizer.ggml`.
fn file(keys: Vec<(&str, Value)>) -> Gguf {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("vocab.gguf");
    let full = |(key, value)| (format!("tokenizer.ggml.{key}"), value);
    let keys: Vec<_> = keys.into_iter().map(full).collect();
    let writer = Writer::create(&path, &keys, &[]).expect("a file");
    writer.finish().expect("a whole file");
    Gguf::open(&path).expect("the file")
}

fn text(value: &str) -> Value {
    Value::String(value.into())
}

/// The keys of one of the recorded vocabularies.
fn vocabulary(json: &Json, model: &str) -> Vec<(&'static str, Value)> {
    let types = json["types"].as_array().expect("types").iter();
    let types = types
        .map(|kind| kind.as_i64().expect("a type") as i32)
        .collect();
    vec![
        ("model", text(model)),
        (
            "tokens",
            Value::Array(Array::String(strings(&json["tokens"]))),
        ),
        ("token_type", Value::Array(Array::I32(types))),
    ]
}

fn bpe(recorded: &Json, pre: &str) -> Gguf {
    let mut keys = vocabulary(&recorded["bpe"], "gpt2");
    keys.push(("pre", text(pre)));
    keys.push((
        "merges",
        Value::Array(Array::String(strings(&recorded["bpe"]["merges"]))),
    ));
    file(keys)
}

fn sentencepiece(recorded: &Json, prefix: Option<bool>) -> Gguf {
    let mut keys = vocabulary(&recorded["sentencepiece"], "llama");
    let scores = recorded["sentencepiece"]["scores"]
        .as_array()
        .expect("scores")
        .iter();
    let scores = scores
        .map(|score| score.as_f64().expect("a score") as f32)
        .collect();
    keys.push(("scores", Value::Array(Array::F32(scores))));
    keys.extend(prefix.map(|prefix| ("add_space_prefix", Value::Bool(prefix))));
    file(keys)
}

fn tokenizer(gguf: &Gguf) -> Tokenizer {
    Tokenizer::from_json(
        &from_gguf(gguf, &BTreeSet::new()).expect("a vocabulary"),
        "test",
    )
    .expect("a tokenizer")
}

/// Checks the 1,000 lines against the recorded checksums, one per ten lines.
fn check(recorded: &Json, name: &str, encode: impl Fn(&str) -> Vec<u32>) {
    let lines = strings(&recorded["lines"]);
    let expected = strings(&recorded["crc32"][name]);
    assert_eq!((lines.len(), expected.len()), (1_000, 100));
    for (ten, (lines, expected)) in lines.chunks(10).zip(expected).enumerate() {
        let mut bytes = Vec::new();
        for line in lines {
            let tokens = encode(line);
            bytes.extend((tokens.len() as u32).to_le_bytes());
            tokens
                .iter()
                .for_each(|token| bytes.extend(token.to_le_bytes()));
        }
        let found = format!("{:08x}", crc32fast::hash(&bytes));
        assert_eq!(
            found,
            expected,
            "{name}: lines from {}: {lines:?}",
            10 * ten
        );
    }
}

#[test]
fn byte_level_vocabularies_split_text_as_their_names_say() {
    let recorded = recorded();
    const NAMES: [&str; 15] = [
        "gpt-2",
        "llama-bpe",
        "dbrx",
        "glm4",
        "qwen2",
        "qwen35",
        "gpt-4o",
        "tekken",
        "kimi-k2",
        "bailingmoe2",
        "deepseek-v3",
        "smollm",
        "falcon",
        "superbpe",
        "default",
    ];
    let lines = strings(&recorded["lines"]);
    for name in NAMES {
        let tokenizer = tokenizer(&bpe(&recorded, name));
        check(&recorded, name, |line| {
            tokenizer.encode(line).expect("tokens")
        });
        for line in lines.iter().step_by(7) {
            let tokens = tokenizer.encode(line).expect("tokens");
            let bytes: Vec<u8> = tokens
                .iter()
                .flat_map(|&token| tokenizer.token_bytes(token))
                .copied()
                .collect();
            assert_eq!(String::from_utf8_lossy(&bytes), *line);
        }
    }
}

#[test]
fn sentencepiece_vocabularies_merge_by_score() {
    let recorded = recorded();
    for (name, prefix) in [("spm", None), ("spm-noprefix", Some(false))] {
        let tokenizer = tokenizer(&sentencepiece(&recorded, prefix));
        check(&recorded, name, |line| {
            tokenizer.encode(line).expect("tokens")
        });
    }
    let tokenizer = tokenizer(&sentencepiece(&recorded, None));
    check(&recorded, "spm-special", |line| {
        tokenizer.encode_with_special(line).expect("tokens")
    });
    assert_eq!(tokenizer.token_bytes(4), b"\0");
    assert!(tokenizer.is_special(1) && !tokenizer.encode("<s></s>").expect("tokens").contains(&1));
}

#[test]
fn rwkv_vocabularies_take_the_longest_token() {
    let recorded = recorded();
    let tokenizer = tokenizer(&file(vocabulary(&recorded["rwkv"], "rwkv")));
    check(&recorded, "rwkv", |line| {
        tokenizer.encode(line).expect("tokens")
    });
    assert_eq!(tokenizer.token_bytes(11), b"\n");
    assert_eq!(tokenizer.token_bytes(256), b"\xff");
}

#[test]
fn what_begins_text_is_what_the_file_says_or_its_kind_means() {
    let recorded = recorded();
    for (pre, begins) in [
        ("llama-bpe", true),
        ("lfm2", true),
        ("tekken", true),
        ("qwen35", false),
        ("dbrx", false),
    ] {
        assert_eq!(adds_bos(&bpe(&recorded, pre)), begins, "{pre}");
    }
    assert!(adds_bos(&sentencepiece(&recorded, None)));
    assert!(!adds_bos(&file(vocabulary(&recorded["rwkv"], "rwkv"))));
    let mut keys = vocabulary(&recorded["rwkv"], "rwkv");
    keys.push(("add_bos_token", Value::Bool(true)));
    assert!(adds_bos(&file(keys)));
}

#[test]
fn what_is_not_known_is_named() {
    let recorded = recorded();
    let reason = |gguf: &Gguf| {
        let json = from_gguf(gguf, &BTreeSet::new()).expect("a vocabulary");
        Tokenizer::from_json(&json, "test")
            .err()
            .expect("a reason")
            .to_string()
    };
    assert!(reason(&bpe(&recorded, "nobody")).contains("\"nobody\" of tokenizer.ggml.pre"));
    assert!(
        reason(&file(vocabulary(&recorded["rwkv"], "t5")))
            .contains("\"t5\" of tokenizer.ggml.model")
    );
    assert!(reason(&file(vec![("model", text("gpt2"))])).contains("tokenizer.ggml.tokens"));
    let mut keys = vocabulary(&recorded["rwkv"], "rwkv");
    keys[2].1 = Value::Array(Array::I32(vec![1]));
    assert!(reason(&file(keys)).contains("token_type: found 1, expected 1201"));
    assert!(from_gguf(&file(vec![("model", text("none"))]), &BTreeSet::new()).is_none());
    assert!(from_gguf(&file(Vec::new()), &BTreeSet::new()).is_none());
}

/// A byte-level vocabulary of the letters and the tokens `more`.
fn letters(more: &[&str]) -> Vec<(&'static str, Value)> {
    let letters = ('a'..='z')
        .chain(['\u{120}', '\u{10a}', '1', '2'])
        .map(String::from);
    let tokens = letters.chain(more.iter().map(|token| token.to_string()));
    vec![
        ("model", text("gpt2")),
        ("pre", text("gpt-2")),
        ("tokens", Value::Array(Array::String(tokens.collect()))),
    ]
}

fn merges(pairs: &[&str]) -> (&'static str, Value) {
    let pairs = pairs.iter().map(|pair| pair.to_string());
    ("merges", Value::Array(Array::String(pairs.collect())))
}

#[test]
fn merges_of_what_is_no_token_are_left_out() {
    let mut keys = letters(&["th", "the"]);
    keys.push(merges(&["x1 y", "t h", "q u", "th e", "\u{e9} a"]));
    let tokenizer = tokenizer(&file(keys));
    assert_eq!(
        tokenizer.encode("the qu").expect("tokens"),
        [31, 26, 16, 20]
    );
}

#[test]
fn a_vocabulary_without_merges_merges_in_the_order_of_its_ids() {
    let with = |more: &[&str]| tokenizer(&file(letters(more)));
    let tokens = |tokenizer: &Tokenizer| tokenizer.encode("then").expect("tokens");
    assert_eq!(tokens(&with(&["th", "the", "en"])), [31, 13]);
    assert_eq!(tokens(&with(&["en", "th", "the"])), [31, 30]);
}

#[test]
fn deepseek_vocabularies_split_text_as_llama_cpp_does() {
    // Each merge crosses a boundary of llama.cpp's expressions in one of the kinds.
    let mut keys = letters(&["12", "a1", "\u{120}a", "\u{10a}\u{10a}"]);
    keys.push(merges(&["1 2", "a 1", "\u{120} a", "\u{10a} \u{10a}"]));
    let encode = |pre: &str| {
        let mut keys = keys.clone();
        keys[1].1 = text(pre);
        tokenizer(&file(keys)).encode("a12 a\n\n").expect("tokens")
    };
    assert_eq!(encode("deepseek-llm"), [0, 30, 32, 27, 27]);
    assert_eq!(encode("deepseek-coder"), [0, 28, 29, 32, 27, 27]);
    assert_eq!(encode("gpt-2"), [0, 30, 32, 33]);
}

#[test]
fn gemma_4_merges_whole_lines_of_text() {
    let tokens = [
        "<bos>",
        "a",
        "b",
        "\u{2581}",
        "a\u{2581}",
        "a\u{2581}b",
        "\n",
        "\n\n",
        "<0xC3>",
        "<0xA9>",
        "\n\n\n",
    ];
    let kinds = vec![3, 1, 1, 1, 1, 1, 1, 1, 6, 6, 1];
    let keys = |model: &str, pre: &str| {
        vec![
            ("model", text(model)),
            ("pre", text(pre)),
            (
                "tokens",
                Value::Array(Array::String(tokens.map(String::from).to_vec())),
            ),
            ("token_type", Value::Array(Array::I32(kinds.clone()))),
            ("add_bos_token", Value::Bool(false)),
            merges(&["a \u{2581}", "a\u{2581} b", "\n \n"]),
        ]
    };
    for (model, pre) in [
        ("gemma4", "gemma4"),
        ("gpt2", "gemma4"),
        ("gemma4", "default"),
    ] {
        let file = file(keys(model, pre));
        assert!(adds_bos(&file));
        let tokenizer = tokenizer(&file);
        let tokens = tokenizer.encode("a b\n\n\na \u{e9}\n\n").expect("tokens");
        // Three line breaks are one token, although no merge produces it.
        assert_eq!(tokens, [5, 10, 4, 8, 9, 7]);
        let bytes = tokens
            .iter()
            .flat_map(|&token| tokenizer.token_bytes(token));
        let bytes: Vec<u8> = bytes.copied().collect();
        assert_eq!(String::from_utf8_lossy(&bytes), "a b\n\n\na \u{e9}\n\n");
    }
}
