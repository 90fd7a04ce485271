//! Configurations as the papers' authors write them, made from recorded cases of their code: the logits are those of the case.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use waterline::{Kv, Model, Session, SessionOptions};

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../tests/fixtures")
        .join(name)
}

/// Opens a case with another configuration.
fn open(case: &str, change: impl Fn(&mut Value)) -> waterline::Result<Vec<f32>> {
    let (from, to) = (fixture(case), tempfile::tempdir().expect("a folder"));
    let text = std::fs::read(from.join("config.json")).expect("a configuration");
    let mut config = serde_json::from_slice(&text).expect("JSON");
    change(&mut config);
    for entry in std::fs::read_dir(&from).expect("a case").flatten() {
        std::fs::copy(entry.path(), to.path().join(entry.file_name())).expect("a copy");
    }
    std::fs::write(to.path().join("config.json"), config.to_string()).expect("written");
    let model = Model::open(to.path())?;
    let mut options = SessionOptions::default();
    (options.threads, options.state.kv) = (1, Kv::F32);
    let mut session = Session::new(model, options)?;
    session.feed(&(1..30).collect::<Vec<u32>>())?;
    Ok(session.logits()?.to_vec())
}

/// Writes a safetensors file again with other names; tensors without one are left out.
fn renamed(path: &Path, rename: impl Fn(&str) -> Option<String>) {
    let bytes = std::fs::read(path).expect("a file");
    let length = u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let (header, data) = bytes[8..].split_at(length);
    let header: Value = serde_json::from_slice(header).expect("JSON");
    let (mut entries, mut kept) = (serde_json::Map::new(), Vec::new());
    for (name, tensor) in header.as_object().expect("an object") {
        let Some(name) = rename(name).filter(|_| name != "__metadata__") else {
            continue;
        };
        let at = |i: usize| tensor["data_offsets"][i].as_u64().expect("a number") as usize;
        let start = kept.len();
        kept.extend(&data[at(0)..at(1)]);
        let mut tensor = tensor.clone();
        tensor["data_offsets"] = json!([start, kept.len()]);
        entries.insert(name, tensor);
    }
    let header = Value::Object(entries).to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(path, [&length[..], header.as_bytes(), &kept].concat()).expect("written");
}

#[test]
fn a_model_of_joint_recall_has_the_embedding_for_a_head() {
    const CASE: &str = "hax_mamba_argmax_ks_stream";
    let logits = |prefix: &str, tied: bool| {
        let (from, to) = (fixture(CASE), tempfile::tempdir().expect("a folder"));
        for entry in std::fs::read_dir(&from).expect("a case").flatten() {
            std::fs::copy(entry.path(), to.path().join(entry.file_name())).expect("a copy");
        }
        let config = to.path().join("config.json");
        let text = std::fs::read(&config).expect("a configuration");
        let mut json: Value = serde_json::from_slice(&text).expect("JSON");
        json["tie_word_embeddings"] = json!(tied);
        std::fs::write(&config, json.to_string()).expect("written");
        renamed(&to.path().join("model.safetensors"), |name| {
            (name != "lm_head.weight").then(|| name.replacen("backbone.", prefix, 1))
        });
        let model = Model::open(to.path()).expect("a model");
        let mut session = Session::new(model, SessionOptions::default()).expect("a session");
        session.feed(&[1, 2, 3, 4]).expect("tokens");
        session.logits().expect("logits").to_vec()
    };
    let expected = logits("backbone.", true);
    for prefix in ["backbone.", "model.", ""] {
        assert_eq!(logits(prefix, false), expected, "{prefix:?}");
    }
}

fn unchanged(case: &str) -> Vec<f32> {
    open(case, |_| {}).expect("a case")
}

#[test]
fn sse_of_flash_linear_attention_is_the_layer_alone() {
    let expected = unchanged("sse_gla_n4k1");
    let found = open("sse_gla_n4k1", |config| {
        config["model_type"] = json!("sse");
        // Its default is GLA, and its layers are never fused with attention.
        for key in ["linear_attn_type", "sse_layer", "attn"] {
            config.as_object_mut().expect("an object").remove(key);
        }
    });
    assert_eq!(found.expect("the type sse"), expected);
    // Its other defaults do not fit these tensors.
    for key in ["head_dim", "num_heads"] {
        let other = open("sse_gla_n4k1", |config| {
            config["model_type"] = json!("sse");
            config.as_object_mut().expect("an object").remove(key);
        });
        assert!(other.is_err(), "{key}");
    }
}

#[test]
fn what_was_never_saved_has_the_presets_of_its_class() {
    for case in ["gdn_plain", "gsa_plain", "lalte_stream_gqa", "sse_882_gla"] {
        let found = open(case, |config| {
            config
                .as_object_mut()
                .expect("an object")
                .remove("vocab_size");
        });
        assert_eq!(found.expect("a model"), unchanged(case), "{case}");
    }
}

#[test]
fn layers_that_normalize_their_input_are_refused() {
    let found = open("gsa_plain", |config| config["norm_first"] = json!(true));
    let said = found.expect_err("another layer").to_string();
    assert!(said.contains("norm_first"), "{said}");
    let found = open("gsa_plain", |config| config["norm_first"] = json!(false));
    assert_eq!(found.expect("this layer"), unchanged("gsa_plain"));
}

#[test]
fn a_read_gate_after_the_norm_changes_the_result() {
    for case in ["sla_gla", "sla_gdn", "sla_retnet"] {
        let before = open(case, |config| config["sla_gate_after_norm"] = json!(false));
        assert_eq!(before.expect("a model"), unchanged(case), "{case}");
        let after = open(case, |config| config["sla_gate_after_norm"] = json!(true));
        assert_ne!(after.expect("a model"), unchanged(case), "{case}");
    }
}
