use serde_json::{Value, json};

use super::*;
use crate::loaded::Model;
use crate::session::{PrefixStore, PrefixStoreOptions, SessionOptions};
use crate::text::ChatTemplate;

/// Like many published templates, omits the thoughts of answers that are followed by another message.
const TEMPLATE: &str = "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% if loop.last %}{{ m.content }}{% else %}\
    {{ m.content.split('</think>')[-1].lstrip('\\n') }}{% endif %}<|eos|>{% else %}<|user|>{{ m.content }}<|eos|>\
    {% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|><think>{% endif %}";

/// A template that leaves answers as they are.
const PLAIN: &str = "{% for m in messages %}<|{{ 'assistant' if m.role == 'assistant' else 'user' }}|>{{ m.content }}<|eos|>{% endfor %}\
    {% if add_generation_prompt %}<|assistant|>{% endif %}";

/// The text that has been read when the second message waits for its answer.
const BEFORE_THE_SECOND: &str =
    "<|user|>One<|eos|><|assistant|>First.<|eos|><|user|>Two<|eos|><|assistant|><think>";

fn session(store: bool) -> Session {
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../tools/model/waterline-chat.gguf"
    );
    let model = Model::open(path).expect("the built-in model");
    let store = store.then(|| PrefixStore::new(PrefixStoreOptions::default()).expect("a store"));
    let options = SessionOptions {
        marks: if store.is_some() { 0 } else { 8 },
        store,
        ..SessionOptions::default()
    };
    Session::new(model, options).expect("a session")
}

fn chat(session: &Session, template: &str) -> Chat {
    let template = ChatTemplate::new(template, "", "").expect("a template");
    let tokenizer = session.model().tokenizer().expect("a tokenizer");
    Chat::from_turns(Turns::new(Arc::new(template), tokenizer).expect("turns"))
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

/// The session reads a text as if it had generated it.
fn answer(chat: &mut Chat, session: &mut Session, answer: &str) {
    let tokenizer = session.model().tokenizer().expect("a tokenizer");
    for token in tokenizer.encode(answer).expect("tokens") {
        session.feed(&[token]).expect("read");
    }
    chat.answered(session, answer).expect("answered");
}

/// Sends a message and answers it with this text.
fn turn(chat: &mut Chat, session: &mut Session, message: &str, said: &str) -> HistoryRead {
    let read = chat.send(session, message, |_, _| ()).expect("sent");
    answer(chat, session, said);
    read
}

#[test]
fn a_dropped_thought_leaves_the_session_as_if_it_had_not_been() {
    for store in [false, true] {
        let mut session = session(store);
        let mut chat = chat(&session, TEMPLATE);
        turn(
            &mut chat,
            &mut session,
            "One",
            "a long thought</think>\n\nFirst.",
        );
        let thought = session.position();
        let read = chat.send(&mut session, "Two", |_, _| ()).expect("sent");
        let expected = tokens_of(&session, BEFORE_THE_SECOND);
        assert_eq!(history(&session), expected);
        if store {
            let message = tokens_of(&session, "<|user|>One<|eos|>");
            assert_eq!(read.reused, message.len());
        }
        assert_eq!(read.reused + read.read, expected.len());

        // Undoing and sending again gives the same conversation.
        chat.undo(&mut session).expect("undone");
        assert!(session.position() < thought);
        chat.send(&mut session, "Two", |_, _| ()).expect("sent");
        assert_eq!(history(&session), expected);
        chat.answered(&mut session, "x</think>y").expect("answered");
        let snapshot = chat.snapshot(&session).expect("a snapshot");
        chat.restore(&mut session, &snapshot).expect("restored");
        chat.send(&mut session, "Three", |_, _| ()).expect("sent");
    }
}

#[test]
fn histories_of_clients_are_read_where_they_are_new() {
    let mut session = session(true);
    let mut chat = chat(&session, TEMPLATE);
    let messages = |turns: &[(&str, &str)]| -> Vec<Message> {
        let message =
            |&(role, text): &(&str, &str)| Message::new(Role::from(role.to_string()), text);
        turns.iter().map(message).collect()
    };
    let mut said = vec![("user", "One"), ("assistant", "First."), ("user", "Two")];
    let read = chat
        .set_messages(&mut session, messages(&said), |_, _| ())
        .expect("read");
    assert_eq!((read.reused, read.read), (0, session.position() as usize));
    assert_eq!(history(&session), tokens_of(&session, BEFORE_THE_SECOND));

    // Reading the same history again costs nothing, in this session or another one.
    let read = chat
        .set_messages(&mut session, messages(&said), |_, _| ())
        .expect("read");
    assert_eq!(read.read, 0);
    let options = session.options().clone();
    let mut other = Session::new(Arc::clone(session.model()), options).expect("a session");
    let read = chat
        .set_messages(&mut other, messages(&said), |_, _| ())
        .expect("read");
    assert_eq!(read.read, 0);
    assert_eq!(
        other.logits().expect("logits"),
        session.logits().expect("logits")
    );

    // Accepts any roles in any order, and continues a prefilled answer.
    for roles in [
        vec![("assistant", "Welcome!"), ("user", "hey")],
        vec![("user", "one"), ("user", "two")],
        vec![("system", "a"), ("system", "b"), ("user", "x")],
        vec![
            ("user", "a"),
            ("tool", "42"),
            ("assistant", "it is"),
            ("developer", "s"),
            ("user", "ok"),
        ],
        vec![("user", "")],
    ] {
        chat.set_messages(&mut session, messages(&roles), |_, _| ())
            .expect("read");
    }
    said = vec![("user", "a"), ("assistant", "Sure, ")];
    chat.set_messages(&mut session, messages(&said), |_, _| ())
        .expect("read");
    assert_eq!(
        history(&session),
        tokens_of(&session, "<|user|>a<|eos|><|assistant|>Sure, ")
    );
    answer(&mut chat, &mut session, "why not");
    assert_eq!(chat.messages()[1].content, "Sure, why not");
}

#[test]
fn what_follows_an_answer_is_read_alone() {
    for store in [false, true] {
        let mut session = session(store);
        let mut chat = chat(&session, PLAIN);
        turn(&mut chat, &mut session, "One", "Now, then.");
        // Other tokens for the same text, as a model may choose them.
        chat.send(&mut session, "Two", |_, _| ()).expect("sent");
        let tokenizer = session.model().tokenizer().expect("a tokenizer");
        for part in ["Se", "co", "nd."] {
            session
                .feed(&tokenizer.encode(part).expect("tokens"))
                .expect("read");
        }
        let answer = "Second.";
        assert_ne!(tokenizer.encode(answer).expect("tokens").len(), 3);
        chat.answered(&mut session, answer).expect("answered");
        let end = session.position() as usize;
        let mut fork = session.fork().expect("a fork");
        let read = chat
            .clone()
            .send(&mut fork, "Three", |_, _| ())
            .expect("sent");
        assert_eq!(read.reused, end);

        // Another answer to the same message reads nothing; an edited answer is read from its beginning.
        let asked = chat.messages()[..3].to_vec();
        let read = chat
            .set_messages(&mut session, asked.clone(), |_, _| ())
            .expect("read");
        assert_eq!(read.read, 0);
        let prompt = session.position() as usize;
        let mut edited = asked;
        edited.push(Message::new(Role::Assistant, "Edited."));
        edited.push(Message::new(Role::User, "Three"));
        let read = chat
            .set_messages(&mut session, edited, |_, _| ())
            .expect("read");
        assert_eq!(read.reused, prompt);
    }
}

#[test]
fn the_tokens_of_an_answer_are_kept_with_the_conversation() {
    let mut session = session(true);
    let mut chat = chat(&session, PLAIN);
    let tokenizer = session.model().tokenizer().expect("a tokenizer");
    chat.send(&mut session, "One", |_, _| ()).expect("sent");
    // Other tokens for the same text, as a model may choose them, and the token that ends the answer.
    for part in ["Se", "co", "nd."] {
        session
            .feed(&tokenizer.encode(part).expect("tokens"))
            .expect("read");
    }
    session
        .feed(&[chat.end_token().expect("an end")])
        .expect("read");
    chat.answered(&mut session, "Second.").expect("answered");
    let before = history(&session);
    turn(&mut chat, &mut session, "Two", "Then.");
    let after = history(&session);
    let snapshot = chat.snapshot(&session).expect("a snapshot");
    let note = chat.note(&session).expect("a note");

    for whole in [true, false] {
        let mut other = self::session(false);
        let mut again = self::chat(&other, PLAIN);
        if whole {
            again.restore(&mut other, &snapshot).expect("restored")
        } else {
            again.restore_note(&mut other, &note).expect("restored")
        }
        again.undo(&mut other).expect("undone");
        assert_eq!(history(&other), before);
        turn(&mut again, &mut other, "Two", "Then.");
        assert_eq!(history(&other), after);
    }
    chat.undo(&mut session).expect("undone");
    assert_eq!(history(&session), before);

    // Tokens of another text, control tokens and invalid token numbers are rejected: the text is tokenized again.
    let parsed: Value = serde_json::from_slice(&note).expect("JSON");
    let plain = tokenizer.encode("Third.").expect("tokens");
    let end = chat.end_token().expect("an end");
    for (tokens, ending) in [
        (json!(plain), json!([])),
        (json!([end]), json!([])),
        (json!([u32::MAX]), json!([])),
        (parsed["answers"][0]["tokens"].clone(), json!([plain[0]])),
    ] {
        let mut forged = parsed.clone();
        forged["answers"][0]["tokens"] = tokens;
        forged["answers"][0]["end"] = ending;
        let forged = serde_json::to_vec(&forged).expect("JSON");
        let mut other = self::session(false);
        let mut again = self::chat(&other, PLAIN);
        again.restore_note(&mut other, &forged).expect("restored");
        again.undo(&mut other).expect("undone");
        let text = tokens_of(&other, "<|user|>One<|eos|><|assistant|>Second.");
        assert_eq!(history(&other), text);
    }
}

#[test]
fn contents_in_json_are_texts_or_none_or_parts() {
    let read = |json: &str| serde_json::from_str::<Message>(json);
    let text = |json: &str| read(json).expect("a message").content;
    assert_eq!(text(r#"{"role":"user","content":"a"}"#), "a");
    assert_eq!(text(r#"{"role":"assistant","content":null}"#), "");
    assert_eq!(text(r#"{"role":"assistant"}"#), "");
    let parts =
        r#"{"role":"user","content":[{"type":"text","text":"a"},{"type":"text","text":"b"}]}"#;
    assert_eq!(text(parts), "ab");
    assert!(read(r#"{"role":"user","content":[{"type":"image_url","image_url":{}}]}"#).is_err());
    assert!(read(r#"{"role":"user","content":7}"#).is_err());
    let named = read(r#"{"role":"tool","content":"a","name":"bob"}"#).expect("a message");
    assert_eq!(
        (named.role.name(), named.fields["name"].as_str()),
        ("tool", Some("bob"))
    );
}

#[test]
fn a_cancelled_rendering_leaves_the_conversation_as_it_was() {
    let mut session = session(true);
    let mut chat = chat(&session, TEMPLATE);
    turn(&mut chat, &mut session, "One", "thought</think>\n\nFirst.");
    let (here, read) = (session.position(), history(&session));
    session.canceller().cancel();
    let sent = chat.send(&mut session, "Two", |_, _| panic!("nothing is read"));
    assert!(matches!(sent, Err(Error::Cancelled { fed: 0 })), "{sent:?}");
    assert_eq!((session.position(), chat.messages().len()), (here, 2));
    assert_eq!(history(&session), read);
    session.canceller().cancel();
    assert!(matches!(Chat::new(&session), Err(Error::Cancelled { .. })));
    // The next call is not cancelled, and the thought is still dropped.
    chat.send(&mut session, "Two", |_, _| ()).expect("sent");
    assert_eq!(history(&session), tokens_of(&session, BEFORE_THE_SECOND));
}

#[test]
fn a_message_whose_reading_is_cancelled_was_not_sent() {
    let mut session = session(true);
    let mut chat = chat(&session, TEMPLATE);
    turn(&mut chat, &mut session, "One", "thought</think>\n\nFirst.");
    let canceller = session.canceller();
    let long = "a word and ".repeat(400);
    let sent = chat.send(&mut session, &long, |_, _| canceller.cancel());
    assert!(matches!(sent, Err(Error::Cancelled { .. })), "{sent:?}");
    assert_eq!(chat.messages().len(), 2);
    chat.send(&mut session, "Two", |_, _| ()).expect("sent");
    assert_eq!(history(&session), tokens_of(&session, BEFORE_THE_SECOND));
}

#[test]
fn numbers_of_a_saved_conversation_have_ranges() {
    let mut session = session(false);
    let mut chat = chat(&session, TEMPLATE);
    turn(&mut chat, &mut session, "One", "First.");
    let snapshot = chat.snapshot(&session).expect("a snapshot");
    let note: Value = serde_json::from_slice(&snapshot.note).expect("JSON");
    let (here, vocab) = (session.position(), session.model().spec().vocab);
    let biases = json!(vec![(0, 0.0); vocab + 1]);
    for (pointer, value, said) in [
        ("/sampler/logit_bias", biases, "logit_bias"),
        ("/sampler/penalty_window", json!(u64::MAX), "penalty_window"),
        ("/messages", json!(7), "not of a conversation"),
        ("/messages/0/role", json!(7), "not of a conversation"),
    ] {
        let mut forged = note.clone();
        *forged.pointer_mut(pointer).expect(pointer) = value;
        let mut changed = snapshot.clone();
        changed.note = serde_json::to_vec(&forged).expect("JSON");
        let refused = chat.restore(&mut session, &changed).expect_err(pointer);
        assert!(refused.to_string().contains(said), "{pointer}: {refused}");
        assert_eq!((session.position(), chat.messages().len()), (here, 2));
    }
    // Older notes also store where turns begin and what is unread; both now follow from the messages.
    let mut older = note.clone();
    older["starts"] = json!([{ "position": u64::MAX, "unread": [u32::MAX] }]);
    older["unread"] = json!([u32::MAX]);
    let mut changed = snapshot.clone();
    changed.note = serde_json::to_vec(&older).expect("JSON");
    chat.restore(&mut session, &changed).expect("its own");
    chat.send(&mut session, "Two", |_, _| ()).expect("sent");
    chat.undo(&mut session).expect("undone");
    // The messages alone are sufficient.
    chat.restore_note(&mut session, &snapshot.note)
        .expect("a note");
    chat.send(&mut session, "Two", |_, _| ()).expect("sent");
    assert_eq!(history(&session), tokens_of(&session, BEFORE_THE_SECOND));
}
