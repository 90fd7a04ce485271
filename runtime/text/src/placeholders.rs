//! Placeholders in chat templates, which mark the contents of messages in a rendering.

use super::{Message, Piece};
use crate::error::{Error, Result};

// Unicode noncharacters: text meant for interchange does not contain them.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';
/// How often a template may repeat all messages, plus a number of extra bytes: some templates show the system message in every turn.
const MAX_COPIES: usize = 4;
const MAX_REPEATED: usize = 1 << 20;
/// White space around a placeholder, a character that no template contains. If it is missing from the rendering, the template trims the
/// content.
const PAD: char = '\u{205f}';

/// A part of a rendering.
pub(super) struct Stretch<'a> {
    /// Index of the message whose content this is; `None` for the template's own text.
    pub message: Option<usize>,
    /// The part's text.
    pub piece: Piece<'a>,
}

/// Replaces each message's content with a placeholder. The empty content of a message that only calls tools stays empty, because
/// templates leave it out.
pub(super) fn placeholders(messages: &[Message]) -> Vec<Message> {
    let placeholder = |(index, message): (usize, &Message)| Message {
        content: if message.content.is_empty() && message.fields.contains_key("tool_calls") {
            String::new()
        } else {
            format!("{PAD}{OPEN}{index}{CLOSE}{PAD}")
        },
        ..message.clone()
    };
    messages.iter().enumerate().map(placeholder).collect()
}

/// Splits a rendering at its placeholders and inserts the contents again, trimmed where the template trims the placeholder.
pub(super) fn parts<'a>(rendered: &'a str, messages: &'a [Message]) -> Result<Vec<Stretch<'a>>> {
    let said: usize = messages.iter().map(|message| message.content.len()).sum();
    let mut room = MAX_REPEATED + MAX_COPIES * said;
    let mut parts = Vec::new();
    let mut rest = rendered;
    while let Some((before, after)) = rest.split_once(OPEN) {
        let (number, after) = after.split_once(CLOSE).unwrap_or((after, ""));
        let message = number.parse::<usize>().ok();
        let Some((index, message)) = message.and_then(|i| Some((i, messages.get(i)?))) else {
            return Err(template_error("it takes the contents of messages apart"));
        };
        let mut content = message.content.as_str();
        room = room
            .checked_sub(content.len())
            .ok_or_else(|| template_error("it repeats the messages too often"))?;
        let before_pad = before.strip_suffix(PAD);
        if before_pad.is_none() {
            content = content.trim_start();
        }
        let after_pad = after.strip_prefix(PAD);
        if after_pad.is_none() {
            content = content.trim_end();
        }
        let before = Piece::Template(before_pad.unwrap_or(before));
        parts.push(Stretch {
            message: None,
            piece: before,
        });
        parts.push(Stretch {
            message: Some(index),
            piece: Piece::Content(content),
        });
        rest = after_pad.unwrap_or(after);
    }
    parts.push(Stretch {
        message: None,
        piece: Piece::Template(rest),
    });
    Ok(parts)
}

/// The error for a template that cannot be used.
pub(super) fn template_error(reason: &str) -> Error {
    Error::Template {
        reason: reason.into(),
    }
}
