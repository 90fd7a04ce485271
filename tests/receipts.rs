//! Receipts of `waterline run` and of the server, which `waterline replay` generates again.

mod common;
mod served;

use std::path::Path;

use common::{Outcome, Workplace};
use serde_json::{Value, json};
use served::Server;

const TEXT: &str = "The ship was far from the coast. The ship was far from the coast. The ship";

/// A model with random weights and a receipt.
struct Answered<'a> {
    place: &'a Workplace,
    model: String,
    receipt: String,
}

impl<'a> Answered<'a> {
    fn new(place: &'a Workplace, preset: &str, options: &[&str]) -> Self {
        let answered = Answered {
            place,
            model: place.model(preset).display().to_string(),
            receipt: place.name("answer.json"),
        };
        let run = [
            "run",
            &answered.model,
            "--raw",
            "-n",
            "40",
            "-s",
            "7",
            "--temperature",
            "1",
        ];
        let receipt = ["--receipt", &answered.receipt];
        let done = place.run([&run[..], &receipt, options].concat());
        assert!(matches!(done.status, Some(0 | 1)), "{}", done.stderr);
        answered
    }

    fn replay(&self, options: &[&str]) -> Outcome {
        let replay = ["replay", &self.receipt, "-m", &self.model];
        self.place.run([&replay[..], options].concat())
    }

    /// The receipt.
    fn read(&self) -> Value {
        let text = std::fs::read(&self.receipt).expect("a receipt");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// Replays the receipt after a change.
    fn replay_changed(&self, change: impl Fn(&mut Value)) -> Outcome {
        let mut receipt = self.read();
        change(&mut receipt);
        let path = self.place.file("changed.json", receipt.to_string());
        let path = path.display().to_string();
        self.place.run(["replay", &path, "-m", &self.model])
    }
}

fn is_equal(replayed: Outcome, receipt: &Value) {
    let count = receipt["answer"].as_array().expect("tokens").len();
    let said = replayed.succeeded().text();
    assert_eq!(
        said,
        format!("{count} tokens were generated again: none differs\n")
    );
}

#[test]
fn an_exact_answer_is_the_same_with_other_threads_chunks_and_drafts() {
    let place = Workplace::new();
    let grammar = place.file("grammar", "root ::= [a-z ]+");
    let grammar = grammar.display().to_string();
    for preset in ["qwen3.5-tiny", "gdn-tiny"] {
        for more in [
            &[][..],
            &["--repeat-penalty", "1.3", "--top-k", "7"],
            &["--grammar", &grammar],
        ] {
            let options = [&["--exact", "-t", "1", "-p", TEXT], more].concat();
            let answered = Answered::new(&place, preset, &options);
            let receipt = answered.read();
            assert_eq!(receipt["sampler"]["seed"], 7);
            assert!(
                receipt["answer"].as_array().is_some_and(|it| it.len() > 5),
                "{receipt}"
            );
            for how in [&["-t", "2"][..], &["--chunk", "5"], &["--lookup", "8"]] {
                is_equal(answered.replay(how), &receipt);
            }
        }
    }
}

#[test]
fn an_answer_that_is_not_exact_is_replayed_in_its_chunks() {
    let place = Workplace::new();
    let answered = Answered::new(&place, "gdn-tiny", &["-p", TEXT, "--chunk", "5", "-t", "1"]);
    let receipt = answered.read();
    assert_eq!(receipt["session"]["chunk"], 5);
    is_equal(answered.replay(&["--chunk", "64", "-t", "2"]), &receipt);
}

#[test]
fn a_changed_receipt_fails_at_the_token() {
    let place = Workplace::new();
    let answered = Answered::new(&place, "qwen3.5-tiny", &["--exact", "-p", TEXT]);
    let other = |token: &mut Value| *token = json!(token.as_u64().expect("a token") ^ 1);
    let changed = answered.replay_changed(|it| other(&mut it["answer"][17]));
    changed.failed(1, &["changed.json", "token 17 of 40 differs"]);
    let shorter = |it: &mut Value| drop(it["answer"].as_array_mut().expect("tokens").pop());
    let changed = answered.replay_changed(shorter);
    changed.failed(1, &["token 39 of 39 differs", "expected the end"]);
    let longer = |it: &mut Value| it["answer"].as_array_mut().expect("tokens").push(json!(5));
    let changed = answered.replay_changed(longer);
    changed.failed(1, &["token 40 of 41 differs", "found the end"]);
    let changed = answered.replay_changed(|it| it["sampler"]["seed"] = json!(8));
    changed.failed(1, &["differs"]);
    let changed = answered.replay_changed(|it| it["name"] = json!("Another"));
    changed.failed(1, &["the receipt was changed"]);
    let changed = answered.replay_changed(|it| it["more"] = json!(1));
    changed.failed(2, &["changed.json", "no receipt"]);
    let changed = answered.replay_changed(|it| it["prompt"][0] = json!(1 << 30));
    changed.failed(2, &["token"]);
    let model = place.model("gdn-tiny").display().to_string();
    let replay = ["replay", &answered.receipt, "-m", &model];
    place.run(replay).failed(2, &["another model"]);
}

#[test]
fn an_answer_after_a_state_needs_that_state() {
    let place = Workplace::new();
    let model = place.model("qwen3.5-tiny").display().to_string();
    let [state, other] = ["book.state", "other.state"].map(|name| {
        let text = place.file("book.txt", format!("{TEXT} {name}"));
        let (text, state) = (text.display().to_string(), place.name(name));
        place
            .run(["read", &text, "-m", &model, "-o", &state, "--exact"])
            .succeeded();
        state
    });
    let options = ["--exact", "-p", "Where?", "--state", &state];
    let answered = Answered::new(&place, "qwen3.5-tiny", &options);
    is_equal(answered.replay(&["--state", &state]), &answered.read());
    answered.replay(&[]).failed(2, &["follows the state"]);
    let wrong = answered.replay(&["--state", &other]);
    wrong.failed(2, &["follows the state", "other.state"]);
}

/// Answers of a batch, of which some are streams, as each would be alone.
#[test]
fn answers_of_a_server_have_receipts() {
    let place = Workplace::new();
    let model = place.model("qwen3.5-tiny").display().to_string();
    let serve = [
        "serve",
        &model,
        "--exact",
        "--parallel",
        "4",
        "--lookup",
        "4",
    ];
    let server = Server::start(&mut place.command(serve));
    let ask = |index: usize| {
        let mut request = json!({
            "prompt": format!("{index} {TEXT}"), "receipt": true, "max_tokens": 30, "seed": index, "n": 2, "ignore_eos": true,
        });
        if index.is_multiple_of(2) {
            let answer = server.ask("/v1/completions", &request);
            let choices = answer["choices"].as_array().expect("choices").clone();
            return choices.iter().map(|it| it["receipt"].clone()).collect();
        }
        request["stream"] = true.into();
        let stream = server.post("/v1/completions", &request);
        let events = stream
            .lines()
            .filter_map(|line| line.strip_prefix("data: {"));
        let events = events.map(|event| serde_json::from_str(&format!("{{{event}")).expect("JSON"));
        let receipts = events.map(|event: Value| event["choices"][0]["receipt"].clone());
        receipts.filter(|receipt| receipt.is_object()).collect()
    };
    let receipts: Vec<Value> = std::thread::scope(|scope| {
        let ask = &ask;
        let threads: Vec<_> = (0..4)
            .map(|index| scope.spawn(move || -> Vec<Value> { ask(index) }))
            .collect();
        let answers = threads
            .into_iter()
            .map(|thread| thread.join().expect("answers"));
        answers.flatten().collect()
    });
    assert_eq!(receipts.len(), 8);
    for receipt in receipts {
        assert_eq!(
            receipt["answer"].as_array().map(Vec::len),
            Some(30),
            "{receipt}"
        );
        let path = place.file("answer.json", receipt.to_string());
        let replayed = place.run([
            Path::new("replay"),
            &path,
            Path::new("-m"),
            Path::new(&model),
        ]);
        is_equal(replayed, &receipt);
    }
}
