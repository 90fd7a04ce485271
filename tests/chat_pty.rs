//! A chat on a real pseudo-terminal: keys, history, Ctrl-C.

#![cfg(unix)]

mod common;
#[path = "common/person.rs"]
mod person;

use std::process::Command;

use common::Workplace;
use person::{Person, STATS};

const UP: &str = "\x1b[A";
const DOWN: &str = "\x1b[B";
const LEFT: &str = "\x1b[D";
const PASTE: (&str, &str) = ("\x1b[200~", "\x1b[201~");
/// Sent by the line editor when it releases the terminal; Ctrl-C sends a signal only after this.
const LINE_TAKEN: &str = "\x1b[?2004l";

#[test]
fn the_built_in_model_talks() {
    let place = Workplace::new();
    let mut person = Person::starts(place.command(["chat", "-n", "4"]));
    assert!(person.says("Hello") > 1);
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn keys_edit_the_line_and_recall_earlier_ones() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    person.commands("/set seed 11", "seed 11");
    person.commands("/set seed 22", "seed 22");
    // Up to the first line, one step too far, and down again.
    person.presses(UP);
    person.sees("seed 22");
    person.presses(UP);
    person.sees("seed 11");
    person.presses("\r");
    person.sees("seed 11");
    person.sees_prompt();
    person.presses(UP);
    person.sees("seed 11");
    person.presses(UP);
    person.sees("seed 22");
    person.presses(DOWN);
    person.sees("seed 11");
    // Edits the middle of the line: seed 11 becomes seed 151.
    person.presses(&format!("{LEFT}5\r"));
    person.sees("seed 151\r\n");
    person.sees_prompt();
    // Tab completes a unique command, and its arguments.
    person.presses("/cl\t");
    person.sees("ear");
    person.presses("\r");
    person.sees("is empty");
    person.sees_prompt();
    person.presses("/set se\t 12\r");
    person.sees("seed 12\r\n");
    person.sees_prompt();
    person.presses(&format!("/load {}/lalte\t\r", place.home.path().display()));
    person.sees("lalte-tiny.gguf: ");
    person.sees_prompt();
    person.types("/quit");
    person.ends_with(0);
}

#[test]
fn history_outlives_the_program() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    let history = place.path(".local/state/waterline/history");
    let mut person = Person::sits_down(&place, &model, &[]);
    person.commands("/set seed 4711", "seed 4711");
    person.presses_ctrl('d');
    person.ends_with(0);
    assert!(
        std::fs::read_to_string(&history)
            .unwrap()
            .contains("/set seed 4711")
    );

    let mut person = Person::sits_down(&place, &model, &[]);
    person.presses(UP);
    person.sees("/set seed 4711");
    person.presses("\r");
    person.sees("seed 4711\r\n");
    person.sees_prompt();
    person.presses_ctrl('d');
    person.ends_with(0);

    let own = place.path("own-history");
    let mut person = Person::sits_down(&place, &model, &["--history", &own.display().to_string()]);
    person.commands("/set seed 1", "seed 1");
    person.presses_ctrl('d');
    person.ends_with(0);
    assert!(own.exists());

    // The chat works even if the history cannot be saved.
    let file = place.file("file", "");
    let mut command = place.command([
        "chat".as_ref(),
        model.as_os_str(),
        "-n".as_ref(),
        "2".as_ref(),
    ]);
    command
        .arg("--history")
        .arg(file.join("history"))
        .env("NO_COLOR", "1");
    let mut person = Person::waits(command);
    person.sees("no history is kept");
    person.sees_prompt();
    assert!(person.says("Hello") > 1);
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn a_conversation_outlives_a_crash() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    let first = person.says("Hello, you there");
    let second = person.says("And then?");
    person.commands("/sessions", "this one");
    person.loses_power();

    let mut person = Person::sits_down(&place, &model, &[]);
    person.commands("/sessions", "hello you there");
    person.commands("/resume", &format!("{second} tokens, 4 messages"));
    person.commands("/undo", "taken back: And then?");
    person.commands("/stats", &format!("position {first}\r\n"));
    assert_eq!(person.says("And then?"), second);
    person.types("/bye");
    person.ends_with(0);
    // It is saved once, not once per chat.
    let folder = place.path(".local/state/waterline/sessions");
    let models: Vec<_> = std::fs::read_dir(folder).unwrap().collect();
    assert_eq!(models.len(), 1);
    let kept = std::fs::read_dir(models[0].as_ref().unwrap().path()).unwrap();
    let mut kinds: Vec<_> = kept
        .map(|file| file.unwrap().path().extension().unwrap().to_owned())
        .collect();
    kinds.sort();
    assert_eq!(kinds, ["json", "state"]);

    let mut command = place.command(["chat".as_ref(), model.as_os_str()]);
    command
        .args(["--resume", "--private", "-n", "2"])
        .env("NO_COLOR", "1");
    let mut person = Person::waits(command);
    person.sees("4 messages");
    person.sees_prompt();
    // A private conversation is not saved.
    person.commands("/clear", "is empty");
    person.says("A secret");
    person.presses_ctrl('d');
    person.ends_with(0);
    let state = place.path(".local/state/waterline");
    let kept = std::process::Command::new("grep")
        .args(["-r", "secret"])
        .arg(state)
        .output()
        .unwrap();
    assert_eq!(kept.stdout, b"");
}

#[test]
fn messages_that_were_kept_without_their_state_are_read() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    person.says("Hello, you there");
    let folder = place.path(".local/state/waterline/sessions");
    let folder = std::fs::read_dir(folder).unwrap().next().unwrap();
    let kept = std::fs::read_dir(folder.unwrap().path()).unwrap();
    let mut files = kept.map(|file| file.unwrap().path());
    let path = files.find(|path| path.extension() == Some("state".as_ref()));
    let path = path.expect("a state");
    let (state, written) = (
        std::fs::read(&path).unwrap(),
        std::fs::metadata(&path).unwrap().modified().unwrap(),
    );
    let second = person.says("And then?");
    person.loses_power();
    // The program was killed after it had written the messages of the second turn.
    std::fs::write(&path, state).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(written).unwrap();

    let mut person = Person::sits_down(&place, &model, &[]);
    person.commands("/resume", "4 messages, which are read with the next one");
    let third = person.says("And now?");
    assert!(third > second);
    person.commands("/undo", "taken back: And now?");
    person.commands("/undo", "taken back: And then?");
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn a_context_that_is_nearly_full_is_announced_with_the_flags() {
    let place = Workplace::new();
    let model = place.model("transformer-tiny");
    let mut person = Person::sits_down(&place, &model, &["--context", "28"]);
    person.types("one two three four five six seven eight nine ten one two");
    person.sees("% full (");
    person.sees("/undo");
    person.sees("/clear");
    person.sees("--context 112");
    person.sees("--on-full shift");
    person.sees_prompt();
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn words_are_not_broken_at_the_end_of_a_line() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    let mut command = Command::new("sh");
    command.args([
        "-c",
        "stty rows 24 cols 40; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_waterline"),
        "chat",
    ]);
    command.arg(&model).args(["-n", "60", "--ignore-eos"]);
    command.env("HOME", place.home.path());
    let mut person = Person::starts(command);
    person.types("Hello");
    person.sees("\n");
    let answer: Vec<u8> = person.sees(STATS.0).chars().map(|c| c as u8).collect();
    let answer = String::from_utf8(answer).unwrap();
    let lines: Vec<&str> = answer.split("\r\n").collect();
    assert!(lines.len() > 4, "{answer:?}");
    // Text that was erased leaves an escape sequence.
    for line in lines {
        let kept = line.split("\x1b[").next().unwrap();
        assert!(kept.chars().count() < 40, "{line:?}");
    }
    person.sees_prompt();
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn ctrl_c_stops_the_answer_and_keeps_what_was_said() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    let before = person.says("Hello");
    person.commands("/set max-tokens 100000000", "max-tokens");
    person.types("Go on");
    person.sees(LINE_TAKEN);
    // A message that is still being read would be removed.
    let letter = person.terminal.exp_regex("[A-Za-z]");
    letter.expect("the beginning of the answer");
    person.presses_ctrl('c');
    person.sees("stopped ");
    let after = person.sees_position();
    person.sees_prompt();
    assert!(after > before);

    // The conversation continues from there, and the stopped turn can be undone like any other.
    person.commands("/set max-tokens 3", "max-tokens 3");
    assert!(person.says("And now?") > after);
    person.commands("/undo", "taken back: And now?");
    person.commands("/undo", "taken back: Go on");
    person.commands("/stats", &format!("position {before}\r\n"));
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn ctrl_c_stops_the_reading_of_a_message() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    let long = "All work and no play makes Jack a dull boy. ".repeat(2000);
    person.presses(&format!("{}{long}{}", PASTE.0, PASTE.1));
    person.presses("-- the end\r");
    person.sees("-- the end");
    person.sees(LINE_TAKEN);
    person.presses_ctrl('c');
    // Either while the message is read, which removes it, or during the answer.
    let (_, seen) = person
        .terminal
        .exp_regex("cancelled after [0-9]+ tokens|stopped ")
        .unwrap();
    person.sees_prompt();
    if seen.contains("cancelled") {
        // The session keeps the part of the message it has read; if the message is sent again, reading continues there.
        let read: String = seen.chars().filter(char::is_ascii_digit).collect();
        person.commands("/stats", &format!("messages   0, position {read}\r\n"));
    }
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn ctrl_c_at_an_empty_prompt_leaves_at_the_second_time() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    // A line that was begun is discarded, and this Ctrl-C does not count.
    person.presses("never sent");
    person.sees_typed("never sent");
    person.presses_ctrl('c');
    person.sees_prompt();
    person.presses_ctrl('c');
    person.sees("Ctrl-C again");
    person.sees_prompt();
    // After a line in between, the count starts again.
    person.commands("/stats", "position 0\r\n");
    person.presses_ctrl('c');
    person.sees("Ctrl-C again");
    person.sees_prompt();
    person.presses_ctrl('c');
    person.ends_with(0);
}

#[test]
fn several_lines_make_one_message() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    person.presses("one\\\r");
    person.sees("\n");
    person.presses("two\x1b\rthree\r");
    person.sees_position();
    person.sees_prompt();
    person.commands("/undo", "taken back: one");
    person.commands("/stats", "position 0\r\n");

    person.presses(&format!("{}pasted\nlines\n{}", PASTE.0, PASTE.1));
    person.sees("lines");
    person.presses("\r");
    person.sees_position();
    person.sees_prompt();
    person.commands("/undo", "taken back: pasted");
    person.commands("/stats", "position 0\r\n");
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn lines_that_are_typed_ahead_are_answered_in_order() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    let mut person = Person::sits_down(&place, &model, &[]);
    person.presses("one\rtwo\r/undo\r");
    person.sees_position();
    person.sees_position();
    person.sees("taken back: two");
    person.sees_prompt();
    // The first answer has not arrived yet.
    person.presses("three\r");
    person.presses("four\r/undo\r/undo\r");
    person.sees_position();
    person.sees_position();
    person.sees("taken back: four");
    person.sees("taken back: three");
    person.sees_prompt();
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn turns_can_be_taken_back_repeated_and_saved() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let file = place.name("talk.state");
    let mut person = Person::sits_down(&place, &model, &[]);
    let first = person.says("Hello");
    let second = person.says("And then?");
    assert!(second > first);
    person.commands("/undo", "taken back: And then?");
    person.commands("/stats", &format!("position {first}\r\n"));
    assert_eq!(person.says("And then?"), second);
    // Six tokens again, whatever they are.
    assert_eq!(person.says("/regen"), second);
    person.commands(&format!("/save {file}"), "saved");
    person.commands("/clear", "is empty");
    person.commands("/stats", "position 0\r\n");
    person.commands("/load /no/such/file", "cannot open");
    person.commands("/save /no/such/folder/file", "there is no such folder");
    person.commands(
        &format!("/load {file}"),
        &format!("{second} tokens, 4 messages"),
    );
    person.commands("/undo", "taken back: And then?");
    person.commands("/fork aside", "aside goes on from here");
    assert_eq!(person.says("And then?"), second);
    person.commands("/fork main", "main, 2 messages");
    person.commands("/stats", &format!("position {first}\r\n"));
    person.commands("/frobnicate", "no command /frobnicate");
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn the_last_message_is_edited_and_the_answer_is_copied() {
    let place = Workplace::new();
    let model = place.model("lalte-tiny");
    let mut command = place.command(["chat".as_ref(), model.as_os_str()]);
    command
        .args(["-n", "6", "--seed", "3", "--ignore-eos"])
        .env_remove("VISUAL")
        .env("EDITOR", "sed -i s/hello/bye/");
    let mut person = Person::starts(command);
    person.commands("/copy", "nothing has been answered yet");
    person.commands("/edit", "nothing has been said yet");
    person.says("well hello");
    person.types("/edit");
    person.sees_position();
    person.sees_prompt();
    person.commands("/edit", "as it was");
    person.types("/copy");
    person.sees("\x1b]52;c;");
    let copied = person.sees("\x07");
    person.sees("OSC 52");
    person.sees_prompt();
    let file = place.path("talk.txt");
    person.commands(&format!("/export {}", file.display()), "written");
    let text = std::fs::read_to_string(&file).expect("the file");
    let (asked, answer) = text.split_once("\n\nassistant:\n").expect("an answer");
    assert_eq!(asked, "user:\nwell bye");
    let copied = waterline::internal::base64::decode(&copied).expect("base64");
    assert_eq!(String::from_utf8(copied).expect("text"), answer.trim());
    person.presses_ctrl('d');
    person.ends_with(0);
}

#[test]
fn colours_are_for_terminals_without_no_color() {
    let place = Workplace::new();
    let model = place.model("gdn-tiny");
    for (no_color, dimmed) in [("", true), ("1", false)] {
        let mut command = place.command([
            "chat".as_ref(),
            model.as_os_str(),
            "-n".as_ref(),
            "2".as_ref(),
        ]);
        command.env("NO_COLOR", no_color);
        let mut person = Person::waits(command);
        let banner = person.sees("/help lists");
        assert_eq!(banner.contains("\x1b[2m"), dimmed, "{banner:?}");
        person.sees_prompt();
        person.presses_ctrl('d');
        person.ends_with(0);
    }
}
