//! The date in a build without the tokenizer, which never turns a template's text into tokens.

/// Always `None`: this build has no calendar.
pub(super) fn now(_: &str) -> Option<String> {
    None
}
