//! The built-in model tells a story on a given topic, and recalls a fact 2,000 tokens later.

use std::io::Write;
use std::process::{Command, Stdio};

/// Returns the built-in model's greedy answers to a conversation.
fn chat(messages: &[String]) -> String {
    let mut child = Command::new(env!("CARGO_BIN_EXE_waterline"))
        .args(["chat", "--greedy"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("waterline runs");
    let mut input = child.stdin.take().expect("a pipe");
    input
        .write_all((messages.join("\n") + "\n").as_bytes())
        .expect("the messages");
    drop(input);
    let output = child.wait_with_output().expect("an end");
    assert!(output.status.success());
    String::from_utf8(output.stdout).expect("text")
}

#[test]
fn it_tells_a_story_about_what_it_is_asked_for() {
    let story = chat(&["Tell me a story about a dog and a red ball.".into()]);
    println!("{story}");
    assert!(story.contains("dog") && story.contains("ball"), "{story}");
    assert!(
        story.split_whitespace().count() > 60,
        "a story is longer: {story}"
    );
}

#[test]
fn it_remembers_a_name_a_pet_and_a_password_after_two_thousand_tokens() {
    let mut messages: Vec<String> =
        vec!["My name is Anna. I have a cat called Miso and my password is 48213.".into()];
    let topics = [
        "a fox and a lantern",
        "a boy and a kite",
        "a rabbit and a cake",
        "a girl and a boat",
        "a bear and a drum",
        "a mouse and a hat",
        "a frog and a bell",
        "a bird and a key",
        "a duck and a wagon",
        "a horse and a bridge",
        "a turtle and a map",
        "a cat and a shoe",
        "a dog and a tree",
        "a lion and a clock",
        "a pirate and a pie",
        "a queen and a ring",
    ];
    for (i, topic) in topics.iter().enumerate() {
        messages.push(format!("Tell me a story about {topic}."));
        messages.push(format!("What is {} + {}?", i + 2, 9 - i % 7));
    }
    let filler = chat(&messages);
    messages.extend(
        [
            "What is my name?",
            "What is my cat called?",
            "What is the password?",
        ]
        .map(String::from),
    );
    let all = chat(&messages);
    let answers = all
        .strip_prefix(&filler)
        .expect("the same conversation, greedily");
    // About four bytes per token of such text, with the model's tokenizer.
    assert!(
        filler.len() + messages.join("").len() > 9000,
        "{} bytes are too few",
        filler.len()
    );
    let lines: Vec<&str> = answers.lines().collect();
    assert_eq!(lines.len(), 3, "{answers}");
    assert!(lines[0].contains("Anna"), "{answers}");
    assert!(lines[1].contains("Miso"), "{answers}");
    assert!(lines[2].contains("48213"), "{answers}");
}
