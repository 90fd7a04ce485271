//! The subset of Jinja that chat templates need, for untrusted templates.
//!
//! A template comes with a model file and is a program, so it is untrusted: parsing and rendering run on a thread with its own stack,
//! trees and values have a maximum depth, and every read, write and allocation is first charged to one work budget ([`work::MAX_WORK`]).
//! The budget bounds time and memory together, without reading a clock: at one unit per byte no rendering allocates more than 128 MiB and
//! 16 times its variables in total. A panic ends the thread and becomes an error.
//!
//! The language is Jinja2's with transformers' settings: `trim_blocks`, `lstrip_blocks`, loop controls, `generation` blocks, its
//! `tojson`, and an immutable sandbox. Not supported are inheritance and imports, which need other files, and a few filters; the error
//! names them. Every text knows which of its bytes came from a message ([`marked`]).

mod ast;
mod eval;
mod expr;
mod expressions;
mod filters;
mod format;
#[cfg(test)]
mod hostile_tests;
mod lexer;
mod lists;
pub mod marked;
#[cfg(test)]
mod marks_tests;
mod methods;
mod operators;
mod parser;
mod tests;
mod text;
pub mod value;
pub mod work;

use std::time::{Duration, Instant};

use eval::Evaluator;
use work::Work;

use crate::cancel::Canceller;

/// Longest source in bytes: ten times that of any published template.
const MAX_SOURCE: usize = 256 << 10;
/// Time limit of a rendering, far above what any published template needs. A first message needs up to seven renderings.
const MAX_TIME: Duration = Duration::from_secs(2);
/// Stack of the thread that parses and renders; only touched pages take memory.
const STACK: usize = 32 << 20;
/// Upper bound of the bytes that a thread maps at start, in addition to its stack.
const THREAD_BYTES: usize = 1 << 20;
/// The message for a panic, which is always a bug in this library.
const PANICKED: &str = "internal error: the template engine panicked";
/// Largest output in bytes beyond [`GROWTH`] times the variables: several times the text of any published template. The output is
/// tokenized, so it must be bounded.
const MAX_OUTPUT: usize = 64 << 10;
/// Output bytes allowed per byte of the variables: each message twice, with tools escaped and indented.
const GROWTH: usize = 8;
/// Longest error message in characters.
const MAX_MESSAGE: usize = 600;

/// The reason why a template cannot be parsed or rendered.
#[derive(Debug)]
pub struct Failure {
    message: String,
    line: Option<u32>,
    is_limit: bool,
}

/// Result of parsing and rendering.
pub type Outcome<T> = Result<T, Failure>;

impl Failure {
    pub fn new(message: impl Into<String>) -> Self {
        Failure {
            message: message.into(),
            line: None,
            is_limit: false,
        }
    }

    /// A failure for reaching a limit of time, memory or depth, which no other form of the messages avoids.
    fn limit(message: &str) -> Self {
        Failure {
            is_limit: true,
            ..Failure::new(message)
        }
    }

    pub(super) fn is_limit(&self) -> bool {
        self.is_limit
    }

    fn at(line: u32, message: impl Into<String>) -> Self {
        Failure::new(message).or_line(line)
    }

    /// Sets the line, unless there is one already.
    fn or_line(mut self, line: u32) -> Self {
        self.line = self.line.or(Some(line));
        self
    }
}

/// Writes the message with its line, and escapes control characters, which a template may put into it.
impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter) -> std::fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        for character in self.message.chars().take(MAX_MESSAGE) {
            if character.is_control() {
                write!(f, "{}", character.escape_default())?
            } else {
                write!(f, "{character}")?
            }
        }
        Ok(())
    }
}

/// A parsed template.
pub struct Template {
    statements: Vec<ast::Statement>,
}

impl Template {
    /// Parses `source`.
    pub fn new(source: &str) -> Outcome<Self> {
        if source.len() > MAX_SOURCE {
            let length = source.len();
            return Err(Failure::new(format!(
                "it has {length} bytes, expected at most {MAX_SOURCE}"
            )));
        }
        let statements = on_a_stack(|| parser::parse(source))?;
        Ok(Template { statements })
    }

    /// Renders with the variables that `variables` makes; `canceller` can stop it.
    pub fn render(
        &self,
        variables: impl FnOnce(&mut Work) -> Outcome<Vec<(String, value::Value)>> + Send,
        canceller: &Canceller,
    ) -> Outcome<marked::Marked> {
        on_a_stack(|| {
            let mut work = Work::new(Instant::now() + MAX_TIME, canceller);
            let values = variables(&mut work)?;
            let most = MAX_OUTPUT + GROWTH * work.grow();
            Evaluator::new(work, most).render(&self.statements, values)
        })
    }
}

/// Runs `run` on a new thread with a known stack size. A panic becomes a failure.
fn on_a_stack<T: Send>(run: impl FnOnce() -> Outcome<T> + Send) -> Outcome<T> {
    // The new thread would abort the process if it could not map its signal stack.
    let room = Vec::<u8>::new().try_reserve_exact(STACK + THREAD_BYTES);
    room.map_err(|_| Failure::new("not enough memory to process it"))?;
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("template".into())
            .stack_size(STACK);
        let thread = thread.spawn_scoped(scope, run);
        let thread =
            thread.map_err(|error| Failure::new(format!("cannot start a thread: {error}")))?;
        thread
            .join()
            .unwrap_or_else(|_| Err(Failure::new(PANICKED)))
    })
}
