//! The text files of a model as keys of a GGUF file: llama.cpp's, and a few that hold what those leave out.

use std::collections::{BTreeMap, BTreeSet};

use waterline_quant::gguf::{Array, Gguf, Value};

use super::llama_cpp_vocab::Vocabulary;
use super::token_table::TokenTable;
use super::{end_tokens, llama_cpp_vocab};
use crate::model::{DEFAULT_TEMPLATE, TextFiles, TokenNames};

/// A Hugging Face `tokenizer.json`.
const TOKENIZER: &str = "tokenizer.huggingface.json";
/// The default chat template; one of another name has it after a dot.
const TEMPLATE: &str = "tokenizer.chat_template";
/// The names of the other templates.
const TEMPLATES: &str = "tokenizer.chat_templates";
const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const ADD_BOS: &str = "tokenizer.ggml.add_bos_token";
/// The keys of single ends after the first.
const MORE_ENDS: [&str; 2] = ["tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"];
/// All ends.
const ENDS: &str = "tokenizer.ggml.eog_token_ids";
/// Other names of that key.
const ENDS_TOO: [&str; 2] = ["tokenizer.ggml.eog_token_id", "tokenizer.ggml.eos_token_ids"];
/// The texts of special tokens in templates, where they are not those of the ids.
const NAMES: [&str; 3] = [
    "tokenizer.huggingface.bos_token",
    "tokenizer.huggingface.eos_token",
    "tokenizer.huggingface.pad_token",
];

/// The text files of a GGUF file with `vocab` token ids, and sentences on what is odd in them.
pub(super) fn from_gguf(gguf: &Gguf, vocab: usize) -> (TextFiles, Vec<String>) {
    let mut notes = Vec::new();
    let string = |key: &str| gguf.get(key).and_then(Value::as_str).map(str::to_string);
    let mut known = |key: &str| -> Vec<u32> {
        let (known, beyond): (Vec<u32>, Vec<u32>) =
            ids(gguf, key).into_iter().partition(|&id| (id as usize) < vocab);
        if let Some(id) = beyond.first() {
            notes.push(format!(
                "{key} is the token {id}, but the model has {vocab}: it is passed over"
            ));
        }
        known
    };
    let own = gguf.get(TOKENIZER).and_then(Value::as_str);
    let vocabulary = Vocabulary::of(gguf);
    // A vocabulary of SentencePiece has usual places for both.
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
            // A list of ours is whole.
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
    // Our older files do not say it.
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
        eos,
        ends,
        names: TokenNames {
            bos: bos_name,
            eos: eos_name,
            pad: pad_name,
        },
    };
    (text, notes)
}

/// The token ids at a key: one or a list.
fn ids(gguf: &Gguf, key: &str) -> Vec<u32> {
    let Some(value) = gguf.get(key) else {
        return Vec::new();
    };
    let list = value.as_array().and_then(Array::to_i64s);
    let numbers = list.unwrap_or_else(|| value.as_i64().into_iter().collect());
    // An id of -1 stands for none.
    numbers.into_iter().filter_map(|id| u32::try_from(id).ok()).collect()
}

/// The keys for the text files of a model.
pub(super) fn to_gguf(text: &TextFiles) -> Vec<(String, Value)> {
    let string = |text: &str| Value::String(text.into());
    let mut keys = Vec::new();
    let mut add = |key: &str, value: Option<Value>| {
        keys.extend(value.map(|value| (key.to_string(), value)));
    };
    let json = text.tokenizer.as_ref();
    add(TOKENIZER, json.map(|json| string(&String::from_utf8_lossy(json))));
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
    keys
}
