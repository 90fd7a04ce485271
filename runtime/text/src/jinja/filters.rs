//! Filters: the names after `|`.

use super::eval::Evaluator;
use super::expr::Values;
use super::format::percent;
use super::marked::Text;
use super::text::{Json, Writer};
use super::value::Value;
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};
use super::{lists, methods};

pub const NAMES: &str = "abs attr batch capitalize center count d default dictsort e escape first float forceescape format groupby indent int \
    items join last length list lower map max min reject rejectattr replace reverse round safe select selectattr slice sort string sum \
    title tojson trim truncate unique upper urlencode wordcount";

/// Applies a filter.
pub fn apply(
    evaluator: &mut Evaluator,
    name: &str,
    value: Value,
    arguments: &Values,
) -> Outcome<Value> {
    match name {
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            return lists::choose(evaluator, name, &value, arguments);
        }
        "sort" | "unique" | "min" | "max" | "sum" | "join" | "attr" | "groupby" => {
            return lists::by_attribute(evaluator, name, value, arguments);
        }
        _ => {}
    }
    let work = &mut evaluator.work;
    let failed = |what: &str| Err(Failure::new(format!("{} {what}", value.kind())));
    Ok(match name {
        "safe" => match value {
            Value::Str(text) => Value::Str(text.with_safety(true)),
            other => other,
        },
        "default" | "d" => {
            let missing = matches!(value, Value::Undefined)
                || arguments.flag(1, "boolean") && !value.is_true();
            let default = arguments.get(0, "default_value").cloned();
            let default = default.unwrap_or_else(|| Value::str(""));
            if missing { default } else { value }
        }
        "tojson" => return to_json(&value, arguments, work),
        "length" | "count" => Value::Int(value.length(work)? as i64),
        "list" => {
            let list = value.iterate(work)?;
            work.spend_each(list.items.len(), ELEMENT)?;
            Value::list(list.items.clone())?
        }
        "first" | "last" => {
            let list = value.iterate(work)?;
            let item = if name == "first" {
                list.items.first()
            } else {
                list.items.last()
            };
            item.cloned().unwrap_or(Value::Undefined)
        }
        "reverse" => match value {
            Value::Str(text) => {
                work.spend_each(text.size(), 2)?;
                Value::Str(text.reversed())
            }
            other => {
                let list = other.iterate(work)?;
                work.spend_each(list.items.len(), ELEMENT)?;
                Value::list(list.items.iter().rev().cloned().collect())?
            }
        },
        "items" => match value {
            Value::Undefined => Value::list(Vec::new())?,
            Value::Dict(dict) => methods::items(&dict.entries, work)?,
            _ => return failed("is not a mapping, which items needs"),
        },
        "dictsort" => return lists::dict_sort(&value, arguments, work),
        "int" => {
            let base = arguments.int(1, "base")?.unwrap_or(10);
            let parsed = match &value {
                Value::Str(text) => integer(text, base),
                Value::Float(value) if value.is_finite() => Some(*value as i64),
                other => other.as_int(),
            };
            let default = || arguments.get(0, "default").cloned();
            parsed.map_or_else(|| default().unwrap_or(Value::Int(0)), Value::Int)
        }
        "float" => {
            let parsed = match &value {
                Value::Str(text) => text.trim().replace('_', "").parse().ok(),
                other => other.as_float(),
            };
            let default = || arguments.get(0, "default").cloned();
            parsed.map_or_else(|| default().unwrap_or(Value::Float(0.0)), Value::Float)
        }
        "abs" => match (&value, value.as_int().and_then(i64::checked_abs)) {
            (Value::Float(value), _) => Value::Float(value.abs()),
            (_, Some(value)) => Value::Int(value),
            _ => return failed("has no absolute value"),
        },
        "round" => {
            let Some(number) = value.as_float() else {
                return failed("cannot be rounded");
            };
            let digits = arguments.int(0, "precision")?.unwrap_or(0).clamp(-300, 300);
            let scale = 10f64.powi(digits as i32);
            Value::Float(match arguments.text(1, "method")?.map(|text| &**text) {
                Some("ceil") => (number * scale).ceil() / scale,
                Some("floor") => (number * scale).floor() / scale,
                _ => (number * scale).round_ties_even() / scale,
            })
        }
        "batch" | "slice" => return batch(name, &value, arguments, work),
        _ => return of_text(name, &value, arguments, work),
    })
}

/// Parses an integer like Python's `int`, or the integer part of a float.
fn integer(text: &str, base: i64) -> Option<i64> {
    let text = text.trim().replace('_', "");
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => ("-", digits),
        None => ("", text.strip_prefix('+').unwrap_or(&text)),
    };
    let prefixes = [
        (16, "0x"),
        (16, "0X"),
        (8, "0o"),
        (8, "0O"),
        (2, "0b"),
        (2, "0B"),
    ];
    let prefixed = prefixes.iter().find_map(|&(of, prefix)| {
        Some((of, digits.strip_prefix(prefix)?)).filter(|_| base == 0 || base == of)
    });
    let (base, digits) = prefixed.unwrap_or((if base == 0 { 10 } else { base }, digits));
    let radix = u32::try_from(base)
        .ok()
        .filter(|base| (2..=36).contains(base))?;
    let float = || text.parse::<f64>().ok().filter(|value| value.is_finite());
    let exact = i64::from_str_radix(&format!("{sign}{digits}"), radix).ok();
    exact.or_else(|| Some(float()? as i64))
}

/// Filters that convert any value to text first.
fn of_text(name: &str, value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let mut writer = Writer::new(work);
    writer.value(value)?;
    let text = writer.finish_text()?;
    work.spend_each(text.len(), 4)?;
    Ok(Value::Str(match name {
        "string" => text,
        "trim" => {
            let chars = arguments.text(0, "chars")?.map(|chars| &**chars);
            methods::strip(&text, chars, [true, true], work)?
        }
        "upper" => methods::upper(&text),
        "lower" => methods::lower(&text),
        "title" => methods::title(&text, |c| !c.is_whitespace() && !"-({[<".contains(c)),
        "capitalize" => methods::capitalize(&text),
        "replace" => {
            let (from, to) = (arguments.get(0, "old"), arguments.get(1, "new"));
            let (Some(from), Some(to)) = (from, to) else {
                return Err(Failure::new("replace needs two strings"));
            };
            let mut text_of = |value| {
                let mut writer = Writer::new(work);
                writer.value(value)?;
                writer.finish_text()
            };
            let (from, to) = (text_of(from)?, text_of(to)?);
            return methods::replace(&text, &from, &to, arguments.int(2, "count")?, work);
        }
        "format" => {
            work.spend_each(arguments.positional.len(), ELEMENT)?;
            let named = arguments.named.iter();
            let named = named.map(|(name, value)| (Value::str(name), value.clone()));
            let values = if arguments.named.is_empty() {
                Value::sequence(arguments.positional.clone(), true)?
            } else {
                Value::dict(named.collect())?
            };
            return percent(&text, &values, work);
        }
        "wordcount" => return Ok(Value::Int(text.split_whitespace().count() as i64)),
        "center" => {
            let width = arguments.int(0, "width")?.unwrap_or(80);
            return methods::pad(&text, width, &Text::template(" "), name, work);
        }
        "indent" => {
            let by = match arguments.get(0, "width") {
                Some(Value::Str(by)) => by.clone(),
                None => spaces(4, work)?,
                Some(other) => spaces(other.as_int().unwrap_or(0), work)?,
            };
            let (first, blank) = (arguments.flag(1, "first"), arguments.flag(2, "blank"));
            let mut writer = Writer::new(work);
            for (index, line) in text.split('\n').enumerate() {
                writer.push(if index > 0 { "\n" } else { "" })?;
                let indents = if index == 0 {
                    first
                } else {
                    blank || !line.is_empty()
                };
                if indents {
                    writer.text(&by)?;
                }
                writer.text(&text.part(line))?;
            }
            return writer.finish();
        }
        "escape" | "e" | "forceescape" => {
            let is_safe = matches!(value, Value::Str(text) if text.is_safe);
            let text = text.with_safety(is_safe && name != "forceescape");
            let mut writer = Writer::new(work);
            writer.html(&text)?;
            return writer.finish_safe();
        }
        "urlencode" => {
            let mut writer = Writer::new(work);
            writer.escaped(&text, |character| {
                let plain = character.is_ascii_alphanumeric() || "_.-~/".contains(character);
                let mut bytes = [0; 4];
                let bytes = character.encode_utf8(&mut bytes).bytes();
                (!plain).then(|| bytes.map(|byte| format!("%{byte:02X}")).collect())
            })?;
            return writer.finish();
        }
        "truncate" => {
            let length = arguments.int(0, "length")?.unwrap_or(255).max(0) as usize;
            let leeway = arguments.int(3, "leeway")?.unwrap_or(5).max(0) as usize;
            let end = arguments.text(2, "end")?.cloned();
            let end = end.unwrap_or_else(|| Text::template("..."));
            if text.chars().count() <= length.saturating_add(leeway) {
                return Ok(Value::Str(text));
            }
            let kept = length.saturating_sub(end.chars().count());
            let cut = text
                .char_indices()
                .nth(kept)
                .map_or(text.len(), |(at, _)| at);
            let word = text[..cut]
                .rfind(' ')
                .filter(|_| !arguments.flag(1, "killwords"));
            let mut writer = Writer::new(work);
            writer.text(&text.slice(0..word.unwrap_or(cut)))?;
            writer.text(&end)?;
            return writer.finish();
        }
        _ => {
            return Err(Failure::new(format!(
                "the filter {name:?} is not known in chat templates"
            )));
        }
    }))
}

fn spaces(width: i64, work: &mut Work) -> Outcome<Text> {
    let width = usize::try_from(width).unwrap_or(0);
    work.spend(width)?;
    Ok(Text::template(&" ".repeat(width)))
}

/// transformers' `tojson`.
fn to_json(value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let indent = match arguments.get(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(by)) => Some(by.clone()),
        Some(other) => {
            let wrong = || Failure::new("tojson: indent must be an integer");
            Some(spaces(other.as_int().ok_or_else(wrong)?, work)?)
        }
    };
    let item = if indent.is_some() { "," } else { ", " };
    let mut separators = [Text::template(item), Text::template(": ")];
    if let Some(Value::List(pair)) = arguments.get(2, "separators")
        && let [Value::Str(item), Value::Str(key)] = &pair.items[..]
    {
        separators = [item.clone(), key.clone()];
    }
    let [item_separator, key_separator] = separators;
    let json = Json {
        indent,
        item_separator,
        key_separator,
        sort_keys: arguments.flag(3, "sort_keys"),
        ascii: arguments.flag(0, "ensure_ascii"),
    };
    let mut writer = Writer::new(work);
    json.write(value, 0, &mut writer)?;
    writer.finish()
}

/// `batch(n)` returns lists of n elements, `slice(n)` returns n lists.
fn batch(name: &str, value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let count = arguments
        .int(0, "n")?
        .and_then(|count| usize::try_from(count).ok());
    let Some(count) = count.filter(|&count| count > 0) else {
        return Err(Failure::new(format!("{name} needs a positive integer")));
    };
    let fill = arguments
        .get(1, "fill_with")
        .filter(|fill| !matches!(fill, Value::None));
    let list = value.iterate(work)?;
    let items = &list.items;
    work.spend_each(items.len(), ELEMENT)?;
    let mut parts: Vec<Vec<Value>> = Vec::new();
    if name == "batch" {
        parts.extend(items.chunks(count).map(<[Value]>::to_vec));
        if let (Some(fill), Some(last)) = (fill, parts.last_mut()) {
            work.spend_each(count - last.len(), ELEMENT)?;
            last.resize(count, fill.clone());
        }
    } else {
        work.spend_each(count, 4 * ELEMENT)?;
        let (each, more) = (items.len() / count, items.len() % count);
        let mut at = 0;
        for part in 0..count {
            let length = each + usize::from(part < more);
            let mut items = items[at..at + length].to_vec();
            at += length;
            if part >= more && more > 0 {
                items.extend(fill.cloned());
            }
            parts.push(items);
        }
    }
    Value::list(parts.into_iter().map(Value::list).collect::<Outcome<_>>()?)
}
