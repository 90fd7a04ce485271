//! Methods of strings, mappings, lists and loops.

use super::eval::Evaluator;
use super::expr::Values;
use super::format::braces;
use super::value::Value;
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// Calls a method.
pub fn call(
    evaluator: &mut Evaluator,
    object: &Value,
    name: &str,
    arguments: &Values,
) -> Outcome<Value> {
    let work = &mut evaluator.work;
    let found = match object {
        Value::Str(text) => of_string(text, name, arguments, work)?,
        Value::Dict(dict) => match name {
            "get" => {
                let key = arguments.get(0, "key").unwrap_or(&Value::None);
                let value = dict.get(key, work)?.or(arguments.get(1, "default"));
                Some(value.cloned().unwrap_or(Value::None))
            }
            "items" => Some(items(&dict.entries, work)?),
            "keys" | "values" => {
                work.spend_each(dict.entries.len(), ELEMENT)?;
                let pick = |(key, value): &(Value, Value)| {
                    if name == "keys" {
                        key.clone()
                    } else {
                        value.clone()
                    }
                };
                Some(Value::list(dict.entries.iter().map(pick).collect())?)
            }
            "copy" => Some(object.clone()),
            _ => None,
        },
        Value::List(list) => match name {
            "count" | "index" => {
                let wanted = arguments.get(0, "value").unwrap_or(&Value::Undefined);
                let (mut count, mut first) = (0, None);
                for (at, item) in list.items.iter().enumerate() {
                    work.spend(4)?;
                    if item.equals(wanted, work)? {
                        count += 1;
                        first = first.or(Some(at as i64));
                    }
                }
                match name {
                    "count" => Some(Value::Int(count)),
                    _ => {
                        Some(Value::Int(first.ok_or_else(|| {
                            Failure::new("the value is not in the list")
                        })?))
                    }
                }
            }
            "copy" => Some(object.clone()),
            _ => None,
        },
        Value::Loop(state) if name == "cycle" && !arguments.positional.is_empty() => {
            Some(arguments.positional[state.index % arguments.positional.len()].clone())
        }
        _ => None,
    };
    found.ok_or_else(|| {
        Failure::new(format!(
            "{} has no method {name:?} in chat templates",
            object.kind()
        ))
    })
}

/// The entries of a mapping as tuples.
pub fn items(entries: &[(Value, Value)], work: &mut Work) -> Outcome<Value> {
    work.spend_each(entries.len(), 4 * ELEMENT)?;
    let pair =
        |(key, value): &(Value, Value)| Value::sequence(vec![key.clone(), value.clone()], true);
    Value::list(entries.iter().map(pair).collect::<Outcome<_>>()?)
}

fn of_string(
    text: &str,
    name: &str,
    arguments: &Values,
    work: &mut Work,
) -> Outcome<Option<Value>> {
    // Most methods read the text once and produce at most three bytes per input byte.
    work.spend_each(text.len(), 4)?;
    let any_of = |value: Option<&Value>, holds: &dyn Fn(&str) -> bool| match value {
        Some(Value::Str(part)) => Ok(holds(part)),
        Some(Value::List(parts)) => Ok(parts.items.iter().filter_map(Value::as_str).any(holds)),
        _ => Err(Failure::new(format!(
            "{name} needs a string or a tuple of strings"
        ))),
    };
    let value = match name {
        "strip" => Value::str(strip(
            text,
            arguments.text(0, "chars")?,
            [true, true],
            work,
        )?),
        "lstrip" => Value::str(strip(
            text,
            arguments.text(0, "chars")?,
            [true, false],
            work,
        )?),
        "rstrip" => Value::str(strip(
            text,
            arguments.text(0, "chars")?,
            [false, true],
            work,
        )?),
        "upper" => Value::str(&text.to_uppercase()),
        "lower" => Value::str(&text.to_lowercase()),
        "title" => Value::str(&title(text)),
        "capitalize" => Value::str(&capitalize(text)),
        "startswith" | "endswith" => {
            let parts = arguments.get(0, "prefix");
            work.spend(parts.map_or(0, Value::weight))?;
            let holds: &dyn Fn(&str) -> bool = match name {
                "startswith" => &|part| text.starts_with(part),
                _ => &|part| text.ends_with(part),
            };
            Value::Bool(any_of(parts, holds)?)
        }
        "split" | "rsplit" => return split(text, name == "rsplit", arguments, work).map(Some),
        "splitlines" => {
            work.spend_each(text.len(), 2 * ELEMENT)?;
            Value::list(text.lines().map(Value::str).collect())?
        }
        "replace" => {
            let (from, to) = (arguments.text(0, "old")?, arguments.text(1, "new")?);
            let count = arguments.int(2, "count")?;
            return replace(
                text,
                from.unwrap_or_default(),
                to.unwrap_or_default(),
                count,
                work,
            )
            .map(Some);
        }
        "join" => join(
            arguments.get(0, "iterable").unwrap_or(&Value::Undefined),
            text,
            work,
        )?,
        "format" => return braces(text, arguments, work).map(Some),
        "find" | "rfind" | "index" | "count" => {
            let part = arguments.text(0, "sub")?.unwrap_or_default();
            work.spend(part.len())?;
            if name == "count" {
                return Ok(Some(Value::Int(text.matches(part).count() as i64)));
            }
            let at = if name == "rfind" {
                text.rfind(part)
            } else {
                text.find(part)
            };
            match at {
                Some(at) => Value::Int(text[..at].chars().count() as i64),
                None if name == "index" => return Err(Failure::new("the substring was not found")),
                None => Value::Int(-1),
            }
        }
        "removeprefix" => {
            let part = arguments.text(0, "prefix")?.unwrap_or_default();
            Value::str(text.strip_prefix(part).unwrap_or(text))
        }
        "removesuffix" => {
            let part = arguments.text(0, "suffix")?.unwrap_or_default();
            Value::str(text.strip_suffix(part).unwrap_or(text))
        }
        "partition" | "rpartition" => {
            let part = arguments.text(0, "sep")?.filter(|part| !part.is_empty());
            let part = part.ok_or_else(|| Failure::new("an empty separator"))?;
            let pair = if name == "partition" {
                text.split_once(part)
            } else {
                text.rsplit_once(part)
            };
            let three = match pair {
                Some((a, b)) => [a, part, b],
                None if name == "partition" => [text, "", ""],
                None => ["", "", text],
            };
            Value::sequence(three.map(Value::str).to_vec(), true)?
        }
        "isdigit" => every(text, |c| c.is_ascii_digit()),
        "isnumeric" => every(text, char::is_numeric),
        "isalpha" => every(text, char::is_alphabetic),
        "isalnum" => every(text, char::is_alphanumeric),
        "isspace" => every(text, char::is_whitespace),
        "isupper" => Value::Bool(is_cased(text, char::is_uppercase)),
        "islower" => Value::Bool(is_cased(text, char::is_lowercase)),
        _ => return Ok(None),
    };
    Ok(Some(value))
}

/// Whether `text` has letters of a case and none of the other one; `is_case` is `char::is_lowercase` or `char::is_uppercase`.
pub(super) fn is_cased(text: &str, is_case: fn(char) -> bool) -> bool {
    let mut letters = text
        .chars()
        .filter(|c| c.is_lowercase() || c.is_uppercase())
        .peekable();
    letters.peek().is_some() && letters.all(is_case)
}

fn every(text: &str, holds: fn(char) -> bool) -> Value {
    Value::Bool(!text.is_empty() && text.chars().all(holds))
}

/// Strips white space, or the characters in `chars`, from the selected ends.
pub(crate) fn strip<'t>(
    text: &'t str,
    chars: Option<&str>,
    ends: [bool; 2],
    work: &mut Work,
) -> Outcome<&'t str> {
    let mut text = text;
    let Some(chars) = chars else {
        text = if ends[0] { text.trim_start() } else { text };
        return Ok(if ends[1] { text.trim_end() } else { text });
    };
    work.spend_each(text.len(), chars.len())?;
    let chars: Vec<char> = chars.chars().collect();
    text = if ends[0] {
        text.trim_start_matches(&chars[..])
    } else {
        text
    };
    Ok(if ends[1] {
        text.trim_end_matches(&chars[..])
    } else {
        text
    })
}

fn split(text: &str, from_right: bool, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let limit = arguments
        .int(1, "maxsplit")?
        .and_then(|limit| usize::try_from(limit).ok());
    let limit = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    let separator = arguments.text(0, "sep")?;
    work.spend(separator.map_or(0, str::len))?;
    let pieces = match separator {
        Some("") => return Err(Failure::new("an empty separator")),
        Some(separator) => text.matches(separator).count() + 1,
        None => text.len(),
    };
    work.spend_each(pieces, 2 * ELEMENT)?;
    let parts: Vec<&str> = match (separator, from_right) {
        (Some(separator), false) => text.splitn(limit, separator).collect(),
        (Some(separator), true) => {
            let mut parts: Vec<&str> = text.rsplitn(limit, separator).collect();
            parts.reverse();
            parts
        }
        (None, _) if limit == usize::MAX => text.split_whitespace().collect(),
        (None, false) => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_start());
            while !rest.is_empty() {
                let end = if parts.len() + 1 < limit {
                    rest.find(char::is_whitespace).unwrap_or(rest.len())
                } else {
                    rest.len()
                };
                parts.push(&rest[..end]);
                rest = rest[end..].trim_start();
            }
            parts
        }
        (None, true) => {
            return Err(Failure::new("rsplit with a limit needs a separator"));
        }
    };
    Value::list(parts.into_iter().map(Value::str).collect())
}

/// Replaces `from` with `to`, at most `count` times.
pub fn replace(
    text: &str,
    from: &str,
    to: &str,
    count: Option<i64>,
    work: &mut Work,
) -> Outcome<Value> {
    work.spend(from.len() + text.len())?;
    let limit = count
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(usize::MAX);
    let found = text.matches(from).count().min(limit);
    work.spend_each(found, 2 * to.len())?;
    Ok(Value::str(&text.replacen(from, to, found)))
}

/// Concatenates the elements as text with `separator` between them.
pub fn join(value: &Value, separator: &str, work: &mut Work) -> Outcome<Value> {
    let list = value.iterate(work)?;
    let mut writer = super::text::Writer::new(work);
    for (index, item) in list.items.iter().enumerate() {
        writer.push(if index > 0 { separator } else { "" })?;
        writer.value(item)?;
        writer.work.spend(4)?;
    }
    writer.work.spend(writer.text.len())?;
    Ok(Value::str(&writer.text))
}

/// Converts the first letter to upper case and the others to lower case.
pub(crate) fn capitalize(text: &str) -> String {
    let mut characters = text.chars();
    let first = characters.next().into_iter().flat_map(char::to_uppercase);
    first
        .chain(characters.flat_map(char::to_lowercase))
        .collect()
}

/// Converts the first letter of each word to upper case and the others to lower case.
pub fn title(text: &str) -> String {
    let mut result = String::with_capacity(text.len());
    let mut inside = false;
    for character in text.chars() {
        if inside {
            result.extend(character.to_lowercase())
        } else {
            result.extend(character.to_uppercase())
        }
        inside = character.is_alphabetic();
    }
    result
}
