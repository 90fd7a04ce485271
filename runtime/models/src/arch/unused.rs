//! Strict checkpoints: a key or a tensor that no frontend read is an error that names it, unless it stands in one of the lists
//! of [`super::unused_lists`], which say of each why the model's logits do not depend on it.
//!
//! What a frontend reads through [`Config`], [`safetensors::Checkpoint`] or [`Gguf`] is used; nothing else needs to be
//! declared. A key at null says nothing and is passed over.

use serde_json::Value;
use waterline_quant::gguf::{Gguf, Value as GgufValue};
use waterline_quant::safetensors;

use super::Config;
use super::unused_lists::{
    GGUF_KEYS, GGUF_KEYS_AT, GGUF_MTP, GGUF_TENSORS, Idle, KEYS, KEYS_AT, KEYS_OF, MTP, TENSORS,
    TENSORS_AT,
};
use crate::error::{Error, Result};
use crate::weights::Tensors;

/// Most names in an error.
const SHOWN: usize = 8;
const KEY: [&str; 2] = ["the key", "the keys"];
const TENSOR: [&str; 2] = ["the tensor", "the tensors"];

/// What the names of a shared block's tensors have between the layer and the part.
const SHARED: &str = ".shared_transformer.";

/// Refuses a configuration of which a key was not read that may mean something.
pub(super) fn check_config(config: &Config) -> Result<()> {
    let model_type = config.optional_string("model_type").unwrap_or_default();
    let unused = config.unused().into_iter();
    let unused = unused.filter(|(key, value)| !is_idle_key(model_type, key, value));
    let unused: Vec<String> = unused.map(|(key, _)| key).collect();
    refuse(config.file(), KEY, unused.iter().map(String::as_str))
}

/// Refuses a checkpoint of which a tensor was not read that may mean something. `tensors` are those that the model has. Those of a
/// block that predicts further tokens do not, unless `mtp`.
pub(super) fn check_tensors(
    config: &Config,
    weights: &safetensors::Checkpoint,
    tensors: &Tensors,
    mtp: bool,
) -> Result<()> {
    // A copy of the embedding beside it is how some programs write a tied output matrix.
    let is_embedding = |name: &str| {
        name.ends_with("lm_head.weight")
            && tensors.get("token_embd.weight").is_some_and(|embedding| {
                weights
                    .bytes(name)
                    .is_some_and(|bytes| bytes[..] == embedding.data[..])
            })
    };
    let unused: Vec<&str> = weights.unused().collect();
    let at = |name: &str| {
        let mut lists = TENSORS_AT.iter().filter(|(key, value, _)| {
            let found = config.object().get(*key);
            found.and_then(Value::as_bool) == Some(*value)
        });
        lists.any(|(_, _, names)| is_named(names, name))
    };
    let bytes = |name: &str| weights.bytes(name).map(|bytes| &bytes[..]);
    // Some programs write the tensors of a shared block under every layer that uses it.
    let repeats = |name: &str| {
        let ending = name.split_once(SHARED).map(|(_, ending)| ending);
        let same = |other: &str| {
            other != name
                && other.split_once(SHARED).map(|(_, ending)| ending) == ending
                && bytes(other) == bytes(name)
        };
        let used = |other: &&str| !unused.contains(other);
        ending.is_some() && weights.names().filter(used).any(same)
    };
    let is_further = |name: &str| !mtp && is_named(MTP, name);
    let listed = |name: &str| is_listed(TENSORS, name) || is_further(name);
    let idle = |name: &str| listed(name) || is_embedding(name) || at(name) || repeats(name);
    let unused = unused.iter().copied().filter(|name| !idle(name));
    refuse(weights.name(), TENSOR, unused)
}

/// Refuses a GGUF file of which a key or a tensor was not read that may mean something. Those of a block that predicts further tokens
/// do not, unless `mtp`.
pub(crate) fn check_gguf(gguf: &Gguf, mtp: bool) -> Result<()> {
    let unused: Vec<&str> = gguf.unused_keys().collect();
    let architecture = gguf.get_str("general.architecture").unwrap_or_default();
    let is_idle = |key: &str| {
        let own = key
            .strip_prefix(architecture)
            .filter(|own| own.starts_with('.'))
            .unwrap_or(key);
        let said = || gguf.get(key).map(said).unwrap_or_default();
        let at = |(k, value): &(&str, &str)| [own, key].contains(k) && *value == said();
        is_listed(GGUF_KEYS, own) || is_listed(GGUF_KEYS, key) || GGUF_KEYS_AT.iter().any(at)
    };
    let keys = unused.into_iter().filter(|key| !is_idle(key));
    refuse(gguf.name(), KEY, keys)?;
    let tensors = gguf.unused_tensors();
    // Blocks behind the last layer predict further tokens.
    let number = |key: &str| {
        let value = gguf.get(&format!("{architecture}.{key}"));
        value.and_then(GgufValue::as_u64).unwrap_or(0)
    };
    let blocks = number("block_count");
    let further = blocks.saturating_sub(number("nextn_predict_layers"))..blocks;
    let is_further = |name: &str| {
        let block = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split('.').next());
        let block = block.and_then(|block| block.parse::<u64>().ok());
        block.is_some_and(|block| further.contains(&block)) || is_named(GGUF_MTP, name)
    };
    let is_idle = |name: &str| is_listed(GGUF_TENSORS, name) || !mtp && is_further(name);
    let tensors = tensors.filter(|name| !is_idle(name));
    refuse(gguf.name(), TENSOR, tensors)
}

/// A single value as a text; nothing of a list.
fn said(value: &GgufValue) -> String {
    match (value.as_u64(), value.as_bool(), value.as_str()) {
        (Some(number), _, _) => number.to_string(),
        (_, Some(switch), _) => switch.to_string(),
        (_, _, Some(text)) => text.into(),
        _ => String::new(),
    }
}

/// Whether a key of a configuration, which may be one of an inner object, means nothing at this value.
fn is_idle_key(model_type: &str, key: &str, value: &Value) -> bool {
    let inner = key.rsplit('.').next().unwrap_or(key);
    let is_in = |list: &[Idle]| is_listed(list, key) || is_listed(list, inner);
    let of_family = |(families, idle): &(&[&str], Idle)| {
        families.contains(&model_type) && is_in(std::slice::from_ref(idle))
    };
    let value = value.to_string();
    let at = |(k, expected): &(&str, &str)| *k == inner && *expected == value;
    // Kinds of layers that are all the same need no reader.
    let only_attention = || {
        let kinds = value.trim_matches(['[', ']']).split(',');
        inner == "layer_types" && kinds.into_iter().all(|kind| kind == "\"full_attention\"")
    };
    is_in(KEYS) || KEYS_OF.iter().any(of_family) || KEYS_AT.iter().any(at) || only_attention()
}

fn is_listed(list: &[Idle], name: &str) -> bool {
    list.iter().any(|(names, _)| is_named(names, name))
}

fn is_named(patterns: &str, name: &str) -> bool {
    let mut patterns = patterns.split_whitespace();
    patterns.any(|pattern| matches(pattern, name))
}

/// Whether `name` is `pattern`, in which one star stands for anything.
fn matches(pattern: &str, name: &str) -> bool {
    match pattern.split_once('*') {
        None => pattern == name,
        Some((start, end)) => {
            let rest = name.strip_prefix(start);
            match end.split_once('*') {
                None => rest.is_some_and(|rest| rest.ends_with(end)),
                Some((middle, end)) => rest.is_some_and(|rest| {
                    let mut ends = rest.match_indices(middle);
                    ends.any(|(i, _)| rest[i + middle.len()..].ends_with(end))
                }),
            }
        }
    }
}

/// The error that names what is unused, if anything; `what` is the word for one and for many.
fn refuse<'a>(
    file: &str,
    what: [&'static str; 2],
    names: impl Iterator<Item = &'a str>,
) -> Result<()> {
    let names: Vec<&str> = names.collect();
    if names.is_empty() {
        return Ok(());
    }
    let mut shown = names[..names.len().min(SHOWN)].join(", ");
    if names.len() > SHOWN {
        shown += &format!(" and {} more", names.len() - SHOWN);
    }
    Err(Error::Unused {
        file: file.into(),
        what: what[usize::from(names.len() > 1)],
        names: shown,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(config: Value) -> Option<String> {
        let config = Config::new("config.json", config).expect("an object");
        config.optional_string("model_type");
        config.usize("hidden_size").expect("a number");
        if let Some(inner) = config.child("attn").expect("an object") {
            inner.usize("heads").expect("a number");
        }
        check_config(&config).err().map(|error| error.to_string())
    }

    #[test]
    fn a_key_that_nobody_read_is_named() {
        let plain = serde_json::json!({
            "model_type": "gla", "hidden_size": 8, "torch_dtype": "float32", "bos_token_id": 1, "gate": null,
            "attn": { "heads": 2, "dropout_prob": 0.1 }, "use_gk": true,
        });
        assert_eq!(refused(plain.clone()), None);
        for (key, value) in [
            ("row_topk", serde_json::json!(4)),
            ("use_gk", serde_json::json!(false)),
            ("quantization_config", serde_json::json!({ "bits": 4 })),
            ("layer_types", serde_json::json!(["full_attention", "conv"])),
            ("sla_base", serde_json::json!("GLA")),
        ] {
            let mut config = plain.clone();
            config[key] = value;
            let said = refused(config).expect(key);
            assert!(said.contains(&format!("the key: {key};")), "{said}");
        }
        let mut inner = plain.clone();
        inner["attn"]["gate"] = serde_json::json!(true);
        inner["gate"] = serde_json::json!(true);
        let said = refused(inner).expect("keys");
        assert!(said.contains("the keys: attn.gate, gate;"), "{said}");
        let mut all_alike = plain;
        all_alike["layer_types"] = serde_json::json!(["full_attention", "full_attention"]);
        assert_eq!(refused(all_alike), None);
    }

    #[test]
    fn keys_of_kinds_of_layers_that_a_model_does_not_have_are_passed_over() {
        for (model_type, keys) in [
            ("jamba", &["num_experts_per_tok"][..]),
            ("kimi_linear", &["moe_renormalize", "kv_lora_rank"]),
            ("lfm3", &["sliding_window"]),
            ("minimax", &["full_attn_alpha_factor"]),
            ("qwen3_5_moe_text", &["intermediate_size"]),
        ] {
            let mut config = serde_json::json!({ "model_type": model_type, "hidden_size": 8 });
            for key in keys {
                config[key] = serde_json::json!(3);
            }
            assert_eq!(refused(config.clone()), None, "{model_type}");
            config["model_type"] = serde_json::json!("gla");
            assert!(refused(config).is_some(), "{keys:?}");
        }
    }

    #[test]
    fn only_the_first_of_many_names_are_shown() {
        let names: Vec<String> = (0..20).map(|i| format!("t{i}")).collect();
        let error = refuse("f", TENSOR, names.iter().map(String::as_str)).unwrap_err();
        let said = error.to_string();
        assert!(
            said.contains("the tensors: t0, t1") && said.contains("and 12 more"),
            "{said}"
        );
    }

    #[test]
    fn stars_stand_for_anything() {
        assert!(matches("*.inv_freq", "model.rotary_emb.inv_freq"));
        assert!(matches("blk.*.nextn.*", "blk.12.nextn.eh_proj.weight"));
        assert!(matches("a*", "a") && matches("a", "a"));
        assert!(
            !matches("a*", "b")
                && !matches("a", "ab")
                && !matches("blk.*.nextn.*", "blk.1.attn.weight")
        );
    }
}
