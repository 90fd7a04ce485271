//! How a text becomes a vector, as files state it: `modules.json`, the configuration of the pooling module and
//! `config_sentence_transformers.json` of a sentence-transformers directory, keys of `config.json`, and keys of GGUF files.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::{Map, Value as Json};
use waterline_quant::gguf::{Gguf, Value};

use super::Config;
use super::text_files::{bytes, object};
use super::token_table::TokenTable;
use crate::error::{Error, Result};
use crate::model::{Embedding, Lengths, Pooling};

const ADD_EOS: &str = "tokenizer.ggml.add_eos_token";
/// The switches of a pooling module and the pooling that each selects.
const SWITCHES: [(&str, Option<Pooling>); 6] = [
    ("pooling_mode_mean_tokens", Some(Pooling::Mean)),
    ("pooling_mode_cls_token", Some(Pooling::Cls)),
    ("pooling_mode_lasttoken", Some(Pooling::Last)),
    ("pooling_mode_max_tokens", None),
    ("pooling_mode_mean_sqrt_len_tokens", None),
    ("pooling_mode_weightedmean_tokens", None),
];

/// Reads the files in `dir`; `after` is the token that the tokenizer puts after a text.
pub(super) fn from_directory(dir: &Path, config: &Config, after: Option<u32>) -> Result<Embedding> {
    let mut embedding = Embedding {
        after,
        lengths: lengths(config.object()),
        ..Embedding::default()
    };
    let Some(modules) = bytes(dir, "modules.json")? else {
        return Ok(embedding);
    };
    let file = dir.join("modules.json").display().to_string();
    let wrong = |found: &str| Error::Config {
        file: file.clone(),
        key: "modules".into(),
        found: found.into(),
        expected: "a list of objects with a type and a path".into(),
    };
    let modules: Vec<Map<String, Json>> =
        serde_json::from_slice(&modules).map_err(|e| wrong(&e.to_string()))?;
    embedding.normalize = false;
    for module in &modules {
        let text = |key: &str| module.get(key).and_then(Json::as_str);
        let kind = text("type").ok_or_else(|| wrong("a module without a type"))?;
        match kind.rsplit('.').next().unwrap_or(kind) {
            "Transformer" => {}
            "Normalize" => embedding.normalize = true,
            "Pooling" => {
                let folder = text("path").ok_or_else(|| wrong("a module without a path"))?;
                if Path::new(folder).components().count() != 1 || folder.starts_with('.') {
                    return Err(wrong(&format!("the path {folder:?}")));
                }
                let pooling = object(dir, &format!("{folder}/config.json"))?;
                match mode(&pooling) {
                    Ok(mode) => embedding.pooling = Some(mode),
                    Err(found) => embedding.unsupported = Some(format!("{folder}: {found}")),
                }
            }
            _ => embedding.unsupported = Some(format!("modules.json names {kind}")),
        }
    }
    let tasks = object(dir, "config_sentence_transformers.json")?;
    let prompts = tasks.get("prompts").and_then(Json::as_object);
    let prompt = |(name, text): (&String, &Json)| Some((name.clone(), text.as_str()?.into()));
    embedding.prompts = (prompts.into_iter().flatten())
        .filter_map(prompt)
        .collect::<BTreeMap<_, _>>();
    let default = tasks.get("default_prompt_name").and_then(Json::as_str);
    embedding.default_prompt = default.map(str::to_string);
    Ok(embedding)
}

/// Refuses a model whose class reads a text in both directions: its dimensions are those of the causal model.
pub(super) fn check_causal(config: &Config) -> Result<()> {
    let classes = config
        .object()
        .get("architectures")
        .and_then(Json::as_array);
    let mut classes = classes.into_iter().flatten().filter_map(Json::as_str);
    match classes.find(|class| class.contains("Bidirectional")) {
        None => Ok(()),
        Some(class) => Err(Error::Unsupported {
            file: config.file().into(),
            what: format!(
                "{class:.80}, which reads texts in both directions; expected a causal model"
            ),
        }),
    }
}

/// Reads the keys of a GGUF file; `tokenizer` is its `tokenizer.json`, if it has one.
pub(super) fn from_gguf(
    gguf: &Gguf,
    tokenizer: Option<&str>,
    eos: Option<u32>,
) -> Result<Embedding> {
    let mut embedding = Embedding::default();
    let architecture = gguf.get("general.architecture").and_then(Value::as_str);
    let key = pooling_key(architecture.unwrap_or_default());
    let number = gguf.optional(&key, "a number from 0 to 4", Value::as_u64)?;
    embedding.pooling = Pooling::ALL
        .into_iter()
        .find(|kind| number == Some(kind.number().into()));
    let Some(number) = number.filter(|&number| number > 0) else {
        return Ok(embedding);
    };
    if embedding.pooling.is_none() {
        embedding.unsupported = Some(format!("{key} is {number}"));
    }
    let adds_eos = gguf.optional(ADD_EOS, "true or false", Value::as_bool)?;
    let table = tokenizer.map(|json| TokenTable::new(Some(json.into())));
    let by_table = table.and_then(|table| table.end());
    embedding.after = by_table.or(eos.filter(|_| adds_eos == Some(true)));
    Ok(embedding)
}

/// The keys of a GGUF file for a model of this architecture.
pub(super) fn to_gguf(embedding: &Embedding, architecture: &str) -> Vec<(String, Value)> {
    let Some(pooling) = embedding.pooling else {
        return Vec::new();
    };
    let number = Value::U32(pooling.number());
    let adds_eos = Value::Bool(embedding.after.is_some());
    vec![
        (pooling_key(architecture), number),
        (ADD_EOS.into(), adds_eos),
    ]
}

fn pooling_key(architecture: &str) -> String {
    format!("{architecture}.pooling_type")
}

/// The pooling that a module's configuration selects; otherwise what it selects instead.
fn mode(config: &Map<String, Json>) -> std::result::Result<Pooling, String> {
    if let Some(name) = config.get("pooling_mode").and_then(Json::as_str) {
        return match name {
            "mean" => Ok(Pooling::Mean),
            "cls" => Ok(Pooling::Cls),
            "lasttoken" => Ok(Pooling::Last),
            _ => Err(format!("pooling_mode is {name:?}")),
        };
    }
    let is_on = |key: &str| config.get(key) == Some(&Json::Bool(true));
    let mut chosen = SWITCHES.into_iter().filter(|(key, _)| is_on(key));
    match (chosen.next(), chosen.next()) {
        (Some((_, Some(mode))), None) => Ok(mode),
        (Some((key, None)), None) => Err(format!("{key} is true")),
        (Some((one, _)), Some((other, _))) => Err(format!("{one} and {other} are true")),
        (None, _) => Err("no pooling mode is true".into()),
    }
}

/// The lengths to which vectors may be cut, by keys of `config.json` that vLLM reads too.
fn lengths(config: &Map<String, Json>) -> Lengths {
    let listed = config.get("matryoshka_dimensions").and_then(Json::as_array);
    if let Some(listed) = listed {
        let lengths = listed.iter().filter_map(Json::as_u64);
        return Lengths::Listed(lengths.map(|length| length as usize).collect());
    }
    match config.get("is_matryoshka") {
        Some(Json::Bool(true)) => Lengths::Any,
        _ => Lengths::Listed(Vec::new()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    /// Reads a directory with these files.
    fn read_files(files: &[(&str, Json)]) -> Result<Embedding> {
        let folder = tempfile::tempdir().expect("a folder");
        for (name, value) in files {
            let path = folder.path().join(name);
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("a folder");
            std::fs::write(path, value.to_string()).expect("a file");
        }
        let config = Config::parse("config.json", b"{\"is_matryoshka\": true}")?;
        from_directory(folder.path(), &config, Some(7))
    }

    fn modules(kinds: &[&str]) -> Json {
        let module = |kind: &&str| json!({"type": format!("sentence_transformers.models.{kind}"), "path": "1_Pooling"});
        kinds.iter().map(module).collect()
    }

    #[test]
    fn modules_name_the_pooling_and_the_norm() {
        for (config, expected) in [
            (
                json!({"pooling_mode_mean_tokens": true, "pooling_mode_cls_token": false}),
                Some(Pooling::Mean),
            ),
            (json!({"pooling_mode_lasttoken": true}), Some(Pooling::Last)),
            (json!({"pooling_mode_cls_token": true}), Some(Pooling::Cls)),
            (json!({"pooling_mode": "lasttoken"}), Some(Pooling::Last)),
            (json!({"pooling_mode_max_tokens": true}), None),
            (
                json!({"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true}),
                None,
            ),
            (json!({}), None),
        ] {
            let files = |kinds: &[&str]| {
                let files = [
                    ("modules.json", modules(kinds)),
                    ("1_Pooling/config.json", config.clone()),
                ];
                read_files(&files).expect("files")
            };
            let read = files(&["Transformer", "Pooling", "Normalize"]);
            assert_eq!((read.pooling, read.normalize), (expected, true), "{config}");
            assert_eq!(read.unsupported.is_none(), expected.is_some(), "{config}");
            assert!(!files(&["Transformer", "Pooling"]).normalize);
        }
    }

    #[test]
    fn a_module_without_code_is_named_and_a_path_stays_inside() {
        let read = read_files(&[("modules.json", modules(&["Transformer", "Dense"]))]);
        let reason = read.expect("files").unsupported.expect("a reason");
        assert!(
            reason.contains("sentence_transformers.models.Dense"),
            "{reason}"
        );
        let outside = json!([{"type": "Pooling", "path": "../other"}]);
        let error = read_files(&[("modules.json", outside)]).expect_err("a path outside");
        assert!(error.to_string().contains("../other"), "{error}");
    }

    #[test]
    fn a_model_of_both_directions_is_refused() {
        let check = |class: &str| {
            let json = json!({ "architectures": [class] }).to_string();
            check_causal(&Config::parse("config.json", json.as_bytes())?)
        };
        check("Lfm2ForCausalLM").expect("a causal model");
        let error = check("Lfm2BidirectionalModel").expect_err("both directions");
        assert!(
            error.to_string().contains("Lfm2BidirectionalModel"),
            "{error}"
        );
    }

    #[test]
    fn prompts_and_shorter_vectors_are_read() {
        let tasks = json!({"prompts": {"query": "Query: "}, "default_prompt_name": null});
        let read = read_files(&[
            ("modules.json", json!([])),
            ("config_sentence_transformers.json", tasks),
        ]);
        let read = read.expect("files");
        assert_eq!(read.prompts["query"], "Query: ");
        assert_eq!((read.after, read.default_prompt), (Some(7), None));
        assert!(read.lengths.contain(12));
        let keys = json!({"matryoshka_dimensions": [32, 64]});
        let lengths = lengths(keys.as_object().expect("keys"));
        assert!(lengths.contain(64) && !lengths.contain(12));
    }
}
