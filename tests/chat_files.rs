//! Conversations that are saved to files and continued from them, through a pipe.

mod common;

use common::Workplace;
use common::talk::Talk;

#[test]
fn a_file_is_replaced_only_when_that_is_meant() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "gdn-tiny");
    let file = place.file("talk.state", "mine");
    let name = file.display();
    let refused = talk.say(format!("hello\n/save {name}\n"));
    assert_eq!(refused.status, Some(1));
    assert!(
        refused.stderr.contains("exists; /save! "),
        "{}",
        refused.stderr
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"mine");
    // The conversation's current file is overwritten without a question.
    talk.answers(format!("hello\n/save! {name}\nand then?\n/save\n"));
    let loaded = talk.say(format!("/load {name}\n"));
    assert!(loaded.stderr.contains("4 messages"), "{}", loaded.stderr);
    // Without a name, the conversation is saved in the user's folder, under its first words.
    let saved = talk.say("Hello, you!\n/save\n/save\n");
    assert_eq!(saved.status, Some(0), "{}", saved.stderr);
    let listed = talk.say("/sessions\n").stderr;
    assert!(
        listed.contains("  1  ") && !listed.contains("  2  "),
        "{listed}"
    );
    assert!(
        saved.stderr.contains("\"hello you\": saved"),
        "{}",
        saved.stderr
    );
    assert!(listed.contains("hello you"), "{listed}");
    let resumed = talk.say("/resume\n/stats\n");
    assert!(resumed.stderr.contains("2 messages"), "{}", resumed.stderr);
    // The title that was printed loads it; it can be renamed and removed.
    let titled = talk.say("/load hello you\n/load \"hello you\"\n");
    assert_eq!(titled.status, Some(0), "{}", titled.stderr);
    let renamed = talk.say("/rename 1 My Talk\n/load my talk\n/sessions\n");
    assert!(
        renamed
            .stderr
            .contains("\"hello you\" is called \"my talk\" now"),
        "{}",
        renamed.stderr
    );
    assert_eq!(renamed.status, Some(0), "{}", renamed.stderr);
    let refused = talk.say("/delete 2\n/delete\n/rename 1\n");
    assert_eq!(refused.status, Some(1), "{}", refused.stderr);
    let deleted = talk.say("/delete 1\n/sessions\n").stderr;
    assert!(
        deleted.contains("\"my talk\" is removed") && deleted.contains("no other conversation"),
        "{deleted}"
    );
}

#[test]
fn a_message_may_begin_with_a_slash() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let file = place.path("talk.state");
    let said = talk.say(format!(
        "//etc/hosts?\n\"\"\"/help\"\"\"\n/save {}\n",
        file.display()
    ));
    assert_eq!(said.status, Some(0), "{}", said.stderr);
    let content = std::fs::read(&file).unwrap();
    let content = String::from_utf8_lossy(&content);
    for message in ["\"content\":\"/etc/hosts?\"", "\"content\":\"/help\""] {
        assert!(content.contains(message), "{message}");
    }
}

#[test]
fn a_saved_conversation_goes_on_as_if_never_interrupted() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let file = place.name("talk.state");
    let first = talk.answers(format!(
        "/system Be brief.\nhello\n/set top-k 100\n/save {file}\n"
    ));
    let whole = talk.answers("/system Be brief.\nhello\n/set top-k 100\nand then?\nwhat next?\n");
    // The settings differ from those saved with the conversation.
    let later = Talk {
        flags: vec!["-n", "12", "--greedy", "--ignore-eos"],
        model: talk.model.clone(),
        place: &place,
    };
    let loaded = later.answers(format!(
        "something else\n/load {file}\nand then?\n/undo\nand then?\nwhat next?\n"
    ));
    let rest = whole.strip_prefix(&first).unwrap();
    assert!(loaded.ends_with(rest), "{loaded}\n---\n{rest}");
    // The turn before the save can be undone too.
    let back = later.say(format!("/load {file}\n/undo\n/state --all\n"));
    assert_eq!(back.status, Some(0), "{}", back.stderr);
    assert!(back.stderr.contains("position 0,"), "{}", back.stderr);
}

#[test]
fn what_was_said_before_a_load_leaves_no_trace() {
    let place = Workplace::new();
    let mut talk = Talk::new(&place, "lalte-tiny");
    talk.flags = vec!["-n", "12", "--greedy", "--ignore-eos"];
    let file = place.name("talk.state");
    let turns = "a first message of some length\nthe second\n";
    let first = talk.answers(turns);
    let whole = talk.answers(format!("{turns}the third\n/save {file}\n"));
    let third = whole.strip_prefix(&first).unwrap();
    // Other turns, with marks at other positions.
    let other = "x\ny\nz\n";
    let before = talk.answers(other);
    let again = talk.answers(format!("{other}/load {file}\n/undo\nthe third\n"));
    assert_eq!(again.strip_prefix(&before), Some(third));
    let anew = talk.answers(format!("{other}/clear\n{turns}/undo\n/undo\n{turns}"));
    assert!(anew.ends_with(&first));
}

#[test]
fn damaged_and_foreign_states_are_refused() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let other = Talk::new(&place, "gdn-tiny");
    let (file, foreign) = (place.path("talk.state"), place.name("other.state"));
    talk.answers(format!("hello\n/save {}\n", file.display()));
    other.answers(format!("hello\n/save {foreign}\n"));
    let plain = talk.answers("hello\nand then?\n");
    let refused = |path: &str, part: &str| {
        let failed = talk.say(format!("hello\n/load {path}\nand then?\n"));
        assert_eq!(
            (failed.status, failed.text()),
            (Some(1), plain.clone()),
            "{path}"
        );
        assert!(
            failed.stderr.lines().count() == 1 && failed.stderr.contains(part),
            "{path}: {}",
            failed.stderr
        );
    };
    refused(&foreign, "another model");

    let content = std::fs::read(&file).unwrap();
    for length in [0, 7, 8, 20, 100, content.len() / 2, content.len() - 1] {
        let cut = place.file("cut.state", &content[..length]);
        refused(&cut.display().to_string(), "cut.state");
    }
    for place_of_damage in [3, 17, content.len() / 3, content.len() - 2] {
        let mut damaged = content.clone();
        damaged[place_of_damage] ^= 0x40;
        let damaged = place.file("damaged.state", damaged);
        refused(&damaged.display().to_string(), "damaged.state");
    }

    let smaller = Talk {
        flags: vec!["-n", "12", "--kv", "f32"],
        model: talk.model.clone(),
        place: &place,
    };
    // A state made with other options is ignored, and the messages are read again.
    let read = smaller.say(format!("/load {}\nand then?\n/stats\n", file.display()));
    assert_eq!(read.status, Some(0), "{}", read.stderr);
    for part in [
        "2 messages, which are read with the next one",
        "tensor keys",
        "messages   4,",
    ] {
        assert!(read.stderr.contains(part), "{part}: {}", read.stderr);
    }
}

#[cfg(unix)]
#[test]
fn a_full_disk_loses_neither_the_old_file_nor_the_conversation() {
    let place = Workplace::new();
    let talk = Talk::new(&place, "lalte-tiny");
    let plain = talk.answers("hello\nand then?\n");
    let file = place.file("talk.state", "old").display().to_string();
    let mut shell = std::process::Command::new("sh");
    shell.args([
        "-c",
        "trap '' XFSZ; ulimit -f 100; exec \"$0\" \"$@\"",
        env!("CARGO_BIN_EXE_waterline"),
        "chat",
    ]);
    shell
        .arg(&talk.model)
        .args(&talk.flags)
        .env("HOME", place.home.path());
    let failed = common::outcome_of_input(
        &mut shell,
        format!("hello\n/save! {file}\nand then?\n").as_bytes(),
    );
    assert_eq!((failed.status, failed.text()), (Some(1), plain));
    assert!(
        failed.stderr.lines().count() == 1 && failed.stderr.contains("talk.state"),
        "{}",
        failed.stderr
    );
    assert_eq!(std::fs::read(&file).unwrap(), b"old");
    assert_eq!(place.files(), ["lalte-tiny.gguf", "talk.state"]);
}
