//! Checks the types of the keys under `tokenizer` of a GGUF file. A value of another type is an error, since ignoring it would
//! silently produce another tokenizer.

use waterline_quant::gguf::{Array, Gguf, Value};

use crate::error::{Error, Result};

/// A key, the check of its value, and the expected type in words.
type Kind = (&'static str, fn(&Value) -> bool, &'static str);

const KINDS: [Kind; 14] = [
    ("tokenizer.ggml.model", is_text, "a text"),
    ("tokenizer.ggml.pre", is_text, "a text"),
    ("tokenizer.ggml.tokens", is_texts, "a list of texts"),
    ("tokenizer.ggml.merges", is_texts, "a list of texts"),
    (
        "tokenizer.ggml.token_type",
        is_types,
        "a list of types from 0 to 6",
    ),
    (
        "tokenizer.ggml.scores",
        is_scores,
        "a list of finite numbers",
    ),
    ("tokenizer.ggml.bos_token_id", is_ids, "a token"),
    (
        "tokenizer.ggml.eos_token_id",
        is_ids,
        "a token, or a list of them",
    ),
    (
        "tokenizer.ggml.eot_token_id",
        is_ids,
        "a token, or a list of them",
    ),
    ("tokenizer.ggml.unknown_token_id", is_ids, "a token"),
    ("tokenizer.ggml.add_bos_token", is_flag, "true or false"),
    ("tokenizer.ggml.add_space_prefix", is_flag, "true or false"),
    ("tokenizer.chat_template", is_text, "a text"),
    ("tokenizer.huggingface.json", is_text, "a text"),
];

/// Refuses a file in which one of these keys has another type. Absent keys are accepted.
pub(super) fn check(gguf: &Gguf) -> Result<()> {
    for (key, value) in gguf.metadata() {
        let kind = KINDS.iter().find(|(name, _, _)| name == key);
        if let Some((_, is_one, expected)) = kind
            && !is_one(value)
        {
            return Err(Error::Config {
                file: gguf.name().into(),
                key: key.clone(),
                found: "a value of another type".into(),
                expected: (*expected).into(),
            });
        }
    }
    Ok(())
}

fn is_text(value: &Value) -> bool {
    value.as_str().is_some()
}

fn is_texts(value: &Value) -> bool {
    value.as_array().and_then(Array::as_strings).is_some()
}

fn is_flag(value: &Value) -> bool {
    value.as_bool().is_some()
}

fn is_types(value: &Value) -> bool {
    let types = value.as_array().and_then(Array::to_i64s);
    types.is_some_and(|types| types.iter().all(|kind| (0..=6).contains(kind)))
}

fn is_scores(value: &Value) -> bool {
    let scores = value.as_array().and_then(Array::to_f32s);
    scores.is_some_and(|scores| scores.iter().all(|score| score.is_finite()))
}

/// An id of -1 means no token.
fn is_ids(value: &Value) -> bool {
    let is_id = |id: &i64| (-1..=i64::from(u32::MAX)).contains(id);
    let list = value.as_array().and_then(Array::to_i64s);
    list.is_some_and(|ids| ids.iter().all(is_id)) || value.as_i64().is_some_and(|id| is_id(&id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use waterline_quant::gguf::Writer;

    fn checked(key: &str, value: Value) -> Result<()> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("keys.gguf");
        let writer = Writer::create(&path, &[(key.into(), value)], &[]).expect("a file");
        writer.finish().expect("a whole file");
        check(&Gguf::open(&path).expect("the file"))
    }

    #[test]
    fn keys_of_another_type_are_refused() {
        let text = || Value::String("text".into());
        let numbers = |list: Vec<f32>| Value::Array(Array::F32(list));
        for (key, value) in [
            ("ggml.model", Value::U32(1)),
            ("ggml.pre", Value::Bool(true)),
            ("ggml.tokens", numbers(vec![1.0])),
            ("ggml.merges", text()),
            ("ggml.token_type", text()),
            ("ggml.token_type", Value::Array(Array::I32(vec![1, 7]))),
            ("ggml.token_type", Value::Array(Array::I64(vec![-1]))),
            ("ggml.scores", numbers(vec![0.0, f32::NAN])),
            ("ggml.scores", numbers(vec![f32::INFINITY])),
            ("ggml.scores", Value::Array(Array::I32(vec![0]))),
            ("ggml.bos_token_id", text()),
            ("ggml.eos_token_id", Value::U64(1 << 32)),
            ("ggml.unknown_token_id", Value::F32(0.0)),
            ("ggml.add_bos_token", text()),
            ("ggml.add_space_prefix", Value::U32(1)),
            ("chat_template", Value::U32(3)),
            ("huggingface.json", Value::Bool(false)),
        ] {
            let key = format!("tokenizer.{key}");
            let error = checked(&key, value).expect_err(&key).to_string();
            assert!(error.contains(&key), "{error}");
        }
        checked("tokenizer.ggml.eos_token_id", Value::I32(-1)).expect("none");
        checked("tokenizer.ggml.scores", numbers(vec![0.5])).expect("scores");
        checked("tokenizer.other", Value::U32(1)).expect("another key");
    }
}
