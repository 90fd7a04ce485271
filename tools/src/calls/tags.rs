//! Calls between tags: `<function=NAME><parameter=KEY>VALUE</parameter></function>` of Qwen3-Coder, Qwen3.5 and Nemotron 3, and
//! `NAME<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>` of Bailing's models.

use serde_json::{Map, Value};

use super::{Call, Tools};

/// Parses `<function=NAME> <parameter=KEY> VALUE </parameter> </function>`.
pub fn functions(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let mut calls = Vec::new();
    let mut rest = text.trim();
    while !rest.is_empty() {
        let (name, mut body) = rest.strip_prefix("<function=")?.split_once('>')?;
        let mut arguments = Map::new();
        loop {
            body = body.trim_start();
            if let Some(after) = body.strip_prefix("</function>") {
                rest = after.trim_start();
                break;
            }
            let (key, after) = body.strip_prefix("<parameter=")?.split_once('>')?;
            let (value, after) =
                value_before(after, "</parameter>", &["<parameter=", "</function>"])?;
            arguments.insert(key.into(), tools.value(name, key, unwrapped(value)));
            body = after;
        }
        calls.push(Call {
            name: name.trim().into(),
            arguments: Value::Object(arguments),
        });
    }
    (!calls.is_empty()).then_some(calls)
}

/// Parses `NAME <arg_key>KEY</arg_key> <arg_value>VALUE</arg_value>`.
pub fn pairs(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let end = text.find("<arg_key>").unwrap_or(text.len());
    let name = text[..end].trim();
    if name.is_empty() || name.contains(|c: char| c.is_whitespace() || "<>".contains(c)) {
        return None;
    }
    let mut arguments = Map::new();
    let mut rest = text[end..].trim();
    while !rest.is_empty() {
        let (key, after) = rest.strip_prefix("<arg_key>")?.split_once("</arg_key>")?;
        let after = after.trim_start().strip_prefix("<arg_value>")?;
        let (value, after) = value_before(after, "</arg_value>", &["<arg_key>"])?;
        arguments.insert(key.into(), tools.value(name, key, value));
        rest = after.trim_start();
    }
    Some(vec![Call {
        name: name.into(),
        arguments: Value::Object(arguments),
    }])
}

/// Splits the text at the first `close` that is followed by one of `next` or by nothing, because a value may contain the tag.
fn value_before<'a>(text: &'a str, close: &str, next: &[&str]) -> Option<(&'a str, &'a str)> {
    let ends = text.match_indices(close);
    let parts = ends.map(|(at, tag)| (&text[..at], &text[at + tag.len()..]));
    let mut fitting = parts.filter(|(_, after)| {
        let after = after.trim_start();
        after.is_empty() || next.iter().any(|tag| after.starts_with(tag))
    });
    fitting.next()
}

/// Removes one line break on each side of a value.
fn unwrapped(value: &str) -> &str {
    let value = value.strip_prefix('\n').unwrap_or(value);
    value.strip_suffix('\n').unwrap_or(value)
}
