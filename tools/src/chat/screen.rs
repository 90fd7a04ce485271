//! The terminal output: answers, and everything else in a dimmer colour.

use std::io::{IsTerminal, Write};

use super::wrap::Wrap;
use crate::error::{Error, Result};
use crate::text::shown;

/// The output for answers and notices.
pub struct Screen {
    /// Whether a person is at both input and output.
    interactive: bool,
    colour: bool,
    /// Whether the last answer ended in the middle of a line.
    open_line: bool,
    /// Wraps the answer that is being shown.
    answer: Wrap,
}

impl Screen {
    /// Detects the kind of output.
    pub fn new() -> Self {
        let terminal = std::io::stdout().is_terminal();
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Screen {
            interactive: terminal && std::io::stdin().is_terminal(),
            colour: terminal && !no_colour,
            open_line: false,
            answer: Wrap::default(),
        }
    }

    /// Whether a person is at both input and output. Otherwise only answers go to standard output.
    pub fn interactive(&self) -> bool {
        self.interactive
    }

    /// The terminal's width in columns; `None` without a terminal, or if the terminal cannot erase a word.
    pub fn columns(&self) -> Option<usize> {
        let plain = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let size = console::Term::stdout().size_checked();
        size.map(|(_, columns)| columns.into())
            .filter(|_| self.interactive && !plain)
    }

    /// Shows a piece of an answer; thoughts are dimmed.
    pub fn answer(&mut self, text: &str, thought: bool) -> Result<()> {
        if self.interactive && !self.open_line {
            // The window may have been resized.
            self.answer = Wrap::new(self.columns());
        }
        let wrapped = if self.interactive {
            self.answer.push(&shown(text))
        } else {
            text.to_string()
        };
        let sent = if thought {
            self.dimmed(&wrapped)
        } else {
            wrapped
        };
        let mut out = std::io::stdout();
        out.write_all(sent.as_bytes())
            .and_then(|()| out.flush())
            .map_err(Error::Stdout)?;
        self.open_line = !text.ends_with('\n') && (self.open_line || !text.is_empty());
        Ok(())
    }

    /// Ends the answer's last line. An empty answer is shown as an empty line.
    pub fn end_answer(&mut self, empty: bool) -> Result<()> {
        if self.open_line || empty {
            self.open_line = false;
            writeln!(std::io::stdout()).map_err(Error::Stdout)?;
        }
        Ok(())
    }

    /// Sends a control sequence to the terminal.
    pub fn control(&mut self, sequence: &str) -> Result<()> {
        let mut out = std::io::stdout();
        let sent = out.write_all(sequence.as_bytes());
        sent.and_then(|()| out.flush()).map_err(Error::Stdout)
    }

    /// Shows a notice from the program.
    pub fn notice(&mut self, text: &str) -> Result<()> {
        let text = shown(text);
        if !self.interactive {
            // Notices through a pipe are optional, so errors are ignored.
            let _ = writeln!(std::io::stderr(), "{text}");
            return Ok(());
        }
        let text = Wrap::new(self.columns()).push_whole(&text);
        writeln!(std::io::stdout(), "{}", self.dimmed(&text)).map_err(Error::Stdout)
    }

    /// The text in a dimmer colour, if the terminal has colours.
    fn dimmed(&self, text: &str) -> String {
        if self.interactive && self.colour {
            format!("\x1b[2m{text}\x1b[0m")
        } else {
            text.into()
        }
    }

    /// Shows an error after which the conversation continues.
    pub fn problem(&mut self, error: &Error) -> Result<()> {
        self.notice(&error.sentence())
    }
}
