//! Drafts from MTP blocks: small models with random weights of the three families that have MTP, as Hugging Face directories and as GGUF
//! files. The blocks' drafts mostly equal the models' tokens.

mod common;
#[path = "synthetic/mtp.rs"]
mod models;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use common::{Workplace, fixture};
use models::{KINDS, LAYERS, Tensors, VOCAB, write_gguf, write_own};
use serde_json::json;
use waterline::internal::Checkpoint;
use waterline::{GenerateOptions, Kv, Model, OpenOptions, Piece, Session, SessionOptions};
use waterline_quant::gguf::Value as Key;

fn with_mtp() -> OpenOptions {
    OpenOptions {
        mtp: true,
        ..OpenOptions::default()
    }
}

fn options(mtp: usize, temperature: f32) -> SessionOptions {
    let mut options = SessionOptions::default();
    (options.sampler.temperature, options.sampler.seed) = (temperature, 5);
    options.state.kv = Kv::F32;
    options.state.context = 256;
    (options.threads, options.chunk, options.mtp) = (1, 16, mtp);
    options
}

fn prompted(model: &Arc<Model>, mtp: usize, temperature: f32) -> Session {
    let mut session = Session::new(Arc::clone(model), options(mtp, temperature)).unwrap();
    let prompt: Vec<u32> = (0..37).map(|i| i * 89 % VOCAB as u32).collect();
    session.feed(&prompt).unwrap();
    session
}

/// Generates this many tokens.
fn generate(session: &mut Session, tokens: usize) -> Vec<u32> {
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.stop_at_eos) = (tokens, false);
    let pieces = session.generate(options).unwrap();
    let pieces: Vec<Piece> = pieces.collect::<Result<_, _>>().unwrap();
    pieces.iter().filter_map(|piece| piece.token).collect()
}

#[test]
fn drafts_by_a_block_change_no_token_in_any_form_of_file() {
    for kind in KINDS {
        let place = Workplace::new();
        let (folder, file, own) = (
            place.path("model"),
            place.path("a.gguf"),
            place.path("b.gguf"),
        );
        kind.write_folder(&folder, &kind.config());
        write_gguf(&file, &kind.keys(), &kind.stored());
        write_own(&own, &Checkpoint::open_with(&folder, &with_mtp()).unwrap());
        let mut texts = Vec::new();
        for path in [&folder, &file, &own] {
            let what = path.display();
            let plain = Model::open(path).unwrap();
            let model = Model::open_with(path, &with_mtp()).unwrap();
            assert!(model.weight_bytes() > plain.weight_bytes(), "{what}");
            for temperature in [0.0, 0.2] {
                let mut steps = prompted(&plain, 0, temperature);
                let expected = generate(&mut steps, 60);
                let mut session = prompted(&model, 4, temperature);
                let fixed = (session.state_bytes(), session.work_bytes());
                assert!(fixed.0 > steps.state_bytes(), "{what}");
                let mut found = generate(&mut session, 25);
                let middle = session.snapshot().unwrap();
                // Each generation begins directly after a rejected draft.
                for tokens in [9, 9, 9, 8] {
                    found.extend(generate(&mut session, tokens));
                }
                assert_eq!(found, expected, "{what} at {temperature}");
                assert_eq!((session.state_bytes(), session.work_bytes()), fixed);
                let (drafted, accepted) = session.drafts();
                println!("{what} at {temperature}: {accepted} of {drafted} accepted");
                assert!(accepted > 5, "{what}: {accepted} of {drafted}");
                let mut other = prompted(&model, 2, temperature);
                other.restore(&middle).unwrap();
                assert_eq!(generate(&mut other, 35), expected[25..], "{what}");
                texts.push(expected);
            }
        }
        assert!(
            texts
                .iter()
                .skip(2)
                .zip(&texts)
                .all(|(one, other)| one == other)
        );
    }
}

/// Returns the error message when a file does not open.
fn refused(path: &Path, options: &OpenOptions) -> String {
    let checkpoint = Checkpoint::open_with(path, options);
    checkpoint.map(|_| ()).expect_err("an error").to_string()
}

fn assert_names(sentence: &str, parts: &[&str]) {
    for part in parts {
        assert!(sentence.contains(part), "{part:?} is not in: {sentence}");
    }
}

#[test]
fn a_block_that_is_missing_or_not_known_is_an_error_where_it_is_read_alone() {
    let place = Workplace::new();
    let (kind, path) = (KINDS[0], place.path("a.gguf"));
    let check = |keys: &BTreeMap<String, Key>, tensors: &Tensors, parts: &[&str]| {
        write_gguf(&path, keys, tensors);
        Model::open(&path).unwrap();
        assert_names(&refused(&path, &with_mtp()), parts);
    };
    let (keys, tensors) = (kind.keys(), kind.stored());
    let mut lacks = tensors.clone();
    lacks.remove("blk.2.nextn.eh_proj.weight");
    check(&keys, &lacks, &["a.gguf", "blk.2.nextn.eh_proj.weight"]);
    let mut more = tensors.clone();
    let norm = more["output_norm.weight"].clone();
    more.insert("blk.2.nextn.another.weight".into(), norm);
    check(&keys, &more, &["a.gguf", "blk.2.nextn.another.weight"]);
    let mut none = keys.clone();
    none.remove("qwen35.nextn_predict_layers");
    none.insert(kind.key("block_count"), Key::U32(2));
    let mut without = tensors.clone();
    without.retain(|name, _| !name.starts_with("blk.2."));
    check(
        &none,
        &without,
        &["a.gguf", "nextn_predict_layers", "nothing"],
    );
    none.insert(kind.key("nextn_predict_layers"), Key::U32(2));
    none.insert(kind.key("block_count"), Key::U32(4));
    check(
        &none,
        &without,
        &["a.gguf", "nextn_predict_layers", "found 2"],
    );

    let folder = place.path("model");
    for (key, value) in [
        ("mtp_num_hidden_layers", json!(2)),
        ("mtp_use_dedicated_embeddings", json!(true)),
    ] {
        let mut config = kind.config();
        config[key] = value;
        kind.write_folder(&folder, &config);
        Model::open(&folder).unwrap();
        assert_names(&refused(&folder, &with_mtp()), &["config.json", key]);
    }
    let images = refused(&fixture("hf_qwen3_5_images"), &with_mtp());
    assert_names(&images, &["config.json", "mtp.fc.weight"]);
    assert_names(
        &refused(&fixture("gdn_plain"), &with_mtp()),
        &["MTP", "model_type"],
    );
    write_own(&path, &Checkpoint::open(fixture("gdn_plain")).unwrap());
    assert_names(
        &refused(&path, &with_mtp()),
        &["a.gguf", "MTP", "waterline.spec"],
    );
}

#[test]
fn a_block_in_a_file_next_to_the_model_drafts_as_one_inside() {
    let place = Workplace::new();
    let kind = KINDS[0];
    let (whole, model) = (place.path("whole.gguf"), place.path("model-q.gguf"));
    write_gguf(&whole, &kind.keys(), &kind.stored());
    let block = format!("blk.{LAYERS}.");
    let is_of_block = |name: &String| name.starts_with(&block);
    let (mut keys, mut tensors) = (kind.keys(), kind.stored());
    keys.remove("qwen35.nextn_predict_layers");
    keys.insert(kind.key("block_count"), Key::U32(LAYERS as u32));
    tensors.retain(|name, _| !is_of_block(name));
    write_gguf(&model, &keys, &tensors);
    let of_block = || {
        let mut tensors = kind.stored();
        tensors.retain(|name, _| {
            is_of_block(name)
                || ["token_embd.weight", "output_norm.weight"].contains(&name.as_str())
        });
        tensors
    };
    assert_names(
        &refused(&model, &with_mtp()),
        &["model-q.gguf", "mtp-*.gguf"],
    );
    // A block of another width does not fit.
    let mut other = kind.keys();
    other.insert(kind.key("embedding_length"), Key::U32(64));
    write_gguf(&place.path("mtp-model-q.gguf"), &other, &of_block());
    assert_names(
        &refused(&model, &with_mtp()),
        &["model-q.gguf", "mtp-*.gguf"],
    );
    write_gguf(&place.path("mtp-model.gguf"), &kind.keys(), &of_block());
    let open = |path: &Path| Model::open_with(path, &with_mtp()).expect("a model with its block");
    let (inside, beside) = (open(&whole), open(&model));
    assert_eq!(inside.spec().to_json(), beside.spec().to_json());
    let text = |model: &Arc<Model>| {
        let mut session = prompted(model, 3, 0.0);
        (generate(&mut session, 24), session.drafts())
    };
    assert_eq!(text(&inside), text(&beside));
    // Without drafts the model's file is enough.
    Model::open(&model).expect("a model");
    let block = place.path("mtp-model.gguf").display().to_string();
    place
        .run(["run", &block, "-p", "one"])
        .failed(2, &["MTP block", "waterline chat"]);
}

#[test]
fn the_program_drafts_by_a_block() {
    let place = Workplace::new();
    let file: PathBuf = place.path("a.gguf");
    write_gguf(&file, &KINDS[1].keys(), &KINDS[1].stored());
    let file = file.display().to_string();
    let run = |flags: &[&str]| {
        let all = [
            "run",
            &file,
            "-p",
            "one two three",
            "-n",
            "40",
            "--ignore-eos",
            "--raw",
            "--json",
        ];
        place.run(all.into_iter().chain(flags.iter().copied()))
    };
    for flags in [
        &["--greedy"][..],
        &["--seed", "4"],
        &["--greedy", "--on-full", "shift"],
    ] {
        let plain = run(flags).succeeded().json();
        let drafted = run(&[flags, &["--mtp", "3"]].concat()).succeeded().json();
        assert_eq!(plain["text"], drafted["text"], "{flags:?}");
        assert_eq!(plain["tokens"], drafted["tokens"], "{flags:?}");
        assert!(drafted["drafts"]["accepted"].as_u64() <= drafted["drafts"]["drafted"].as_u64());
        assert!(plain.get("drafts").is_none());
    }
    let model = place.model("lalte-tiny").display().to_string();
    let run = |flags: &[&str]| {
        let all = ["run", &model, "-p", "one", "-n", "4"];
        place.run(all.into_iter().chain(flags.iter().copied()))
    };
    run(&["--mtp", "3"]).failed(2, &["lalte-tiny.gguf", "MTP"]);
    assert_eq!(run(&["--mtp", "3", "--lookup", "3"]).status, Some(2));
    assert_eq!(run(&["--mtp", "65"]).status, Some(2));
}
