//! Notices about a conversation: at its start, after each answer, and before its context is full.

use super::conversation::{Conversation, Reply};
use super::sessions::Sessions;
use crate::builtin;
use crate::text::shown_line;
use crate::units::{bytes, count, rounded, thousands};

/// The filled share of the context from which the warning is shown.
const NEARLY_FULL: f64 = 0.75;

/// Returns the lines above the first prompt.
pub fn banner(conversation: &Conversation, sessions: &Sessions) -> String {
    let session = conversation.session();
    let model = session.model();
    let threads = match session.threads() {
        1 => "1 thread".into(),
        threads => format!("{threads} threads"),
    };
    let bound = match conversation.context() {
        Some(context) => format!("for {} tokens", thousands(context as u64)),
        None => "that does not grow".into(),
    };
    let mut lines = vec![
        format!(
            "{}: {} parameters, {threads}, a state of {} {bound}.",
            shown_line(model.name(), 60),
            count(model.spec().parameters()),
            bytes(session.state_bytes()),
        ),
        "/help lists the commands.".into(),
        format!(
            "Try:  {}",
            openings(builtin::is_builtin(model)).join("\n      ")
        ),
    ];
    if let Some(last) = sessions.list().first() {
        lines.push(format!(
            "/resume continues \"{}\" of {}.",
            shown_line(&last.title(), 40),
            last.when()
        ));
    }
    lines.join("\n")
}

/// Three suggestions for a first message.
fn openings(builtin: bool) -> [&'static str; 3] {
    if builtin {
        [
            "My name is Ann and I have a red ball.",
            "What is 12 plus 7?",
            "Tell me a story about a dog.",
        ]
    } else {
        [
            "What can you do?",
            "Explain in two sentences why the sky is blue.",
            "Write a short poem about rain.",
        ]
    }
}

/// Returns the line below an answer: its speed, tokens read and reused, the time to its first token, the size of the state.
pub fn after(conversation: &Conversation, reply: &Reply) -> String {
    let session = conversation.session();
    format!(
        "{}{} tok/s · {} tokens read · {} reused, {} new · first {} s · {}",
        if reply.stopped { "stopped · " } else { "" },
        rounded(reply.tokens_per_second()),
        thousands(session.position()),
        thousands(reply.read.reused as u64),
        thousands(reply.read.read as u64),
        rounded(reply.first),
        bytes(session.state_bytes()),
    )
}

/// Returns a warning once the context is nearly full, naming the flags that help. States without such a limit never get one.
pub fn nearly_full(conversation: &Conversation) -> Option<String> {
    let context = conversation.context()? as u64;
    let read = conversation.session().position();
    (read as f64 >= NEARLY_FULL * context as f64 && !conversation.forgets()).then(|| {
        format!(
            "The context is {} % full ({} of {} tokens). /undo takes the last message back, /clear begins anew; start with --context {} \
             for more, or with --on-full shift or compact to forget the oldest.",
            100 * read.min(context) / context,
            thousands(read),
            thousands(context),
            4 * context
        )
    })
}
