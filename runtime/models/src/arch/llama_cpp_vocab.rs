//! Vocabularies as llama.cpp stores them, with or without a `tokenizer.json`.
//!
//! This module reads byte-level BPE with the splitting methods of [`llama_cpp_splits`](super::llama_cpp_splits),
//! SentencePiece with scores, and RWKV's trie. It writes byte-level BPE that splits text as GPT-2 does, which GPT-NeoX and
//! thus Mamba use. Other files get no vocabulary rather than one that yields other tokens; llama.cpp runs them on token
//! ids.

use std::collections::BTreeSet;

use serde::{Serialize, Serializer};
use serde_json::{Value as Json, json};
use waterline_error::alphabet::Alphabet;
use waterline_quant::gguf::{Array, Gguf, Value};

use super::end_tokens::{self, Known};
use super::llama_cpp_splits::splits;
use super::token_table::AddedToken;
use super::vocab_files::{
    self, Description, byte_level, byte_level_splits, check_added, check_count,
};

// Token types.
const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

/// Values of `tokenizer.ggml.pre` for byte pairs over complete lines of text, in which U+2581 is a space.
const LINES: [&str; 2] = ["gemma4", "granite-embed-multi-311m"];

/// The keys under `tokenizer.ggml` for a `tokenizer.json` and a model with `size` token ids.
pub(super) fn to_gguf(tokenizer: Option<&[u8]>, size: usize) -> Vec<(String, Value)> {
    let keys = tokenizer.and_then(|json| bpe_keys(&serde_json::from_slice(json).ok()?, size));
    let keys = keys.unwrap_or_else(|| vec![("model", Value::String("none".into()))]);
    let full = |(key, value)| (format!("tokenizer.ggml.{key}"), value);
    keys.into_iter().map(full).collect()
}

fn bpe_keys(json: &Json, size: usize) -> Option<Vec<(&'static str, Value)>> {
    let (model, split) = (&json["model"], &json["pre_tokenizer"]);
    let flag = |value: &Json, default| value.as_bool().unwrap_or(default);
    let gpt2 = model["type"] == "BPE"
        && !flag(&model["byte_fallback"], false)
        && split["type"] == "ByteLevel"
        && flag(&split["use_regex"], true)
        && !flag(&split["add_prefix_space"], true);
    if !gpt2 {
        return None;
    }
    let mut tokens: Vec<String> = (0..size).map(|id| format!("[PAD{id}]")).collect();
    let mut types = vec![UNUSED; size];
    let mut set = |content: &str, id: &Json, kind| {
        let id = id.as_u64()? as usize;
        *tokens.get_mut(id)? = content.into();
        types[id] = kind;
        Some(())
    };
    for (content, id) in model["vocab"].as_object()? {
        set(content, id, NORMAL)?;
    }
    for token in json["added_tokens"].as_array().into_iter().flatten() {
        let special = flag(&token["special"], false);
        let kind = if special { CONTROL } else { USER_DEFINED };
        set(token["content"].as_str()?, &token["id"], kind)?;
    }
    // Older files write "a b" instead of ["a", "b"].
    let merge = |merge: &Json| match merge.as_str() {
        Some(text) => Some(text.to_string()),
        None => Some(format!("{} {}", merge[0].as_str()?, merge[1].as_str()?)),
    };
    let merges = model["merges"].as_array()?.iter().map(merge);
    Some(vec![
        ("model", Value::String("gpt2".into())),
        ("pre", Value::String("gpt-2".into())),
        ("tokens", Value::Array(Array::String(tokens))),
        ("token_type", Value::Array(Array::I32(types))),
        (
            "merges",
            Value::Array(Array::String(merges.collect::<Option<_>>()?)),
        ),
    ])
}

/// Builds a `tokenizer.json` for the vocabulary of a file, if it has one. The tokens in `control` become control tokens
/// whatever their type. An unreadable vocabulary becomes a description that holds the reason.
pub(crate) fn from_gguf(gguf: &Gguf, control: &BTreeSet<u32>) -> Option<Vec<u8>> {
    let vocabulary = Vocabulary {
        control: Some(control),
        ..Vocabulary::new(gguf)
    };
    let model = match vocabulary.text("model")? {
        "none" | "no_vocab" => return None,
        "gpt2" if !LINES.contains(&vocabulary.pre()) => vocabulary.byte_level(),
        "gpt2" | "gemma4" => vocabulary.lines(),
        "llama" => vocabulary.sentencepiece(),
        "rwkv" => vocabulary.rwkv(),
        other => Err(format!(
            "unsupported value {other:?} of tokenizer.ggml.model"
        )),
    };
    Some(model.unwrap_or_else(|reason| json!({ "unreadable": reason }).to_string().into_bytes()))
}

/// The model of a tokenizer, with lists borrowed from the file.
#[derive(Serialize)]
#[serde(tag = "type")]
enum Model<'g> {
    #[serde(rename = "BPE")]
    BytePairs {
        vocab: Used<'g>,
        merges: Merges<'g>,
        ignore_merges: bool,
    },
    #[serde(rename = "BPE")]
    Lines {
        vocab: Used<'g>,
        merges: &'g [String],
        byte_fallback: bool,
        line_breaks_are_whole: bool,
    },
    SentencePiece {
        vocab: &'g [String],
        scores: Vec<f32>,
        unk_id: u64,
        add_space_prefix: bool,
    },
    #[serde(rename = "RWKV")]
    Rwkv {
        vocab: &'g [String],
        unk_id: Option<u64>,
    },
}

#[derive(Serialize)]
#[serde(untagged)]
enum Merges<'g> {
    Listed(&'g [String]),
    ByRank(Vec<[String; 2]>),
}

/// Tokens and their types, serialized as the tokens that text can become, with their ids.
struct Used<'g>(&'g [String], Vec<i32>);

impl Serialize for Used<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let all = self.0.iter().zip(&self.1).enumerate();
        let used = all.filter(|(_, (_, kind))| **kind != UNUSED);
        to.collect_map(used.map(|(id, (token, _))| (token, id)))
    }
}

/// Whether a token begins every sequence: as the file states, or by the kind of its vocabulary.
pub(crate) fn adds_bos(gguf: &Gguf) -> bool {
    let vocabulary = Vocabulary::new(gguf);
    let is_gemma4 = vocabulary.text("model") == Some("gemma4") || LINES.contains(&vocabulary.pre());
    let said = vocabulary.get("add_bos_token").and_then(Value::as_bool);
    // Files of Gemma 4 state false, contrary to its authors.
    let said = said.filter(|_| !is_gemma4);
    said.unwrap_or_else(|| match vocabulary.text("model") {
        Some("gpt2") if !is_gemma4 => splits(vocabulary.pre()).is_none_or(|splits| splits.add_bos),
        Some("rwkv") => false,
        _ => true,
    })
}

/// The keys under `tokenizer.ggml` of a file.
pub(super) struct Vocabulary<'g> {
    gguf: &'g Gguf,
    /// Tokens that are control tokens whatever their type.
    control: Option<&'g BTreeSet<u32>>,
}

impl<'g> Vocabulary<'g> {
    pub fn new(gguf: &'g Gguf) -> Self {
        let control = None;
        Vocabulary { gguf, control }
    }

    /// Whether the vocabulary is SentencePiece with scores.
    pub fn is_sentencepiece(&self) -> bool {
        self.text("model") == Some("llama")
    }

    /// The tokens whose texts reveal their purpose.
    pub fn by_text(&self) -> Known {
        let tokens = self.strings("tokens").unwrap_or_default();
        let tokens = (0..).zip(tokens.iter().map(String::as_str));
        let named = |key: &str| self.get(key)?.as_u64()?.try_into().ok();
        end_tokens::by_text(tokens, named)
    }

    /// A note on the tokens in `control` to which the file gives another type.
    pub fn note_on_types(&self, control: &BTreeSet<u32>) -> Option<String> {
        let tokens = self.strings("tokens").ok()?;
        let types = self.types(tokens.len()).ok()?;
        let other = |id: &&u32| {
            types
                .get(**id as usize)
                .is_some_and(|&kind| kind != CONTROL)
        };
        let names = control.iter().filter(other);
        let names: Vec<&str> = names.map(|&id| tokens[id as usize].as_str()).collect();
        let shown = names.join(" ");
        (!names.is_empty()).then(|| {
            format!(
                "tokenizer.ggml.token_type marks {shown} as text; they are read as control tokens"
            )
        })
    }

    fn get(&self, key: &str) -> Option<&'g Value> {
        self.gguf.get(&format!("tokenizer.ggml.{key}"))
    }

    fn text(&self, key: &str) -> Option<&'g str> {
        self.get(key)?.as_str()
    }

    fn pre(&self) -> &str {
        self.text("pre")
            .filter(|pre| !pre.is_empty())
            .unwrap_or("default")
    }

    fn strings(&self, key: &str) -> Result<&'g [String], String> {
        let array = self
            .get(key)
            .and_then(Value::as_array)
            .and_then(Array::as_strings);
        let strings = array.ok_or_else(|| format!("tokenizer.ggml.{key}: found no strings"))?;
        check_count(strings.len())?;
        Ok(strings)
    }

    /// The type of each of `count` tokens.
    fn types(&self, count: usize) -> Result<Vec<i32>, String> {
        let said = self.get("token_type").and_then(Value::as_array);
        let types = said.and_then(Array::to_i64s);
        let types = types.unwrap_or_else(|| vec![i64::from(NORMAL); count]);
        if types.len() != count {
            return Err(format!(
                "tokenizer.ggml.token_type: found {}, expected {count}",
                types.len()
            ));
        }
        let types = types
            .into_iter()
            .map(|kind| i32::try_from(kind).unwrap_or(NORMAL));
        let mut types: Vec<i32> = types.collect();
        for &id in self.control.into_iter().flatten() {
            types[id as usize] = CONTROL;
        }
        Ok(types)
    }

    /// Tokens that are found in text before it is tokenized.
    fn added(&self, tokens: &[String], types: &[i32]) -> Result<Vec<AddedToken>, String> {
        let numbered = (0u32..).zip(tokens.iter().zip(types));
        let found = numbered.filter(|(_, (_, kind))| [CONTROL, USER_DEFINED].contains(kind));
        check_added(found.clone().count())?;
        let token = |(id, (content, &kind)): (u32, (&String, &i32))| {
            AddedToken::new(id, content, kind == CONTROL)
        };
        Ok(found.map(token).collect())
    }

    fn byte_level(&self) -> Result<Vec<u8>, String> {
        let pre = self.pre();
        let splits = splits(pre)
            .ok_or_else(|| format!("unsupported value {pre:?} of tokenizer.ggml.pre"))?;
        let tokens = self.strings("tokens")?;
        let types = self.types(tokens.len())?;
        let added = self.added(tokens, &types)?;
        let model = Model::BytePairs {
            merges: self.merges(tokens, &types)?,
            vocab: Used(tokens, types),
            ignore_merges: splits.ignore_merges,
        };
        Description {
            pre_tokenizer: byte_level_splits(splits.patterns),
            decoder: byte_level(false),
            ..Description::new(model, added)
        }
        .to_json()
    }

    /// Gemma 4's byte pairs, over complete lines.
    fn lines(&self) -> Result<Vec<u8>, String> {
        let tokens = self.strings("tokens")?;
        let types = self.types(tokens.len())?;
        let added = self.added(tokens, &types)?;
        let model = Model::Lines {
            vocab: Used(tokens, types),
            merges: self.strings("merges")?,
            byte_fallback: true,
            line_breaks_are_whole: true,
        };
        Description {
            normalizer: json!({ "type": "Replace", "pattern": { "String": " " }, "content": "\u{2581}" }),
            pre_tokenizer: json!({
                "type": "Split",
                "pattern": { "Regex": r"[^\n]+|\n+" },
                "behavior": "Isolated",
                "invert": false,
            }),
            ..Description::new(model, added)
        }
        .to_json()
    }

    /// The merges of a byte-level vocabulary. In a file without merges, the ids imply them: tokens are numbered in the order
    /// in which they were merged.
    fn merges(&self, tokens: &[String], types: &[i32]) -> Result<Merges<'g>, String> {
        if self.get("merges").is_some() {
            return Ok(Merges::Listed(self.strings("merges")?));
        }
        let alphabet = Alphabet::default();
        let normal = tokens.iter().zip(types).zip(0u64..);
        let normal = normal.filter(|((_, kind), _)| **kind == NORMAL);
        let ranks = normal.map(|((token, _), id)| (alphabet.decode(token), id));
        vocab_files::merges_by_rank(&ranks.collect()).map(Merges::ByRank)
    }

    fn sentencepiece(&self) -> Result<Vec<u8>, String> {
        let tokens = self.strings("tokens")?;
        let types = self.types(tokens.len())?;
        let said = self.get("unknown_token_id").and_then(Value::as_u64);
        let typed = || {
            types
                .iter()
                .position(|&kind| kind == UNKNOWN)
                .map(|id| id as u64)
        };
        let scores = match self.get("scores") {
            Some(scores) => scores
                .as_array()
                .and_then(Array::to_f32s)
                .ok_or("tokenizer.ggml.scores: found no numbers")?,
            None => vec![0.0; tokens.len()],
        };
        let prefix = self.get("add_space_prefix").and_then(Value::as_bool);
        let model = Model::SentencePiece {
            vocab: tokens,
            scores,
            unk_id: said.or_else(typed).unwrap_or(0),
            add_space_prefix: prefix.unwrap_or(true),
        };
        Description::new(model, self.added(tokens, &types)?).to_json()
    }

    fn rwkv(&self) -> Result<Vec<u8>, String> {
        let tokens = self.strings("tokens")?;
        let types = self.types(tokens.len())?;
        let unknown = self.get("unknown_token_id").and_then(Value::as_u64);
        let model = Model::Rwkv {
            vocab: tokens,
            unk_id: unknown,
        };
        Description::new(model, self.added(tokens, &types)?).to_json()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::Tokenizer;

    /// "ab" and "abc" from bytes, a special token, and an id without a token.
    fn tokenizer(add_prefix_space: bool) -> Vec<u8> {
        let byte_level = json!({
            "type": "ByteLevel", "add_prefix_space": add_prefix_space, "trim_offsets": true, "use_regex": true,
        });
        let tokenizer = json!({
            "version": "1.0",
            "added_tokens": [{
                "id": 0, "content": "<|end|>", "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }],
            "pre_tokenizer": byte_level,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "vocab": { "<|end|>": 0, "a": 1, "b": 2, "c": 3, "Ġ": 4, "ab": 5, "abc": 6 },
                "merges": [["a", "b"], ["ab", "c"]],
            },
        });
        tokenizer.to_string().into_bytes()
    }

    fn get<'a>(keys: &'a [(String, Value)], key: &str) -> &'a Value {
        let key = format!("tokenizer.ggml.{key}");
        &keys.iter().find(|(name, _)| *name == key).expect("a key").1
    }

    #[test]
    fn a_vocabulary_comes_back() {
        let keys = to_gguf(Some(&tokenizer(false)), 8);
        let tokens = get(&keys, "tokens").as_array().and_then(Array::as_strings);
        assert_eq!(tokens.expect("tokens")[5..], ["ab", "abc", "[PAD7]"]);
        let types = get(&keys, "token_type").as_array().and_then(Array::to_i64s);
        assert_eq!(types.expect("types"), [3, 1, 1, 1, 1, 1, 1, 5]);

        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("vocab.gguf");
        let writer = waterline_quant::gguf::Writer::create(&path, &keys, &[]).expect("a file");
        writer.finish().expect("a whole file");
        let gguf = Gguf::open(&path).expect("the file");
        let back = from_gguf(&gguf, &BTreeSet::new()).expect("a vocabulary");
        let text = "abc ab<|end|>ca";
        let encode = |json: &[u8]| {
            let tokenizer = Tokenizer::from_json(json, "test").expect("a tokenizer");
            tokenizer.encode_with_special(text).expect("tokens")
        };
        assert_eq!(encode(&back), [6, 4, 5, 0, 3, 1]);
        assert_eq!(encode(&tokenizer(false)), encode(&back));
    }

    #[test]
    fn what_splits_text_in_another_way_has_none() {
        for json in [None, Some(tokenizer(true)), Some(b"{}".to_vec())] {
            let keys = to_gguf(json.as_deref(), 8);
            assert_eq!(keys.len(), 1);
            assert_eq!(get(&keys, "model").as_str(), Some("none"));
        }
        // Ids that the model does not have.
        assert_eq!(to_gguf(Some(&tokenizer(false)), 6).len(), 1);
    }
}
