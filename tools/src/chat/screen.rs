//! What a person sees: answers, and everything else in a dimmer colour.

use std::io::{IsTerminal, Write};

use crate::error::{Error, Result};
use crate::text::printable;

/// Where answers and remarks go.
pub struct Screen {
    /// Whether a person sits at both ends.
    interactive: bool,
    colour: bool,
    /// Whether the last answer ended in the middle of a line.
    open_line: bool,
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
        }
    }

    /// Whether a person sits at both ends; otherwise only answers go to standard output.
    pub fn interactive(&self) -> bool {
        self.interactive
    }

    /// A piece of an answer; a thought is dimmed.
    pub fn answer(&mut self, text: &str, thought: bool) -> Result<()> {
        let mut out = std::io::stdout();
        let shown = match self.interactive {
            true if thought && self.colour => format!("\x1b[2m{}\x1b[0m", printable(text)),
            true => printable(text),
            false => text.to_string(),
        };
        out.write_all(shown.as_bytes())
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
        let text = printable(text);
        if !self.interactive {
            // Remarks in a pipe are a courtesy.
            let _ = writeln!(std::io::stderr(), "{text}");
            return Ok(());
        }
        let (dim, plain) = if self.colour {
            ("\x1b[2m", "\x1b[0m")
        } else {
            ("", "")
        };
        writeln!(std::io::stdout(), "{dim}{text}{plain}").map_err(Error::Stdout)
    }

    /// Something that did not work. The conversation goes on.
    pub fn problem(&mut self, error: &Error) -> Result<()> {
        self.notice(&error.to_string())
    }
}
