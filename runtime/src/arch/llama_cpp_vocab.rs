//! Vocabularies as llama.cpp stores them, beside or in place of a `tokenizer.json`: byte-level BPE that splits text as
//! GPT-2 does, which GPT-NeoX and so Mamba have. Where text is split in another way, llama.cpp gets no vocabulary rather
//! than one that makes other tokens; it runs such a file on token ids.

use serde_json::{Map, Value as Json, json};
use waterline_quant::gguf::{Array, Gguf, Value};

/// What llama.cpp calls ways to split text that are GPT-2's.
const GPT2_SPLITS: &[&str] = &["gpt-2", "mpt", "olmo"];

// Types of tokens.
const NORMAL: i32 = 1;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

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
    // Older files have "a b" in place of ["a", "b"].
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

/// A `tokenizer.json` for the vocabulary of a file, if it has one of this kind.
pub(crate) fn from_gguf(gguf: &Gguf) -> Option<Vec<u8>> {
    let text = |key: &str| gguf.get(&format!("tokenizer.ggml.{key}"))?.as_str();
    let array = |key: &str| gguf.get(&format!("tokenizer.ggml.{key}"))?.as_array();
    if text("model") != Some("gpt2") || !GPT2_SPLITS.contains(&text("pre")?) {
        return None;
    }
    let tokens = array("tokens")?.as_strings()?;
    let types = array("token_type").and_then(Array::to_i64s);
    let (mut vocab, mut added) = (Map::new(), Vec::new());
    for (id, content) in tokens.iter().enumerate() {
        let kind = types.as_ref().and_then(|types| types.get(id).copied());
        let kind = kind.map_or(NORMAL, |kind| kind as i32);
        if kind == UNUSED {
            continue;
        }
        vocab.insert(content.clone(), json!(id));
        if [CONTROL, USER_DEFINED].contains(&kind) {
            added.push(json!({
                "id": id,
                "content": content,
                "single_word": false,
                "lstrip": false,
                "rstrip": false,
                "normalized": false,
                "special": kind == CONTROL,
            }));
        }
    }
    let byte_level = json!({
        "type": "ByteLevel",
        "add_prefix_space": false,
        "trim_offsets": true,
        "use_regex": true,
    });
    let merges = array("merges")?.as_strings()?;
    let tokenizer = json!({
        "version": "1.0",
        "added_tokens": added,
        "pre_tokenizer": byte_level,
        "decoder": byte_level,
        "model": { "type": "BPE", "vocab": vocab, "merges": merges },
    });
    Some(tokenizer.to_string().into_bytes())
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
        let back = from_gguf(&Gguf::open(&path).expect("the file")).expect("a vocabulary");
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
