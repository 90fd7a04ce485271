//! Tests with hostile `tokenizer.json` files.

use serde_json::{Value, json};

use super::*;
use std::time::Duration;

/// A small valid file with these keys changed.
fn with(changes: &[(&str, Value)]) -> Value {
    let mut json = json!({
        "version": "1.0",
        "added_tokens": [{"id": 5, "content": "<s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "model": {"type": "BPE", "unk_token": "?", "vocab": {"a": 0, "b": 1, "ab": 2, "?": 3, " ": 4},
            "merges": [["a", "b"]]}
    });
    for (path, value) in changes {
        *json.pointer_mut(path).unwrap_or(&mut Value::Null) = value.clone();
        if let Some(key) = path.strip_prefix('/').filter(|key| !key.contains('/')) {
            json[key] = value.clone();
        }
        if let Some(key) = path.strip_prefix("/model/") {
            json["model"][key] = value.clone();
        }
    }
    json
}

const TEXT: &str = "ab <s> \u{e9}\u{301}\u{1f525} \0\u{1}12345 ''aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaab\n\n";

/// Builds a tokenizer and encodes texts with it.
fn use_it(json: &[u8]) -> Result<usize> {
    let tokenizer = Tokenizer::from_json(json, "a file")?;
    let mut length = 0;
    for text in ["", "a", TEXT, &TEXT.repeat(20)] {
        length += tokenizer.encode(text)?.len();
        length += tokenizer.encode_with_special(text)?.len();
    }
    let ids = (0..tokenizer.vocab_size().min(300) as u32).chain([u32::MAX]);
    Ok(length + ids.map(|id| tokenizer.token_bytes(id).len()).sum::<usize>())
}

fn within_20_seconds(json: Vec<u8>) -> Result<usize> {
    let (sender, receiver) = std::sync::mpsc::channel();
    let copy = json.clone();
    std::thread::spawn(move || sender.send(use_it(&copy)));
    let result = receiver.recv_timeout(Duration::from_secs(20));
    result.unwrap_or_else(|_| {
        panic!(
            "no end, or a panic: {:.2000}",
            String::from_utf8_lossy(&json)
        )
    })
}

/// Components that make a trusting reader panic, abort, allocate without bound or run forever.
fn hostile() -> Vec<Value> {
    let normalizer = |step: Value| with(&[("/normalizer", step)]);
    let splits = |step: Value| with(&[("/pre_tokenizer", step)]);
    let model = |model: Value| with(&[("/model", model)]);
    let regex = |pattern: &str| {
        splits(
            json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated",
        "invert": false}),
        )
    };
    let replace =
        |from: Value, to: &str| json!({"type": "Replace", "pattern": from, "content": to});
    let doubling: Vec<Value> = (0..32)
        .map(|_| replace(json!({"String": "a"}), "aa"))
        .collect();
    let mut nested = json!({"type": "Lowercase"});
    for _ in 0..60 {
        nested = json!({"type": "Sequence", "normalizers": [nested]});
    }
    let long: serde_json::Map<String, Value> = (0..60)
        .map(|n| ("x".repeat(60_000 + n), json!(n)))
        .collect();
    let mut cases = vec![
        normalizer(replace(json!({"String": ""}), "x")),
        normalizer(replace(json!({"Regex": ""}), "x")),
        normalizer(replace(json!({"Regex": "("}), "x")),
        normalizer(replace(json!({"Regex": "(a|a)*b"}), "x")),
        normalizer(replace(json!({"Regex": "(?=.*)"}), "x")),
        normalizer(replace(json!({"String": "a"}), &"x".repeat(1 << 20))),
        normalizer(json!({"type": "Sequence", "normalizers": doubling})),
        normalizer(nested),
        normalizer(json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"})),
        normalizer(json!({"type": "Precompiled", "precompiled_charsmap": "////////////"})),
        normalizer(json!({"type": "Precompiled", "precompiled_charsmap": "CAAAAAD//////////w=="})),
        normalizer(json!({"type": "Precompiled", "precompiled_charsmap": 1})),
        normalizer(json!({"type": "Prepend", "prepend": ""})),
        normalizer(json!({"type": "Prepend", "prepend": "x".repeat(1 << 20)})),
        normalizer(json!({"type": "Strip", "strip_left": 4_000_000_000u64, "strip_right": true})),
        normalizer(json!({"type": "Nobody"})),
        splits(json!({"type": "FixedLength", "length": 0})),
        splits(json!({"type": "FixedLength", "length": u64::MAX})),
        splits(json!({"type": "FixedLength"})),
        splits(json!({"type": "Metaspace", "replacement": "", "prepend_scheme": "always"})),
        splits(json!({"type": "CharDelimiterSplit", "delimiter": ""})),
        regex(""),
        regex("("),
        regex("(?"),
        regex("\\"),
        regex("[z-a]"),
        regex("\\p{Nobody}"),
        regex("\\1"),
        regex("(\\1)"),
        regex("(a+)+$"),
        regex("(a*)*b"),
        regex("(?:a|a|aa)+(?!x)b"),
        regex("(?=(a+)+b)"),
        regex("(?<=a)(?=a)"),
        regex("(a?){64}a{64}b"),
        regex("\\w{1000}{1000}"),
        regex("((\\w{100}){100}){100}"),
        regex("a{4294967295}"),
        regex("(?:(?:\\w{99}|x)(?=y)){99}"),
        regex(&"(".repeat(2_000)),
        regex(&"(?:a".repeat(60)),
        regex(&"a|".repeat(3_000)),
        regex(&"(?=\\w{500})".repeat(300)),
        regex("(?:(a)|b)*\\1"),
        regex("(?>a+)*b"),
        regex("\\G"),
        regex("\\K"),
        model(
            json!({"type": "BPE", "vocab": {"a": 0, "##b": 1, "ab": 2}, "merges": [["a", "##b"]],
            "continuing_subword_prefix": "##################"}),
        ),
        model(
            json!({"type": "BPE", "vocab": {"a": 0, "b": 1}, "merges": [["a", "b"]],
            "continuing_subword_prefix": "\u{1f525}"}),
        ),
        model(json!({"type": "BPE", "vocab": {"a": u32::MAX}, "merges": []})),
        model(json!({"type": "BPE", "vocab": {"a": 16_000_000}, "merges": []})),
        model(
            json!({"type": "BPE", "vocab": {"a": 0, "b": 0}, "merges": [["a", "b"], "a b c", 1]}),
        ),
        model(json!({"type": "BPE", "vocab": {"a": -1}, "merges": []})),
        model(json!({"type": "BPE", "vocab": {"a": 0}, "merges": [], "dropout": 2.0})),
        model(
            json!({"type": "BPE", "vocab": {"a": 0}, "merges": [], "cache_capacity": 4_000_000_000u64}),
        ),
        model(json!({"type": "BPE", "vocab": {}, "merges": []})),
        model(json!({"type": "Unigram", "vocab": [["", 0.0], ["a", 0.0]], "unk_id": 0})),
        model(json!({"type": "Unigram", "vocab": [["a", 0.0]], "unk_id": 7})),
        model(json!({"type": "Unigram", "vocab": [["a", -1e308], ["b", 1e308]], "unk_id": 0})),
        model(json!({"type": "Unigram", "vocab": [["a", null]], "unk_id": 0})),
        model(json!({"type": "Unigram", "vocab": [["a", 0.0]]})),
        model(
            json!({"type": "Unigram", "vocab": long.keys().map(|key| json!([key, 0.0])).collect::<Vec<_>>(),
            "unk_id": 0}),
        ),
        model(json!({"type": "BPE", "vocab": long, "merges": []})),
        model(
            json!({"type": "WordPiece", "vocab": {"a": 0, "##": 1}, "unk_token": "[UNK]",
            "continuing_subword_prefix": "##", "max_input_chars_per_word": u64::MAX}),
        ),
        model(
            json!({"type": "WordPiece", "vocab": {"": 0, "x": 1}, "unk_token": "x", "continuing_subword_prefix": ""}),
        ),
        model(json!({"type": "WordLevel", "vocab": {"a": 0}, "unk_token": "none"})),
        model(json!({"type": "SentencePiece", "vocab": ["a", ""], "scores": [0.0]})),
        model(json!({"type": "SentencePiece", "vocab": ["a"], "scores": [0.0]})),
        model(
            json!({"type": "SentencePiece", "vocab": ["a", "a", ""], "scores": [0.0, 1.0, 2.0], "unk_id": 9999999}),
        ),
        model(json!({"type": "RWKV", "vocab": ["", "\\", "\\x", "\\xzz", "a"]})),
        model(json!({"type": "RWKV", "vocab": [""], "unk_id": 4_000_000_000u64})),
        model(
            json!({"type": "RWKV", "vocab": (0..80).map(|n| "\\xff".repeat(60_000 / 4 + n)).collect::<Vec<_>>()}),
        ),
        model(json!({"type": "Nobody"})),
        model(json!(null)),
        model(json!([])),
        json!(null),
        json!([]),
        json!("a"),
        json!({}),
        with(&[(
            "/added_tokens",
            json!([{"id": 4_294_967_295u64, "content": "x", "special": true}]),
        )]),
        with(&[(
            "/added_tokens",
            json!([{"id": 9, "content": "", "special": true, "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true}]),
        )]),
        with(&[(
            "/added_tokens",
            json!([{"id": 9, "content": "x".repeat(1 << 20), "special": true, "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": true}]),
        )]),
        with(&[(
            "/decoder",
            json!({"type": "Strip", "content": "", "start": u64::MAX, "stop": u64::MAX}),
        )]),
        with(&[
            ("/padding", json!({"strategy": {"Fixed": 5_000_000_000u64}})),
            ("/truncation", json!({"max_length": 0})),
        ]),
        with(&[(
            "/post_processor",
            json!({"type": "TemplateProcessing", "single": [], "pair": []}),
        )]),
    ];
    // A control token that the letters of a text become again and again.
    cases.push(json!({"added_tokens": [{"id": 0, "content": "a", "special": true, "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false}], "model": {"type": "WordPiece", "unk_token": "b",
        "continuing_subword_prefix": "##", "vocab": {"a": 0, "##a": 1, "b": 2, "##b": 3}}}));
    cases
}

#[test]
fn hostile_tokenizers_end_with_tokens_or_an_error() {
    for json in hostile() {
        let short: String = json.to_string().chars().take(400).collect();
        if let Err(error) = within_20_seconds(json.to_string().into_bytes()) {
            let text = error.to_string();
            assert!(text.starts_with("a file: tokenizer: "), "{text}");
            assert!(!text.contains(PANICKED), "{short}");
            assert!(!text.chars().any(char::is_control), "{text:?}");
        }
    }
}

/// The tokens of a long text. Fails the test if encoding does not end.
fn encoded(json: Value, text: String) -> Result<Vec<u32>> {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let tokenizer = Tokenizer::from_json(json.to_string().as_bytes(), "a file");
        sender.send(tokenizer.and_then(|tokenizer| tokenizer.encode_with_special(&text)))
    });
    let result = receiver.recv_timeout(Duration::from_secs(20));
    result.expect("an end")
}

#[test]
fn the_names_of_many_special_tokens_are_found_in_one_pass() {
    let token = |i: usize| {
        json!({"id": 5 + i, "content": format!("{}{i:05}", "a".repeat(20)), "single_word": false,
            "lstrip": false, "rstrip": false, "normalized": false, "special": true})
    };
    let tokens: Vec<Value> = (0..30_000).map(token).collect();
    let json = with(&[("/added_tokens", json!(tokens))]);
    let text = "a".repeat(1 << 16) + "00007b";
    let tokens = encoded(json, text).expect("tokens");
    // The name takes twenty letters of the text.
    assert_eq!(tokens[..(1 << 16) - 20], [0; (1 << 16) - 20]);
    assert_eq!(tokens[(1 << 16) - 20..], [12, 1]);
}

#[test]
fn many_short_searches_take_no_longer_than_a_long_one() {
    let split = |pattern: &str| json!({"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false});
    let mut steps = vec![split(" ")];
    // Backtracks some ten thousand times in each word.
    steps.resize(32, split("(a|a)*b(?!c)"));
    let json = with(&[(
        "/pre_tokenizer",
        json!({"type": "Sequence", "pretokenizers": steps}),
    )]);
    let failure = encoded(json, "aaaaaaaaaaaa ".repeat(80_000)).expect_err("too long");
    assert!(failure.to_string().contains("takes too long"), "{failure}");
}

#[test]
fn long_tokens_beside_each_other_are_searched_in_time() {
    let pieces: Vec<Value> = (1..=128)
        .map(|length| json!(["a".repeat(length), -1.0]))
        .collect();
    let model = json!({"type": "Unigram", "unk_id": 0, "vocab": pieces});
    let tokens = encoded(
        with(&[("/model", model), ("/added_tokens", json!([]))]),
        "a".repeat(1 << 16),
    );
    assert_eq!(tokens.expect("tokens").len(), 1 << 9);
    let pieces = json!([["a".repeat(129), -1.0]]);
    let model = json!({"type": "Unigram", "unk_id": 0, "vocab": pieces});
    let failure = encoded(with(&[("/model", model)]), String::new()).expect_err("too long");
    assert!(failure.to_string().contains("129"), "{failure}");
}

#[test]
fn what_must_fail_names_the_component() {
    let fails = |json: Value, reason: &str| {
        let error = use_it(json.to_string().as_bytes())
            .expect_err(reason)
            .to_string();
        assert!(error.contains(reason), "{error}");
    };
    assert!(use_it(with(&[]).to_string().as_bytes()).is_ok());
    let empty = json!({"type": "Replace", "pattern": {"String": ""}, "content": "x"});
    fails(
        with(&[("/normalizer", empty)]),
        "\"Replace\": the pattern is empty",
    );
    fails(
        with(&[(
            "/pre_tokenizer",
            json!({"type": "FixedLength", "length": 0}),
        )]),
        "length: found 0",
    );
    fails(
        with(&[("/model/continuing_subword_prefix", json!("##"))]),
        "continuing_subword_prefix",
    );
    let map = json!({"type": "Precompiled", "precompiled_charsmap": "AAAA"});
    fails(with(&[("/normalizer", map)]), "precompiled_charsmap");
    let slow = json!({"type": "Split", "pattern": {"Regex": "(?:a|a|aa)+(?!x)b(?=q)"}, "behavior": "Isolated", "invert": false});
    fails(with(&[("/pre_tokenizer", slow)]), "acktrack");
    let name = json!({"type": "\u{1b}[31mred"});
    fails(with(&[("/normalizer", name)]), "is not known");
}

/// Applies `WATERLINE_MUTATIONS` random changes to valid files, 2,000 by default.
#[test]
fn mutated_tokenizers_end_with_tokens_or_an_error() {
    let specials = json!([{"id": 0, "content": "<s>", "single_word": false, "lstrip": true, "rstrip": true,
        "normalized": true, "special": true}]);
    let mut seeds: Vec<Value> = hostile()
        .into_iter()
        .filter(|json| json.to_string().len() < 3_000)
        .collect();
    for model in [
        json!({"type": "WordPiece", "unk_token": "b", "continuing_subword_prefix": "##",
            "max_input_chars_per_word": 100, "vocab": {"a": 0, "##a": 1, "b": 2, "##b": 3}}),
        json!({"type": "Unigram", "unk_id": 0, "byte_fallback": true, "vocab": [["<unk>", 0.0], ["a", -1.0], ["<0x20>", -2.5]]}),
        json!({"type": "SentencePiece", "vocab": ["<unk>", "a", "b", "ab", "\u{2581}"], "unk_id": 0,
            "scores": [0.0, -1.0, -2.0, -3.0, -4.0]}),
        json!({"type": "RWKV", "vocab": ["<s>", "a", "\\xff", "ab", "\\n\\n", " "], "unk_id": 0}),
        json!({"type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true, "ignore_merges": true,
            "end_of_word_suffix": "</w>", "vocab": {"<unk>": 0, "a": 1, "b": 2, "ab</w>": 3, "b</w>": 4}, "merges": ["a b</w>"]}),
    ] {
        for _ in 0..40 {
            seeds.push(json!({"added_tokens": specials, "model": model,
                "normalizer": {"type": "Sequence", "normalizers": [{"type": "NFKC"}, {"type": "Prepend", "prepend": "\u{2581}"},
                    {"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"}]},
                "pre_tokenizer": {"type": "Sequence", "pretokenizers": [
                    {"type": "Split", "pattern": {"Regex": "\\p{L}+|\\s+(?!\\S)|\\p{N}{1,3}"}, "behavior": "Isolated", "invert": true},
                    {"type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "first", "split": false},
                    {"type": "Digits", "individual_digits": true},
                    {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": true, "use_regex": true}]},
                "decoder": {"type": "ByteLevel"}}));
        }
    }
    for seed in seeds.iter().rev().step_by(40).take(5) {
        assert!(
            use_it(seed.to_string().as_bytes()).is_ok(),
            "{:?}",
            use_it(seed.to_string().as_bytes())
        );
    }
    const VALUES: [&str; 20] = [
        "null",
        "0",
        "1",
        "-1",
        "4294967295",
        "1e308",
        "true",
        "\"\"",
        "\"a\"",
        "\"(a|a)*b\"",
        "[]",
        "{}",
        "\"##\"",
        "\"Isolated\"",
        "{\"Regex\": \"(?=a*)\"}",
        "\"MergedWithNext\"",
        "18446744073709551615",
        "\"\\u2581\"",
        "[[\"a\", 1]]",
        "\"AAAA\"",
    ];
    let count = std::env::var("WATERLINE_MUTATIONS")
        .map_or(2_000, |count| count.parse().expect("a number"));
    let mut random = 0x853c_49e6_748f_ea9bu64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below.max(1) as u64) as usize
    };
    let (mut encoded, mut failed) = (0, 0);
    for _ in 0..count {
        let mut json = seeds[next(seeds.len())].clone();
        for _ in 0..1 + next(3) {
            // Follows a random path down to the value that is replaced.
            let mut place = &mut json;
            loop {
                let children = match &*place {
                    Value::Array(items) => items.len(),
                    Value::Object(entries) => entries.len(),
                    _ => 0,
                };
                if children == 0 || next(8) == 0 {
                    break;
                }
                let at = next(children);
                place = match place {
                    Value::Array(items) => &mut items[at],
                    Value::Object(entries) => entries.values_mut().nth(at).expect("a child"),
                    _ => unreachable!("it has children"),
                };
            }
            *place = serde_json::from_str(VALUES[next(VALUES.len())]).expect("JSON");
        }
        let mut bytes = json.to_string().into_bytes();
        if next(4) == 0 {
            let at = next(bytes.len());
            bytes[at] = next(256) as u8;
        }
        let shown = String::from_utf8_lossy(&bytes).into_owned();
        match within_20_seconds(bytes) {
            Ok(_) => encoded += 1,
            Err(error) => {
                assert!(!error.to_string().contains(PANICKED), "{shown}");
                failed += 1;
            }
        }
    }
    println!("{encoded} encoded, {failed} refused");
    assert!(encoded > count / 20 && failed > count / 20);
}
