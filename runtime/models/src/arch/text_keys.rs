//! The text files of a model as keys of a GGUF file: llama.cpp's, and a few for what those omit.

use std::collections::{BTreeMap, BTreeSet};

use waterline_quant::gguf::{Array, Gguf, Value};

use super::llama_cpp_vocab::Vocabulary;
use super::token_table::TokenTable;
use super::{embedding, end_tokens, llama_cpp_vocab, sampling_keys};
use crate::error::Result;
use crate::model::{DEFAULT_TEMPLATE, TextFiles, TokenNames};

/// A Hugging Face `tokenizer.json`.
const TOKENIZER: &str = "tokenizer.huggingface.json";
/// The default chat template; other templates append a dot and their name.
const TEMPLATE: &str = "tokenizer.chat_template";
/// Names of the other templates.
const TEMPLATES: &str = "tokenizer.chat_templates";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
/// Keys that hold one end token each, after the first.
const MORE_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// All end tokens.
const ENDS: &str = "tokenizer.ggml.eog_token_ids";
/// Other names of that key.
const ENDS_TOO: [&str; 2] = [
    "tokenizer.ggml.eog_token_id",
    "tokenizer.ggml.eos_token_ids",
];
/// Texts of special tokens in templates, if they differ from the texts of the ids.
const NAMES: [&str; 3] = [
    "tokenizer.huggingface.bos_token",
    "tokenizer.huggingface.eos_token",
    "tokenizer.huggingface.pad_token",
];

/// Reads the text files of a GGUF file with `vocab` token ids; also returns notes on anything odd in them.
pub(super) fn from_gguf(gguf: &Gguf, vocab: usize) -> Result<(TextFiles, Vec<String>)> {
    let mut notes = Vec::new();
    let string = |key: &str| gguf.get(key).and_then(Value::as_str).map(str::to_string);
    let mut known = |key: &str| -> Vec<u32> {
        let (known, beyond): (Vec<u32>, Vec<u32>) = ids(gguf, key)
            .into_iter()
            .partition(|&id| (id as usize) < vocab);
        if let Some(id) = beyond.first() {
            notes.push(format!(
                "{key} is the token {id}, but the model has {vocab} tokens: it is ignored"
            ));
        }
        known
    };
    let own = gguf.get(TOKENIZER).and_then(Value::as_str);
    let vocabulary = Vocabulary::new(gguf);
    // A SentencePiece vocabulary has default ids for both tokens.
    let usual = |key: &str, id: u32| {
        let is_usual = own.is_none() && vocabulary.is_sentencepiece() && gguf.get(key).is_none();
        is_usual.then_some(id)
    };
    let bos = known(BOS).first().copied().or(usual(BOS, 1));
    let mut ends = known(EOS);
    ends.extend(usual(EOS, 2));
    for key in MORE_ENDS.iter().chain(&ENDS_TOO).chain([&ENDS]) {
        ends.extend(known(key));
    }
    let eos = ends.first().copied();
    let mut ends: BTreeSet<u32> = ends.into_iter().collect();
    let tokenizer = match own {
        Some(json) => {
            // A list written by this project is complete.
            if gguf.get(ENDS).is_none() {
                let table = TokenTable::new(Some(json.into()));
                ends.extend(end_tokens::by_text(table.added(), |_| None).ends);
            }
            Some(json.into())
        }
        None => {
            let known = vocabulary.by_text();
            ends.extend(&known.ends);
            notes.extend(vocabulary.note_on_types(&known.control));
            llama_cpp_vocab::from_gguf(gguf, &known.control)
        }
    };
    ends.retain(|&id| (id as usize) < vocab);
    // Older files of this project lack the key.
    let adds_bos = match own {
        None => llama_cpp_vocab::adds_bos(gguf),
        Some(_) => gguf.get(ADD_BOS).and_then(Value::as_bool).unwrap_or(true),
    };
    let mut templates = BTreeMap::new();
    for (key, value) in gguf.metadata() {
        let name = match key.strip_prefix(TEMPLATE) {
            Some("") => DEFAULT_TEMPLATE,
            Some(name) if name.starts_with('.') => &name[1..],
            _ => continue,
        };
        if let Some(template) = value.as_str() {
            templates.insert(name.to_string(), template.to_string());
        }
    }
    let [bos_name, eos_name, pad_name] = NAMES.map(string);
    let text = TextFiles {
        tokenizer,
        templates,
        bos,
        adds_bos: adds_bos && bos.is_some(),
        embedding: embedding::from_gguf(gguf, own, eos)?,
        eos,
        ends,
        sampling: sampling_keys::from_gguf(gguf, &mut notes),
        names: TokenNames {
            bos: bos_name,
            eos: eos_name,
            pad: pad_name,
        },
    };
    Ok((text, notes))
}

/// The token ids at a key: one or a list.
fn ids(gguf: &Gguf, key: &str) -> Vec<u32> {
    let Some(value) = gguf.get(key) else {
        return Vec::new();
    };
    let list = value.as_array().and_then(Array::to_i64s);
    let numbers = list.unwrap_or_else(|| value.as_i64().into_iter().collect());
    // An id of -1 means no token.
    numbers
        .into_iter()
        .filter_map(|id| u32::try_from(id).ok())
        .collect()
}

/// The keys for the text files of a model.
pub(super) fn to_gguf(text: &TextFiles) -> Vec<(String, Value)> {
    let string = |text: &str| Value::String(text.into());
    let mut keys = Vec::new();
    let mut add = |key: &str, value: Option<Value>| {
        keys.extend(value.map(|value| (key.to_string(), value)));
    };
    let json = text.tokenizer.as_ref();
    add(
        TOKENIZER,
        json.map(|json| string(&String::from_utf8_lossy(json))),
    );
    let mut others = Vec::new();
    for (name, template) in &text.templates {
        match name.as_str() {
            DEFAULT_TEMPLATE => add(TEMPLATE, Some(string(template))),
            name => {
                add(&format!("{TEMPLATE}.{name}"), Some(string(template)));
                others.push(name.to_string());
            }
        }
    }
    let others = Some(others).filter(|others| !others.is_empty());
    add(TEMPLATES, others.map(Value::from));
    add(BOS, text.bos.map(Value::U32));
    add(ADD_BOS, text.bos.map(|_| Value::Bool(text.adds_bos)));
    add(EOS, text.eos.map(Value::U32));
    let more = text.ends.iter().filter(|&&id| Some(id) != text.eos);
    for (key, &id) in MORE_ENDS.iter().zip(more) {
        add(key, Some(Value::U32(id)));
    }
    let ends: Vec<i32> = text.ends.iter().map(|&id| id as i32).collect();
    let ends = Some(ends).filter(|ends| !ends.is_empty());
    add(ENDS, ends.map(|ends| Value::Array(Array::I32(ends))));
    let names = [&text.names.bos, &text.names.eos, &text.names.pad];
    for (key, name) in NAMES.iter().zip(names) {
        add(key, name.as_deref().map(string));
    }
    keys.extend(sampling_keys::to_gguf(&text.sampling));
    keys
}

#[cfg(test)]
mod tests {
    use waterline_quant::gguf::Writer;

    use super::*;
    use crate::model::{Embedding, Sampling};
    use crate::text::Tokenizer;

    const VOCAB: usize = 8;

    /// A file with these keys.
    fn file(keys: &[(String, Value)]) -> Gguf {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.gguf");
        let writer = Writer::create(&path, keys, &[]).expect("a file");
        writer.finish().expect("a whole file");
        Gguf::open(&path).expect("the file")
    }

    fn read(gguf: &Gguf) -> (TextFiles, Vec<String>) {
        from_gguf(gguf, VOCAB).expect("text files")
    }

    /// A vocabulary of llama.cpp in which every token has type `kind`, with more keys.
    fn vocabulary(kind: i32, more: &[(&str, Value)]) -> Gguf {
        let tokens = [
            "a",
            "b",
            "<|im_end|>",
            "<|x|>",
            "<|y|>",
            "<|z|>",
            "<|fim_pad|>",
            "c",
        ];
        let tokens: Vec<String> = tokens.map(String::from).to_vec();
        let types = Array::I32(vec![kind; tokens.len()]);
        let mut keys = vec![
            ("tokenizer.ggml.model".to_string(), Value::from("gpt2")),
            ("tokenizer.ggml.tokens".into(), Value::from(tokens)),
            (
                "tokenizer.ggml.merges".into(),
                Value::from(Vec::<String>::new()),
            ),
            ("tokenizer.ggml.token_type".into(), Value::Array(types)),
        ];
        let full = |(key, value): &(&str, Value)| (format!("tokenizer.ggml.{key}"), value.clone());
        keys.extend(more.iter().map(full));
        file(&keys)
    }

    #[test]
    fn text_files_come_back() {
        let mut sampling = Sampling::default();
        for (index, value) in [0.6, 20.0, 0.95, 0.0, 1.05, 256.0].into_iter().enumerate() {
            sampling.set(index, value).expect("a value in range");
        }
        let text = TextFiles {
            tokenizer: Some(b"{}".to_vec()),
            templates: [("default", "a"), ("tool_use", "b"), ("rag", "c")]
                .map(|(name, template)| (name.to_string(), template.to_string()))
                .into(),
            bos: Some(1),
            adds_bos: false,
            eos: Some(5),
            ends: [2, 3, 4, 5].into(),
            sampling,
            embedding: Embedding::default(),
            names: TokenNames {
                bos: Some(String::new()),
                eos: Some("<|eot|>".into()),
                pad: None,
            },
        };
        assert_eq!(read(&file(&to_gguf(&text))), (text, Vec::new()));
    }

    #[test]
    fn each_key_names_an_end_and_so_do_texts() {
        let list = Value::Array(Array::I32(vec![3, 4]));
        for (more, expected) in [
            (&[][..], &[2, 6][..]),
            (&[("eos_token_id", Value::U32(3))], &[2, 3, 6]),
            (&[("eos_token_id", list.clone())], &[2, 3, 4, 6]),
            (&[("eot_token_id", Value::U32(3))], &[2, 3, 6]),
            (&[("eom_token_id", Value::I32(4))], &[2, 4, 6]),
            (&[("eom_token_id", Value::I32(-1))], &[2, 6]),
            (&[("eog_token_id", Value::U32(5))], &[2, 5, 6]),
            (&[("eog_token_ids", list.clone())], &[2, 3, 4, 6]),
            (&[("eos_token_ids", list)], &[2, 3, 4, 6]),
            (&[("fim_pad_token_id", Value::U32(7))], &[2, 7]),
        ] {
            let (text, notes) = read(&vocabulary(3, more));
            let ends: Vec<u32> = text.ends.into_iter().collect();
            assert_eq!((&ends[..], notes), (expected, Vec::new()), "{more:?}");
        }
        let (text, notes) = read(&vocabulary(3, &[("eot_token_id", Value::U32(9))]));
        assert!(
            text.eos.is_none() && notes[0].contains("the token 9, but the model has 8"),
            "{notes:?}"
        );
    }

    #[test]
    fn tokens_that_look_like_control_tokens_are_control_tokens() {
        let (text, notes) = read(&vocabulary(1, &[]));
        assert!(
            notes[0].contains("marks <|im_end|> <|fim_pad|> as text"),
            "{notes:?}"
        );
        let json = text.tokenizer.expect("a vocabulary");
        let tokenizer = Tokenizer::from_json(&json, "test").expect("a tokenizer");
        let special = (0..8).filter(|&id| tokenizer.is_special(id));
        assert_eq!(special.collect::<Vec<_>>(), [2, 6]);
        assert_eq!(
            tokenizer
                .encode_with_special("a<|im_end|>")
                .expect("tokens"),
            [0, 2]
        );
    }

    #[test]
    fn sentencepiece_has_usual_places() {
        let keys = [
            ("tokenizer.ggml.model".to_string(), Value::from("llama")),
            (
                "tokenizer.ggml.tokens".into(),
                Value::from(["<unk>", "<s>", "</s>"].map(String::from).to_vec()),
            ),
        ];
        let (text, _) = read(&file(&keys));
        assert_eq!(
            (text.begin(), text.eos, text.ends),
            (Some(1), Some(2), [2].into())
        );
    }
}
