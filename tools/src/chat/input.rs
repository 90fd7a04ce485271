//! Input lines: from a person at a terminal, with editing and history, or from a pipe.

use std::io::{BufRead, ErrorKind};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{
    Cmd, CompletionType, ConditionalEventHandler, Config, Context, Editor, Event, EventContext,
    EventHandler, Helper, KeyCode, KeyEvent, Modifiers, RepeatCount,
};

use super::completion;
use super::screen::Screen;
use super::sessions::state_folder;
use crate::error::{Error, Result};
use crate::text::utf8;

/// One input.
pub enum Line {
    /// One message or command; a message may have several lines.
    Text(String),
    /// A message in quotes, which may begin with a slash.
    Quoted(String),
    /// Input that is not valid text.
    Unreadable(Error),
    /// Ctrl-C on an empty line.
    Hint,
    /// End of input.
    End,
}

/// The source of input lines.
pub enum Input {
    /// A person at a terminal.
    Person(Box<Person>),
    /// A pipe or file.
    Pipe,
}

impl Input {
    /// Reads from a person if `screen` is interactive. The history is saved in `history`, or else in the user's state
    /// folder, unless `private` is set.
    pub fn new(history: Option<PathBuf>, private: bool, screen: &mut Screen) -> Result<Self> {
        if !screen.interactive() {
            return Ok(Input::Pipe);
        }
        Ok(Input::Person(Box::new(Person::new(
            history.or_else(default_history).filter(|_| !private),
            screen,
        )?)))
    }

    /// Waits for the next message or command; Tab completes the names in `forks`.
    pub fn next(&mut self, screen: &mut Screen, forks: Vec<String>) -> Result<Line> {
        match self {
            Input::Person(person) => person.next(screen, forks),
            Input::Pipe => next_from_pipe(),
        }
    }
}

/// Begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Whether the input continues on the next line: it ends in a backslash, or quotes are open.
fn goes_on(typed: &str) -> bool {
    let text = typed.trim();
    match text.strip_prefix(QUOTES) {
        Some(rest) => !rest.ends_with(QUOTES),
        None => typed.ends_with('\\'),
    }
}

/// Converts the typed text, which may span several lines.
fn line(typed: &str) -> Line {
    let text = typed.trim();
    match text.strip_prefix(QUOTES) {
        Some(rest) => {
            let text = rest.strip_suffix(QUOTES).unwrap_or(rest);
            Line::Quoted(text.trim_matches('\n').into())
        }
        None => Line::Text(typed.replace("\\\n", "\n")),
    }
}

/// Reads a message of one or more lines.
fn next_from_pipe() -> Result<Line> {
    let mut bytes = Vec::new();
    let mut stdin = std::io::stdin().lock();
    loop {
        let read = stdin
            .read_until(b'\n', &mut bytes)
            .map_err(|e| Error::io("standard input", e))?;
        if read == 0 && bytes.is_empty() {
            return Ok(Line::End);
        }
        if bytes.last() == Some(&b'\n') {
            bytes.pop();
            if bytes.last() == Some(&b'\r') {
                bytes.pop();
            }
        }
        if read == 0 || !goes_on(&String::from_utf8_lossy(&bytes)) {
            break;
        }
        bytes.push(b'\n');
    }
    let text = utf8(bytes, "standard input");
    Ok(text.map_or_else(Line::Unreadable, |text| line(&text)))
}

/// A person at a terminal.
pub struct Person {
    editor: Editor<Keys, FileHistory>,
    history: Option<PathBuf>,
    /// Whether the line was empty when Ctrl-C was pressed.
    was_empty: Arc<AtomicBool>,
    /// Whether the last input was Ctrl-C on an empty line.
    about_to_leave: bool,
}

impl Person {
    fn new(history: Option<PathBuf>, screen: &mut Screen) -> Result<Self> {
        let config = Config::builder()
            .history_ignore_space(true)
            .auto_add_history(true)
            .completion_type(CompletionType::List)
            .build();
        let mut editor = Editor::with_config(config).map_err(terminal)?;
        editor.set_helper(Some(Keys::default()));
        editor.bind_sequence(
            KeyEvent(KeyCode::Enter, Modifiers::ALT),
            EventHandler::Simple(Cmd::Newline),
        );
        let was_empty = Arc::new(AtomicBool::new(false));
        let watch = WatchInterrupt(Arc::clone(&was_empty));
        editor.bind_sequence(
            KeyEvent::ctrl('C'),
            EventHandler::Conditional(Box::new(watch)),
        );
        let mut person = Person {
            editor,
            history,
            was_empty,
            about_to_leave: false,
        };
        if let Err(error) = person.open_history() {
            person.give_up_history(error, screen)?;
        }
        Ok(person)
    }

    /// Loads the lines of earlier conversations. Fails if the history cannot be saved.
    fn open_history(&mut self) -> std::result::Result<(), ReadlineError> {
        let Some(path) = &self.history else {
            return Ok(());
        };
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        match self.editor.load_history(path) {
            Err(ReadlineError::Io(e)) if e.kind() == ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Continues without a history and reports the reason once.
    fn give_up_history(&mut self, error: ReadlineError, screen: &mut Screen) -> Result<()> {
        match self.history.take() {
            Some(path) => {
                screen.notice(&format!("{}: no history is kept: {error}", path.display()))
            }
            None => Ok(()),
        }
    }

    fn next(&mut self, screen: &mut Screen, forks: Vec<String>) -> Result<Line> {
        if let Some(keys) = self.editor.helper_mut() {
            keys.forks = forks;
        }
        let was_about_to_leave = std::mem::take(&mut self.about_to_leave);
        match self.editor.readline(&("> ", "\x1b[1;36m> \x1b[0m")) {
            Ok(typed) => {
                let kept = self
                    .history
                    .as_ref()
                    .map_or(Ok(()), |path| self.editor.append_history(path));
                if let Err(error) = kept {
                    self.give_up_history(error, screen)?;
                }
                Ok(line(&typed))
            }
            Err(ReadlineError::Interrupted) if !self.was_empty.load(Ordering::SeqCst) => {
                Ok(Line::Text(String::new()))
            }
            Err(ReadlineError::Interrupted) if was_about_to_leave => Ok(Line::End),
            Err(ReadlineError::Interrupted) => {
                self.about_to_leave = true;
                Ok(Line::Hint)
            }
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(terminal(error)),
        }
    }
}

fn terminal(error: ReadlineError) -> Error {
    Error::input("terminal", error.to_string())
}

fn default_history() -> Option<PathBuf> {
    Some(state_folder()?.join("history"))
}

/// Records whether the line was empty when Ctrl-C was pressed.
struct WatchInterrupt(Arc<AtomicBool>);

impl ConditionalEventHandler for WatchInterrupt {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, context: &EventContext) -> Option<Cmd> {
        self.0.store(context.line().is_empty(), Ordering::SeqCst);
        Some(Cmd::Interrupt)
    }
}

/// Key bindings: Enter starts a new line if the message continues, and Tab completes commands.
#[derive(Default)]
struct Keys {
    forks: Vec<String>,
}

impl Validator for Keys {
    fn validate(&self, context: &mut ValidationContext) -> rustyline::Result<ValidationResult> {
        Ok(if goes_on(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Keys {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        cursor: usize,
        _: &Context,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        Ok(completion::complete(&line[..cursor], &self.forks))
    }
}

impl Highlighter for Keys {}

impl Hinter for Keys {
    type Hint = String;
}

impl Helper for Keys {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_on_until_it_is_closed() {
        for (typed, on) in [
            ("one", false),
            ("one\\", true),
            ("\"\"\"", true),
            ("\"\"\"one\ntwo", true),
            ("\"\"\"one\ntwo\\\n\"\"\"", false),
            ("\"\"\"one\"\"\"", false),
        ] {
            assert_eq!(goes_on(typed), on, "{typed:?}");
        }
        let is = |typed: &str, quoted: bool, text: &str| match line(typed) {
            Line::Text(found) => assert_eq!((false, text), (quoted, &*found)),
            Line::Quoted(found) => assert_eq!((true, text), (quoted, &*found)),
            _ => panic!("{typed}"),
        };
        is("one\\\ntwo", false, "one\ntwo");
        is("\"\"\"\none\n\n two\n\"\"\"", true, "one\n\n two");
        is("\"\"\"/help\"\"\"", true, "/help");
    }
}
