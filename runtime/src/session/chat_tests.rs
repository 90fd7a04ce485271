use serde_json::{Value, json};

use super::*;
use crate::bound::Model;
use crate::session::SessionOptions;
use crate::text::ChatTemplate;

/// As published templates do it: thoughts of answers that are followed by a message are left out.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}<|eos|>{% else %}\
    <|assistant|>{% if loop.last %}{{ m.content }}{% else %}{{ m.content.split('</think>')[-1].lstrip('\\n') }}\
    {% endif %}<|eos|>{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}";

/// What is read when the second message waits for its answer.
const BEFORE_THE_SECOND: &str =
    "<|user|>One<|eos|><|assistant|>First.<|eos|><|user|>Two<|eos|><|assistant|><think>";

fn conversation() -> (Chat, Session) {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tools/model/waterline-chat.gguf"
    );
    let model = Model::open(path).expect("the built-in model");
    let template = ChatTemplate::new(TEMPLATE, "", "").expect("a template");
    let turns = Turns::new(Arc::new(template), model.tokenizer().expect("a tokenizer"));
    let chat = Chat {
        turns: turns.expect("turns"),
        starts: Vec::new(),
        unread: Vec::new(),
        before_answer: None,
    };
    let options = SessionOptions {
        marks: 8,
        ..SessionOptions::default()
    };
    (chat, Session::new(model, options).expect("a session"))
}

/// The tokens of a text with special tokens.
fn tokens_of(session: &Session, text: &str) -> Vec<u32> {
    let tokenizer = session.model().tokenizer().expect("a tokenizer");
    tokenizer.encode_with_special(text).expect("tokens")
}

fn history(session: &Session) -> Vec<u32> {
    let (older, newer) = session.recent();
    [older, newer].concat()
}

/// Sends a message and answers it with this text.
fn turn(chat: &mut Chat, session: &mut Session, message: &str, answer: &str) {
    chat.send(session, message, Session::feed).expect("sent");
    let tokens = session
        .model()
        .tokenizer()
        .expect("a tokenizer")
        .encode(answer)
        .expect("tokens");
    session.feed(&tokens).expect("read");
    chat.answered(session, answer, None).expect("answered");
}

#[test]
fn a_dropped_thought_leaves_the_session_as_if_it_had_not_been() {
    let (mut chat, mut session) = conversation();
    turn(
        &mut chat,
        &mut session,
        "One",
        "a long thought</think>\n\nFirst.",
    );
    let thought = session.position();
    let mut read = Vec::new();
    let sent = chat.send(&mut session, "Two", |session, tokens| {
        read.extend_from_slice(tokens);
        session.feed(tokens)
    });
    assert_eq!(sent.expect("sent"), read.len());
    let expected = tokens_of(&session, BEFORE_THE_SECOND);
    assert_eq!(history(&session), expected);
    let message = tokens_of(&session, "<|user|>One<|eos|>");
    assert_eq!(read, expected[message.len()..]);

    // Undone, the conversation stands where the first answer began; sent again, it is the same.
    chat.undo(&mut session).expect("undone");
    assert!(session.position() < thought);
    chat.send(&mut session, "Two", Session::feed).expect("sent");
    assert_eq!(history(&session), expected);
    chat.answered(&session, "x</think>y", None)
        .expect("answered");
    let snapshot = chat.snapshot(&session).expect("a snapshot");
    chat.restore(&mut session, &snapshot).expect("restored");
    chat.send(&mut session, "Three", Session::feed)
        .expect("sent");
}

#[test]
fn messages_said_elsewhere_are_read_as_if_they_had_been_said_here() {
    let said = [("One", "First."), ("Two", "Second."), ("Three", "Third.")];
    let messages = |turns: &[(&str, &str)]| -> Vec<Message> {
        let turn = |&(user, answer): &(&str, &str)| {
            [
                Message::new(Role::User, user),
                Message::new(Role::Assistant, answer),
            ]
        };
        turns.iter().flat_map(turn).collect()
    };
    let (mut chat, mut session) = conversation();
    let read = chat.set_messages(&mut session, messages(&said[..2]), Session::feed);
    assert_eq!(read.expect("read"), session.position() as usize);
    let expected =
        "<|user|>One<|eos|><|assistant|>First.<|eos|><|user|>Two<|eos|><|assistant|>Second.";
    let expected = tokens_of(&session, expected);
    assert_eq!(history(&session), expected);

    // Only what is new is read; a turn can be taken back.
    let before = session.position();
    let read = chat.set_messages(&mut session, messages(&said), Session::feed);
    assert_eq!(read.expect("read") as u64, session.position() - before);
    assert_eq!(history(&session)[..expected.len()], expected);
    let taken_back = chat.undo(&mut session).expect("undone");
    assert_eq!(taken_back.as_deref(), Some("Three"));
    assert_eq!(history(&session), expected);
    chat.send(&mut session, "Four", Session::feed)
        .expect("sent");
    chat.answered(&session, "", None).expect("answered");

    // Another history is read from its beginning; one that cannot be used changes nothing.
    let here = session.position();
    let open = vec![Message::new(Role::User, "Five")];
    assert!(
        chat.set_messages(&mut session, open, Session::feed)
            .is_err()
    );
    assert_eq!((session.position(), chat.messages().len()), (here, 6));
    chat.set_messages(&mut session, messages(&said[1..2]), Session::feed)
        .expect("read");
    assert!(session.position() < here);
    let cancelled = chat.set_messages(&mut session, messages(&said[..1]), |_, _| {
        Err(Error::Cancelled { fed: 0 })
    });
    assert!(cancelled.is_err() && chat.messages().is_empty() && session.position() == 0);
}

#[test]
fn a_cancelled_rendering_leaves_the_conversation_as_it_was() {
    let (mut chat, mut session) = conversation();
    turn(&mut chat, &mut session, "One", "thought</think>\n\nFirst.");
    let (here, read) = (session.position(), history(&session));
    session.canceller().cancel();
    let sent = chat.send(&mut session, "Two", |_, _| panic!("nothing is fed"));
    assert!(matches!(sent, Err(Error::Cancelled { fed: 0 })), "{sent:?}");
    assert_eq!((session.position(), chat.messages().len()), (here, 2));
    assert_eq!(history(&session), read);
    session.canceller().cancel();
    assert!(matches!(Chat::new(&session), Err(Error::Cancelled { .. })));
    // The next call is not cancelled, and the thought is dropped still.
    chat.send(&mut session, "Two", Session::feed).expect("sent");
    assert_eq!(history(&session), tokens_of(&session, BEFORE_THE_SECOND));
}

#[test]
fn a_message_that_cannot_be_read_takes_nothing_with_it() {
    let (mut chat, mut session) = conversation();
    turn(&mut chat, &mut session, "One", "thought</think>\n\nFirst.");
    for fails_at in 0..2 {
        let mut calls = 0;
        let sent = chat.send(&mut session, "Two", |session, tokens| {
            calls += 1;
            match calls > fails_at {
                true => Err(Error::Cancelled { fed: 0 }),
                false => session.feed(tokens),
            }
        });
        assert!(sent.is_err());
        assert_eq!(chat.messages().len(), 2);
    }
    chat.send(&mut session, "Two", Session::feed).expect("sent");
    assert_eq!(history(&session), tokens_of(&session, BEFORE_THE_SECOND));
}

#[test]
fn numbers_of_a_saved_conversation_have_ranges() {
    let (mut chat, mut session) = conversation();
    turn(&mut chat, &mut session, "One", "First.");
    turn(&mut chat, &mut session, "Two", "Second.");
    let snapshot = chat.snapshot(&session).expect("a snapshot");
    let note: Value = serde_json::from_slice(&snapshot.note).expect("JSON");
    let (here, vocab) = (session.position(), session.model().spec().vocab);
    let too_many = |text: &str| json!(vec![0; 1 + 1024 + 4 * text.len()]);
    for (pointer, value, said) in [
        (
            "/unread",
            json!(vec![0; 1_000_000]),
            "1000000 tokens of an answer of 7 bytes",
        ),
        ("/unread", too_many("Second."), "expected at most 1052"),
        ("/unread", json!([vocab]), "is to be read"),
        ("/starts/0/unread", too_many(""), "expected at most 1024"),
        (
            "/starts/1/unread",
            too_many("First."),
            "expected at most 1048",
        ),
        ("/starts/1/unread", json!([u32::MAX]), "is to be read"),
        ("/starts/1/position", json!(here + 1), "turn 1 begins at"),
        ("/starts/0/position", json!(u64::MAX), "turn 0 begins at"),
        ("/starts/0/position", json!(here), "turn 1 begins at"),
        ("/starts", json!([]), "0 of 2 turns"),
        ("/starts/0/position", json!(-1), "not of a conversation"),
        ("/unread", json!([1u64 << 32]), "not of a conversation"),
        (
            "/sampler/logit_bias",
            json!(vec![(0, 0.0); vocab + 1]),
            "logit_bias",
        ),
        ("/sampler/penalty_window", json!(u64::MAX), "penalty_window"),
    ] {
        let mut forged = note.clone();
        *forged.pointer_mut(pointer).expect(pointer) = value;
        let mut changed = snapshot.clone();
        changed.note = serde_json::to_vec(&forged).expect("JSON");
        let refused = chat.restore(&mut session, &changed).expect_err(pointer);
        assert!(refused.to_string().contains(said), "{pointer}: {refused}");
        assert_eq!((session.position(), chat.messages().len()), (here, 4));
    }
    chat.restore(&mut session, &snapshot).expect("its own");
    chat.send(&mut session, "Three", Session::feed)
        .expect("sent");
    chat.undo(&mut session).expect("undone");
    assert_eq!(session.position(), here);
}
