//! Files that are not models: each gives a sentence and a status, and nothing is written.

mod common;

use std::path::Path;

use common::{Workplace, copy_fixture, outcome_of_input};
use waterline::internal::Checkpoint;
use waterline::{ModelSpec, StateOptions};
use waterline_quant::gguf::{NewTensor, Value, Writer};

#[test]
fn files_that_are_no_models_are_refused() {
    let place = Workplace::new();
    let whole = std::fs::read(place.model("lalte-tiny")).unwrap();
    let header = whole.len() - 4 * (1 << 20);
    let mut hostile = vec![
        ("empty".to_string(), Vec::new()),
        (
            "image".to_string(),
            b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR".to_vec(),
        ),
        (
            "text".to_string(),
            b"general.architecture = waterline\n".to_vec(),
        ),
        (
            "version".to_string(),
            [b"GGUF".as_slice(), &9u32.to_le_bytes(), &[0; 16]].concat(),
        ),
        (
            "counts".to_string(),
            [b"GGUF".as_slice(), &3u32.to_le_bytes(), &[0xff; 16]].concat(),
        ),
    ];
    for length in [
        1,
        4,
        7,
        23,
        24,
        60,
        1000,
        header,
        whole.len() / 2,
        whole.len() - 1,
    ] {
        hostile.push((format!("cut-{length}"), whole[..length].to_vec()));
    }
    for (name, content) in &hostile {
        let path = place.file(name, content).display().to_string();
        place.run(["inspect", &path]).failed(2, &[name]);
        place
            .run(["run", &path, "-p", "x", "-n", "1"])
            .failed(2, &[name]);
        place.run(["chat", &path]).failed(2, &[name]);
        place
            .run([
                "quantize",
                &path,
                "-o",
                &place.name("out.gguf"),
                "--type",
                "f16",
            ])
            .failed(2, &[name]);
        place
            .run([
                "convert",
                &path,
                "-o",
                &place.name("out.gguf"),
                "--type",
                "f16",
            ])
            .failed(2, &[name]);
    }
    place
        .run(["inspect", &place.name("absent.gguf")])
        .failed(2, &["absent.gguf"]);
    assert!(!place.path("out.gguf").exists());
}

#[test]
fn a_foreign_architecture_is_named() {
    let place = Workplace::new();
    let path = place.path("foreign.gguf");
    let metadata = [(
        "general.architecture".to_string(),
        Value::String("clip".into()),
    )];
    let tensor = NewTensor {
        name: "v.weight".into(),
        format: &waterline_quant::F32,
        shape: vec![4],
    };
    let mut writer = Writer::create(&path, &metadata, &[tensor]).unwrap();
    writer.write_tensor(&[0; 16]).unwrap();
    writer.finish().unwrap();
    place
        .run([
            "run".as_ref(),
            path.as_os_str(),
            "-p".as_ref(),
            "x".as_ref(),
        ])
        .failed(2, &["foreign.gguf", "clip"]);
}

#[test]
fn impossible_numbers_of_files_that_llama_cpp_knows_are_refused() {
    let place = Workplace::new();
    let path = place.path("mamba2.gguf");
    let numbers = [
        ("embedding_length", 32),
        ("block_count", 1),
        ("ssm.conv_kernel", 4),
        ("ssm.inner_size", 64),
        ("ssm.state_size", 8),
        ("ssm.time_step_rank", 4),
        ("ssm.group_count", 1),
    ];
    for (key, value, expected) in [
        ("ssm.time_step_rank", 0, "mamba2.ssm.time_step_rank"),
        ("ssm.time_step_rank", 5, "mamba2.ssm.time_step_rank"),
        ("ssm.inner_size", u32::MAX, "mamba2.ssm.inner_size"),
        ("ssm.group_count", 0, "groups"),
        ("ssm.group_count", 3, "groups"),
        ("ssm.conv_kernel", 0, "taps"),
        ("block_count", 0, "layers"),
        ("block_count", 1 << 20, "mamba2.block_count"),
        ("embedding_length", 32, "blk.0.attn_norm.weight"),
    ] {
        let number = |(name, number): (&str, u32)| {
            let number = if name == key { value } else { number };
            (format!("mamba2.{name}"), Value::U32(number))
        };
        let mut metadata: Vec<_> = numbers.into_iter().map(number).collect();
        let epsilon = "mamba2.attention.layer_norm_rms_epsilon".to_string();
        metadata.push((epsilon, Value::F32(1e-5)));
        let architecture = "general.architecture".to_string();
        metadata.push((architecture, Value::String("mamba2".into())));
        let tensor = NewTensor {
            name: "token_embd.weight".into(),
            format: &waterline_quant::F32,
            shape: vec![4, 32],
        };
        let mut writer = Writer::create(&path, &metadata, &[tensor]).unwrap();
        writer.write_tensor(&[0; 4 * 32 * 4]).unwrap();
        writer.finish().unwrap();
        let path = path.display().to_string();
        let parts = ["mamba2.gguf", expected];
        place.run(["inspect", &path]).failed(2, &parts);
    }
}

#[test]
fn directories_that_hold_no_model_are_refused() {
    let place = Workplace::new();
    let dir = place.path("dir");
    let name = dir.display().to_string();
    let convert = |parts: &[&str]| {
        place
            .run([
                "convert",
                &name,
                "-o",
                &place.name("out.gguf"),
                "--type",
                "f16",
            ])
            .failed(2, parts);
        place.run(["inspect", &name]).failed(2, parts);
    };
    std::fs::create_dir(&dir).unwrap();
    convert(&["config.json"]);

    copy_fixture("gdn_swa", &dir);
    let config = std::fs::read_to_string(dir.join("config.json")).unwrap();
    let weights = std::fs::read(dir.join("model.safetensors")).unwrap();
    let change = |key: &str, value: serde_json::Value| {
        let mut json: serde_json::Value = serde_json::from_str(&config).unwrap();
        json[key] = value;
        std::fs::write(dir.join("config.json"), json.to_string()).unwrap();
    };
    for (key, value) in [
        ("model_type", "none-such".into()),
        ("model_type", 7.into()),
        ("hidden_size", "wide".into()),
        ("hidden_size", 0.into()),
        ("hidden_size", (1u64 << 60).into()),
        ("num_hidden_layers", (-3).into()),
        ("num_hidden_layers", 0.into()),
        ("vocab_size", "all".into()),
        ("attn", "some".into()),
        ("norm_eps", serde_json::json!([])),
        ("hidden_act", "gelu".into()),
    ] {
        change(key, value);
        convert(&["dir"]);
    }
    for text in ["", "{", "[]", "\"config\""] {
        std::fs::write(dir.join("config.json"), text).unwrap();
        convert(&["config.json"]);
    }
    // A valid description that does not match the weights.
    change("vocab_size", 511.into());
    convert(&["token_embd"]);
    change("num_hidden_layers", 99.into());
    convert(&["model.layers"]);

    std::fs::write(dir.join("config.json"), &config).unwrap();
    for length in [0, 7, 8, 100, weights.len() - 1] {
        std::fs::write(dir.join("model.safetensors"), &weights[..length]).unwrap();
        convert(&["model.safetensors"]);
    }
    std::fs::remove_file(dir.join("model.safetensors")).unwrap();
    convert(&["model.safetensors"]);
    assert_eq!(place.files(), ["dir"]);
}

/// Collects the paths of all numbers in a JSON value.
fn numbers(value: &serde_json::Value, path: &str, found: &mut Vec<String>) {
    let mut below = |key: &str, value| numbers(value, &format!("{path}/{key}"), found);
    match value {
        serde_json::Value::Object(fields) => fields.iter().for_each(|(key, v)| below(key, v)),
        serde_json::Value::Array(values) => {
            (values.iter().enumerate()).for_each(|(i, v)| below(&i.to_string(), v))
        }
        serde_json::Value::Number(_) => found.push(path.into()),
        _ => {}
    }
}

/// Returns numbers that overflow when multiplied, wrap to small numbers, or are not numbers.
fn hostile_numbers() -> Vec<serde_json::Value> {
    let mut all = Vec::from([20, 32, 63].map(|n| (1u64 << n).into()));
    all.extend([
        0.into(),
        (-1).into(),
        u64::MAX.into(),
        ((1u64 << 32) + 1).into(),
    ]);
    all
}

/// Checks that a hostile description fails with a message or gives a usable model.
fn survives(what: &str, opened: waterline::Result<ModelSpec>) {
    let Ok(spec) = opened else { return };
    let plan = spec.plan(&StateOptions::default());
    let weights: usize = spec
        .weights()
        .iter()
        .map(|w| w.len())
        .fold(0, usize::saturating_add);
    assert!(weights > 0, "{what}");
    if let Ok(plan) = plan {
        assert!(
            plan.tensors()
                .iter()
                .all(|tensor| tensor.offset + tensor.bytes <= plan.bytes()),
            "{what}"
        );
    }
}

#[test]
fn numbers_of_any_size_are_refused_with_a_sentence_or_make_a_sound_model() {
    let fixtures = std::fs::read_dir(common::fixtures()).unwrap();
    for fixture in fixtures.map(|entry| entry.unwrap().path()) {
        let checkpoint = Checkpoint::open(&fixture).unwrap();
        let description = checkpoint.spec.to_json();
        let mut paths = Vec::new();
        numbers(&description, "", &mut paths);
        // The first of equal layers represents them all.
        let layers = description["layers"].as_array().unwrap();
        let is_first = |layer: usize| !layers[..layer].contains(&layers[layer]);
        paths.retain(|path| match path.strip_prefix("/layers/") {
            Some(rest) => is_first(rest.split('/').next().unwrap().parse().unwrap()),
            None => true,
        });
        assert!(paths.iter().any(|path| path.starts_with("/layers/0/")));
        for path in &paths {
            for number in hostile_numbers() {
                let what = format!("{}: {path} = {number}", fixture.display());
                let mut changed = description.clone();
                *changed.pointer_mut(path).unwrap() = number;
                survives(&what, ModelSpec::from_json("hostile", &changed));
            }
        }
        // Each number in the configuration too, if a frontend reads it.
        let place = Workplace::new();
        let dir = place.path("dir");
        copy_fixture(&fixture.file_name().unwrap().to_string_lossy(), &dir);
        let config = std::fs::read(dir.join("config.json")).unwrap();
        let Ok(config) = serde_json::from_slice::<serde_json::Value>(&config) else {
            continue;
        };
        let mut paths = Vec::new();
        numbers(&config, "", &mut paths);
        for path in &paths {
            for number in hostile_numbers() {
                let what = format!("{}: {path} = {number}", fixture.display());
                let mut changed = config.clone();
                *changed.pointer_mut(path).unwrap() = number;
                std::fs::write(dir.join("config.json"), changed.to_string()).unwrap();
                survives(
                    &what,
                    Checkpoint::open(&dir).map(|checkpoint| checkpoint.spec),
                );
            }
        }
    }
}

#[test]
fn products_that_wrap_to_small_numbers_are_refused() {
    let place = Workplace::new();
    let dir = place.path("dir");
    copy_fixture("gdn_plain", &dir);
    let mut description = Checkpoint::open(&dir).unwrap().spec.to_json();
    // 2^32 heads of width 2^32: zero values if the product wraps.
    description["layers"][0]["heads"] = (1u64 << 32).into();
    description["layers"][0]["value_heads"] = (1u64 << 32).into();
    description["layers"][0]["head_dim"] = ((1u64 << 32) + 16).into();
    let error = ModelSpec::from_json("wrapping.gguf", &description)
        .unwrap_err()
        .to_string();
    assert!(
        error.contains("wrapping.gguf") && error.contains("layers[0]"),
        "{error}"
    );
    assert!(error.contains("4294967296"), "{error}");
}

#[test]
fn a_model_without_a_tokenizer_says_so() {
    let place = Workplace::new();
    let model = place.name("mute.gguf");
    place
        .run(["synth", "gdn-tiny", "--type", "f16", "-o", &model])
        .succeeded();
    place
        .run(["run", &model, "-p", "x"])
        .failed(2, &["mute.gguf", "tokenizer"]);
    place
        .run(["chat", &model])
        .failed(2, &["mute.gguf", "tokenizer"]);
    place.run(["inspect", &model]).succeeded();
}

#[test]
fn a_tokenizer_may_be_foreign_broken_or_without_a_template() {
    let place = Workplace::new();
    let dir = place.path("dir");
    copy_fixture("gdn_swa", &dir);
    let (name, output) = (dir.display().to_string(), place.name("out.gguf"));
    let convert = || {
        place
            .run(["convert", &name, "-o", &output, "--type", "f16"])
            .succeeded()
    };
    std::fs::copy(
        common::tokenizer_folder().join("tokenizer.json"),
        dir.join("tokenizer.json"),
    )
    .unwrap();
    convert();
    place
        .run(["run", &output, "-p", "x"])
        .failed(2, &["out.gguf", "4096 tokens"]);
    std::fs::write(dir.join("tokenizer.json"), "{}").unwrap();
    convert();
    place
        .run(["run", &output, "-p", "x"])
        .failed(2, &["out.gguf", "tokenizer"]);

    let tokenizer = place.path("tokenizer");
    std::fs::create_dir(&tokenizer).unwrap();
    std::fs::copy(
        common::tokenizer_folder().join("tokenizer.json"),
        tokenizer.join("tokenizer.json"),
    )
    .unwrap();
    std::fs::write(
        tokenizer.join("tokenizer_config.json"),
        r#"{"bos_token": "<|bos|>"}"#,
    )
    .unwrap();
    let synth = [
        "synth",
        "gdn-tiny",
        "--type",
        "f16",
        "-o",
        &output,
        "--tokenizer",
    ];
    place
        .run(
            synth
                .map(Path::new)
                .into_iter()
                .chain([tokenizer.as_path()]),
        )
        .succeeded();
    place
        .run(["run", &output, "-p", "x", "-n", "1"])
        .succeeded();
    // Without a template the conversation uses ChatML, and a message reports that.
    let completed = ["run", &output, "-p", "x", "-n", "1", "--chat"];
    for said in [place.run(["chat", &output]), place.run(completed)] {
        assert_eq!(said.status, Some(0), "{}", said.stderr);
        assert!(said.stderr.contains("ChatML"), "{}", said.stderr);
    }
}

#[test]
fn inspect_names_the_first_layer_that_is_not_finite() {
    let place = Workplace::new();
    let dir = place.path("dir");
    copy_fixture("gdn_plain", &dir);
    let weights = std::fs::read(dir.join("model.safetensors")).unwrap();
    let name = dir.display().to_string();
    let checked = |status: i32, parts: &[&str]| {
        let found = place.run(["inspect", &name, "--check"]);
        assert_eq!((found.status, found.stderr.as_str()), (Some(status), ""));
        let text = found.text();
        assert!(parts.iter().all(|part| text.contains(part)), "{text}");
    };
    let header = u64::from_le_bytes(weights[..8].try_into().unwrap()) as usize;
    let json: serde_json::Value = serde_json::from_slice(&weights[8..8 + header]).unwrap();
    // Finite weights so large that their products overflow.
    let enlarge = |tensor: &str| {
        let offset = |i: usize| json[tensor]["data_offsets"][i].as_u64().unwrap() as usize;
        assert_eq!(json[tensor]["dtype"], "F32");
        let mut changed = weights.clone();
        for value in changed[8 + header..][offset(0)..offset(1)].chunks_exact_mut(4) {
            value.copy_from_slice(&3e38f32.to_le_bytes());
        }
        std::fs::write(dir.join("model.safetensors"), changed).unwrap();
    };
    checked(
        0,
        &["tensors are finite", "the logits of 16 tokens are finite"],
    );
    let last = Checkpoint::open(&dir).unwrap().spec.layers.len() - 1;
    for layer in [0, last] {
        enlarge(&format!("model.layers.{layer}.attn.o_proj.weight"));
        checked(
            1,
            &[
                "tensors are finite",
                &format!("layer {layer} (gated_deltanet), the first"),
            ],
        );
    }
    enlarge("lm_head.weight");
    checked(1, &["the output matrix"]);
}

#[test]
fn a_prompt_that_is_not_utf8_is_refused_with_its_place() {
    let place = Workplace::new();
    let file = place.file("prompt", b"abc\xff\xfe").display().to_string();
    place
        .run(["run", "-f", &file])
        .failed(2, &["prompt", "byte 3"]);
    outcome_of_input(&mut place.command(["run", "-"]), b"\xc3")
        .failed(2, &["standard input", "byte 0"]);
    place
        .run(["run", "-f", &place.name("absent")])
        .failed(2, &["absent"]);
}

#[cfg(unix)]
#[test]
fn what_is_no_file_is_refused_at_once() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let pipe = place.name("pipe");
    let made = std::process::Command::new("mkfifo").arg(&pipe).status();
    assert!(made.unwrap().success());
    let folder = place.home.path().display().to_string();
    for path in [pipe.as_str(), "/dev/zero"] {
        place.run(["inspect", path]).failed(2, &[path, "pipe"]);
    }
    for path in [pipe.as_str(), "/dev/full", &folder] {
        place
            .run(["quantize", &model, "-o", path, "--type", "f16"])
            .failed(2, &[path, "not a file"]);
        let chat = format!("/save {path}\n/load {path}\n");
        let failed = outcome_of_input(&mut place.command(["chat", &model]), chat.as_bytes());
        assert_eq!(failed.status, Some(1));
        let refusals = failed.stderr.matches("not a file").count();
        assert_eq!(refusals, 2, "{}", failed.stderr);
    }
    assert_eq!(place.files(), ["gdn-tiny.gguf", "pipe"]);
}
