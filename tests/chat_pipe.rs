//! A chat through a pipe: answers on standard output, everything else on standard error.

mod common;

use std::sync::Arc;

use common::talk::Talk;
use common::{Workplace, outcome_of_input};
use waterline::Model;
use waterline::Turns;

#[test]
fn the_built_in_model_answers() {
    let place = Workplace::new();
    for arguments in [&["chat", "-n", "3"][..], &[]] {
        // Without arguments the answer may be long, so a command limits it.
        let input: &[u8] = if arguments.is_empty() {
            b"/set max-tokens 3\nHello\n"
        } else {
            b"Hello\n"
        };
        let outcome = outcome_of_input(&mut place.command(arguments), input);
        assert_eq!(outcome.status, Some(0), "{}", outcome.stderr);
        assert!(outcome.text().ends_with('\n'));
    }
    assert!(!place.path(".local").exists(), "a pipe has no history");
}

#[test]
fn only_answers_go_to_standard_output() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let plain = talk.answers("hello\nand then?\n");
    let talked = talk.say(
        "/help\nhello\n/state --all\n/stats\n/set\n/fork\n\n   \nand then?\n/quit\nnever sent\n",
    );
    assert_eq!((talked.status, talked.text()), (Some(0), plain.clone()));
    for part in [
        "/regen",
        "set_counts",
        "position",
        "temperature        1\n",
        "* main",
    ] {
        assert!(talked.stderr.contains(part), "{part}: {}", talked.stderr);
    }
    assert!(!plain.contains('\x1b') && !plain.contains("> "));
    assert_eq!(talk.say("").succeeded().text(), "");
}

#[test]
fn failures_are_sentences_and_the_conversation_goes_on() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let foreign = place
        .file("foreign", "this was never a session")
        .display()
        .to_string();
    let below = format!("{foreign}/below");
    let plain = talk.answers("hello\nand then?\n");
    let commands = [
        "/nonsense".to_string(),
        "/undo".into(),
        "/regen".into(),
        "/set temperature hot".into(),
        "/set temperature -1".into(),
        "/set volume 11".into(),
        "/set max-tokens 0".into(),
        "/sessions".into(),
        "/resume".into(),
        "/state --some".into(),
        "/save".into(),
        format!("/save {below}"),
        format!("/save {}", place.home.path().display()),
        "/load".into(),
        format!("/load {foreign}"),
        format!("/load {}", place.name("absent")),
        "/read".into(),
        format!("/read {}", place.name("absent")),
        format!("/read {}", place.home.path().display()),
        format!("/read {}", talk.model),
        "/export".into(),
        format!("/export {}", place.name("export")),
        "/edit".into(),
        "/copy".into(),
        format!("/model {foreign}"),
    ];
    for command in &commands {
        let failed = talk.say(format!("{command}\nhello\nand then?\n"));
        assert_eq!(
            (failed.status, failed.text()),
            (Some(1), plain.clone()),
            "{command}"
        );
        assert_eq!(
            failed.stderr.lines().count(),
            1,
            "{command}: {}",
            failed.stderr
        );
        assert!(!failed.stderr.contains("panicked"), "{}", failed.stderr);
    }
    // After the first turn the messages are kept.
    for command in [
        "/system Be brief.",
        &format!("/load {foreign}"),
        &format!("/save {below}"),
    ] {
        let failed = talk.say(format!("hello\n{command}\nand then?\n"));
        assert_eq!(
            (failed.status, failed.text()),
            (Some(1), plain.clone()),
            "{command}"
        );
    }
    assert_eq!(place.files(), ["foreign", "lalte-tiny.gguf"]);
}

#[test]
fn undo_returns_to_the_same_state() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let plain = talk.answers("hello\nand then?\nwhat next?\n");
    let lines: Vec<&str> = plain.lines().collect();
    let undone = talk.answers(
        "hello\nand then?\n/undo\nand then?\n/undo\n/undo\nhello\nand then?\nwhat next?\n",
    );
    // The random numbers repeat, so the words do too.
    assert!(undone.ends_with(&plain), "{undone}\n---\n{plain}");
    assert!(undone.lines().count() > lines.len());
}

#[test]
fn synonyms_do_the_same() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "gdn-tiny");
    let again = talk.answers("hello\n/regen\n");
    assert_eq!(talk.answers("hello\n/retry\n/bye\nnever sent\n"), again);
    let help = talk.say("/?\n").stderr;
    for part in ["/retry", "/bye", "/sessions"] {
        assert!(help.contains(part), "{part}: {help}");
    }
}

#[test]
fn instructions_are_shown_and_no_escape_sequence_with_them() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "gdn-tiny");
    let said = talk.say("/system\n/system Be \x1b[31mred.\n/system\n");
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let lines: Vec<&str> = said.stderr.lines().collect();
    let expected = [
        "no instructions; the template begins with:",
        "<|bos|><|user|>",
        "the instructions are set",
        "Be \u{fffd}[31mred.",
    ];
    assert_eq!(lines, expected);
}

#[test]
fn the_state_is_shown_as_gauges() {
    let place = Workplace::new();
    for (preset, parts) in [
        (
            "lalte-tiny",
            &["matrices", "window", "retained", "among them: "][..],
        ),
        ("transformer-tiny", &["context", "up to: "]),
        ("hax-mamba-tiny", &["retained", "among them: "]),
    ] {
        // The prompt is longer than the window.
        let lines = format!("{}\n/state\n", "hello there ".repeat(60));
        let said = Talk::new(&place, preset).say(&lines);
        assert_eq!(said.status, Some(0), "{}", said.stderr);
        for part in parts {
            assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
        }
    }
}

#[test]
fn more_turns_can_be_undone_than_are_marked() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let say: String = (0..20).map(|i| format!("message {i}\n")).collect();
    let undo = "/undo\n".repeat(20);
    let (plain, again) = (
        talk.answers(&say),
        talk.say(format!(
            "{say}{undo}/state --all\n/set temperature 0\n{say}"
        )),
    );
    assert_eq!(again.status, Some(0), "{}", again.stderr);
    assert!(again.text().starts_with(&plain));
    assert!(again.stderr.contains("position 0,"), "{}", again.stderr);
}

#[test]
fn regen_gives_another_answer_and_can_be_repeated() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let first = talk.answers("hello\n");
    let again = talk.answers("hello\n/regen\n");
    let other = again.strip_prefix(&first).unwrap();
    assert_ne!(other, first);
    assert_eq!(talk.answers("hello\n/regen\n"), again);
    let third = talk.answers("hello\n/regen\n/regen\n");
    assert!(third.starts_with(&again) && third[again.len()..] != *other);
}

#[test]
fn forks_do_not_disturb_each_other() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let straight = talk.answers("hello\nto the left\nand then?\n");
    let hello = talk.answers("hello\n");
    let left = straight.strip_prefix(&hello).unwrap();
    let right_straight = talk.answers("hello\nto the right\n");
    let right = right_straight.strip_prefix(&hello).unwrap();
    let forked = talk.say(
        "hello\n/fork left\nto the left\n/fork main\nto the right\n/fork left\nand then?\n/fork\n",
    );
    assert_eq!(forked.status, Some(0), "{}", forked.stderr);
    let one_left = talk.answers("hello\nto the left\n");
    let one_left = one_left.strip_prefix(&hello).unwrap();
    let then = left.strip_prefix(one_left).unwrap();
    assert_eq!(forked.text(), format!("{hello}{one_left}{right}{then}"));
    assert!(
        forked.stderr.contains("* left") && forked.stderr.contains("  main"),
        "{}",
        forked.stderr
    );
}

#[test]
fn clear_begins_anew_but_keeps_the_instructions() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let position = |input: &str| {
        let said = talk.say(format!("{input}/state --all\n"));
        assert_eq!(said.status, Some(0), "{}", said.stderr);
        said.stderr
            .lines()
            .rfind(|line| line.starts_with("position"))
            .unwrap()
            .to_string()
    };
    let with_system = position("/system Be brief.\nhello\n");
    assert_ne!(with_system, position("hello\n"));
    assert_eq!(
        position("/system Be brief.\nhello\nand then?\n/clear\nhello\n"),
        with_system
    );
    assert_eq!(
        position("/system Be brief.\nhello\n/clear\n/system none\nhello\n"),
        position("hello\n")
    );
}

#[test]
fn settings_apply_to_the_next_answer() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let greedy = Talk {
        flags: vec!["-n", "12", "--greedy", "--ignore-eos"],
        model: talk.model.clone(),
        place: &place,
    };
    assert_eq!(
        talk.answers("/set temperature 0\nhello\n"),
        greedy.answers("hello\n")
    );
    let seeded = talk.answers("/set seed 8\nhello\n");
    assert_ne!(seeded, talk.answers("hello\n"));
    assert_eq!(seeded, talk.answers("/set seed 8\nhello\n"));
    let short = talk.answers("/set max-tokens 2\nhello\n");
    assert!(
        talk.answers("hello\n")
            .starts_with(short.trim_end_matches('\n'))
            && short.len() > 1
    );
}

#[test]
fn an_answer_that_was_cut_is_closed_before_the_next_message() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let model = Model::open(&talk.model).unwrap();
    let template = Arc::new(model.chat_template().unwrap());
    let mut turns = Turns::new(template, model.tokenizer().unwrap()).unwrap();
    let mut read = turns.user("hello").unwrap().len();
    let end = turns.assistant_done("cut", false).unwrap().len();
    assert!(end > 0);
    read += end + turns.user("and then?").unwrap().len();

    let said = talk.say("hello\nand then?\n/state --all\n");
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let position = format!("position {},", read + 2 * 12);
    assert!(
        said.stderr.contains(&position),
        "{position} {}",
        said.stderr
    );
}

#[test]
fn a_line_that_ends_in_a_backslash_goes_on() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let answers = talk.say("one\\\ntwo\\\nthree\n/undo\n");
    assert_eq!(answers.status, Some(0), "{}", answers.stderr);
    assert!(
        answers.stderr.contains("taken back: one"),
        "{}",
        answers.stderr
    );
    let (lines, single) = (talk.answers("one\\\ntwo\n"), talk.answers("one two\n"));
    assert_ne!(lines, single);
}

#[test]
fn quotes_hold_several_lines() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "gdn-tiny");
    assert_eq!(
        talk.answers("\"\"\"\none\ntwo\n\"\"\"\n"),
        talk.answers("one\\\ntwo\n")
    );
    // Quotes that are never closed end with the input.
    assert_eq!(talk.answers("\"\"\"one\ntwo"), talk.answers("one\\\ntwo\n"));
}

#[test]
fn a_line_that_is_not_utf8_is_refused() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let plain = talk.answers("hello\n");
    let failed = talk.say(b"ab\xff\nhello\n");
    assert_eq!((failed.status, failed.text()), (Some(1), plain));
    assert!(failed.stderr.contains("byte 2"), "{}", failed.stderr);
}

#[test]
fn a_full_context_is_a_sentence_and_there_is_a_way_back() {
    let place = Workplace::new();
    let mut talk = Talk::new(&place, "transformer-tiny");
    let plain = talk.answers("hello\n");
    talk.flags.extend(["--context", "40"]);
    let long = "one two three four five six seven eight nine ten ".repeat(5);
    let failed = talk.say(format!("{long}\nhello\n"));
    assert_eq!((failed.status, failed.text()), (Some(1), plain.clone()));
    assert!(
        failed.stderr.lines().count() == 1 && failed.stderr.contains("context is full"),
        "{}",
        failed.stderr
    );

    // The context becomes full during an answer: the messages are kept, and can be undone.
    talk.flags.extend(["-n", "100"]);
    talk.flags.drain(..2);
    let failed = talk.say("hello\nmore\n/undo\n/set max-tokens 12\nhello\n");
    assert_eq!(failed.status, Some(1), "{}", failed.stderr);
    assert_eq!(
        failed.stderr.matches("context is full").count(),
        2,
        "{}",
        failed.stderr
    );
    assert!(failed.text().ends_with(&plain), "{}", failed.text());
    assert!(
        failed.text().starts_with(plain.trim_end_matches('\n')),
        "{}",
        failed.text()
    );
}

#[test]
fn a_long_message_is_read_whole() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let long = "The dog ran after the red ball. ".repeat(400);
    let said = talk.say(format!("{long}\n/stats\n"));
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let position = said
        .stderr
        .split("position ")
        .nth(1)
        .unwrap()
        .lines()
        .next()
        .unwrap();
    assert!(position.parse::<u64>().unwrap() > 3000, "{position}");
}

#[test]
fn the_text_of_a_file_goes_in_front_of_the_next_message() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let file = place.file("my notes.txt", "\u{feff}one\ntwo\n\n");
    let name = file.display().to_string().replace(' ', "\\ ");
    let read = talk.say(format!("/read {name}\nhello\nand then?\n"));
    assert!(
        read.stderr.contains("tokens go in front"),
        "{}",
        read.stderr
    );
    // The file's text is in one message only.
    let typed = talk.answers("one\\\ntwo\\\n\\\nhello\nand then?\n");
    assert_eq!(read.text(), typed);
    assert_ne!(typed, talk.answers("hello\nand then?\n"));
    let left = talk.answers(format!("/read {name}\n/clear\nhello\n"));
    assert_eq!(left, talk.answers("hello\n"));
}

#[test]
fn a_file_that_is_no_text_or_too_large_is_refused() {
    let place = Workplace::new();
    let mut talk = Talk::new(&place, "qwen3.5-tiny");
    talk.flags.extend(["--context", "256"]);
    let plain = talk.answers("hello\n");
    let binary = place.path("binary");
    std::fs::write(&binary, [b'a', 0xff]).expect("a file");
    let long = place.file("long", "word ".repeat(400));
    let huge = place.path("huge");
    let empty = std::fs::File::create(&huge).expect("a file");
    empty.set_len(1 << 40).expect("a size");
    for (path, reason) in [
        (&binary, "not UTF-8: byte 1"),
        (&long, "the context has room for 256"),
        (&huge, "expected at most 16.0 MiB"),
    ] {
        let said = talk.say(format!("/read {}\nhello\n", path.display()));
        assert_eq!((said.status, said.text()), (Some(1), plain.clone()));
        assert!(said.stderr.contains(reason), "{}", said.stderr);
    }
}

#[test]
fn a_conversation_is_exported_as_text() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let file = place.path("talk.txt");
    let export = format!("/export {}", file.display());
    let answer = talk.answers(format!("/system Be brief.\nhello\n{export}\n"));
    let text = std::fs::read_to_string(&file).expect("the file");
    assert!(
        text.starts_with("system:\nBe brief.\n\nuser:\nhello\n\nassistant:\n"),
        "{text}"
    );
    assert!(text.ends_with(&format!("{}\n", answer.trim())), "{text}");
    // A file is never replaced.
    let again = talk.say(format!("hello\n{export}\n"));
    assert_eq!(again.status, Some(1));
    assert!(again.stderr.contains("exists"), "{}", again.stderr);
    assert_eq!(std::fs::read_to_string(&file).expect("the file"), text);
}

#[test]
fn another_model_continues_the_conversation() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let other = place.model("gdn-tiny").display().to_string();
    let file = place.path("talk.txt");
    let said = talk.say(format!(
        "/system Be brief.\nhello\n/model {other}\n/model\nand then?\n/export {}\n/stats\n",
        file.display()
    ));
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    for part in ["gdn-tiny.gguf: 3 messages are read", "messages   5"] {
        assert!(said.stderr.contains(part), "{part}: {}", said.stderr);
    }
    let text = std::fs::read_to_string(&file).expect("the file");
    assert_eq!(text.matches("\nassistant:\n").count(), 2, "{text}");
    // Forks are states of one model.
    let forked = talk.say(format!("hello\n/fork aside\n/model {other}\n"));
    assert!(forked.stderr.contains("forks"), "{}", forked.stderr);
}
