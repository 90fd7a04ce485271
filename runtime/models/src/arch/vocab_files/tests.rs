use std::collections::HashMap;

use serde_json::Value;

use super::read;
use crate::text::Tokenizer;

/// Files by name.
type Files = HashMap<&'static str, Vec<u8>>;

fn json_of(files: &Files) -> Option<Vec<u8>> {
    read(&|name| Ok(files.get(name).cloned())).expect("no failure of the system")
}

fn tokenizer(files: &Files) -> Tokenizer {
    Tokenizer::from_json(&json_of(files).expect("a vocabulary"), "test").expect("a tokenizer")
}

fn files(list: &[(&'static str, &[u8])]) -> Files {
    list.iter()
        .map(|(name, bytes)| (*name, bytes.to_vec()))
        .collect()
}

/// The reason why the files make no tokenizer.
fn refused(list: &[(&'static str, &[u8])]) -> String {
    let json = json_of(&files(list)).expect("a vocabulary");
    let built = Tokenizer::from_json(&json, "test");
    built.err().expect("a reason").to_string()
}

/// Compares with the original package's (sentencepiece, tiktoken) tokens of the recorded lines.
fn compare(tokenizer: &Tokenizer, kind: &str) {
    let recorded = include_bytes!("../../../tests/data/vocab/expected.json");
    let recorded: Value = serde_json::from_slice(recorded).expect("JSON");
    let lines = recorded["lines"].as_array().expect("lines");
    let expected = recorded[kind].as_array().expect("tokens");
    assert_eq!(lines.len(), expected.len());
    for (line, expected) in lines.iter().zip(expected) {
        let line = line.as_str().expect("a text");
        let expected: Vec<u32> = serde_json::from_value(expected.clone()).expect("ids");
        assert_eq!(
            tokenizer.encode(line).expect("tokens"),
            expected,
            "{kind}: {line:?}"
        );
    }
}

fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes = tokens
        .iter()
        .flat_map(|&token| tokenizer.token_bytes(token));
    String::from_utf8_lossy(&bytes.copied().collect::<Vec<_>>()).into_owned()
}

#[test]
fn sentencepiece_files_make_the_tokens_of_sentencepiece() {
    const BYTE_PAIRS: &[u8] = include_bytes!("../../../tests/data/vocab/bpe.model");
    const UNIGRAM: &[u8] = include_bytes!("../../../tests/data/vocab/unigram.model");
    let names = br#"{"added_tokens_decoder": {"420": {"content": "<turn>", "special": true}}}"#;
    let pairs = tokenizer(&files(&[
        ("tokenizer.model", BYTE_PAIRS),
        ("tokenizer_config.json", names),
    ]));
    compare(&pairs, "bpe");
    assert!(pairs.is_special(1) && pairs.token_id("<turn>") == Some(420));
    compare(
        &tokenizer(&files(&[("tokenizer.model", UNIGRAM)])),
        "unigram",
    );
    assert!(refused(&[("tokenizer.model", b"{}")]).contains("protocol buffers"));
    assert!(refused(&[("tokenizer.model", &BYTE_PAIRS[..1000])]).contains("cut short"));
}

#[test]
fn tiktoken_files_make_the_tokens_of_tiktoken() {
    const RANKS: &[u8] = include_bytes!("../../../tests/data/vocab/tiktoken.model");
    let names = br#"{"added_tokens_decoder": {"400": {"content": "[BOS]", "special": true},
        "402": {"content": "<|im_end|>", "special": true}}}"#;
    let kimi = tokenizer(&files(&[
        ("tiktoken.model", RANKS),
        ("tokenizer_config.json", names),
    ]));
    compare(&kimi, "tiktoken");
    assert_eq!(
        kimi.encode_with_special("[BOS]<|im_end|>").expect("tokens"),
        [400, 402]
    );
    assert_eq!(kimi.token_id("<|reserved_token_401|>"), Some(401));
    assert_eq!(kimi.vocab_size(), 656);
    assert!(refused(&[("tiktoken.model", b"QQ== 0\nQg=\n")]).contains("tiktoken.model: line 2"));
}

#[test]
fn rwkv_files_make_the_longest_tokens() {
    let mut lines: String = (0..=255u8)
        .map(|byte| format!("{} b'\\x{byte:02x}' 1\n", u32::from(byte) + 1))
        .collect();
    lines += "257 ' the' 4\n258 '\\n\\n' 2\n260 \"it's\" 4\n261 '\u{65e5}' 3\n262 '\\u2002' 3\n263 b'\\xe6\\x97' 2\n";
    let world = tokenizer(&files(&[("rwkv_vocab_v20230424.txt", lines.as_bytes())]));
    let line = "it's the\n\n\u{65e5}\u{2002}\u{65d7}\\";
    let tokens = world.encode(line).expect("tokens");
    assert_eq!(
        tokens,
        [260, 257, 258, 261, 262, 263, 0x97 + 1, u32::from(b'\\') + 1]
    );
    assert_eq!(text(&world, &tokens), line);
    assert!(world.is_special(0) && world.vocab_size() == 264);
    let end = |name: &str| {
        tokenizer(&files(&[
            ("rwkv_vocab_v20230424.txt", lines.as_bytes()),
            (
                "tokenizer_config.json",
                format!(r#"{{"eos_token": "{name}"}}"#).as_bytes(),
            ),
        ]))
        .encode_with_special("a<|e|>")
        .expect("tokens")
    };
    assert_eq!(end("<|e|>"), [u32::from(b'a') + 1, 0]);
    assert_eq!(end("<s>").len(), 6);
    for (broken, reason) in [
        ("1 'a' 2\n", "line 1: expected an id"),
        ("1 'a' 1\n1 'b' 1\n", "line 2: the id 1 belongs to another"),
        ("99999999 'a' 1\n", "the id 99999999 is too large"),
        ("1 a 1\n", "a Python literal"),
    ] {
        let said = refused(&[("rwkv_vocab_v20230424.txt", broken.as_bytes())]);
        assert!(said.contains(reason), "{said}");
    }
}

#[test]
fn two_files_of_byte_pairs_split_text_as_their_class_does() {
    let vocab = r#"{"a": 0, "b": 1, "\u0120": 2, "ab": 3, "1": 4, "2": 5, "12": 6, "e": 7, "\u00cc": 8, "\u0123": 9, "\u00c3": 10, "\u00a9": 11}"#;
    let merges = "#version: 0.2\na b\n1 2\nx y\n";
    let with = |class: &str| {
        let config = format!(
            r#"{{"tokenizer_class": "{class}", "additional_special_tokens": ["<|end|>"]}}"#
        );
        tokenizer(&files(&[
            ("vocab.json", vocab.as_bytes()),
            ("merges.txt", merges.as_bytes()),
            ("added_tokens.json", br#"{"<|end|>": 12, "<tool>": 13}"#),
            ("tokenizer_config.json", config.as_bytes()),
        ]))
    };
    let gpt2 = with("GPT2Tokenizer");
    assert_eq!(
        gpt2.encode_with_special("ab 12<|end|>").expect("tokens"),
        [3, 2, 6, 12]
    );
    assert!(gpt2.is_special(12) && !gpt2.is_special(13));
    // Qwen splits digits and composes text: "e" and a combining accent become one character.
    let qwen = with("Qwen2TokenizerFast");
    assert_eq!(
        qwen.encode("ab12e\u{301}").expect("tokens"),
        [3, 4, 5, 10, 11]
    );
    let said = refused(&[("vocab.json", vocab.as_bytes())]);
    assert!(said.contains("merges.txt is missing"), "{said}");
}

#[test]
fn a_directory_without_a_vocabulary_has_none() {
    assert!(json_of(&Files::new()).is_none());
}
