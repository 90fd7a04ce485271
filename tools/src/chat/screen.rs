//! The terminal output: answers, and everything else in a dimmer colour.

use std::io::{IsTerminal, Write};

use super::wrap::Wrap;
use crate::error::{Error, Result};
use crate::text::shown;

/// Where answers and remarks go.
pub struct Screen {
    /// Whether a person sits at both ends.
    interactive: bool,
    colour: bool,
    /// Whether the last answer ended in the middle of a line.
    open_line: bool,
    /// The answer that is being shown.
    answer: Wrap,
}

impl Screen {
    /// Finds out where the output goes.
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

    /// Whether a person sits at both ends; otherwise only answers go to standard output.
    pub fn interactive(&self) -> bool {
        self.interactive
    }

    /// Columns of the terminal; none without a terminal, or where it cannot erase a word.
    pub fn columns(&self) -> Option<usize> {
        let plain = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let size = console::Term::stdout().size_checked();
        size.map(|(_, columns)| columns.into())
            .filter(|_| self.interactive && !plain)
    }

    /// A piece of an answer; a thought is dimmed.
    pub fn answer(&mut self, text: &str, thought: bool) -> Result<()> {
        if self.interactive && !self.open_line {
            // The window may have another size by now.
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

    /// Ends the answer's last line; an empty answer is an empty line.
    pub fn end_answer(&mut self, empty: bool) -> Result<()> {
        if self.open_line || empty {
            self.open_line = false;
            writeln!(std::io::stdout()).map_err(Error::Stdout)?;
        }
        Ok(())
    }

    /// A remark of the program's.
    pub fn notice(&mut self, text: &str) -> Result<()> {
        let text = shown(text);
        if !self.interactive {
            // Remarks in a pipe are a courtesy.
            let _ = writeln!(std::io::stderr(), "{text}");
            return Ok(());
        }
        let text = Wrap::new(self.columns()).push_whole(&text);
        writeln!(std::io::stdout(), "{}", self.dimmed(&text)).map_err(Error::Stdout)
    }

    /// The text in a dimmer colour, where the terminal has colours.
    fn dimmed(&self, text: &str) -> String {
        if self.interactive && self.colour {
            format!("\x1b[2m{text}\x1b[0m")
        } else {
            text.into()
        }
    }

    /// Something that did not work. The conversation goes on.
    pub fn problem(&mut self, error: &Error) -> Result<()> {
        self.notice(&error.sentence())
    }
}
