//! Filters: the names after `|`.

use super::eval::Evaluator;
use super::expr::Values;
use super::format::percent;
use super::text::{Json, Writer};
use super::value::Value;
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};
use super::{lists, methods};

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
        "default" | "d" => {
            let missing = match value {
                Value::Undefined => true,
                ref other => arguments.flag(1, "boolean") && !other.is_true(),
            };
            let default = || arguments.get(0, "default_value").cloned();
            return Ok(if missing {
                default().unwrap_or_else(|| Value::str(""))
            } else {
                value
            });
        }
        _ => {}
    }
    let work = &mut evaluator.work;
    Ok(match name {
        "safe" => value,
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
                work.spend_each(text.len(), 2)?;
                Value::str(&text.chars().rev().collect::<String>())
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
            other => {
                return Err(Failure::new(format!(
                    "items needs a mapping, found {}",
                    other.kind()
                )));
            }
        },
        "dictsort" => return lists::dict_sort(&value, arguments, work),
        "int" => {
            let parsed = match &value {
                Value::Str(text) => {
                    let text = text.trim();
                    let float = || text.parse::<f64>().ok().filter(|value| value.is_finite());
                    text.parse().ok().or_else(|| Some(float()? as i64))
                }
                Value::Float(value) if value.is_finite() => Some(*value as i64),
                other => other.as_int(),
            };
            parsed.map_or_else(
                || {
                    arguments
                        .get(0, "default")
                        .cloned()
                        .unwrap_or(Value::Int(0))
                },
                Value::Int,
            )
        }
        "float" => {
            let parsed = match &value {
                Value::Str(text) => text.trim().parse().ok(),
                other => other.as_float(),
            };
            parsed.map_or_else(
                || {
                    arguments
                        .get(0, "default")
                        .cloned()
                        .unwrap_or(Value::Float(0.0))
                },
                Value::Float,
            )
        }
        "abs" => match value {
            Value::Float(value) => Value::Float(value.abs()),
            other => match other.as_int().and_then(i64::checked_abs) {
                Some(value) => Value::Int(value),
                None => {
                    return Err(Failure::new(format!(
                        "{} has no absolute value",
                        other.kind()
                    )));
                }
            },
        },
        "round" => {
            let Some(number) = value.as_float() else {
                return Err(Failure::new(format!("{} cannot be rounded", value.kind())));
            };
            let digits = arguments.int(0, "precision")?.unwrap_or(0).clamp(-300, 300);
            let scale = 10f64.powi(digits as i32);
            Value::Float(match arguments.text(1, "method")? {
                Some("ceil") => (number * scale).ceil() / scale,
                Some("floor") => (number * scale).floor() / scale,
                _ => (number * scale).round_ties_even() / scale,
            })
        }
        "batch" | "slice" => return batch(name, &value, arguments, work),
        _ => return of_text(name, &value, arguments, work),
    })
}

/// Filters that convert any value to text first.
fn of_text(name: &str, value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let mut writer = Writer::new(work);
    writer.value(value)?;
    let text = writer.text;
    work.spend_each(text.len(), 4)?;
    Ok(match name {
        "string" => Value::str(&text),
        "trim" => Value::str(methods::strip(
            &text,
            arguments.text(0, "chars")?,
            [true, true],
            work,
        )?),
        "upper" => Value::str(&text.to_uppercase()),
        "lower" => Value::str(&text.to_lowercase()),
        "title" => Value::str(&methods::title(&text)),
        "capitalize" => Value::str(&methods::capitalize(&text)),
        "replace" => {
            let (from, to) = (arguments.text(0, "old")?, arguments.text(1, "new")?);
            let count = arguments.int(2, "count")?;
            return methods::replace(
                &text,
                from.unwrap_or_default(),
                to.unwrap_or_default(),
                count,
                work,
            );
        }
        "format" => {
            work.spend_each(arguments.positional.len(), ELEMENT)?;
            let values = Value::sequence(arguments.positional.clone(), true)?;
            return percent(&text, &values, work);
        }
        "wordcount" => Value::Int(text.split_whitespace().count() as i64),
        "indent" => {
            let by = match arguments.get(0, "width") {
                Some(Value::Str(by)) => by.to_string(),
                None => " ".repeat(4),
                Some(other) => {
                    let width = other
                        .as_int()
                        .and_then(|width| usize::try_from(width).ok())
                        .unwrap_or(0);
                    work.spend(width)?;
                    " ".repeat(width)
                }
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
                writer.push(if indents { &by } else { "" })?;
                writer.push(line)?;
            }
            writer.work.spend(writer.text.len())?;
            Value::str(&writer.text)
        }
        "escape" | "e" | "forceescape" => {
            let mut writer = Writer::new(work);
            for character in text.chars() {
                match character {
                    '&' => writer.push("&amp;")?,
                    '<' => writer.push("&lt;")?,
                    '>' => writer.push("&gt;")?,
                    '"' => writer.push("&#34;")?,
                    '\'' => writer.push("&#39;")?,
                    other => writer.push(other.encode_utf8(&mut [0; 4]))?,
                }
            }
            writer.work.spend(writer.text.len())?;
            Value::str(&writer.text)
        }
        _ => {
            return Err(Failure::new(format!(
                "the filter {name:?} is not known in chat templates"
            )));
        }
    })
}

fn to_json(value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let indent = match arguments.get(1, "indent") {
        None | Some(Value::None) => None,
        Some(Value::Str(by)) => Some(by.to_string()),
        Some(other) => {
            let width = other
                .as_int()
                .ok_or_else(|| Failure::new("tojson: indent must be an integer"))?;
            let width = usize::try_from(width).unwrap_or(0);
            work.spend(width)?;
            Some(" ".repeat(width))
        }
    };
    // Jinja's own tojson takes the indent as its first argument, transformers' takes ensure_ascii.
    let first = arguments
        .positional
        .first()
        .filter(|_| arguments.positional.len() == 1);
    let indent = match first
        .and_then(Value::as_int)
        .filter(|_| !matches!(first, Some(Value::Bool(_))))
    {
        Some(width) => {
            let width = usize::try_from(width).unwrap_or(0);
            work.spend(width)?;
            Some(" ".repeat(width))
        }
        None => indent,
    };
    let (mut item, mut key) = (
        if indent.is_some() { "," } else { ", " }.to_string(),
        ": ".to_string(),
    );
    if let Some(Value::List(pair)) = arguments.get(2, "separators")
        && let [Value::Str(first), Value::Str(second)] = &pair.items[..]
    {
        (item, key) = (first.to_string(), second.to_string());
    }
    let json = Json {
        indent,
        item_separator: item,
        key_separator: key,
        sort_keys: arguments.flag(3, "sort_keys"),
        ascii: arguments
            .get(0, "ensure_ascii")
            .is_some_and(|value| matches!(value, Value::Bool(true))),
    };
    let mut writer = Writer::new(work);
    json.write(value, 0, &mut writer)?;
    writer.work.spend(writer.text.len())?;
    Ok(Value::str(&writer.text))
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
