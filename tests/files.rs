//! Tests the commands that write and describe model files.

mod common;

use std::path::Path;

use common::{Workplace, copy_fixture, fixture, outcome_of_input};
use waterline::internal::Checkpoint;
use waterline::{Model, OpenOptions};

#[test]
fn inspect_says_what_a_session_takes() {
    let place = Workplace::new();
    for (preset, flags) in [
        ("lalte-tiny", &["--kv", "f32"][..]),
        ("gdn-tiny", &[]),
        ("transformer-tiny", &["--context", "77"]),
    ] {
        let model = place.model(preset).display().to_string();
        let inspect = ["inspect", &model, "--json"]
            .into_iter()
            .chain(flags.iter().copied());
        let inspected = place.run(inspect).succeeded().json();

        let numbers = |list: &serde_json::Value, key: &str| -> Vec<u64> {
            list.as_array()
                .unwrap()
                .iter()
                .map(|item| item[key].as_u64().unwrap())
                .collect()
        };
        let session = &inspected["session"];
        let (offsets, bytes) = (
            numbers(&session["tensors"], "offset"),
            numbers(&session["tensors"], "bytes"),
        );
        let mut end = 0;
        for (offset, bytes) in offsets.iter().zip(&bytes) {
            assert_eq!((*offset, offset % 64), (end, 0));
            end = (offset + bytes).next_multiple_of(64);
        }
        assert_eq!(session["bytes"], end);
        let of_layers = |tensor: &&serde_json::Value| !tensor["layer"].is_null();
        let in_layers = session["tensors"]
            .as_array()
            .unwrap()
            .iter()
            .filter(of_layers);
        let sum: u64 = in_layers
            .map(|tensor| tensor["bytes"].as_u64().unwrap())
            .sum();
        assert_eq!(
            numbers(&session["layers"], "bytes").iter().sum::<u64>(),
            sum
        );
        for block in session["layers"].as_array().unwrap() {
            let touched = ["read_per_token", "written_per_token"].map(|key| block[key].as_u64());
            let state = block["bytes"].as_u64();
            assert!(
                touched.iter().all(|n| *n > Some(0) && *n <= state),
                "{block}"
            );
        }
        assert_eq!(
            inspected["weight_bytes"],
            numbers(&inspected["tensors"], "bytes").iter().sum::<u64>()
        );

        let run = ["run", &model, "-p", "Once", "-n", "2", "--raw", "--json"]
            .into_iter()
            .chain(flags.iter().copied());
        assert_eq!(
            place.run(run).succeeded().json()["state_bytes"],
            session["bytes"],
            "{preset}"
        );

        let text = place
            .run(["inspect", &model].into_iter().chain(flags.iter().copied()))
            .succeeded()
            .text();
        assert!(
            text.contains(&format!("({} bytes)", session["bytes"])),
            "{text}"
        );
    }
}

#[test]
fn inspect_speaks_in_words() {
    let place = Workplace::new();
    let text = place.run(["inspect"]).succeeded().text();
    for part in [
        "no rotary scaling",
        "no bias",
        "template     yes",
        "begins with  1 ",
        "ends with    2 ",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    for part in ["null", "false", "true"] {
        assert!(!text.contains(part), "{part}: {text}");
    }
    let bare = fixture("gdn_plain").display().to_string();
    let text = place.run(["inspect", &bare]).succeeded().text();
    assert!(text.contains("tokenizer    none: "), "{text}");
}

#[test]
fn inspect_tells_the_bytes_of_the_built_in_models_session() {
    let place = Workplace::new();
    let inspected = place.run(["inspect", "--json"]).succeeded().json();
    let bytes = inspected["session"]["bytes"].as_u64().unwrap();
    let short = place.run(["run", "-p", "A dog", "-n", "1", "--json"]);
    assert_eq!(short.succeeded().json()["state_bytes"], bytes);
    // The text is longer than the window.
    let text = "Tell me a story about a dog. ".repeat(60);
    let long = place.run(["run", "-p", &text, "-n", "1", "--json"]);
    assert_eq!(long.succeeded().json()["state_bytes"], bytes);
    let chat = outcome_of_input(&mut place.command(["chat"]), b"/state --all\n");
    let shown = format!("({bytes} bytes)");
    assert!(chat.stderr.contains(&shown), "{shown}: {}", chat.stderr);
}

#[test]
fn conversion_to_f32_keeps_every_value() {
    let place = Workplace::new();
    let dir = fixture("gdn_swa");
    let converted = place.name("converted.gguf");
    place
        .run([
            "convert",
            &dir.display().to_string(),
            "-o",
            &converted,
            "--type",
            "f32",
        ])
        .succeeded();
    let (before, after) = (
        Checkpoint::open(&dir).unwrap(),
        Checkpoint::open(&converted).unwrap(),
    );
    assert_eq!(before.spec.to_json(), after.spec.to_json());
    for weight in before.spec.weights() {
        let (before, after) = (&before.tensors[&weight.name], &after.tensors[&weight.name]);
        assert_eq!(before.shape, after.shape, "{}", weight.name);
        assert_eq!(before.to_f32(), after.to_f32(), "{}", weight.name);
    }
    assert_eq!(place.files(), ["converted.gguf"]);
}

#[test]
fn synthetic_models_depend_on_the_seed_only() {
    let place = Workplace::new();
    for (name, seed) in [("a", "1"), ("b", "1"), ("c", "2")] {
        place
            .run([
                "synth",
                "gdn-tiny",
                "--type",
                "q4_0",
                "--seed",
                seed,
                "-o",
                &place.name(name),
            ])
            .succeeded();
    }
    let read = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert!(read("a") == read("b"));
    assert!(read("a") != read("c"));
}

#[test]
fn outputs_that_cannot_be_written_leave_nothing_behind() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    let before = std::fs::read(&model).unwrap();
    let model = model.display().to_string();
    let file = place.file("file", "kept").display().to_string();
    std::fs::create_dir(place.path("folder")).unwrap();
    let quantize = |output: &str| place.run(["quantize", &model, "-o", output, "--type", "f16"]);
    quantize(&format!("{file}/out.gguf")).failed(2, &["file"]);
    quantize(&place.name("absent/out.gguf")).failed(2, &["absent", "no such folder"]);
    quantize(&place.name("folder")).failed(2, &["folder"]);
    quantize(&model).failed(2, &["gdn-tiny.gguf", "input"]);
    place
        .run([
            "synth",
            "gdn-tiny",
            "--type",
            "f16",
            "-o",
            &place.name("absent/out.gguf"),
        ])
        .failed(2, &["absent", "no such folder"]);
    let dir = place.path("dir");
    copy_fixture("gdn_swa", &dir);
    let inside = dir.join("model.safetensors").display().to_string();
    place
        .run([
            "convert",
            &dir.display().to_string(),
            "-o",
            &inside,
            "--type",
            "f16",
        ])
        .failed(2, &["input"]);

    assert_eq!(std::fs::read(&model).unwrap(), before);
    assert_eq!(std::fs::read(&file).unwrap(), b"kept");
    assert_eq!(place.files(), ["dir", "file", "folder", "gdn-tiny.gguf"]);
}

/// Returns a shell command that runs the program with a limit on the size of files, like a disk that becomes full.
#[cfg(unix)]
fn on_full_disk(place: &Workplace, arguments: &[&str]) -> std::process::Command {
    let mut command = std::process::Command::new("sh");
    command.args([
        "-c",
        "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_waterline"),
    ]);
    command
        .args(arguments)
        .env("HOME", place.home.path())
        .stdin(std::process::Stdio::null());
    command
}

#[cfg(unix)]
#[test]
fn a_full_disk_keeps_the_old_file() {
    let place = Workplace::new();
    let output = place.file("out.gguf", "old").display().to_string();
    let mut synth = on_full_disk(
        &place,
        &["synth", "gdn-tiny", "--type", "f32", "-o", &output],
    );
    common::outcome(&mut synth).failed(1, &["out.gguf"]);
    assert_eq!(std::fs::read(&output).unwrap(), b"old");
    assert_eq!(place.files(), ["out.gguf"]);
}

#[cfg(unix)]
#[test]
fn ctrl_c_leaves_no_half_written_file() {
    use std::process::Stdio;
    use std::time::{Duration, Instant};
    let place = Workplace::new();
    let output = place.name("large.gguf");
    let child = place
        .command(["synth", "lalte-1.4b", "--type", "q4_k", "-o", &output])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(120);
    while place.files().is_empty() {
        assert!(Instant::now() < deadline, "no file has been begun");
        std::thread::yield_now();
    }
    common::interrupt(&child);
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        output.status.code(),
        Some(130),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    assert_eq!(place.files(), [""; 0]);
}

/// Changes one key of a folder's configuration.
fn set_key(dir: &std::path::Path, key: &str, value: serde_json::Value) {
    let path = dir.join("config.json");
    let mut config: serde_json::Value =
        serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    config[key] = value;
    std::fs::write(&path, config.to_string()).unwrap();
}

#[test]
fn what_nothing_uses_is_named_and_passed_over_only_on_demand() {
    let place = Workplace::new();
    // An unknown switch, a training option, and a switch that leaves tensors unused.
    for (case, key, value, named) in [
        (
            "gdn_plain",
            "row_topk",
            serde_json::json!(4),
            "not supported: row_topk = 4",
        ),
        ("gdn_plain", "a_new_key", serde_json::json!(4), ""),
        ("gdn_plain", "initializer_range", serde_json::json!(0.5), ""),
        (
            "transformer_swa_qknorm",
            "qk_norm",
            serde_json::json!(false),
            "the tensors: model.layers.0.attn.k_norm.weight, ",
        ),
    ] {
        let dir = place.path(&format!("{case}-{key}"));
        copy_fixture(case, &dir);
        set_key(&dir, key, value);
        let dir = dir.display().to_string();
        let output = place.name("out.gguf");
        for command in [
            &["inspect", &dir][..],
            &["convert", &dir, "-o", &output, "--type", "f32"],
        ] {
            let outcome = place.run(command);
            match named {
                "" => assert_eq!(outcome.status, Some(0), "{}", outcome.stderr),
                named => {
                    outcome.failed(2, &[named]);
                    if key == "row_topk" {
                        continue;
                    }
                    let allowed = place.run(command.iter().chain(&["--allow-unused"]));
                    assert_eq!(allowed.status, Some(0), "{}", allowed.stderr);
                }
            }
        }
    }
}

#[test]
fn a_gguf_file_is_read_as_strictly() {
    let place = Workplace::new();
    let model = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/gdn.gguf");
    let gguf = waterline_quant::gguf::Gguf::open(&model).unwrap();
    let more = place.path("more.gguf");
    let write = |key: &str, tensor: Option<&str>| {
        let mut metadata = gguf.metadata().to_vec();
        metadata.push((key.into(), waterline_quant::gguf::Value::U32(1)));
        let names = gguf.tensors().iter().map(|info| info.name.as_str());
        let mut all: Vec<_> = names
            .map(|name| (name.to_string(), gguf.tensor(name).unwrap()))
            .collect();
        if let Some(name) = tensor {
            all.push((name.into(), all[0].1.clone()));
        }
        let described: Vec<_> = all
            .iter()
            .map(|(name, tensor)| waterline_quant::gguf::NewTensor {
                name: name.clone(),
                format: tensor.format,
                shape: tensor.shape.clone(),
            })
            .collect();
        let writer = waterline_quant::gguf::Writer::create(&more, &metadata, &described);
        let mut writer = writer.unwrap();
        for (_, tensor) in &all {
            writer.write_tensor(&tensor.data).unwrap();
        }
        writer.finish().unwrap();
    };
    let inspect =
        |flags: &[&str]| place.run(["inspect", &place.name("more.gguf")].iter().chain(flags));
    write("general.note", None);
    inspect(&[]).succeeded();
    write("another_program.gate", None);
    let silent = inspect(&[]);
    assert_eq!((silent.status, silent.stderr.as_str()), (Some(0), ""));
    write("waterline.gate", None);
    let noted = inspect(&[]);
    assert_eq!(noted.status, Some(0), "{}", noted.stderr);
    assert!(
        noted
            .stderr
            .contains("note: nothing reads the key waterline.gate"),
        "{}",
        noted.stderr
    );
    write("general.note", Some("blk.0.mixer.gate_q_proj.weight"));
    inspect(&[]).failed(2, &["the tensor: blk.0.mixer.gate_q_proj.weight;"]);
    inspect(&["--allow-unused"]).succeeded();
}

#[cfg(unix)]
#[test]
fn a_folder_of_pipes_and_devices_is_refused_at_once() {
    let place = Workplace::new();
    for file in [
        "config.json",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
        "model.safetensors",
    ] {
        for device in [None, Some("/dev/zero")] {
            let dir = place.path(&format!("{file}-{}", device.is_some()));
            copy_fixture("gdn_plain", &dir);
            let path = dir.join(file);
            let _ = std::fs::remove_file(&path);
            match device {
                Some(device) => std::os::unix::fs::symlink(device, &path).unwrap(),
                None => {
                    let made = std::process::Command::new("mkfifo").arg(&path).status();
                    assert!(made.unwrap().success());
                }
            }
            place
                .run(["inspect".as_ref(), dir.as_os_str()])
                .failed(2, &[file, "not a file"]);
        }
    }
    let sharded = place.path("index");
    copy_fixture("gdn_plain", &sharded);
    std::fs::remove_file(sharded.join("model.safetensors")).unwrap();
    let index = sharded.join("model.safetensors.index.json");
    let huge = std::fs::File::create(index).unwrap();
    huge.set_len(1 << 40).unwrap();
    place
        .run(["inspect".as_ref(), sharded.as_os_str()])
        .failed(2, &["index.json", "more than the"]);
}

#[test]
fn bytes_are_the_model_that_their_file_is() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/models/gdn.gguf");
    let bytes = std::fs::read(&path).expect("a model of the repository");
    let options = OpenOptions::default();
    let (file, copy) = (
        Model::open(&path),
        Model::from_bytes(&bytes, "gdn", &options),
    );
    let (file, copy) = (file.expect("a model"), copy.expect("the same model"));
    let hash = |model: &Model| model.fingerprint().expect("a hash");
    assert_eq!(hash(&copy), hash(&file));
    let cut = &bytes[..bytes.len() - 1];
    let error = Model::from_bytes(cut, "a cut file", &options).err();
    let error = error.expect("a tensor without its end").to_string();
    assert!(error.contains("a cut file"), "{error}");
}
