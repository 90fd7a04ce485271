//! Placeholders in chat templates: they mark the contents of messages in a rendering.

use super::{Message, Piece};
use crate::error::{Error, Result};

// Noncharacters of Unicode: no text meant for exchange holds them.
const OPEN: char = '\u{fdd0}';
const CLOSE: char = '\u{fdd1}';
/// How often a template may repeat all messages, and how many bytes more: some show the system message in every turn.
const MAX_COPIES: usize = 4;
const MAX_REPEATED: usize = 1 << 20;
/// White space around a placeholder, unlike any in a template: where it is gone from the
/// rendering, the template trims the content.
const PAD: char = '\u{205f}';

/// A stretch of a rendering.
pub(super) struct Stretch<'a> {
    /// Index of the message with this content; none for the template's own text.
    pub message: Option<usize>,
    /// Its text.
    pub piece: Piece<'a>,
}

/// The messages with a placeholder in place of each content. Templates leave out the text of a message that only calls tools, so
/// no content is no placeholder there.
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

/// Splits a rendering at its placeholders and puts the contents back in, trimmed where the
/// template has trimmed the placeholder.
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

/// A template that cannot be used, and why.
pub(super) fn template_error(reason: &str) -> Error {
    Error::Template {
        reason: reason.into(),
    }
}
