//! The texts around calls, and whether a text that arrives in pieces begins or ends with one.

use super::formats::{Body, CallFormat};

/// Longest text before the name of a call is known.
pub(super) const LONGEST_HEAD: usize = 512;

/// Whether a text begins with something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Begins {
    Yes,
    No,
    /// The text is too short to say.
    Unknown,
}

/// Whether `text` begins with `start`.
pub(super) fn begins(text: &str, start: &str, is_last: bool) -> Begins {
    match (text.starts_with(start), !is_last && start.starts_with(text)) {
        _ if start.is_empty() => Begins::No,
        (true, _) => Begins::Yes,
        (_, true) => Begins::Unknown,
        _ => Begins::No,
    }
}

/// Whether `text` begins with one of `starts`, and the length of the longest of them. While a longer one is possible the answer is unknown.
pub(super) fn begins_any(text: &str, starts: &[&str], is_last: bool) -> (Begins, usize) {
    let (mut found, mut length) = (Begins::No, 0);
    for start in starts {
        match begins(text, start, is_last) {
            Begins::Yes if found != Begins::Unknown => {
                (found, length) = (Begins::Yes, length.max(start.len()));
            }
            Begins::Unknown => (found, length) = (Begins::Unknown, 0),
            _ => {}
        }
    }
    (found, length)
}

/// The texts that may follow a call's arguments, before those after all calls.
pub(super) fn closings(format: &CallFormat) -> [&'static str; 4] {
    let end = match format.body {
        Body::Tags(tags) => tags.end,
        Body::NameThenObject { end, .. } => end,
        _ => "",
    };
    [
        end.trim(),
        format.call[1].trim(),
        "</tool_call>",
        "</function>",
    ]
}

/// The text before which arguments end.
pub(super) fn stop_of(format: Option<&CallFormat>) -> &'static str {
    let Some(format) = format else { return "" };
    if format
        .channels
        .is_some_and(|channels| !channels.function.is_empty())
    {
        return "<|";
    }
    let end = match format.body {
        Body::NameThenObject { end, .. } => end.trim(),
        _ => "",
    };
    let closings = [end, format.call[1].trim(), format.section[1].trim()];
    closings
        .into_iter()
        .find(|text| !text.is_empty())
        .unwrap_or("")
}

/// The texts with which calls begin.
pub(super) fn openings(format: &CallFormat) -> Vec<&'static str> {
    let mut openings = vec![format.section[0].trim(), format.call[0].trim()];
    match format.body {
        Body::Tags(tags) => openings.push(tags.name[0]),
        Body::NameThenObject { before, .. } if openings.iter().all(|text| text.is_empty()) => {
            openings.push(before)
        }
        _ => {}
    }
    openings.retain(|text| !text.is_empty());
    openings
}

/// Whether an opening text is part of the call's body.
pub(super) fn is_body(format: &CallFormat, mark: &str) -> bool {
    format.section[0].trim() != mark && format.call[0].trim() != mark
}

/// At most so much of a text that a decision about it does not depend on the pieces in which it arrives.
pub(super) fn clipped(text: &str) -> &str {
    &text[..text.floor_char_boundary(LONGEST_HEAD)]
}

/// The length of the longest end of `text` with which `mark` begins.
pub(super) fn partial(text: &str, mark: &str) -> usize {
    let lengths = mark.char_indices().map(|(at, _)| at).skip(1);
    lengths
        .filter(|&length| text.ends_with(&mark[..length]))
        .max()
        .unwrap_or(0)
}
