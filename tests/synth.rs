//! Models of every preset with random weights run.

mod common;

use std::sync::Arc;

use common::Workplace;
use waterline::internal::Checkpoint;
use waterline::{Kv, Model, Session, SessionOptions};

/// Returns the presets that `synth --help` lists.
fn presets(place: &Workplace) -> Vec<String> {
    let help = place.run(["synth", "--help"]).succeeded().text();
    let name = |line: &str| {
        Some(
            line.trim()
                .strip_prefix("- ")?
                .split_once(':')?
                .0
                .to_string(),
        )
    };
    help.lines().filter_map(name).collect()
}

/// Returns the logits after each of `tokens`, read in chunks of `chunk`.
fn logits(model: &Arc<Model>, tokens: &[u32], chunk: usize) -> Vec<f32> {
    let mut options = SessionOptions::default();
    (options.state.context, options.state.history) = (256, 256);
    options.state.kv = Kv::F32;
    (options.chunk, options.threads) = (chunk, 1);
    let mut session = Session::new(Arc::clone(model), options).unwrap();
    let mut all = Vec::new();
    for piece in tokens.chunks(chunk) {
        session
            .feed_each(piece, |_, logits| all.extend_from_slice(logits))
            .unwrap();
    }
    all
}

#[test]
fn every_tiny_model_reads_in_chunks_what_it_reads_in_steps() {
    let place = Workplace::new();
    let presets = presets(&place);
    let tiny: Vec<_> = presets.iter().filter(|p| p.ends_with("-tiny")).collect();
    assert!(tiny.len() >= 15, "{presets:?}");
    let tokens: Vec<u32> = (0..150).map(|i| i * 2741 % 4096).collect();
    for preset in tiny {
        let file = place.name(&format!("{preset}.gguf"));
        place
            .run(["synth", preset, "--type", "f32", "-o", &file])
            .succeeded();
        let model = Model::open(&file).unwrap();
        let (steps, chunks) = (logits(&model, &tokens, 1), logits(&model, &tokens, 61));
        let size = steps.iter().map(|x| x * x).sum::<f32>() / steps.len() as f32;
        assert!((0.1..10.0).contains(&size), "{preset}: squares of {size}");
        let difference = steps.iter().zip(&chunks).map(|(a, b)| (a - b).abs());
        let difference = difference.fold(0.0f32, f32::max);
        assert!(difference < 1e-3, "{preset}: {difference}");
        std::fs::remove_file(file).unwrap();
    }
}

#[test]
fn a_model_can_have_fewer_layers_than_its_preset() {
    let place = Workplace::new();
    let file = place.name("one.gguf");
    let synth = |layers| {
        place.run([
            "synth",
            "lalte-tiny",
            "--layers",
            layers,
            "--type",
            "f32",
            "-o",
            &file,
        ])
    };
    synth("5").failed(2, &["--layers 5", "lalte-tiny", "4 layers"]);
    synth("1").succeeded();
    assert_eq!(Checkpoint::open(&file).unwrap().spec.layers.len(), 1);
}

#[test]
fn a_shape_of_ones_own_is_read_from_a_file() {
    let place = Workplace::new();
    let preset = concat!(env!("CARGO_MANIFEST_DIR"), "/presets/sse-tiny.json");
    let text = std::fs::read_to_string(preset).unwrap();
    let wider = text.replace("\"partitions\": 4", "\"partitions\": 9");
    assert_ne!(text, wider);
    let shape = place.file("wide.json", &wider).display().to_string();
    let file = place.name("wide.gguf");
    let synth = |shape: &str| place.run(["synth", "--shape", shape, "--type", "f32", "-o", &file]);
    synth(&shape).succeeded();
    let spec = Checkpoint::open(&file).unwrap().spec.to_json();
    let layers = spec["layers"].as_array().unwrap();
    let partitions = layers.iter().find_map(|l| l["partitions"].as_u64());
    assert_eq!(partitions, Some(9));
    let broken = place
        .file("broken.json", "{\"vocab\": 4}")
        .display()
        .to_string();
    synth(&broken).failed(2, &["broken.json", "layers"]);
    let arguments = ["synth", "--type", "f32", "-o", &file];
    let refused = place.run(arguments);
    assert_eq!(refused.status, Some(2));
    assert!(refused.stderr.contains("<PRESET>"), "{}", refused.stderr);
}

#[test]
fn inspect_tells_what_share_of_a_text_each_head_retains() {
    let place = Workplace::new();
    let words = "Anna has a cat called Miso, and it is raining. ".repeat(30);
    let text = place.file("text", &words).display().to_string();
    let report = place
        .run(["inspect", "--retention", &text, "--json"])
        .succeeded()
        .json();
    let read = report["tokens"].as_u64().unwrap();
    let layers = report["layers"].as_array().unwrap();
    assert!(!layers.is_empty());
    for layer in layers {
        let number = |key: &str| layer[key].as_u64().unwrap();
        assert!(number("window") > 0 && read > number("window"), "{layer}");
        let counts = layer["counts"].as_array().unwrap();
        let shares = layer["shares"].as_array().unwrap();
        assert_eq!(counts.len(), shares.len());
        for (count, share) in counts.iter().zip(shares) {
            let (count, share) = (count.as_u64().unwrap(), share.as_f64().unwrap());
            assert!((1..=number("capacity")).contains(&count), "{layer}");
            let left = (read - number("window")) as f64;
            assert!((share * left - count as f64).abs() < 1e-6, "{layer}");
        }
    }
    let short = place.file("short", "Anna.").display().to_string();
    place
        .run(["inspect", "--retention", &short])
        .failed(2, &["short", "windows hold"]);
}
