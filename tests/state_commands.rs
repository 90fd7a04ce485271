//! State files on the command line: `read` and `check`, the commands that continue from a file, and files that are refused.

mod common;
mod sealed;

use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;

use common::{Outcome, Workplace, outcome, outcome_of_input};

/// A text of some hundred tokens.
fn book() -> String {
    let sentence = |i: u32| {
        format!(
            "On day {i} the ship was {} miles from the coast.\n",
            i * i % 97
        )
    };
    (0..60).map(sentence).collect()
}

/// A model, a text, and what reads it.
struct Book<'a> {
    place: &'a Workplace,
    model: String,
    text: String,
    state: String,
}

impl<'a> Book<'a> {
    fn new(place: &'a Workplace, preset: &str) -> Self {
        Book {
            place,
            model: place.model(preset).display().to_string(),
            text: place.file("book.txt", book()).display().to_string(),
            state: place.name("book.state"),
        }
    }

    fn run(&self, arguments: &[&str]) -> Outcome {
        self.place.run(arguments)
    }

    fn read(&self) -> Outcome {
        let Book {
            model, text, state, ..
        } = self;
        let options = [
            "--segment",
            "100",
            "-m",
            model,
            "-o",
            state,
            "--threads",
            "2",
        ];
        self.run(&[&["read", text], &options[..]].concat())
    }

    fn check(&self, state: &str, text: &str) -> Outcome {
        self.run(&["check", state, text, "-m", &self.model, "--segments", "0"])
    }

    fn inspected(&self) -> serde_json::Value {
        let shown = self.run(&["inspect", "--json", &self.state]);
        shown.succeeded().json()
    }
}

#[test]
fn an_answer_from_a_state_is_the_answer_after_its_text() {
    let place = Workplace::new();
    for preset in ["qwen3.5-tiny", "gdn-tiny"] {
        let book = Book::new(&place, preset);
        book.read().succeeded();
        let options = ["--raw", "-n", "40", "--seed", "5", "--temperature", "1"];
        let ask = |prompt: &[&str]| {
            let run = ["run", &*book.model, "--threads", "2"];
            book.run(&[&run[..], prompt, &options].concat())
                .succeeded()
                .text()
        };
        // The chunks of the plain run end where the file's checkpoints do not, so only exact sessions have equal bits.
        let question = "Where was it?";
        let exact = [
            "--exact",
            "--no-bos",
            "-p",
            question,
            "--state",
            &book.state,
        ];
        let refused = book.run(&[&["run", &*book.model], &exact[..]].concat());
        refused.failed(1, &["book.state", "not exact"]);
        let read = ["--exact", "-m", &book.model, "-o", &book.state];
        book.run(&[&["read", &*book.text, "--segment", "100"], &read[..]].concat())
            .succeeded();
        let whole = place.file("whole.txt", format!("{}{question}", self::book()));
        let whole = whole.display().to_string();
        assert_eq!(ask(&exact), ask(&["--exact", "-f", &whole]));
        // A conversation follows the text.
        let talk = ["chat", &*book.model, "--state", &book.state, "-n", "8"];
        let mut chat = place.command(talk);
        let said = outcome_of_input(&mut chat, b"hello\n/stats\n");
        assert_eq!(said.status, Some(0), "{}", said.stderr);
        let tokens = book.inspected()["records"][0]["tokens"].clone();
        assert_eq!(tokens, 100);
    }
}

#[test]
fn a_changed_text_fails_the_check_with_its_segment() {
    let place = Workplace::new();
    let book = Book::new(&place, "qwen3.5-tiny");
    book.read().succeeded();
    let said = book.check(&book.state, &book.text).succeeded().text();
    assert!(said.contains("no bit differs"), "{said}");
    let shown = book.inspected();
    let records = shown["records"].as_array().expect("records").clone();
    assert!(records.len() > 5, "{shown}");
    assert_eq!(records[0]["position"], 100);
    assert_eq!(shown["header"]["exact"], false);

    // The words of a later day.
    let other = self::book().replace("On day 40 the", "On day 40 my");
    let other = place.file("other.txt", other).display().to_string();
    let failed = book.check(&book.state, &other).failed(1, &["book.state"]);
    let segment: usize = failed
        .stderr
        .split_once("segment ")
        .and_then(|(_, rest)| rest.split(':').next()?.parse().ok())
        .expect("a segment");
    assert!(segment > 2 && segment < records.len(), "{}", failed.stderr);
    let longer = place.file("longer.txt", self::book() + "The end.");
    let longer = book.check(&book.state, &longer.display().to_string());
    longer.failed(1, &["tokens more than the file"]);

    // The file of the other text, which claims to be of this one: all hashes are right.
    let forged = Book {
        text: other,
        state: place.name("forged.state"),
        ..Book::new(&place, "qwen3.5-tiny")
    };
    let other_text = forged.text.clone();
    forged.read().succeeded();
    let true_bytes = std::fs::read(&book.state).expect("a file");
    let mut bytes = std::fs::read(&forged.state).expect("a file");
    assert_eq!(bytes.len(), true_bytes.len());
    for [head, tokens, ..] in sealed::records(&true_bytes) {
        bytes[head + 256..tokens].copy_from_slice(&true_bytes[head + 256..tokens]);
    }
    sealed::seal(&mut bytes);
    std::fs::write(&forged.state, bytes).expect("written");
    let _ = book.run(&["inspect", &forged.state]).succeeded();
    let failed = book.check(&forged.state, &book.text);
    failed.failed(1, &["forged.state", &format!("segment {segment}, tokens")]);
    book.check(&forged.state, &other_text)
        .failed(1, &["the text differs"]);
}

#[test]
fn a_killed_run_is_continued() {
    let place = Workplace::new();
    let book = Book::new(&place, "qwen3.5-tiny");
    book.read().succeeded();
    let whole = std::fs::read(&book.state).expect("a file");
    let partial = place.path("book.state.partial");
    let mut continued = 0;
    for kept in 1..6 {
        place.file("book.state", "before");
        let arguments = ["read", &*book.text, "--segment", "100", "-m", &book.model];
        let mut command = place.command(arguments);
        command.args(["-o", &*book.state, "--threads", "2"]);
        let mut child = command.spawn().expect("it starts");
        let length = || std::fs::metadata(&partial).map_or(0, |found| found.len());
        let until = sealed::records(&whole)[kept][0] as u64;
        while length() < until && child.try_wait().expect("a child").is_none() {
            std::thread::sleep(Duration::from_micros(200));
        }
        child.kill().expect("killed");
        child.wait().expect("ended");
        if partial.exists() {
            // The name belongs to the old file until the new one is complete.
            assert_eq!(std::fs::read(&book.state).expect("a file"), b"before");
            let ended = outcome(&mut command);
            assert_eq!(ended.status, Some(0), "{}", ended.stderr);
            continued += usize::from(ended.stderr.contains("read by an earlier run"));
        }
        assert!(std::fs::read(&book.state).expect("a file") == whole);
        assert!(!partial.exists());
    }
    assert!(continued > 0);
    // Another text is not mixed with what was read.
    std::fs::write(&partial, &whole[..sealed::records(&whole)[2][0]]).expect("written");
    let other = place.file("book.txt", "Another text.");
    book.read()
        .failed(2, &["book.state.partial", "another text"]);
    std::fs::remove_file(other).expect("removed");
    book.read().failed(2, &["book.txt"]);
}

#[test]
fn bad_files_are_refused_by_every_command() {
    let place = Workplace::new();
    let book = Book::new(&place, "qwen3.5-tiny");
    book.read().succeeded();
    let whole = std::fs::read(&book.state).expect("a file");
    let other = place.model("gdn-tiny").display().to_string();
    let refused = |state: &Path, model: &str, parts: &[&str]| {
        let state = state.display().to_string();
        let ask = [
            "run", model, "--raw", "-n", "1", "-p", "x", "--state", &state,
        ];
        book.run(&ask).failed(1, parts);
        let served = format!("book={state}");
        let serve = ["serve", model, "--port", "0", "--state", &served];
        book.run(&serve).failed(1, parts);
        book.run(&["chat", model, "--state", &state])
            .failed(1, parts);
        let check = ["check", &state, &book.text, "-m", model];
        book.run(&check).failed(1, parts);
    };
    refused(
        Path::new(&book.state),
        &other,
        &["book.state", "another model"],
    );
    let cut = place.file("cut.state", &whole[..whole.len() - 64]);
    refused(&cut, &book.model, &["cut.state", "the file ends"]);
    let incomplete = &whole[..sealed::records(&whole)[3][0]];
    let incomplete = place.file("incomplete.state", incomplete);
    refused(
        &incomplete,
        &book.model,
        &["incomplete.state", "not complete"],
    );
    let text = Path::new(&book.text);
    refused(text, &book.model, &["book.txt", "not a state file"]);
    let folder = place.home.path();
    let read = [
        "chat",
        &book.model,
        "--state",
        &folder.display().to_string(),
    ];
    book.run(&read).failed(2, &["folder"]);
    let mut flipped = whole.clone();
    let [.., rows, state, _, _] = *sealed::records(&whole).last().expect("a record");
    flipped[rows.midpoint(state)] ^= 1;
    let flipped = place.file("flipped.state", flipped);
    let ask = ["run", &book.model, "--raw", "-p", "x", "--state"];
    let flipped = flipped.display().to_string();
    let ask = [&ask[..], &[&flipped]].concat();
    book.run(&ask).failed(1, &["flipped.state", "hash"]);
}

/// A link in place of the file that is written is followed; a link in place of the partial file is refused.
#[cfg(unix)]
#[test]
fn links_lead_to_no_other_file() {
    use std::os::unix::fs::symlink;
    let place = Workplace::new();
    let book = Book::new(&place, "gdn-tiny");
    let victim = place.file("victim", "mine");
    symlink(&victim, place.path("book.state.partial")).expect("a link");
    book.read().failed(1, &["book.state.partial", "link"]);
    assert_eq!(std::fs::read(&victim).expect("a file"), b"mine");
    std::fs::remove_file(place.path("book.state.partial")).expect("removed");
    symlink(place.path("target.state"), &book.state).expect("a link");
    place.file("target.state", "before");
    book.read().succeeded();
    assert!(place.path("book.state").is_symlink());
    book.check(&place.name("target.state"), &book.text)
        .succeeded();
    // The text and the model stay what they are.
    for input in [&book.text, &book.model] {
        let output = ["read", &*book.text, "-m", &book.model, "-o", input];
        book.run(&output).failed(2, &["is the input"]);
    }
    let folder = ["read", &*book.text, "-o", "."];
    book.run(&folder).failed(2, &["is not a file"]);
}

/// Posts a request to a server and returns the answer's JSON.
fn post(address: &str, path: &str, body: &serde_json::Value) -> serde_json::Value {
    let mut stream = std::net::TcpStream::connect(address).expect("a server");
    let body = body.to_string();
    let head = format!(
        "POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream
        .write_all((head + &body).as_bytes())
        .expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (_, body) = answer.split_once("\r\n\r\n").expect("a head and a body");
    serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}"))
}

#[test]
fn a_request_names_the_state_that_its_prompt_follows() {
    let place = Workplace::new();
    let book = Book::new(&place, "qwen3.5-tiny");
    let exact = ["--exact", "--threads", "2"];
    let read = ["read", &*book.text, "--segment", "100", "-m", &book.model];
    book.run(&[&read[..], &["-o", &book.state], &exact].concat())
        .succeeded();
    let ask = [
        "run",
        &*book.model,
        "--raw",
        "--no-bos",
        "-p",
        "Where was it?",
    ];
    let options = ["-n", "20", "--temperature", "0", "--state", &book.state];
    let expected = book.run(&[&ask[..], &options, &exact].concat());
    let expected = expected.succeeded().text();
    let named = format!("book={}", book.state);
    let mut command = place.command(["serve", &book.model, "--port", "0", "--state", &named]);
    let mut server = command
        .args(exact)
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("it starts");
    let mut lines = BufReader::new(server.stderr.take().expect("a pipe")).lines();
    let address = loop {
        let line = lines.next().expect("an address").expect("text");
        if let Some((_, address)) = line.split_once(" at http://") {
            break address.trim().to_string();
        }
    };
    let mut request = serde_json::json!({
        "prompt": "Where was it?", "state": "book", "max_tokens": 20, "temperature": 0,
    });
    let named = post(&address, "/v1/completions", &request);
    let length = book.inspected()["records"]
        .as_array()
        .and_then(|it| it.last())
        .map(|last| last["position"].clone());
    let cached = &named["usage"]["prompt_tokens_details"]["cached_tokens"];
    assert_eq!(Some(cached), length.as_ref(), "{named}");
    assert_eq!(named["choices"][0]["text"], expected.trim_end_matches('\n'));
    // A prompt that begins with the text finds its checkpoint too.
    request["prompt"] = (self::book() + "Where was it?").into();
    request["state"] = serde_json::Value::Null;
    let found = post(&address, "/v1/completions", &request);
    assert_eq!(found["choices"], named["choices"]);
    request["state"] = "other".into();
    let refused = post(&address, "/v1/completions", &request);
    server.kill().expect("killed");
    server.wait().expect("ended");
    let message = refused["error"]["message"].as_str().unwrap_or_default();
    assert!(message.contains("\"other\""), "{refused}");
}
