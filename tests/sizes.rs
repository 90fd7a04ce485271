//! A size in a description that is lower than its tensors say is an error, or changes no logit: no model opens as another one.

#[allow(dead_code)] // a part is used
mod skipped;

use std::path::{Path, PathBuf};

use serde_json::Value as Json;
use skipped::skipped;
use waterline::{Kv, Model, Session, SessionOptions};
use waterline_quant::gguf::{Array, Gguf, NewTensor, Value, Writer};

/// Numbers that no tensor has, each with the words that its keys contain: other values of them are other models.
const NO_SIZES: &[&str] = &[
    // Choices of the computation.
    "normalizer",
    "sparse_keys",
    "expert_group",
    "n_group",
    "buffer",
    "block_",
    "model_base",
    "reader",
    "writer",
    "clamp",
    "scalar",
    "expand_ratio",
    "rope",
    "per_tok",
    "top_k",
    "topk",
    "used_count",
    "window",
    "chunk",
    "theta",
    "freq_base",
    "scale",
    "factor",
    "sink",
    "limit",
    "num_init",
    // Layers with another mixer, norm groups, and numbers of heads that divide the same rows otherwise.
    "layers",
    "interval",
    "every",
    "freq",
    "offset",
    "period",
    "norm_group",
    "n_groups",
    "head",
    "rank_groups",
    "groups",
    // Lengths, tokens and training.
    "position",
    "context",
    "length",
    "token",
    "seed",
    "version",
    "hop",
    "loss",
    "quantization",
    "file_type",
    "alignment",
];

/// Whether a number at this key is a size of tensors.
fn is_size(key: &str) -> bool {
    let key = key.to_lowercase();
    let is_named = |part: &&str| key.contains(*part);
    let sizes = ["head_dim", "key_heads", "ssm.group_count"];
    sizes.iter().any(is_named) || !NO_SIZES.iter().any(is_named)
}

fn logits(model: Result<std::sync::Arc<Model>, waterline::Error>) -> Option<Vec<f32>> {
    let mut options = SessionOptions::default();
    options.threads = 1;
    (options.state.kv, options.state.context) = (Kv::F32, 64);
    let model = model.ok()?;
    let tokens: Vec<u32> = (0..20)
        .map(|i| (7 * i + 3) % model.spec().vocab as u32)
        .collect();
    let mut session = Session::new(model, options).ok()?;
    session.feed(&tokens).ok()?;
    Some(session.logits().expect("logits").to_vec())
}

/// The paths to the whole numbers in a configuration.
fn numbers(json: &Json, path: &str, found: &mut Vec<(String, u64)>) {
    match json {
        Json::Object(object) => {
            for (key, value) in object {
                numbers(value, &format!("{path}/{key}"), found);
            }
        }
        Json::Number(number) => found.extend(number.as_u64().map(|n| (path.to_string(), n))),
        _ => {}
    }
}

/// The folders in `folder` with a file of this name.
fn cases(folder: &Path, file: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let mut cases: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    cases.retain(|path| path.join(file).is_file());
    cases.sort();
    cases
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The values that are tried in place of a size.
fn lower(size: u64) -> Vec<u64> {
    let mut lower = vec![size.saturating_sub(1), size / 2, size / 4, 1];
    lower.retain(|&n| n > 0 && n < size);
    lower.dedup();
    lower
}

#[test]
fn a_lowered_size_of_a_directory_is_refused_or_changes_nothing() {
    let mut all = cases(&root().join("tests/fixtures"), "config.json");
    for beside in ["../shared/fixtures", "../shared/cases"] {
        let more = cases(&root().join(beside), "config.json");
        if more.is_empty() {
            skipped(&format!("cases of {beside}"));
        }
        all.extend(more);
    }
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for case in all {
        let Some(expected) = logits(Model::open(&case)) else {
            continue;
        };
        let place = tempfile::tempdir().expect("a folder");
        let text = std::fs::read(case.join("config.json")).expect("a configuration");
        let Ok(config) = serde_json::from_slice::<Json>(&text) else {
            continue;
        };
        for entry in std::fs::read_dir(&case).expect("the case").flatten() {
            if entry.file_name() != "config.json" && entry.path().is_file() {
                std::fs::copy(entry.path(), place.path().join(entry.file_name())).expect("a copy");
            }
        }
        let mut sizes = Vec::new();
        numbers(&config, "", &mut sizes);
        sizes.retain(|(path, _)| is_size(path));
        for (path, size) in sizes {
            for value in lower(size) {
                let mut config = config.clone();
                *config.pointer_mut(&path).expect("a number") = value.into();
                let text = config.to_string();
                std::fs::write(place.path().join("config.json"), text).expect("written");
                tried += 1;
                let found = logits(Model::open(place.path()));
                if found.is_some_and(|found| found != expected) {
                    wrong.push(format!("{}: {path} {size} -> {value}", case.display()));
                }
            }
        }
    }
    println!("{tried} sizes of directories lowered");
    assert!(tried > 300 && wrong.is_empty(), "{}", wrong.join("\n"));
}

/// Writes a file again with another value of a key.
fn rewritten(gguf: &Gguf, key: &str, value: &Value, path: &Path) {
    let keys: Vec<(String, Value)> = gguf
        .metadata()
        .iter()
        .map(|(name, old)| {
            (
                name.clone(),
                if name == key {
                    value.clone()
                } else {
                    old.clone()
                },
            )
        })
        .chain(
            gguf.get(key)
                .is_none()
                .then(|| (key.to_string(), value.clone())),
        )
        .filter(|(name, _)| name != "general.alignment")
        .collect();
    let tensors: Vec<NewTensor> = gguf
        .tensors()
        .iter()
        .map(|tensor| NewTensor {
            name: tensor.name.clone(),
            format: tensor.format().expect("a known format"),
            shape: tensor.shape.clone(),
        })
        .collect();
    let mut writer = Writer::create(path, &keys, &tensors).expect("a file");
    for tensor in gguf.tensors() {
        let data = gguf.tensor(&tensor.name).expect("a tensor").data;
        writer.write_tensor(&data).expect("data");
    }
    writer.finish().expect("a whole file");
}

/// Lower values of a number, or of all numbers of a list.
fn lowered(value: &Value) -> Vec<Value> {
    if let Some(number) = value.as_u64() {
        return lower(number)
            .into_iter()
            .map(|n| Value::U32(n as u32))
            .collect();
    }
    let Some(list) = value.as_array().and_then(Array::to_i64s) else {
        return Vec::new();
    };
    let most = list.iter().copied().max().unwrap_or(0) as u64;
    let each = |n: u64| list.iter().map(|&old| old.min(n as i64) as i32).collect();
    lower(most)
        .into_iter()
        .map(|n| Value::Array(Array::I32(each(n))))
        .collect()
}

#[test]
fn a_lowered_size_of_a_gguf_file_is_refused_or_changes_nothing() {
    let mut all = cases(&root().join("tests/gguf"), "model.gguf");
    let more = cases(&root().join("../shared/gguf"), "model.gguf");
    if more.is_empty() {
        skipped("GGUF cases beside the repository");
    }
    all.extend(more);
    let (mut wrong, mut tried) = (Vec::new(), 0);
    for case in all {
        let file = case.join("model.gguf");
        let Some(expected) = logits(Model::open(&file)) else {
            continue;
        };
        let gguf = Gguf::open(&file).expect("a file");
        let architecture = gguf
            .get_str("general.architecture")
            .expect("a name")
            .to_string();
        let place = tempfile::tempdir().expect("a folder");
        let path = place.path().join("model.gguf");
        for (key, value) in gguf.metadata() {
            if !key.starts_with(&architecture) || !is_size(key) {
                continue;
            }
            for lower in lowered(value) {
                rewritten(&gguf, key, &lower, &path);
                tried += 1;
                if logits(Model::open(&path)).is_some_and(|found| found != expected) {
                    wrong.push(format!("{}: {key} {value:?} -> {lower:?}", case.display()));
                }
            }
        }
        for key in ["rope.scaling.factor", "rope.freq_base", "rope.scale_linear"] {
            let has_rope = gguf
                .get(&format!("{architecture}.rope.freq_base"))
                .is_some();
            let key = format!("{architecture}.{key}");
            if !has_rope {
                continue;
            }
            for bad in [-1.0, 0.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                rewritten(&gguf, &key, &Value::F32(bad), &path);
                if logits(Model::open(&path)).is_some_and(|found| found != expected) {
                    wrong.push(format!("{}: {key} {bad}", case.display()));
                }
            }
        }
    }
    println!("{tried} sizes of GGUF files lowered");
    assert!(tried > 20 && wrong.is_empty(), "{}", wrong.join("\n"));
}
