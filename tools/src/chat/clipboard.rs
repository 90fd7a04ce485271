//! `/copy`: the last answer goes to the clipboard of the terminal, which may be on another machine.

use waterline::internal::base64;

use super::conversation::Conversation;
use super::screen::Screen;
use crate::error::{Error, Result};
use crate::units::bytes;

/// Copies the last answer. Returns the text to show.
///
/// # Errors
/// There is no answer, or no terminal.
pub fn copy(conversation: &Conversation, screen: &mut Screen) -> Result<String> {
    if !screen.interactive() {
        return Err(Error::usage("/copy: there is no terminal with a clipboard"));
    }
    let text = conversation.last_answer()?;
    let text = text.ok_or_else(|| Error::usage("nothing has been answered yet"))?;
    screen.control(&sequence(&text))?;
    let size = bytes(text.len());
    Ok(format!(
        "{size} are sent to the clipboard, if the terminal allows it (OSC 52)"
    ))
}

/// The control sequence that sets the clipboard, OSC 52.
fn sequence(text: &str) -> String {
    format!("\x1b]52;c;{}\x07", base64::encode(text.as_bytes()))
}
