//! Methods of strings, mappings, lists and loops.

use std::rc::Rc;

use super::eval::Evaluator;
use super::expr::Values;
use super::format::braces;
use super::marked::Text;
use super::text::Writer;
use super::value::{Dict, Value};
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

const STRING: &str = "capitalize casefold center count endswith find format index isalnum isalpha isascii isdecimal isdigit islower \
    isnumeric isspace istitle isupper join ljust lower lstrip partition removeprefix removesuffix replace rfind rindex rjust rpartition \
    rsplit rstrip split splitlines startswith strip swapcase title upper zfill";

/// A method of a value, which templates may also keep or test; `None` if there is none of this name.
pub fn find(object: &Value, name: &str) -> Option<Value> {
    let names = match object {
        Value::Str(_) => STRING,
        Value::Dict(_) => "get items keys values copy",
        Value::List(list) if list.tuple => "count index",
        Value::List(_) => "count index copy",
        Value::Loop(_) => "cycle",
        _ => "",
    };
    let name = names.split(' ').find(|known| *known == name)?;
    Some(Value::Method(Rc::new((object.clone(), name))))
}

/// Calls a method.
pub fn call(
    evaluator: &mut Evaluator,
    (object, name): &(Value, &'static str),
    arguments: &Values,
) -> Outcome<Value> {
    let work = &mut evaluator.work;
    match object {
        Value::Str(text) => of_string(text, name, arguments, work),
        Value::Dict(dict) => of_mapping(dict, object, name, arguments, work),
        Value::List(list) => {
            if *name == "copy" {
                return Ok(object.clone());
            }
            let wanted = arguments.get(0, "value").unwrap_or(&Value::Undefined);
            let (mut count, mut first) = (0, None);
            for (at, item) in list.items.iter().enumerate() {
                work.spend(4)?;
                if item.equals(wanted, work)? {
                    count += 1;
                    first = first.or(Some(at as i64));
                }
            }
            if *name == "count" {
                return Ok(Value::Int(count));
            }
            let missing = || Failure::new("the value is not in the list");
            first.map(Value::Int).ok_or_else(missing)
        }
        Value::Loop(state) if !arguments.positional.is_empty() => {
            Ok(arguments.positional[state.index % arguments.positional.len()].clone())
        }
        _ => Err(Failure::new(format!("{name} needs an argument"))),
    }
}

fn of_mapping(
    dict: &Dict,
    object: &Value,
    name: &str,
    arguments: &Values,
    work: &mut Work,
) -> Outcome<Value> {
    match name {
        "get" => {
            let key = arguments.get(0, "key").unwrap_or(&Value::None);
            let value = dict.get(key, work)?.or(arguments.get(1, "default"));
            Ok(value.cloned().unwrap_or(Value::None))
        }
        "items" => items(&dict.entries, work),
        "copy" => Ok(object.clone()),
        _ => {
            work.spend_each(dict.entries.len(), ELEMENT)?;
            let pick =
                |(key, value): &(Value, Value)| if name == "keys" { key } else { value }.clone();
            Value::list(dict.entries.iter().map(pick).collect())
        }
    }
}

/// The entries of a mapping as tuples.
pub fn items(entries: &[(Value, Value)], work: &mut Work) -> Outcome<Value> {
    work.spend_each(entries.len(), 4 * ELEMENT)?;
    let pair =
        |(key, value): &(Value, Value)| Value::sequence(vec![key.clone(), value.clone()], true);
    Value::list(entries.iter().map(pair).collect::<Outcome<_>>()?)
}

fn of_string(text: &Text, name: &str, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    // Most methods read the text once and produce at most three bytes per input byte.
    work.spend_each(text.size(), 4)?;
    let own = |name| Ok::<_, Failure>(arguments.text(0, name)?.cloned());
    Ok(match name {
        "strip" | "lstrip" | "rstrip" => {
            let ends = [name != "rstrip", name != "lstrip"];
            Value::Str(strip(text, own("chars")?.as_deref(), ends, work)?)
        }
        "upper" => Value::Str(upper(text)),
        "lower" | "casefold" => Value::Str(lower(text)),
        "swapcase" => Value::Str(text.mapped(|c, out| {
            if c.is_uppercase() {
                out.extend(c.to_lowercase())
            } else {
                out.extend(c.to_uppercase())
            }
        })),
        "title" => Value::Str(title(text, char::is_alphabetic)),
        "capitalize" => Value::Str(capitalize(text)),
        "startswith" | "endswith" => {
            let parts = arguments.get(0, "prefix");
            work.spend(parts.map_or(0, Value::weight))?;
            let holds = |part: &str| match name {
                "startswith" => text.starts_with(part),
                _ => text.ends_with(part),
            };
            Value::Bool(match parts {
                Some(Value::Str(part)) => holds(part),
                Some(Value::List(parts)) => parts.items.iter().filter_map(Value::as_str).any(holds),
                _ => {
                    let reason = format!("{name} needs a string or a tuple of strings");
                    return Err(Failure::new(reason));
                }
            })
        }
        "split" | "rsplit" => return split(text, name == "rsplit", arguments, work),
        "splitlines" => {
            work.spend_each(text.len(), 2 * ELEMENT)?;
            let keeps = arguments.flag(0, "keepends");
            let lines = text.split_inclusive('\n').map(|line| match keeps {
                true => Value::Str(text.part(line)),
                false => {
                    let line = line.strip_suffix('\n').unwrap_or(line);
                    Value::Str(text.part(line.strip_suffix('\r').unwrap_or(line)))
                }
            });
            Value::list(lines.collect())?
        }
        "replace" => {
            let (from, to) = (own("old")?, arguments.text(1, "new")?.cloned());
            let (Some(from), Some(to)) = (from, to) else {
                return Err(Failure::new("replace needs two strings"));
            };
            replace(text, &from, &to, arguments.int(2, "count")?, work)?
        }
        "join" => join(
            arguments.get(0, "iterable").unwrap_or(&Value::Undefined),
            text,
            work,
        )?,
        "format" => braces(text, arguments, work)?,
        "find" | "rfind" | "index" | "rindex" | "count" => {
            let part = own("sub")?.unwrap_or_else(|| Text::template(""));
            work.spend(part.len())?;
            let from = arguments.int(1, "start")?.unwrap_or(0);
            let from = text.char_indices().nth(usize::try_from(from).unwrap_or(0));
            let from = from.map_or(0, |(at, _)| at);
            if name == "count" {
                return Ok(Value::Int(text[from..].matches(&*part).count() as i64));
            }
            let at = if name.starts_with('r') {
                text[from..].rfind(&*part)
            } else {
                text[from..].find(&*part)
            };
            match at {
                Some(at) => Value::Int(text[..from + at].chars().count() as i64),
                None if name.ends_with("index") => {
                    return Err(Failure::new("the substring was not found"));
                }
                None => Value::Int(-1),
            }
        }
        "removeprefix" => {
            let part = own("prefix")?.unwrap_or_else(|| Text::template(""));
            Value::Str(text.part(text.strip_prefix(&*part).unwrap_or(text)))
        }
        "removesuffix" => {
            let part = own("suffix")?.unwrap_or_else(|| Text::template(""));
            Value::Str(text.part(text.strip_suffix(&*part).unwrap_or(text)))
        }
        "partition" | "rpartition" => {
            let separator = own("sep")?.filter(|part| !part.is_empty());
            let separator = separator.ok_or_else(|| Failure::new("an empty separator"))?;
            let first = name == "partition";
            let pair = if first {
                text.split_once(&*separator)
            } else {
                text.rsplit_once(&*separator)
            };
            let empty = || Text::template("");
            let three = match pair {
                Some((a, b)) => {
                    let middle = &text[a.len()..a.len() + separator.len()];
                    [text.part(a), text.part(middle), text.part(b)]
                }
                None if first => [text.clone(), empty(), empty()],
                None => [empty(), empty(), text.clone()],
            };
            Value::sequence(three.map(Value::Str).to_vec(), true)?
        }
        "center" | "ljust" | "rjust" | "zfill" => {
            let width = arguments.int(0, "width")?.unwrap_or(0);
            let fill = match name {
                "zfill" => Text::template("0"),
                _ => arguments
                    .text(1, "fillchar")?
                    .cloned()
                    .unwrap_or_else(|| Text::template(" ")),
            };
            pad(text, width, &fill, name, work)?
        }
        "isascii" => Value::Bool(text.is_ascii()),
        "isdigit" | "isdecimal" => every(text, |c| c.is_ascii_digit()),
        "isnumeric" => every(text, char::is_numeric),
        "isalpha" => every(text, char::is_alphabetic),
        "isalnum" => every(text, char::is_alphanumeric),
        "isspace" => every(text, char::is_whitespace),
        "istitle" => {
            let cased = text.chars().any(|c| c.is_lowercase() || c.is_uppercase());
            Value::Bool(cased && *title(text, char::is_alphabetic) == **text)
        }
        "isupper" => Value::Bool(is_cased(text, char::is_uppercase)),
        _ => Value::Bool(is_cased(text, char::is_lowercase)),
    })
}

/// Whether `text` has letters of a case and none of the other one; `is_case` is `char::is_lowercase` or `char::is_uppercase`.
pub(super) fn is_cased(text: &str, is_case: fn(char) -> bool) -> bool {
    let is_letter = |c: &char| c.is_lowercase() || c.is_uppercase();
    let mut letters = text.chars().filter(is_letter).peekable();
    letters.peek().is_some() && letters.all(is_case)
}

fn every(text: &str, holds: fn(char) -> bool) -> Value {
    Value::Bool(!text.is_empty() && text.chars().all(holds))
}

/// Strips white space, or the characters in `chars`, from the selected ends.
pub(crate) fn strip(
    text: &Text,
    chars: Option<&str>,
    ends: [bool; 2],
    work: &mut Work,
) -> Outcome<Text> {
    work.spend_each(text.len(), chars.map_or(1, str::len))?;
    let strips = |c: char| match chars {
        Some(chars) => chars.contains(c),
        // Python's white space includes the separators of ASCII.
        None => c.is_whitespace() || ('\x1c'..='\x1f').contains(&c),
    };
    let mut part: &str = text;
    if ends[0] {
        part = part.trim_start_matches(strips);
    }
    if ends[1] {
        part = part.trim_end_matches(strips);
    }
    Ok(text.part(part))
}

fn split(text: &Text, from_right: bool, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let limit = arguments
        .int(1, "maxsplit")?
        .and_then(|limit| usize::try_from(limit).ok());
    let limit = limit.map_or(usize::MAX, |limit| limit.saturating_add(1));
    let separator = arguments.text(0, "sep")?.map(|separator| &**separator);
    work.spend(separator.map_or(0, str::len))?;
    let pieces = match separator {
        Some("") => return Err(Failure::new("an empty separator")),
        Some(separator) => text.matches(separator).count() + 1,
        None => text.len(),
    };
    work.spend_each(pieces, 2 * ELEMENT)?;
    let mut parts: Vec<&str> = match (separator, from_right) {
        (Some(separator), false) => text.splitn(limit, separator).collect(),
        (Some(separator), true) => text.rsplitn(limit, separator).collect(),
        (None, _) => {
            let (mut parts, mut rest) = (Vec::new(), text.trim());
            while !rest.is_empty() {
                let cut = match (parts.len() + 1 < limit, from_right) {
                    (false, _) => None,
                    (_, false) => rest.split_once(char::is_whitespace),
                    (_, true) => rest
                        .rsplit_once(char::is_whitespace)
                        .map(|(rest, part)| (part, rest)),
                };
                let (part, more) = cut.unwrap_or((rest, ""));
                parts.push(part);
                rest = more.trim();
            }
            parts
        }
    };
    if from_right {
        parts.reverse();
    }
    let parts = parts.into_iter().map(|part| Value::Str(text.part(part)));
    Value::list(parts.collect())
}

/// Replaces `from` with `to`, at most `count` times.
pub fn replace(
    text: &Text,
    from: &str,
    to: &Text,
    count: Option<i64>,
    work: &mut Work,
) -> Outcome<Value> {
    work.spend(from.len() + text.len())?;
    let limit = count
        .and_then(|count| usize::try_from(count).ok())
        .unwrap_or(usize::MAX);
    let mut writer = Writer::new(work);
    let mut done = 0;
    for (at, found) in text.match_indices(from).take(limit) {
        writer.text(&text.slice(done..at))?;
        writer.text(to)?;
        writer.work.spend(4)?;
        done = at + found.len();
    }
    writer.text(&text.slice(done..text.len()))?;
    writer.finish()
}

/// Concatenates the elements as text with `separator` between them.
pub fn join(value: &Value, separator: &Text, work: &mut Work) -> Outcome<Value> {
    let list = value.iterate(work)?;
    let mut writer = Writer::new(work);
    for (index, item) in list.items.iter().enumerate() {
        if index > 0 {
            writer.text(separator)?;
        }
        writer.value(item)?;
        writer.work.spend(4)?;
    }
    writer.finish()
}

/// Extends `text` to `width` characters, at the ends that the method `name` extends.
pub fn pad(text: &Text, width: i64, fill: &Text, name: &str, work: &mut Work) -> Outcome<Value> {
    let missing = width.saturating_sub(text.chars().count() as i64).max(0) as usize;
    work.spend_each(missing, 8)?;
    let before = match name {
        "center" => missing / 2 + (missing & width as usize & 1),
        "ljust" => 0,
        _ => missing,
    };
    let sign = usize::from(name == "zfill" && text.starts_with(['+', '-']));
    let mut writer = Writer::new(work);
    writer.text(&text.slice(0..sign))?;
    (0..before).try_for_each(|_| writer.text(fill))?;
    writer.text(&text.slice(sign..text.len()))?;
    (before..missing).try_for_each(|_| writer.text(fill))?;
    writer.finish()
}

pub(crate) fn upper(text: &Text) -> Text {
    text.mapped(|c, out| out.extend(c.to_uppercase()))
}

/// Lower case; a sigma at the end of a word has its own form.
pub(crate) fn lower(text: &Text) -> Text {
    if text.contains('\u{3a3}') {
        let lowered = text.to_lowercase();
        let mut characters = lowered.chars();
        return text
            .mapped(|c, out| out.extend(characters.by_ref().take(c.to_lowercase().count())));
    }
    text.mapped(|c, out| out.extend(c.to_lowercase()))
}

/// Converts the first letter to upper case and the others to lower case.
pub(crate) fn capitalize(text: &Text) -> Text {
    let mut first = true;
    text.mapped(|c, out| {
        if std::mem::take(&mut first) {
            out.extend(c.to_uppercase())
        } else {
            out.extend(c.to_lowercase())
        }
    })
}

/// Converts the first letter of each word to upper case and the others to lower case.
pub fn title(text: &Text, is_inside: fn(char) -> bool) -> Text {
    let mut inside = false;
    text.mapped(|c, out| {
        if inside {
            out.extend(c.to_lowercase())
        } else {
            out.extend(c.to_uppercase())
        }
        inside = is_inside(c);
    })
}
