//! `/export`: the conversation as text.

use waterline::Message;

use super::completion;
use super::conversation::Conversation;
use crate::error::{Error, Result};
use crate::text;
use crate::write_model::check_output;

/// Writes the conversation to the file that the user typed. Returns the text to show.
///
/// # Errors
/// There are no messages, the file exists, or it cannot be written.
pub fn write(typed: &str, conversation: &Conversation) -> Result<String> {
    if typed.is_empty() {
        return Err(Error::usage("/export FILE: which file?"));
    }
    if conversation.first_message().is_none() {
        return Err(Error::usage("nothing has been said yet"));
    }
    let path = completion::path(typed);
    check_output(&path, None)?;
    if path.exists() {
        return Err(Error::input(&path, "exists; choose another name"));
    }
    let messages = conversation.messages().iter().map(paragraph);
    text::write(&path, &messages.collect::<Vec<_>>().join("\n"))?;
    Ok(format!("{}: written", path.display()))
}

/// A message below the name of its role.
fn paragraph(message: &Message) -> String {
    format!("{}:\n{}\n", message.role.name(), message.content.trim())
}
