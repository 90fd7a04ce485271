//! `/edit`: the last message in the user's editor.

use std::io::Write;
use std::process::Command;

use super::conversation::Conversation;
use super::screen::Screen;
use crate::error::{Error, Result};
use crate::text::read_file;

/// Opens the last message in an editor. Returns the new text, unless it is empty or the same.
///
/// # Errors
/// There is no message or no terminal, or the editor fails.
pub fn last_message(conversation: &Conversation, screen: &Screen) -> Result<Option<String>> {
    if !screen.interactive() {
        return Err(Error::usage("/edit: there is no terminal for an editor"));
    }
    let message = conversation.last_message();
    let message = message.ok_or_else(|| Error::usage("nothing has been said yet"))?;
    let mut file = tempfile::Builder::new().suffix(".txt").tempfile();
    let file = file.as_mut().map_err(|error| {
        let error = std::io::Error::new(error.kind(), error.to_string());
        Error::io(std::env::temp_dir(), error)
    })?;
    let written = file.write_all(message.as_bytes());
    written.map_err(|error| Error::io(file.path(), error))?;
    let editor = editor();
    let mut words = editor.split_whitespace();
    let program = words.next().unwrap_or_default();
    let ended = Command::new(program).args(words).arg(file.path()).status();
    // Ctrl-C in the editor is not meant for the next answer.
    conversation.session().canceller().clear();
    let ended = ended.map_err(|error| Error::io(program, error))?;
    if !ended.success() {
        return Err(Error::usage(format!(
            "{editor}: {ended}; the message is as it was"
        )));
    }
    // Some editors replace the file, and most end its last line.
    let text = read_file(file.path())?;
    let text = text.trim_end_matches(['\r', '\n']);
    Ok((!text.trim().is_empty() && text != message.trim_end()).then(|| text.into()))
}

/// The command of the editor; the file's name follows it.
fn editor() -> String {
    let set = |name| {
        std::env::var(name)
            .ok()
            .filter(|value| !value.trim().is_empty())
    };
    let usual = if cfg!(windows) { "notepad" } else { "vi" };
    set("VISUAL")
        .or_else(|| set("EDITOR"))
        .unwrap_or_else(|| usual.into())
}
