//! Tests the outputs and errors of `bench` and `eval recall`. No test asserts a time.

mod common;

use std::ffi::OsStr;

use common::{Workplace, fixture};
use serde_json::Value;

/// Keys that scripts rely on.
const NUMBERS: [&str; 13] = [
    "decode_tokens_per_s",
    "prefill_tokens_per_s",
    "time_to_first_token_ms",
    "load_ms",
    "bytes_per_token",
    "bandwidth_share",
    "allocations_per_token",
    "peak_rss_bytes",
    "device_bytes",
    "shared_bytes",
    "read_bytes_per_s",
    "threads",
    "prompt",
];

/// Runs a short benchmark with more flags; returns its JSON.
fn bench(place: &Workplace, model: &str, flags: &[&str]) -> Value {
    let short = [
        "--prompt", "8", "--gen", "20", "--depth", "20,0", "--json", "-",
    ];
    let all = ["bench", model].into_iter().chain(short);
    place
        .run(all.chain(flags.iter().copied()))
        .succeeded()
        .json()
}

#[test]
fn bench_writes_what_scripts_rely_on() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let names = ["json", "csv", "md", "html"].map(|kind| place.name(&format!("out.{kind}")));
    let [json, csv, md, html] = &names;
    let text = place
        .run([
            "bench",
            &model,
            "--prompt",
            "8",
            "--gen",
            "20",
            "--depth",
            "20,0",
            "--threads",
            "2",
            "--ops",
            "--json",
            json,
            "--csv",
            csv,
            "--md",
            md,
            "--html",
            html,
        ])
        .succeeded()
        .text();
    for word in [
        "prefill",
        "decode",
        "allocations",
        "p50",
        "hash",
        "Logits, ",
    ] {
        assert!(text.contains(word), "{text}");
    }

    let read = |path: &String| std::fs::read_to_string(path).unwrap();
    let result: Value = serde_json::from_str(&read(json)).unwrap();
    for key in NUMBERS {
        let number = result[key].as_f64();
        if cfg!(target_os = "linux") || key != "peak_rss_bytes" {
            assert!(number.is_some_and(f64::is_finite), "{key}: {}", result[key]);
        }
    }
    assert_eq!(result["allocations_per_token"], 0.0);
    assert_eq!(result["hash"].as_str().unwrap().len(), 16);
    assert!(result["machine"]["logical_cores"].as_u64().unwrap() > 0);
    let depths = result["depths"].as_array().unwrap();
    let positions: Vec<_> = depths.iter().map(|depth| &depth["position"]).collect();
    assert_eq!(positions, [0, 20]);
    for depth in depths {
        let samples = depth["samples_us"].as_array().unwrap();
        assert_eq!(samples.len(), 20);
        let us = |key: &str| depth[key].as_f64().unwrap();
        let order = [us("p50_us"), us("p90_us"), us("p99_us"), us("max_us")];
        assert!(order.is_sorted(), "{order:?}");
        assert!(
            samples
                .iter()
                .any(|sample| sample.as_f64() == Some(us("max_us")))
        );
    }

    let from = &result["provenance"];
    let sha = from["model_sha256"].as_str().unwrap();
    assert!(sha.len() == 64 && sha.bytes().all(|c| c.is_ascii_hexdigit()));
    assert_eq!(from["format"], "F32 100 %");
    let command = from["command"].as_str().unwrap();
    assert!(command.starts_with("waterline bench ") && command.contains("--depth 20,0"));
    let commit = from["commit"].as_str().unwrap();
    for (name, output) in [("csv", csv), ("md", md), ("html", html)] {
        let output = read(output);
        assert!(output.contains(sha) && output.contains(commit), "{name}");
    }
    for part in [sha, commit, "90 % of tokens", "load "] {
        assert!(text.contains(part), "{part}: {text}");
    }

    assert_eq!(read(csv).lines().count(), 3);
    assert!(read(csv).starts_with("position,p50_us,p90_us,p99_us,max_us,"));
    assert!(read(md).contains("| position | p50 us |"));
    let page = read(html);
    assert_eq!(page.matches("<svg ").count(), 2);
    for part in ["http", "src=", "@import", "NaN", "inf"] {
        assert!(!page.contains(part), "{part}");
    }
}

#[test]
fn several_models_and_thread_counts_are_measured_in_one_call() {
    let place = Workplace::new();
    let models = ["gdn-tiny", "lalte-tiny"].map(|name| place.model(name).display().to_string());
    let [csv, svg] = ["out.csv", "out.svg"].map(|name| place.name(name));
    let flags = [
        "--threads",
        "1,2",
        "--prompt",
        "8",
        "--gen",
        "4",
        "--depth",
        "0,0.1k",
        "--csv",
        &csv,
        "--html",
        &svg,
        "--json",
        "-",
    ];
    let all = ["bench", &models[0], &models[1]].into_iter().chain(flags);
    let runs = place.run(all).succeeded().json();
    let runs = runs.as_array().unwrap();
    let threads: Vec<_> = runs.iter().map(|run| run["threads"].as_u64()).collect();
    assert_eq!(threads, [Some(1), Some(2), Some(1), Some(2)]);
    assert_eq!(runs[2]["depths"][1]["position"], 100);
    // The hash depends on the model, not on the number of threads.
    assert_eq!(runs[0]["hash"], runs[1]["hash"]);
    assert_ne!(runs[1]["hash"], runs[2]["hash"]);
    assert_eq!(std::fs::read_to_string(csv).unwrap().lines().count(), 9);
    let svg = std::fs::read_to_string(svg).unwrap();
    for label in ["gdn-tiny.gguf, 1 thread", "lalte-tiny.gguf, 2 threads"] {
        assert!(svg.contains(label), "{label}");
    }
    // The energy per token, or a message that there is no counter.
    let table = place.run([
        "bench", &models[0], "--prompt", "8", "--gen", "4", "--depth", "0",
    ]);
    let table = table.succeeded().text();
    let energy = table.lines().find(|line| line.starts_with("energy "));
    let is_told = |line: &str| line.contains("J per token") || line.contains("unknown: no counter");
    assert!(energy.is_some_and(is_told), "{table}");
    place
        .run(["run", &models[0], "Once", "--threads", "1,2"])
        .failed(2, &["--threads"]);
}

#[test]
fn a_picture_is_a_document_of_its_own() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let document = place.name("out.svg");
    let report = bench(&place, &model, &["--plot", &document]);
    let document = std::fs::read_to_string(document).unwrap();
    // The provenance is printed completely, however many lines it takes.
    let from = &report["provenance"];
    let words = format!("{} {}", from["date"], from["command"]);
    for word in words.replace('"', "").split(' ') {
        assert!(document.contains(word), "{word}");
    }
    assert!(document.contains("sha256 ") && document.contains("Latency"));
    assert!(document.starts_with("<svg xmlns=") && document.ends_with("</svg>\n"));
    assert!(!document.contains("<html") && !document.contains("NaN"));

    let refused = place.run(["bench", &model, "--html", "out.pdf"]);
    assert_eq!(refused.status, Some(2));
    let converts = "rsvg-convert -f pdf -o out.pdf out.svg";
    assert!(refused.stderr.contains(converts), "{}", refused.stderr);
}

#[test]
fn the_hash_depends_on_the_numbers_alone() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny").display().to_string();
    let hash = |flags: &[&str]| bench(&place, &model, flags)["hash"].clone();
    let first = hash(&["--threads", "1"]);
    assert_eq!(first, hash(&["--threads", "2"]));
    assert_ne!(first, hash(&["--threads", "1", "--depth", "21,0"]));
    let other = place.model("gdn-tiny").display().to_string();
    assert_ne!(first, bench(&place, &other, &["--threads", "1"])["hash"]);
}

#[test]
fn a_context_is_made_large_enough() {
    let place = Workplace::new();
    let model = place.model("transformer-tiny").display().to_string();
    let result = bench(&place, &model, &["--context", "1"]);
    assert_eq!(result["depths"][1]["position"], 20);
}

#[test]
fn two_results_can_be_compared() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let result = |name: &str, flags: &[&str]| {
        let json = bench(&place, &model, flags).to_string();
        place.file(name, json).display().to_string()
    };
    let (a, b) = (result("a.json", &[]), result("b.json", &["--depth", "30"]));
    let compare = |a: &str, b: &str| place.run(["bench", "--compare", a, b]);
    let same = compare(&a, &a).succeeded().text();
    assert!(same.contains("same tokens and logits"), "{same}");
    assert!(same.contains("p50 us at 20"), "{same}");
    let other = compare(&a, &b).succeeded().text();
    assert!(other.contains("cannot be compared"), "{other}");

    // An interval contains its estimate: here a difference of zero.
    for line in same.lines().filter(|line| line.ends_with("%]")) {
        let (low, high) = line.rsplit_once('[').unwrap().1.split_once(", ").unwrap();
        let number = |text: &str| {
            text.trim_end_matches([' ', '%', ']'])
                .parse::<f64>()
                .unwrap()
        };
        assert!(number(low) <= 0.0 && number(high) >= 0.0, "{line}");
    }
    for name in ["decode tokens/s", "p50 us at 20", "p99 us at 20"] {
        let line = same.lines().find(|line| line.starts_with(name)).unwrap();
        assert!(line.ends_with("%]"), "{line}");
    }
    let page = place.name("compare.html");
    let beside = place.run(["bench", "--compare", &a, &b, "--html", &page]);
    assert_eq!(beside.succeeded().text(), other, "the table is printed too");
    let page = std::fs::read_to_string(page).unwrap();
    for part in [
        "A: gdn-tiny.gguf",
        "B: gdn-tiny.gguf",
        "p50 us at 20",
        "95 %",
        "commit",
    ] {
        assert!(page.contains(part), "{part}");
    }

    // Lists are compared entry by entry, also a file with itself.
    let read = |path: &str| std::fs::read_to_string(path).unwrap();
    let list = format!("[{}, {}]", read(&a), read(&b));
    let several = place.file("several.json", list).display().to_string();
    compare(&several, &a).failed(2, &["a.json: 1 results", "several.json has 2"]);
    let both = compare(&several, &several).succeeded().text();
    assert_eq!(both.matches("same tokens and logits").count(), 2, "{both}");
    let outputs = ["json", "csv", "md"].map(|kind| place.name(&format!("compared.{kind}")));
    let [json, csv, md] = &outputs;
    let flags = ["--json", json, "--csv", csv, "--md", md];
    place
        .run(["bench", "--compare", &several].iter().chain(&flags))
        .succeeded();
    let compared: Value = serde_json::from_str(&read(json)).unwrap();
    let decode = compared["measures"].as_array().unwrap().iter();
    let decode = decode.clone().find(|m| m["name"] == "decode tokens/s");
    assert!(decode.unwrap()["ratios"][0]["ratio"].as_f64().unwrap() > 0.0);
    assert!(read(csv).contains("\"decode tokens/s\",B,") && read(md).contains("| B to A |"));
    let broken = place
        .file("broken.json", "{\"hash\": 1}")
        .display()
        .to_string();
    compare(&a, &broken).failed(2, &["broken.json", "not a result", "expected a string"]);
    compare(&place.name("absent.json"), &a).failed(2, &["absent.json"]);
    place
        .run(["bench", "--compare", &a])
        .failed(2, &["a.json: one result"]);
}

#[test]
fn what_cannot_be_measured_is_refused_at_once() {
    let place = Workplace::new();
    for flags in [
        &["--gen", "0"][..],
        &["--prompt", "0"],
        &["--depth", "many"],
        &["--depth", ""],
        &["--device", "abacus"],
        &["--compare", "a", "--", "model"],
    ] {
        let outcome = place.run(["bench"].iter().chain(flags));
        assert_eq!(outcome.status, Some(2), "{flags:?}");
        assert!(is_usage(&outcome.stderr), "{}", outcome.stderr);
    }
    let missing = place.name("no-such-folder/out.json");
    place
        .run(["bench", "--json", &missing])
        .failed(2, &["no-such-folder", "no such folder"]);
    let folder = place.home.path().as_os_str();
    place
        .run(["bench".as_ref(), "--html".as_ref(), folder])
        .failed(2, &["not a file"]);
}

#[test]
fn recall_counts_questions_by_task_and_distance() {
    let place = Workplace::new();
    // Without a tokenizer: 256 tokens.
    let model = fixture("gdn_plain").display().to_string();
    let csv = place.name("out.csv");
    let html = place.name("out.html");
    let run = |flags: &[&str]| {
        let all = ["eval", "recall", &model, "--sequences", "2", "--json"].into_iter();
        place
            .run(all.chain(flags.iter().copied()))
            .succeeded()
            .json()
    };
    let result = run(&["--csv", &csv, "--html", &html]);
    assert_eq!(
        (&result["model"], &result["form"]),
        (&"gdn_plain".into(), &"tokens".into())
    );
    let settings = result["settings"].as_array().unwrap();
    let line = |setting: &Value| {
        let number = |key: &str| setting[key].as_u64().unwrap();
        let counts = [number("keys"), number("length"), number("questions")];
        (setting["task"].as_str().unwrap().to_string(), counts)
    };
    let lines: Vec<_> = settings.iter().map(line).collect();
    let expected = [
        ("mqar", [8, 0, 16]),
        ("mqar", [16, 0, 32]),
        ("mqar", [32, 0, 64]),
        ("mqar", [64, 0, 128]),
        ("needle", [1, 256, 8]),
        ("needle", [1, 512, 8]),
        ("needle", [1, 1024, 8]),
        ("needle", [1, 2048, 8]),
        ("needles", [8, 256, 16]),
        ("needles", [8, 512, 16]),
        ("needles", [8, 1024, 16]),
        ("needles", [8, 2048, 16]),
        ("joint", [16, 0, 32]),
        ("joint", [32, 0, 64]),
        ("joint", [64, 0, 128]),
    ];
    assert_eq!(
        lines,
        expected.map(|(task, counts)| (task.to_string(), counts))
    );
    for setting in settings {
        let bins = setting["by_distance"].as_array().unwrap();
        for key in ["questions", "right"] {
            let sum: u64 = bins.iter().map(|bin| bin[key].as_u64().unwrap()).sum();
            assert_eq!(setting[key], sum, "{key} in {setting}");
        }
    }
    let csv = std::fs::read_to_string(csv).unwrap();
    assert!(csv.starts_with(
        "model,task,keys,length,sequences,questions,right,accuracy,stderr,without,hash\ngdn_plain,mqar,8,0,2,16,"
    ));
    assert_eq!(csv.lines().count(), 16);
    let page = std::fs::read_to_string(html).unwrap();
    assert!(page.matches("<svg ").count() == 2 && !page.contains("http"));

    let one = ["--task", "needles", "--keys", "4", "--length", "100"];
    assert_eq!(run(&one), run(&one));
    // The chunk size makes no difference.
    let steps = [&one[..], &["--chunk", "1"]].concat();
    assert_eq!(run(&one)["settings"], run(&steps)["settings"]);
}

#[test]
fn the_built_in_model_recalls_a_needle() {
    let place = Workplace::new();
    let flags = [
        "--task",
        "needle",
        "--length",
        "200",
        "--sequences",
        "2",
        "--json",
    ];
    let result = place
        .run(["eval", "recall"].into_iter().chain(flags))
        .succeeded()
        .json();
    let setting = &result["settings"][0];
    assert_eq!(
        (&result["form"], &setting["questions"]),
        (&"text".into(), &8.into())
    );
    assert!(setting["right"].as_u64().unwrap() >= 7, "{setting}");
}

#[test]
fn sessions_of_a_batch_are_timed_together() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny").display().to_string();
    let found = bench(&place, &model, &["--sessions", "1,3"]);
    let batches = found["batches"].as_array().unwrap();
    assert_eq!(batches.len(), 2);
    for (batch, count) in batches.iter().zip([1.0, 3.0]) {
        let number = |key: &str| batch[key].as_f64().unwrap();
        assert_eq!(number("sessions"), count);
        let samples = batch["samples_us"].as_array().unwrap();
        let sum: f64 = samples.iter().map(|us| us.as_f64().unwrap()).sum();
        let expected = count * samples.len() as f64 / (1e-6 * sum);
        assert!((number("tokens_per_s") / expected - 1.0).abs() < 1e-6);
        assert!(number("p50_us") <= number("p99_us"));
    }
}

/// Whether an error is one of the command line: clap's, or a sentence about a flag's value.
fn is_usage(error: &str) -> bool {
    error.starts_with("error: ") || error.starts_with("waterline: --")
}

#[test]
fn recall_that_cannot_be_asked_is_refused() {
    let place = Workplace::new();
    let recall = |flags: &[&str]| place.run(["eval", "recall"].iter().chain(flags));
    recall(&["--task", "joint", "--keys", "6"]).failed(2, &["--keys 6", "multiple of 4"]);
    recall(&["--task", "mqar", "--keys", "5000"]).failed(2, &["--keys 5000"]);
    for flags in [
        &["--task", "chess"][..],
        &["--keys", "0"],
        &["--length", "-1"],
    ] {
        let outcome = recall(flags);
        assert_eq!(outcome.status, Some(2), "{flags:?}");
        assert!(is_usage(&outcome.stderr), "{}", outcome.stderr);
    }
    let folder = place.home.path().as_os_str();
    let html = ["eval", "recall", "--html"].map(OsStr::new);
    place
        .run(html.into_iter().chain([folder]))
        .failed(2, &["not a file"]);
}

#[test]
fn documents_with_a_common_beginning_are_read_once_and_cost_the_same() {
    let place = Workplace::new();
    let model = place.model("qwen3.5-tiny").display().to_string();
    let beginning = "Once upon a time there was a small dog who lived in a large house. ".repeat(6);
    let ends = [
        "The dog was happy.",
        "A cat came too.",
        "It rained all day, and then?",
    ];
    let bpb = |name: &str, ends: &[&str]| {
        let lines = ends.iter().map(|end| {
            format!(
                "{}\n",
                serde_json::json!({"text": format!("{beginning}{end}")})
            )
        });
        let file = place.file(name, lines.collect::<String>());
        let file = file.display().to_string();
        let all = ["eval", "bpb", &file, &model, "--json"].into_iter();
        place.run(all).succeeded().json()
    };
    let together = bpb("together.jsonl", &ends);
    let shared = together["shared_tokens"].as_u64().expect("a number");
    assert!(shared > 2 * 40, "{together}");
    let alone = ends.map(|end| bpb("alone.jsonl", &[end]));
    assert!(alone.iter().all(|one| one["shared_tokens"] == 0));
    for (key, tolerance) in [("tokens", 0.0), ("bytes", 0.0), ("bits", 1e-3)] {
        let number = |one: &serde_json::Value| one[key].as_f64().expect("a number");
        let sum: f64 = alone.iter().map(number).sum();
        let difference = (number(&together) - sum).abs() / sum;
        assert!(difference <= tolerance, "{key}: {together} {sum}");
    }
}
