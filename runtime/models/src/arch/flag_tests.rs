//! Changes every key that a frontend reads, one at a time: `flags.txt` lists its effect on the model, or its refusal with a message
//! that names it; and the unread keys that are refused. A key that is read but not listed fails the test, so that no flag of a
//! checkpoint goes unnoticed.
//!
//! A section of the list begins with `# GROUP: NAME` and a configuration; each key must be tried in one section of its group. Each line
//! is `KEY = VALUE: EFFECT`. The effect is a list of numbers that change and of tensors that are added (`+`) or removed (`-`),
//! `nothing`, `refused` if the error names the key, or `refused: ` and the error. Effects outside the first block begin with `model.` or
//! the number of their block. Every resulting model is run on a few tokens.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde_json::Value;
use waterline_quant::{Bytes, F32, Tensor};

use super::key_lists::SWITCHES;
use super::{Config, FAMILIES, unread_keys};
use crate::error::Result;
use crate::lowering::WeightSource;
use crate::model::{ModelSpec, lower};
use crate::program::Workspace;
use crate::state::{Arena, StateOptions};
use crate::weights::WeightSpec;
use waterline_compute::cpu::Pool;

const LIST: &str = include_str!("flags.txt");

/// Keys of every model; without them, no other test would pass.
const COMMON: &[&str] = &[
    "model_type",
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
];

/// Reads a configuration; also returns the keys that were read.
fn read(config: &Value) -> (Result<ModelSpec>, Vec<String>) {
    let config = Config::new("config.json", config.clone()).expect("an object");
    let model_type = config.string("model_type").expect("a model type");
    let family = FAMILIES
        .iter()
        .find(|f| f.model_types.contains(&model_type));
    let spec = (family.expect("a known model type").spec)(&config).and_then(|spec| {
        spec.check("config.json")?;
        unread_keys::of_config(&config)?;
        Ok(spec)
    });
    (spec, config.used())
}

/// The configuration with another value at `key`, which may be nested: `attn.layers`.
fn with(config: &Value, key: &str, value: &Value) -> Value {
    let mut changed = config.clone();
    let mut at = &mut changed;
    for part in key.split('.') {
        if at.is_null() {
            *at = Value::Object(Default::default());
        }
        at = &mut at[part];
    }
    *at = value.clone();
    changed
}

/// Collects the values in `value` by their paths, which start with `path`.
fn flatten(path: &str, value: &Value, facts: &mut BTreeMap<String, String>) {
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                flatten(&format!("{path}.{key}"), value, facts);
            }
        }
        Value::Number(number) if number.is_f64() => {
            let number = number.as_f64().expect("a number") as f32;
            facts.insert(path.into(), number.to_string());
        }
        _ => {
            facts.insert(path.into(), value.to_string());
        }
    }
}

/// Every value of a model by its path, which starts with `model.` or the block's number, and every tensor after a `+`.
fn facts(spec: &ModelSpec) -> BTreeMap<String, String> {
    let mut facts = BTreeMap::new();
    let mut model = spec.to_json();
    let layers = model["layers"].take();
    flatten("model", &model, &mut facts);
    for (i, layer) in layers.as_array().expect("layers").iter().enumerate() {
        flatten(&i.to_string(), layer, &mut facts);
    }
    let tensors = spec.weights();
    facts.extend(tensors.into_iter().map(|weight| {
        let name = weight.name.strip_prefix("blk.").unwrap_or(&weight.name);
        (format!("+{name}"), String::new())
    }));
    facts
}

/// Lists the differences of `after` from `before`. For a block with another mixer, only the mixer is listed.
fn difference(before: &ModelSpec, after: &ModelSpec) -> String {
    let (before, after) = (facts(before), facts(after));
    let mixer = |path: &str| {
        let block = path.trim_start_matches('+').split('.').next();
        format!("{}.mixer", block.expect("a path"))
    };
    let other_mixer = |path: &str| {
        let mixer = mixer(path);
        path != mixer && before.get(&mixer) != after.get(&mixer)
    };
    let shown = |path: &str| {
        let path = path.replacen("+0.", "+", 1);
        path.strip_prefix("0.").unwrap_or(&path).to_string()
    };
    let mut found = Vec::new();
    for (path, value) in after.iter().filter(|(path, _)| !other_mixer(path)) {
        if before.get(path) != Some(value) {
            found.push(format!("{} {value}", shown(path)).trim().to_string());
        }
    }
    let gone = |path: &&String| !after.contains_key(*path) && !other_mixer(path);
    for path in before.keys().filter(gone) {
        found.push(if path.starts_with('+') {
            shown(path).replacen('+', "-", 1)
        } else {
            format!("{} gone", shown(path))
        });
    }
    if found.is_empty() {
        "nothing".into()
    } else {
        found.join(", ")
    }
}

/// Checks that a model of this description runs on a few tokens.
fn runs(spec: &ModelSpec) {
    let tensor = |weight: WeightSpec| {
        let value = |i: usize| (0.2 * (i as f32 * 0.7).sin()).to_le_bytes();
        let bytes = (0..weight.len()).flat_map(value).collect();
        let tensor = Tensor::new(&F32, weight.shape, Bytes::from_vec(bytes)).expect("a tensor");
        (weight.name, tensor)
    };
    let plan = spec.plan(&StateOptions::default()).expect("a plan");
    let own = plan.tensors().iter();
    let first_tensor = own.take_while(|tensor| tensor.layer.is_none()).count();
    let source = WeightSource {
        file: "test",
        tensors: &spec.weights().into_iter().map(tensor).collect(),
        hidden: spec.hidden,
        norm_eps: spec.norm_eps(),
    };
    let (program, _) = lower(&source, spec, first_tensor).expect("a model");
    program.validate("test", &plan).expect("a sound program");
    let pool = Arc::new(Pool::new(1).expect("no thread"));
    let mut workspace = Workspace::new(&program, pool, 3).expect("memory");
    let mut arena = Arena::new(Arc::new(plan)).expect("memory");
    workspace.run(&program, &mut arena, &[1, 2, 3], 0);
    let mut logits = vec![f32::NAN; spec.vocab];
    workspace.logits(&program, 2..3, &mut logits);
    assert!(logits.iter().all(|logit| logit.is_finite()));
}

/// The effect on the model, as the list denotes it.
fn effect(before: &ModelSpec, key: &str, after: Result<ModelSpec>) -> String {
    match after {
        Ok(after) => {
            runs(&after);
            difference(before, &after)
        }
        Err(error) => {
            let said = error.to_string();
            let named = said.contains(key.rsplit('.').next().expect("a key"));
            if named {
                "refused".into()
            } else {
                format!("refused: {said}")
            }
        }
    }
}

#[test]
fn every_key_that_is_read_does_what_the_list_says() {
    let mut wrong = Vec::new();
    // By group: the keys that were read, and the keys that were tried.
    let mut groups: BTreeMap<&str, (BTreeSet<String>, BTreeSet<&str>)> = BTreeMap::new();
    for section in LIST.split("\n# ").skip(1) {
        let mut lines = section.lines();
        let name = lines.next().expect("a name");
        let (group, _) = name.split_once(": ").expect("GROUP: NAME");
        let (asked, tried) = groups.entry(group).or_default();
        let base: Value = serde_json::from_str(lines.next().expect("a configuration"))
            .unwrap_or_else(|error| panic!("{name}: {error}"));
        let (spec, keys) = read(&base);
        let spec = spec.unwrap_or_else(|error| panic!("{name}: {error}"));
        runs(&spec);
        asked.extend(keys);
        for line in lines.filter(|line| !line.is_empty()) {
            let (key, rest) = line.split_once(" = ").expect("KEY = VALUE: EFFECT");
            let (value, expected) = rest.split_once(": ").expect("VALUE: EFFECT");
            let value = serde_json::from_str(value).unwrap_or_else(|e| panic!("{line}: {e}"));
            let (changed, keys) = read(&with(&base, key, &value));
            // A nested object that only this line has is tried in a separate section.
            let inside = format!("{key}.");
            asked.extend(keys.into_iter().filter(|key| !key.starts_with(&inside)));
            tried.insert(key.strip_prefix("text_config.").unwrap_or(key));
            let found = effect(&spec, key, changed);
            if found != expected {
                wrong.push(format!("{name}: {key} = {value}: {found}"));
            }
        }
    }
    for (group, (asked, tried)) in groups {
        for key in &asked {
            let key = key.strip_prefix("text_config.").unwrap_or(key);
            if !COMMON.contains(&key) && !tried.contains(key) {
                wrong.push(format!("{group}: {key} is read and not in the list"));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_switch_that_nothing_reads_is_in_the_list() {
    for (key, neutral) in SWITCHES {
        let refused =
            |line: &str| line.starts_with(&format!("{key} = ")) && line.ends_with(": refused");
        assert!(LIST.lines().any(refused), "{key} is nowhere refused");
        for value in *neutral {
            let line = format!("{key} = {value}: nothing");
            assert!(LIST.lines().any(|other| other == line), "expected {line}");
        }
    }
}
