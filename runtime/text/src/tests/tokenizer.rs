use super::*;
use crate::Piece;
use proptest::prelude::*;
use std::sync::LazyLock;

static PLAIN: LazyLock<Tokenizer> = LazyLock::new(|| tokenizer_with(&[]));

/// Text that is likely to split and merge: names of control tokens, spaces, numbers, various scripts.
fn text() -> impl Strategy<Value = String> {
    let part = prop_oneof![
        prop::sample::select(vec![
            "<|eos|>", "<|user|>", "<|", "|>", "eos", " ", "\n", "the cat", "it's", "12", "Ġ", "▁",
            "é", "日本", "🔥", "\u{301}", "\0", "</s>", "<s>", "\u{fdd0}",
        ])
        .prop_map(str::to_string),
        any::<String>(),
    ];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

/// The tokens that the tokenizers crate returns when it recognizes special tokens.
fn reference(json: &[u8], text: &str) -> Vec<u32> {
    let tokenizer = tokenizers::Tokenizer::from_bytes(json).unwrap();
    tokenizer
        .encode_fast(text, false)
        .unwrap()
        .get_ids()
        .to_vec()
}

proptest! {
    #[test]
    fn plain_text_round_trips_and_holds_no_control_token(text in text()) {
        let tokens = PLAIN.encode(&text).unwrap();
        prop_assert!(tokens.iter().all(|&token| !PLAIN.is_special(token)));
        prop_assert_eq!(spell(&PLAIN, &tokens), text);
    }

    #[test]
    fn template_text_round_trips(text in text()) {
        let tokens = PLAIN.encode_with_special(&text).unwrap();
        prop_assert_eq!(spell(&PLAIN, &tokens), &text[..]);
        let specials = tokens.iter().filter(|&&token| PLAIN.is_special(token)).count();
        prop_assert_eq!(specials, text.matches("<|eos|>").count() + text.matches("<|user|>").count());
    }
}

#[test]
fn control_tokens_come_from_template_text_only() {
    let eos = PLAIN.token_id("<|eos|>").unwrap();
    assert_eq!(PLAIN.encode_with_special("<|eos|>").unwrap(), [eos]);
    let plain = PLAIN.encode("<|eos|>").unwrap();
    assert!(plain.len() > 1 && !plain.contains(&eos));
    let pieces = [
        Piece::Template("a<|eos|>b<|e"),
        Piece::Content("os|><|eos|>"),
        Piece::Template("<|eos|>"),
    ];
    let tokens = PLAIN.encode_pieces(&pieces, true).unwrap();
    assert_eq!(tokens.iter().filter(|&&token| token == eos).count(), 2);
    assert_eq!(spell(&PLAIN, &tokens), "a<|eos|>b<|eos|><|eos|><|eos|>");
}

#[test]
fn a_token_reaches_across_the_border_of_template_and_content() {
    let pieces = [
        Piece::Template("Say th"),
        Piece::Content("e w"),
        Piece::Template("ord<|eos|>"),
    ];
    let tokens = PLAIN.encode_pieces(&pieces, true).unwrap();
    assert_eq!(
        tokens,
        PLAIN.encode_with_special("Say the word<|eos|>").unwrap()
    );
}

#[test]
fn sizes_and_ids() {
    assert_eq!(PLAIN.vocab_size(), 4096);
    assert_eq!(PLAIN.token_id("<|bos|>"), Some(1));
    assert_eq!(PLAIN.token_id("no such token"), None);
    assert!(PLAIN.is_special(5) && !PLAIN.is_special(6) && !PLAIN.is_special(u32::MAX));
    assert_eq!(PLAIN.token_bytes(2), b"<|eos|>");
    assert_eq!(PLAIN.token_bytes(4096), b"");
    assert_eq!(PLAIN.token_bytes(u32::MAX), b"");
    assert_eq!(PLAIN.encode("").unwrap(), [0u32; 0]);
    let mut single: Vec<u8> = (0..4096)
        .filter_map(|token| match PLAIN.token_bytes(token) {
            &[byte] => Some(byte),
            _ => None,
        })
        .collect();
    single.sort();
    assert_eq!(single, (0..=255).collect::<Vec<u8>>());
}

#[test]
fn white_space_around_stripping_tokens_is_swallowed_as_in_the_crate() {
    let json = json_with_specials(&[("<strip>", true), ("<strip>!", false), ("keep>", false)]);
    let tokenizer = Tokenizer::from_json(&json, "test").unwrap();
    for text in [
        "a <strip> \n b",
        "<strip><strip> <|eos|> x",
        " <strip>! <strip>",
        "<strip>keep> y",
    ] {
        assert_eq!(
            tokenizer.encode_with_special(text).unwrap(),
            reference(&json, text),
            "{text}"
        );
    }
    // A template's token must not strip white space of a user's text.
    let pieces = [
        Piece::Template("<strip> "),
        Piece::Content(" a "),
        Piece::Template(" <strip>"),
    ];
    let tokens = tokenizer.encode_pieces(&pieces, true).unwrap();
    assert_eq!(spell(&tokenizer, &tokens), "<strip> a <strip>");
}

/// A sentencepiece-style vocabulary: U+2581 for spaces, byte fallback for unknown characters.
fn sentencepiece(prefix: Value) -> Vec<u8> {
    let mut vocab = serde_json::Map::new();
    let mut add = |token: String| {
        let id = vocab.len();
        vocab.insert(token, json!(id));
    };
    for token in ["<unk>", "<s>", "</s>"] {
        add(token.into());
    }
    (0..256).for_each(|byte| add(format!("<0x{byte:02X}>")));
    for token in ["▁", "H", "i", "<", "/", "s", ">", "▁H", "▁Hi", "</", "s>"] {
        add(token.into());
    }
    let specials = ["<unk>", "<s>", "</s>"].iter().enumerate().map(|(id, content)| {
        json!({
            "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true
        })
    });
    let mut tokenizer = json!({
        "version": "1.0", "added_tokens": specials.collect::<Vec<_>>(),
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "},
            {"type": "ByteFallback"}, {"type": "Fuse"}
        ]},
        "model": {
            "type": "BPE", "unk_token": "<unk>", "fuse_unk": true, "byte_fallback": true,
            "vocab": vocab,
            // The last merge spells a control token.
            "merges": [["▁", "H"], ["▁H", "i"], ["<", "/"], ["s", ">"], ["</", "s>"]]
        }
    });
    for (key, value) in prefix.as_object().unwrap() {
        tokenizer[key] = value.clone();
    }
    serde_json::to_vec(&tokenizer).unwrap()
}

/// The three ways to put a space before text.
fn prefixes() -> [Value; 3] {
    let metaspace = |scheme: &str| {
        json!({"pre_tokenizer": {
            "type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": false
        }})
    };
    let normalizer = json!({"normalizer": {"type": "Sequence", "normalizers": [
        {"type": "Prepend", "prepend": "▁"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}
    ]}});
    [metaspace("first"), metaspace("always"), normalizer]
}

#[test]
fn sentencepiece_text_is_encoded_as_in_the_crate() {
    for prefix in prefixes() {
        let json = sentencepiece(prefix);
        let tokenizer = Tokenizer::from_json(&json, "test").unwrap();
        for text in [
            "Hi",
            "Hi Hi",
            "<s>Hi</s>Hi",
            "<s> Hi\n</s>",
            "</s></s>",
            "é Hi",
        ] {
            let tokens = tokenizer.encode_with_special(text).unwrap();
            assert_eq!(tokens, reference(&json, text), "{text}");
        }
        let tokens = tokenizer.encode("Hi é\n").unwrap();
        assert_eq!(spell(&tokenizer, &tokens), " Hi é\n");
    }
}

#[test]
fn a_first_prefix_is_for_the_beginning_only() {
    let tokenizer = Tokenizer::from_json(&sentencepiece(prefixes()[0].clone()), "test").unwrap();
    let spelled = |at_start| {
        spell(
            &tokenizer,
            &tokenizer
                .encode_pieces(&[Piece::Content("Hi")], at_start)
                .unwrap(),
        )
    };
    assert_eq!(spelled(true), " Hi");
    assert_eq!(spelled(false), "Hi");
}

#[test]
fn merges_that_spell_a_control_token_are_cut() {
    for prefix in prefixes() {
        let tokenizer = Tokenizer::from_json(&sentencepiece(prefix), "test").unwrap();
        let tokens = tokenizer.encode("Hi</s>Hi</s></s>").unwrap();
        assert!(!tokens.contains(&2));
        assert_eq!(spell(&tokenizer, &tokens), " Hi</s>Hi</s></s>");
        // A single word for a tokenizer without splits; it is cut in all places at once.
        let many = "</s>".repeat(5_000);
        assert_eq!(
            spell(&tokenizer, &tokenizer.encode(&many).unwrap()),
            format!(" {many}")
        );
    }
    // A unigram vocabulary finds control tokens in plain text without merges; `<unk>` is acceptable.
    let json = json!({
        "version": "1.0",
        "added_tokens": [
            {"id": 0, "content": "<unk>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true},
            {"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
             "normalized": false, "special": true}
        ],
        "model": {"type": "Unigram", "unk_id": 0, "vocab": [
            ["<unk>", 0.0], ["</s>", 0.0], ["<", -3.0], ["/", -3.0], ["s", -3.0], [">", -3.0], ["é", -3.0]
        ]}
    });
    let json = serde_json::to_vec(&json).unwrap();
    let tokenizer = Tokenizer::from_json(&json, "test").unwrap();
    assert_eq!(tokenizer.encode("é</s>é").unwrap(), [6, 2, 3, 4, 5, 6]);
    assert_eq!(tokenizer.encode("sx").unwrap(), [4, 0]);
    assert_eq!(tokenizer.encode_with_special("é</s>é").unwrap(), [6, 1, 6]);
}

#[test]
fn text_that_can_only_be_a_control_token_is_an_error() {
    let json = json!({
        "version": "1.0",
        "added_tokens": [{"id": 0, "content": "X", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": false, "special": true}],
        "model": {"type": "BPE", "vocab": {"X": 0, "a": 1}, "merges": []}
    });
    let tokenizer = Tokenizer::from_json(&serde_json::to_vec(&json).unwrap(), "a file").unwrap();
    assert_eq!(tokenizer.encode("a").unwrap(), [1]);
    let error = tokenizer.encode("aX").unwrap_err().to_string();
    assert!(
        error.contains("a file") && error.contains("control token"),
        "{error}"
    );
}

#[test]
fn damaged_files_are_errors_that_name_them() {
    let fails = |json: &[u8]| {
        let error = Tokenizer::from_json(json, "some/tokenizer.json")
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("some/tokenizer.json"), "{error}");
    };
    let whole = data("tok4096/tokenizer.json");
    (0..60).for_each(|part| fails(&whole[..whole.len() * part / 60]));
    // Here the crate itself would panic: in the middle of the decoder.
    let decoder = whole
        .windows(9)
        .position(|window| window == b"\"decoder\"")
        .unwrap();
    (0..120).for_each(|further| fails(&whole[..decoder + further]));
    fails(b"{}");
    fails(b"[1, 2]");
    fails(br#"{"version": "1.0", "model": {"type": "BPE", "vocab": {}, "merges": []}}"#);
    fails(br#"{"version": "1.0", "model": {"type": "BPE", "vocab": {"a": 4294967295}, "merges": []}}"#);
}
