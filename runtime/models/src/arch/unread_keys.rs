//! Keys that no frontend read. A key without effect is ignored, a key whose value changes the mathematics is an error that
//! names it, and any other key causes a note. Null counts as absent.

use std::collections::{HashMap, HashSet};

use serde_json::Value;
use waterline_quant::gguf::{Gguf, Value as GgufValue};

use super::Config;
use super::key_lists::{GGUF_KEYS, GGUF_SWITCHES, KEYS, KEYS_OF, SWITCHES};
use super::unused::listed;
use crate::error::{Error, Result};

/// A set of names; in some, a star matches anything.
struct Names {
    whole: HashSet<&'static str>,
    patterns: Vec<(&'static str, &'static str)>,
}

impl Names {
    fn new(lists: impl Iterator<Item = &'static str>) -> Self {
        let mut names = Names {
            whole: HashSet::new(),
            patterns: Vec::new(),
        };
        for name in lists.flat_map(str::split_whitespace) {
            match name.split_once('*') {
                Some(parts) => names.patterns.push(parts),
                None => drop(names.whole.insert(name)),
            }
        }
        names
    }

    fn has(&self, name: &str) -> bool {
        let is = |(start, end): &(&str, &str)| {
            name.strip_prefix(start)
                .is_some_and(|rest| rest.ends_with(end))
        };
        self.whole.contains(name) || self.patterns.iter().any(is)
    }
}

/// A note on the keys of a configuration that no frontend read, if there are any.
pub(super) fn of_config(config: &Config) -> Result<Option<String>> {
    let model_type = config.optional_string("model_type").unwrap_or_default();
    let of_family = KEYS_OF
        .iter()
        .filter(|(families, _)| families.contains(&model_type));
    let names = KEYS.iter().chain(of_family.map(|(_, idle)| idle));
    let idle = Names::new(names.map(|(names, _)| *names));
    let switches: HashMap<&str, &[&str]> = SWITCHES.iter().copied().collect();
    let mut unknown = Vec::new();
    for (key, value) in config.unused() {
        let inner = key.rsplit('.').next().unwrap_or(&key);
        if idle.has(&key) || idle.has(inner) || is_settled(config, &key) {
            continue;
        }
        match switches.get(inner) {
            Some(neutral) => check(config.file(), &key, &value.to_string(), neutral)?,
            // A list in which every layer has full attention needs no reader.
            None if inner == "layer_types" => {
                let kinds = value.as_array().map_or(&[][..], Vec::as_slice);
                if kinds.iter().any(|kind| kind != "full_attention") {
                    check(
                        config.file(),
                        &key,
                        &value.to_string(),
                        &["\"full_attention\" for each"],
                    )?;
                }
            }
            None => unknown.push(key),
        }
    }
    Ok(note(&unknown))
}

/// Whether another key in the same object replaces this one.
fn is_settled(config: &Config, key: &str) -> bool {
    let mut path: Vec<&str> = key.split('.').collect();
    let inner = path.pop().unwrap_or_default();
    let mut object = Some(config.object());
    for part in path {
        object = object.and_then(|object| object.get(part)?.as_object());
    }
    let other = |name: &str| object.and_then(|object| object.get(name));
    match inner {
        "sliding_window" => other("use_sliding_window") == Some(&Value::Bool(false)),
        "partial_rotary_factor" => {
            other("rope_parameters").is_some_and(|rope| !rope["partial_rotary_factor"].is_null())
        }
        _ => false,
    }
}

/// A note on the keys of a GGUF file that no frontend read, if there are any. Only keys of its architecture count, because other
/// programs have their own name spaces.
pub(super) fn of_gguf(gguf: &Gguf) -> Result<Option<String>> {
    let architecture = gguf.get_str("general.architecture").unwrap_or_default();
    let idle = Names::new(GGUF_KEYS.iter().map(|(names, _)| *names));
    let switches: HashMap<&str, &[&str]> = GGUF_SWITCHES.iter().copied().collect();
    let mut unknown = Vec::new();
    let unread: Vec<&str> = gguf.unused_keys().collect();
    for key in unread {
        let own = key.strip_prefix(architecture);
        let Some(own) = own.filter(|own| own.starts_with('.')) else {
            continue;
        };
        if idle.has(own) || idle.has(key) {
            continue;
        }
        match switches.get(&own[1..]) {
            Some(neutral) => {
                let value = gguf.get(key).map(said).unwrap_or_default();
                check(gguf.name(), key, &value, neutral)?;
            }
            None => unknown.push(key),
        }
    }
    Ok(note(&unknown))
}

/// Fails unless `value` is one at which the key changes nothing.
fn check(file: &str, key: &str, value: &str, neutral: &[&str]) -> Result<()> {
    if neutral.contains(&value) {
        return Ok(());
    }
    let short: String = value.chars().take(60).collect();
    let known = match neutral {
        [] => "a model without this key".to_string(),
        _ => neutral.join(" or "),
    };
    Err(Error::Unsupported {
        file: file.into(),
        what: format!("{key} = {short}, which changes the model's mathematics; expected {known}"),
    })
}

/// A single value as text; empty for a list.
fn said(value: &GgufValue) -> String {
    match (value.as_u64(), value.as_bool(), value.as_str()) {
        (Some(number), _, _) => number.to_string(),
        (_, Some(switch), _) => switch.to_string(),
        (_, _, Some(text)) => text.into(),
        _ => value.as_f32().map_or_else(String::new, |x| x.to_string()),
    }
}

fn note(names: &[impl AsRef<str>]) -> Option<String> {
    let what = match names.len() {
        0 => return None,
        1 => "the key",
        _ => "the keys",
    };
    Some(format!("nothing reads {what} {}", listed(names)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(config: Value) -> Result<Option<String>> {
        let config = Config::new("config.json", config).expect("an object");
        config.optional_string("model_type");
        config.usize("hidden_size").expect("a number");
        if let Some(inner) = config.child("attn").expect("an object") {
            inner.usize("heads").expect("a number");
        }
        of_config(&config)
    }

    fn plain() -> Value {
        serde_json::json!({
            "model_type": "gla", "hidden_size": 8, "torch_dtype": "float32", "bos_token_id": 1, "gate": null,
            "attn": { "heads": 2, "dropout_prob": 0.1 }, "use_gk": true,
            "layer_types": ["full_attention", "full_attention"],
        })
    }

    #[test]
    fn a_key_that_nobody_knows_is_a_note() {
        assert_eq!(read(plain()).expect("no error"), None);
        let mut config = plain();
        config["quantization_config"] = serde_json::json!({ "bits": 4 });
        config["attn"]["gate"] = true.into();
        let note = read(config).expect("no error");
        assert_eq!(
            note.as_deref(),
            Some("nothing reads the keys attn.gate, quantization_config")
        );
    }

    #[test]
    fn a_key_that_changes_the_mathematics_is_an_error() {
        for (key, value) in [
            ("row_topk", serde_json::json!(4)),
            ("use_gk", serde_json::json!(false)),
            ("layer_types", serde_json::json!(["full_attention", "conv"])),
            ("sla_base", serde_json::json!("GLA")),
        ] {
            let mut config = plain();
            config[key] = value;
            let said = read(config).expect_err(key).to_string();
            assert!(said.contains(&format!("not supported: {key} = ")), "{said}");
        }
    }

    #[test]
    fn a_key_that_another_one_settles_is_passed_over() {
        let mut config = plain();
        config["sliding_window"] = 4096.into();
        config["partial_rotary_factor"] = 0.25.into();
        assert!(read(config.clone()).is_err());
        config["use_sliding_window"] = false.into();
        assert!(read(config.clone()).is_err());
        config["rope_parameters"] = serde_json::json!({ "partial_rotary_factor": 0.25 });
        let note = read(config).expect("no error").expect("a note");
        assert_eq!(note, "nothing reads the key rope_parameters");
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
            assert_eq!(
                read(config.clone()).expect("no error"),
                None,
                "{model_type}"
            );
            config["model_type"] = serde_json::json!("gla");
            assert!(!matches!(read(config), Ok(None)), "{keys:?}");
        }
    }

    #[test]
    fn many_keys_are_looked_up_and_a_few_are_named() {
        let mut config = plain();
        for i in 0..100_000 {
            config[format!("k{i:06}")] = i.into();
        }
        let note = read(config).expect("no error").expect("a note");
        assert!(note.ends_with("k000006, k000007 and 99992 more"), "{note}");
    }

    #[test]
    fn stars_stand_for_anything() {
        let names = Names::new(["_attn_implementation* *_dropout a*z b"].into_iter());
        for (name, has) in [
            ("_attn_implementation_internal", true),
            ("embd_dropout", true),
            ("a-z", true),
            ("az", true),
            ("b", true),
            ("bb", false),
            ("a", false),
        ] {
            assert_eq!(names.has(name), has, "{name}");
        }
    }
}
