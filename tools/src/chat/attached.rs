//! `/read`: the texts of files, which go in front of the next message.

use std::fs;

use super::completion;
use super::conversation::Conversation;
use crate::error::{Error, Result};
use crate::text::read_file;
use crate::units::{bytes, thousands};

/// Size limit of a file.
const MOST_BYTES: u64 = 16 << 20;

/// The texts that go in front of the next message.
#[derive(Default)]
pub struct Attached {
    texts: String,
    tokens: usize,
}

impl Attached {
    /// Adds the text of the file that the user typed. Returns the text to show.
    ///
    /// # Errors
    /// The file is no text, or larger than the limit or than the rest of the context.
    pub fn add(&mut self, typed: &str, conversation: &Conversation) -> Result<String> {
        if typed.is_empty() {
            return Err(Error::usage("/read FILE: which file?"));
        }
        let path = completion::path(typed);
        let about = fs::metadata(&path).map_err(|error| Error::io(&path, error))?;
        if !about.is_file() {
            return Err(Error::input(&path, "expected a file"));
        }
        if about.len() > MOST_BYTES {
            let (found, most) = (bytes(about.len() as usize), bytes(MOST_BYTES as usize));
            return Err(Error::input(
                &path,
                format!("found {found}, expected at most {most}"),
            ));
        }
        let text = read_file(&path)?;
        let tokens = conversation.count_tokens(&text)?;
        let all = self.tokens + tokens;
        if let Some(room) = conversation.room().filter(|&room| all > room) {
            let (found, room) = (thousands(all as u64), thousands(room as u64));
            let reason =
                format!("found {found} tokens, the context has room for {room} (--context)");
            return Err(Error::input(&path, reason));
        }
        self.tokens = all;
        self.texts += text.trim_end();
        self.texts += "\n\n";
        let tokens = thousands(tokens as u64);
        Ok(format!(
            "{}: {tokens} tokens go in front of the next message",
            path.display()
        ))
    }

    /// The next message after the texts.
    pub fn message(&self, text: &str) -> String {
        self.texts.clone() + text
    }
}
