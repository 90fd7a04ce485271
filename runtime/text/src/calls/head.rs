//! The text of a call before its arguments.

use super::Tools;
use super::formats::{Body, CallFormat, Tags};
use super::marks::{Begins, begins};

/// Longest name of a function.
const LONGEST_NAME: usize = 256;
/// Keys of objects whose value is the name of the function.
pub(super) const NAME_KEYS: [&str; 4] = ["name", "tool_name", "function", "function_name"];
/// Keys of objects whose value is the arguments.
pub(super) const ARGUMENT_KEYS: [&str; 4] = ["arguments", "parameters", "args", "input"];
/// Keys of objects whose value is the call's id.
pub(super) const ID_KEYS: [&str; 3] = ["id", "tool_call_id", "call_id"];

/// The arguments' form.
pub(super) enum Arguments {
    Literal,
    Python,
    Tags(Tags),
    /// The call has no arguments and ends.
    None,
}

/// The beginning of a call's body. An answer has one at a time, so its size does not matter.
#[allow(clippy::large_enum_variant)]
pub(super) enum Head {
    /// An object that holds the name.
    Object,
    Call {
        length: usize,
        name: String,
        id: Option<String>,
        body: Arguments,
    },
    None,
    Unknown,
}

/// `<function=NAME>` in place of JSON, which models mix up.
const FUNCTION: Tags = Tags {
    name: ["<function=", ">"],
    key: ["<parameter=", ">"],
    value: ["", "</parameter>"],
    end: "</function>",
    tag_end: "",
    space: ["", "", ""],
};

/// Pairs of keys and values, after the name.
const PAIRS: Tags = Tags {
    name: ["", "\n"],
    key: ["<arg_key>", "</arg_key>"],
    value: ["<arg_value>", "</arg_value>"],
    end: "",
    tag_end: "",
    space: ["", "", ""],
};

fn is_name(name: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || "_-.:/".contains(c);
    !name.is_empty() && name.len() <= LONGEST_NAME && name.chars().all(is_part)
}

/// Reads the beginning of a call after its opening text.
pub(super) fn read(text: &str, format: &CallFormat, tools: &Tools, is_last: bool) -> Head {
    if text.starts_with('{') {
        return Head::Object;
    }
    match (format.body, begins(text, FUNCTION.name[0], is_last)) {
        (Body::NameThenObject { before, .. }, _) if before == FUNCTION.name[0] => {
            named(text, format, tools, is_last)
        }
        (Body::Tags(own), _) => match (
            tagged(text, own, format, is_last),
            begins(text, FUNCTION.name[0], is_last),
        ) {
            (Head::None, Begins::Yes) => tagged(text, FUNCTION, format, is_last),
            (Head::None, Begins::Unknown) => Head::Unknown,
            (head, _) => head,
        },
        (_, Begins::Yes) => tagged(text, FUNCTION, format, is_last),
        (_, Begins::Unknown) => Head::Unknown,
        (Body::Python, _) => python(text),
        (Body::NameThenObject { .. }, _) => named(text, format, tools, is_last),
        (Body::Object { .. }, _) => pairs_after_name(text, format, is_last),
        _ => Head::None,
    }
}

/// Reads a name that pairs of keys and values follow, in a format whose calls are objects.
fn pairs_after_name(text: &str, format: &CallFormat, is_last: bool) -> Head {
    let end = text.find('<').unwrap_or(text.len());
    if !is_name(text[..end].trim_end()) {
        return Head::None;
    }
    match begins(&text[end..], PAIRS.key[0], is_last) {
        Begins::Yes => tagged(text, PAIRS, format, is_last),
        Begins::Unknown => Head::Unknown,
        Begins::No => Head::None,
    }
}

fn python(text: &str) -> Head {
    let is_part = |c: char| c.is_alphanumeric() || "_.-".contains(c);
    let end = text.find(|c| !is_part(c)).unwrap_or(text.len());
    let name = &text[..end];
    match text[end..].trim_start().chars().next() {
        Some('(') if is_name(name) => Head::Call {
            length: text.find('(').map_or(end, |at| at + 1),
            name: name.into(),
            id: None,
            body: Arguments::Python,
        },
        None if name.len() <= LONGEST_NAME => Head::Unknown,
        _ => Head::None,
    }
}

/// Reads a name before an object.
fn named(text: &str, format: &CallFormat, tools: &Tools, is_last: bool) -> Head {
    let Body::NameThenObject { before, after, end } = format.body else {
        return Head::None;
    };
    let close = format.call[1].trim();
    let closes = [close, format.section[1].trim(), end.trim()].into_iter();
    let closes = closes.filter(|close| !close.is_empty() && !after.contains(close));
    let close = closes.filter_map(|close| text.find(close)).min();
    let object = text.find('{');
    let (stop, has_object) = match (object, close) {
        (Some(object), Some(close)) if close < object => (close, false),
        (Some(object), _) => (object, true),
        (None, Some(close)) => (close, false),
        (None, None) if is_last => (text.len(), false),
        (None, None) => return Head::Unknown,
    };
    let head = &text[..stop];
    // The name ends where the text after it, another mark or white space begins.
    let bare = head.strip_prefix(before).unwrap_or(head).trim_start();
    let name_end = bare
        .find(|c: char| c.is_whitespace() || "<[`{>".contains(c))
        .unwrap_or(bare.len());
    let mut name = &bare[..name_end];
    let mut id = None;
    // Kimi numbers its calls; the whole text is the id.
    if after.starts_with(':')
        && let Some((plain, number)) = name.rsplit_once(':')
        && number.chars().all(|c| c.is_ascii_digit())
    {
        let whole = &head[..head.len() - bare.len() + name_end];
        id = Some(whole.trim().to_string());
        name = plain;
    }
    if let Some((_, rest)) = head.split_once("[CALL_ID]") {
        id = Some(rest.split('[').next().unwrap_or(rest).trim().to_string());
    }
    let is_call = is_name(name) && (has_object || tools.has(name));
    let rest = bare[name_end..].trim();
    let is_marked = rest.is_empty() || rest.starts_with(['<', '[', '`', '>']);
    if !is_call || !is_marked || head.len() > 2 * LONGEST_NAME {
        return Head::None;
    }
    let body = if has_object {
        Arguments::Literal
    } else {
        Arguments::None
    };
    Head::Call {
        length: stop,
        name: name.into(),
        id,
        body,
    }
}

/// Reads the name of a call with tags.
fn tagged(text: &str, tags: Tags, format: &CallFormat, is_last: bool) -> Head {
    let unknown = if is_last { Head::None } else { Head::Unknown };
    let rest = match begins(text, tags.name[0], is_last) {
        _ if tags.name[0].is_empty() => text,
        Begins::Yes => &text[tags.name[0].len()..],
        Begins::Unknown => return Head::Unknown,
        Begins::No => return Head::None,
    };
    let skipped = text.len() - rest.len();
    let call = |end: usize, after: usize| {
        let name = rest[..end].trim();
        match is_name(name) {
            true => Head::Call {
                length: skipped + after,
                name: name.into(),
                id: None,
                body: Arguments::Tags(tags),
            },
            false => Head::None,
        }
    };
    if tags.name[0].is_empty() {
        // The name ends at a line break or tag.
        let Some(end) = rest.find(['\n', '<']) else {
            return match is_last {
                true => call(rest.len(), rest.len()),
                false if rest.trim().is_empty() || is_name(rest.trim()) => Head::Unknown,
                false => Head::None,
            };
        };
        let after = rest[end..].trim_start();
        let nexts = [tags.key[0], format.call[1].trim()];
        if !after.is_empty() {
            return match super::marks::begins_any(after, &nexts, is_last).0 {
                Begins::Yes => call(end, rest.len() - after.len()),
                Begins::Unknown => unknown,
                Begins::No => Head::None,
            };
        }
        return if is_last {
            call(end, rest.len())
        } else {
            Head::Unknown
        };
    }
    let is_short =
        |end: &usize| end + tags.name[1].len() <= LONGEST_NAME && !rest[..*end].contains('\n');
    let Some(end) = rest.find(tags.name[1]).filter(is_short) else {
        return if rest.len() > LONGEST_NAME || rest.contains('\n') {
            Head::None
        } else {
            unknown
        };
    };
    let mut after = end + tags.name[1].len();
    if !tags.tag_end.is_empty() {
        let Some(close) = rest[after..].find(tags.tag_end) else {
            return unknown;
        };
        after += close + tags.tag_end.len();
    }
    call(end, after)
}

/// Whether `text`, at the beginning of a line, begins a call of one of `tools` without the opening text of `format`.
pub(super) fn begins_call(text: &str, format: &CallFormat, tools: &Tools, is_last: bool) -> Begins {
    let unknown = if is_last { Begins::No } else { Begins::Unknown };
    let text = text.trim_start_matches([' ', '\t']);
    match format.body {
        Body::NameAsKey | Body::NameThenObject { .. } => Begins::No,
        _ if text.is_empty() => unknown,
        Body::Python => {
            let call = text.trim_start_matches('[').trim_start();
            if call.is_empty() {
                return unknown;
            }
            match python(call) {
                Head::Call { name, .. } if tools.has(&name) => Begins::Yes,
                Head::Unknown if names_begin(tools, call) => unknown,
                _ if call.starts_with('{') => object(call, tools, is_last),
                _ => Begins::No,
            }
        }
        Body::Tags(tags) if tags.name[0].is_empty() => pairs(text, tags, tools, is_last),
        Body::Tags(_) | Body::Object { .. } => {
            let mut rest = text;
            match begins(rest, "```", is_last) {
                Begins::Unknown => return Begins::Unknown,
                Begins::Yes => match rest.split_once('\n') {
                    Some((fence, after)) if matches!(fence.trim(), "```" | "```json") => {
                        rest = after.trim_start()
                    }
                    Some(_) => return Begins::No,
                    None if "```json".starts_with(rest.trim_end())
                        || rest.starts_with("```json") && rest.trim() == "```json" =>
                    {
                        return unknown;
                    }
                    None => return Begins::No,
                },
                Begins::No => {}
            }
            match begins(rest, "<|python_tag|>", is_last) {
                Begins::Unknown => return Begins::Unknown,
                Begins::Yes => rest = rest["<|python_tag|>".len()..].trim_start(),
                Begins::No => {}
            }
            if rest.is_empty() {
                return unknown;
            }
            object(rest.trim_start_matches('[').trim_start(), tools, is_last)
        }
    }
}

fn names_begin(tools: &Tools, text: &str) -> bool {
    let mut names = tools
        .functions()
        .filter_map(|function| function["name"].as_str());
    names.any(|name| name.starts_with(text.trim_end()))
}

/// Whether a text is a name and a tag.
fn pairs(text: &str, tags: Tags, tools: &Tools, is_last: bool) -> Begins {
    let unknown = if is_last { Begins::No } else { Begins::Unknown };
    let end = text.find(['\n', '<']).unwrap_or(text.len());
    let name = text[..end].trim();
    if end == text.len() {
        return if names_begin(tools, name) {
            unknown
        } else {
            Begins::No
        };
    }
    let after = text[end..].trim_start();
    match tools.has(name) {
        true if after.is_empty() => unknown,
        true => begins(after, tags.key[0], is_last),
        false => Begins::No,
    }
}

/// Whether a text is an object with the name of one of `tools`.
fn object(text: &str, tools: &Tools, is_last: bool) -> Begins {
    let unknown = if is_last { Begins::No } else { Begins::Unknown };
    let mut rest = text;
    let mut name_seen = false;
    macro_rules! next {
        ($found:expr) => {
            match $found {
                Some(found) => found,
                None => return unknown,
            }
        };
    }
    loop {
        rest = rest.trim_start();
        let first = next!(rest.chars().next());
        if name_seen && first == '}' {
            return Begins::Yes;
        }
        if !"{,".contains(first) {
            return Begins::No;
        }
        rest = rest[1..].trim_start();
        if rest.is_empty() {
            return unknown;
        }
        let (key, after) = match quoted(rest) {
            Ok(found) => found,
            Err(begins) => {
                return if begins == Begins::Unknown {
                    unknown
                } else {
                    Begins::No
                };
            }
        };
        rest = after.trim_start();
        if rest.is_empty() {
            return unknown;
        }
        let Some(after) = rest.strip_prefix(':') else {
            return Begins::No;
        };
        rest = after.trim_start();
        let first = next!(rest.chars().next());
        if name_seen {
            return if ARGUMENT_KEYS.contains(&key) || ID_KEYS.contains(&key) {
                Begins::Yes
            } else {
                Begins::No
            };
        }
        if key == "function" && first == '{' {
            continue;
        }
        let (value, after) = match quoted(rest) {
            Ok(found) => found,
            Err(begins) => {
                return if begins == Begins::Unknown {
                    unknown
                } else {
                    Begins::No
                };
            }
        };
        rest = after;
        if NAME_KEYS.contains(&key) {
            if !tools.has(value) {
                return Begins::No;
            }
            name_seen = true;
        } else if key != "type" && !ID_KEYS.contains(&key) {
            return Begins::No;
        }
    }
}

/// A text in quotes, and what follows.
fn quoted(text: &str) -> Result<(&str, &str), Begins> {
    let quote = text
        .chars()
        .next()
        .filter(|c| "\"'".contains(*c))
        .ok_or(Begins::No)?;
    let end = text[1..].find(quote);
    end.map(|end| (&text[1..=end], &text[end + 2..]))
        .ok_or(Begins::Unknown)
}
