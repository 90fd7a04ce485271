//! Tests the documents: their commands run or can be typed, the files that they link or name exist, and they are short.

mod commands;
#[path = "../common/mod.rs"]
mod common;
#[path = "../synthetic/mtp.rs"]
mod models;
mod run;
mod serve;
#[path = "../skipped.rs"]
mod skipped;
mod typed;

use std::path::{Path, PathBuf};

use commands::{Words, commands};
use run::{Files, reason};
use typed::can_be_typed;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Returns every document of the repository.
fn documents() -> Vec<PathBuf> {
    let found = files(".md");
    assert!(found.len() > 12, "{found:?}");
    found
}

/// Returns all files of the repository with this suffix, except those of builds and environments.
fn files(end: &str) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let is_made = name.starts_with('.') || name == "target" || name == "dist";
            if path.is_dir() {
                if !is_made && !path.is_symlink() {
                    folders.push(path);
                }
            } else if name.ends_with(end) {
                found.push(path);
            }
        }
    }
    found
}

/// Features that a command in the documents demonstrates, by words of that command.
const SHOWN: [&str; 27] = [
    "eval bpb",
    "eval ppl --ctx",
    "eval ppl --ctx --save-logits",
    "eval ppl --kl",
    "eval choice --csv",
    "eval recall --html",
    "eval recall --csv",
    "bench --csv",
    "bench --compare --html",
    "bench --compare --md",
    "bench --sessions",
    "bench --ops",
    "bench --exact",
    "imatrix -o",
    "quantize --type --imatrix q4_k_m",
    "quantize --requantize",
    "quantize --tensor-type",
    "quantize --retain",
    "convert --retain",
    "run -c -t --temp -s --system",
    "chat --on-full shift",
    "chat --on-full compact",
    "inspect --check",
    "verify CASES",
    "run --samples",
    "run --lookup",
    "serve",
];

#[test]
fn the_commands_of_the_documents_run() {
    let mut files = Files::new();
    let (mut typed, mut run, mut failures) = (0, Vec::new(), Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document");
        let at = document.parent().expect("a folder");
        for group in commands(&text) {
            let folder = files.folder();
            for command in group {
                let is_typed = reason(at, &command).is_some();
                let outcome = if is_typed {
                    can_be_typed(&files.place, at, &command)
                } else {
                    files.run(&folder, &command)
                };
                if let Err(failure) = outcome {
                    let line = command.join(" ");
                    failures.push(format!("{}: {line}: {failure}", document.display()));
                } else if is_typed {
                    typed += 1;
                } else {
                    run.push(command);
                }
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
    assert!(typed > 50 && run.len() > 50, "{typed}, {}", run.len());
    for feature in SHOWN {
        let has = |command: &Words| {
            let mut words = feature.split(' ');
            words.all(|word| command.iter().any(|other| other == word))
        };
        assert!(run.iter().any(has), "no command shows {feature}");
    }
}

/// Returns words that look like paths in the repository, in code between backticks and in code blocks.
fn paths(text: &str) -> Vec<&str> {
    const ENDS: [&str; 10] = [
        ".rs", ".py", ".sh", ".cu", ".md", ".h", ".toml", ".json", ".txt", ".svg",
    ];
    let mut words = Vec::new();
    for (i, block) in text.split("\n```").enumerate() {
        match i % 2 {
            1 => words.extend(block.split_whitespace()),
            _ => words.extend(block.split('`').skip(1).step_by(2)),
        }
    }
    let words = words.into_iter().map(|word| word.trim_matches([',', ';']));
    let is_path = |word: &&str| {
        // `ffi/install` creates the files under include/.
        let is_elsewhere = word.starts_with('/') || word.starts_with("include/");
        let is_pattern = word.contains(['*', '<', '{', ' ']);
        let is_file = ENDS.iter().any(|end| word.ends_with(end));
        word.contains('/') && is_file && !is_elsewhere && !is_pattern
    };
    words.filter(is_path).collect()
}

/// Returns the targets of links, except links to other sites and anchors.
fn links(text: &str) -> Vec<&str> {
    let targets = text.split("](").skip(1);
    let targets = targets.filter_map(|rest| rest.split(')').next());
    targets
        .filter(|target| !target.contains([':', '#']))
        .collect()
}

#[test]
fn every_file_that_the_documents_name_exists() {
    let root = root();
    let folders = [
        "",
        "runtime",
        "runtime/src",
        "runtime/compute/src",
        "runtime/compute/src/cuda",
        "runtime/compute/src/ops",
        "runtime/models/src",
        "runtime/text/src",
        "tools/src",
    ];
    let (mut seen, mut missing) = (0, Vec::new());
    for document in documents() {
        let text = std::fs::read_to_string(&document).expect("a document");
        let here = document.parent().expect("a folder");
        let lost = links(&text)
            .into_iter()
            .filter(|link| !here.join(link).exists());
        missing.extend(lost.map(|link| format!("{}: {link}", document.display())));
        for path in paths(&text) {
            let places = folders.iter().map(|folder| root.join(folder));
            let mut places = places.chain([here.to_path_buf()]);
            if !places.any(|place| place.join(path).exists()) {
                missing.push(format!("{}: {path}", document.display()));
            }
            seen += 1;
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen > 20, "{seen} paths were found");
}

/// Returns the words between backticks that are names of tests: sentences whose words are joined.
fn tests_named(text: &str) -> Vec<&str> {
    let is_name = |word: &&str| {
        let mut letters = word.bytes();
        word.matches('_').count() >= 3
            && letters.all(|b| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'_')
    };
    text.split('`').skip(1).step_by(2).filter(is_name).collect()
}

#[test]
fn every_test_that_the_documents_name_exists() {
    let sources: Vec<String> = [".rs", ".py"]
        .into_iter()
        .flat_map(files)
        .map(|path| std::fs::read_to_string(path).expect("a source"))
        .collect();
    let (mut seen, mut missing) = (0, Vec::new());
    for document in ["security.md", "exact.md"] {
        let path = root().join("runtime/docs").join(document);
        let text = std::fs::read_to_string(path).expect("a document");
        for name in tests_named(&text) {
            let is_there = |keyword: &str| {
                let defined = format!("{keyword} {name}(");
                sources.iter().any(|source| source.contains(&defined))
            };
            if !is_there("fn") && !is_there("def") {
                missing.push(format!("{document}: {name}"));
            }
            seen += 1;
        }
    }
    assert!(missing.is_empty(), "{}", missing.join("\n"));
    assert!(seen > 30, "{seen} names were found");
}

#[test]
fn documents_stay_short() {
    for (document, most) in [
        ("README.md", 700),
        ("runtime/ARCHITECTURE.md", 1500),
        ("runtime/docs/cuda.md", 1300),
        ("runtime/docs/serve.md", 900),
        ("runtime/docs/performance.md", 1500),
        ("runtime/docs/DECISIONS.md", 2500),
        ("runtime/docs/state-format.md", 800),
    ] {
        let text = std::fs::read_to_string(root().join(document)).expect("a document");
        let words = text.split_whitespace().count();
        assert!(
            words <= most,
            "{document}: {words} words, expected {most} at most"
        );
    }
}

/// Viewers other than browsers ignore style sheets, so each element has a colour, and a style sheet may only override it.
#[test]
fn every_picture_shows_in_every_viewer() {
    let pictures = files(".svg");
    assert!(pictures.len() >= 2, "{pictures:?}");
    for picture in pictures {
        let text = std::fs::read_to_string(&picture).expect("a picture");
        for part in ["class=", "var(", "<script", "<foreignObject"] {
            assert!(!text.contains(part), "{}: {part}", picture.display());
        }
    }
}
