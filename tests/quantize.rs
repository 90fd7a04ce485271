//! Tests `quantize` and the formats it chooses.

mod common;

use std::collections::BTreeSet;
use std::path::Path;

use common::{Workplace, fixture};
use waterline::internal::Checkpoint;
use waterline_quant::F32;
use waterline_quant::gguf::{Gguf, NewTensor, Value, Writer};

/// Returns the name and format of every tensor, as `inspect` prints them.
fn formats(place: &Workplace, model: &str) -> BTreeSet<(String, String)> {
    let inspected = place.run(["inspect", model, "--json"]).succeeded().json();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_string();
    let tensors = inspected["tensors"].as_array().unwrap();
    tensors
        .iter()
        .map(|tensor| (text(&tensor["name"]), text(&tensor["format"])))
        .collect()
}

#[test]
fn only_matrices_are_quantized() {
    let place = Workplace::new();
    let full = place.name("full.gguf");
    place
        .run(["synth", "lalte-tiny", "--type", "f32", "-o", &full])
        .succeeded();
    let spec = Checkpoint::open(&full).unwrap().spec;
    for (name, matrices, embedding) in [
        ("f16", "F16", "F16"),
        ("bf16", "BF16", "BF16"),
        ("q8_0", "Q8_0", "Q8_0"),
        ("Q4_0", "Q4_0", "Q6_K"),
        ("q4_k", "Q4_K", "Q6_K"),
        ("q5_k", "Q5_K", "Q6_K"),
        ("q6_k", "Q6_K", "Q6_K"),
    ] {
        let quantized = place.name(&format!("{name}.gguf"));
        place
            .run(["quantize", &full, "-o", &quantized, "--type", name])
            .succeeded();
        let expected = spec.weights().into_iter().map(|weight| {
            let format = match weight.precision {
                waterline::internal::Precision::Full => "F32",
                waterline::internal::Precision::Quantized
                    if weight.name.starts_with("token_embd") =>
                {
                    embedding
                }
                waterline::internal::Precision::Quantized => matrices,
            };
            (weight.name, format.to_string())
        });
        assert_eq!(formats(&place, &quantized), expected.collect());
    }
}

#[test]
fn rows_that_are_no_whole_blocks_fall_back_with_a_note_per_format() {
    let place = Workplace::new();
    let output = place.name("out.gguf");
    // The rows have 64 and 128 numbers, but a block of Q4_K has 256.
    let dir = fixture("gdn_swa").display().to_string();
    let outcome = place.run(["convert", &dir, "-o", &output, "--type", "q4_k"]);
    assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
    let notes: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(notes.len(), 2, "{}", outcome.stderr);
    for pair in ["Q5_0 instead of Q4_K", "Q8_0 instead of Q6_K"] {
        assert!(notes.iter().any(|note| note.contains(pair)), "{notes:?}");
    }
    for (name, format) in formats(&place, &output) {
        let outermost = name == "token_embd.weight" || name == "output.weight";
        let expected = if outermost { "Q8_0" } else { "Q5_0" };
        assert!(format == "F32" || format == expected, "{name}: {format}");
    }
}

#[test]
fn quantizing_to_the_same_format_copies() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let copy = place.path("copy.gguf");
    place
        .run([
            "quantize".as_ref(),
            model.as_os_str(),
            "-o".as_ref(),
            copy.as_os_str(),
            "--type=f32".as_ref(),
        ])
        .succeeded();
    assert!(std::fs::read(&model).unwrap() == std::fs::read(&copy).unwrap());
}

#[test]
fn what_is_quantized_is_not_quantized_again_unasked() {
    let place = Workplace::new();
    let first = place.name("first.gguf");
    place
        .run(["synth", "gdn-tiny", "--type", "q8_0", "-o", &first])
        .succeeded();
    let second = place.name("second.gguf");
    let again = ["quantize", &first, "-o", &second, "--type", "q4_0"];
    place
        .run(again)
        .failed(2, &["first.gguf", "Q8_0 already", "--requantize"]);
    assert!(!place.path("second.gguf").exists());
    place.run(again.iter().chain(&["--requantize"])).succeeded();
    // Rounding to f16 loses nothing significant.
    let wider = ["quantize", &first, "-o", &second, "--type", "f16"];
    place.run(wider).succeeded();
    let unknown = ["--tensor-type", "attn_z=q8_0"];
    place
        .run(wider.iter().chain(&unknown))
        .failed(2, &["--tensor-type attn_z"]);
}

#[test]
fn a_file_of_llama_cpp_keeps_its_keys_and_names() {
    let place = Workplace::new();
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gguf/minimax-01-f32");
    let full = case.join("model.gguf").display().to_string();
    let small = place.name("small.gguf");
    let outcome = place.run(["quantize", &full, "-o", &small, "--type", "q4_k_m"]);
    assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
    let (before, after) = (Gguf::open(&full).unwrap(), Gguf::open(&small).unwrap());
    let names = |gguf: &Gguf| -> Vec<String> {
        let tensors = gguf.tensors().iter();
        tensors.map(|tensor| tensor.name.clone()).collect()
    };
    assert_eq!(names(&before), names(&after));
    for (key, value) in before.metadata() {
        if key != "general.file_type" {
            assert_eq!(after.get(key), Some(value), "{key}");
        }
    }
    // llama.cpp's number for Q4_K_M.
    assert_eq!(after.get_u64("general.file_type").unwrap(), 15);
    place.run(["inspect", &small]).succeeded();
}

/// Writes an importance matrix for one tensor, in which only the first column matters.
fn importance(path: &str, tensor: &str, cols: usize) {
    let text = |text: &str| Value::String(text.into());
    let metadata = [
        ("general.type".to_string(), text("imatrix")),
        ("imatrix.chunk_count".into(), Value::U32(1)),
    ];
    let numbers = |part: &str, count: usize| NewTensor {
        name: format!("{tensor}.{part}"),
        format: &F32,
        shape: vec![count],
    };
    let tensors = [numbers("in_sum2", cols), numbers("counts", 1)];
    let mut writer = Writer::create(Path::new(path), &metadata, &tensors).unwrap();
    let mut sums = vec![0.0_f32; cols];
    sums[0] = 8.0;
    for numbers in [&sums[..], &[2.0]] {
        let bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_le_bytes()).collect();
        writer.write_tensor(&bytes).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn an_importance_matrix_changes_the_tensors_that_it_names() {
    let place = Workplace::new();
    let case = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/gguf/minimax-01-f32");
    let full = case.join("model.gguf").display().to_string();
    let tensor = "blk.0.attn_output.weight";
    let before = Gguf::open(&full).unwrap().tensor(tensor).unwrap();
    let cols = *before.shape.last().unwrap();
    let matrix = place.name("imatrix.gguf");
    importance(&matrix, tensor, cols);
    let quantize = |output: &str, flags: &[&str]| {
        let words = ["quantize", &full, "-o", output, "--type", "q4_0"];
        let outcome = place.run(words.iter().chain(flags));
        assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
        Gguf::open(output).unwrap()
    };
    let plain = quantize(&place.name("plain.gguf"), &[]);
    let weighed = quantize(&place.name("weighed.gguf"), &["--imatrix", &matrix]);
    for info in plain.tensors() {
        let [plain, weighed] = [&plain, &weighed].map(|gguf| gguf.tensor(&info.name).unwrap());
        let is_equal = plain.data[..] == weighed.data[..];
        assert_eq!(is_equal, info.name != tensor, "{}", info.name);
    }
    // The first column is stored more accurately, whatever the error of the others.
    let error = |gguf: &Gguf| -> f32 {
        let after = gguf.tensor(tensor).unwrap().to_f32();
        let pairs = before.to_f32().into_iter().zip(after).step_by(cols);
        pairs.map(|(a, b)| (a - b) * (a - b)).sum()
    };
    assert!(error(&weighed) < error(&plain));
    assert_eq!(
        weighed.get_u64("quantize.imatrix.entries_count").unwrap(),
        1
    );
    importance(&matrix, tensor, cols + 1);
    let output = place.name("output.gguf");
    for (matrix, parts) in [
        (
            &matrix,
            &["imatrix.gguf", "attn_output.weight.in_sum2 has"][..],
        ),
        (&full, &["model.gguf", "general.type", "expected imatrix"]),
    ] {
        let words = ["quantize", &full, "-o", &output, "--type", "q4_0"];
        let outcome = place.run(words.iter().chain(&["--imatrix", matrix]));
        outcome.failed(2, parts);
    }
}

#[test]
fn inputs_of_matrices_are_measured_on_a_text() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let text = place.name("text.txt");
    let words: Vec<String> = (0..400).map(|i| format!("word {}", i * 37 % 101)).collect();
    std::fs::write(&text, words.join(" ")).unwrap();
    let matrix = place.name("imatrix.gguf");
    let flags = ["--ctx", "64", "--windows", "3", "-o", &matrix];
    let words = ["imatrix", &text, &model];
    place.run(words.iter().chain(&flags)).succeeded();
    let found = Gguf::open(&matrix).unwrap();
    let numbers = |name: String| found.tensor(&name).unwrap().to_f32();
    let squares: Vec<&str> = found
        .tensors()
        .iter()
        .filter_map(|info| info.name.strip_suffix(".in_sum2"))
        .collect();
    assert!(squares.len() > 10, "{squares:?}");
    for name in &squares {
        // Each matrix read each token once.
        assert_eq!(numbers(format!("{name}.counts")), [192.0], "{name}");
        let sums = numbers(format!("{name}.in_sum2"));
        assert!(sums.iter().all(|&sum| sum > 0.0), "{name}");
    }
    // The queries, keys and values of a layer have the same input.
    let layer = squares.iter().find(|name| name.ends_with("q_proj.weight"));
    let query = layer.unwrap();
    let key = query.replace("q_proj", "k_proj");
    let sums = |name: &str| numbers(format!("{name}.in_sum2"));
    assert_eq!(sums(query), sums(&key));
    assert_ne!(sums(query), sums(&query.replace("q_proj", "o_proj")));
    let small = place.name("small.gguf");
    let words = [
        "quantize",
        &model,
        "-o",
        &small,
        "--type",
        "q4_0",
        "--imatrix",
        &matrix,
    ];
    place.run(words).succeeded();
    place.run(["inspect", &small]).succeeded();
}
