//! What stands behind `|`.

use std::cmp::Ordering;

use super::eval::Evaluator;
use super::expr::Values;
use super::format::percent;
use super::methods;
use super::tests;
use super::text::{Json, Log2, Writer};
use super::value::Value;
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// Applies a filter.
pub fn apply(
    evaluator: &mut Evaluator,
    name: &str,
    value: Value,
    arguments: &Values,
) -> Outcome<Value> {
    match name {
        "map" | "select" | "reject" | "selectattr" | "rejectattr" => {
            return choose(evaluator, name, &value, arguments);
        }
        "sort" | "unique" | "min" | "max" | "sum" | "join" | "attr" | "groupby" => {
            return by_attribute(evaluator, name, value, arguments);
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
            other => return Err(Failure::new(format!("{} has no items", other.kind()))),
        },
        "dictsort" => return dict_sort(&value, arguments, work),
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

/// Filters that take any value as its text.
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
                .ok_or_else(|| Failure::new("tojson's indent is no integer"))?;
            let width = usize::try_from(width).unwrap_or(0);
            work.spend(width)?;
            Some(" ".repeat(width))
        }
    };
    // Jinja's own tojson has the indent first, and transformers' has ensure_ascii there.
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

/// `map`, `select`, `reject`, `selectattr` and `rejectattr`.
fn choose(
    evaluator: &mut Evaluator,
    name: &str,
    value: &Value,
    arguments: &Values,
) -> Outcome<Value> {
    // As in Jinja2, whatever is false has no elements.
    let value = if value.is_true() {
        value
    } else {
        &Value::Undefined
    };
    let list = value.iterate(&mut evaluator.work)?;
    let mut chosen = Vec::new();
    let mut names = arguments.positional.iter();
    let attribute = match name {
        "map" => arguments.get(usize::MAX, "attribute"),
        "selectattr" | "rejectattr" => names.next(),
        _ => None,
    };
    let rest = Values {
        positional: names.clone().skip(1).cloned().collect(),
        named: arguments.named.clone(),
    };
    let called = names.next().map(|name| name.as_str().unwrap_or_default());
    for item in &list.items {
        evaluator.work.spend(2 * ELEMENT)?;
        let part = match attribute {
            Some(path) => at_path(evaluator, item, path)?,
            None => item.clone(),
        };
        if name == "map" {
            let part = match (&part, attribute, called) {
                (Value::Undefined, Some(_), _) => arguments
                    .get(usize::MAX, "default")
                    .cloned()
                    .unwrap_or(part),
                (_, Some(_), _) => part,
                (_, None, Some(filter)) => apply_inner(evaluator, filter, part, &rest)?,
                (_, None, None) => return Err(Failure::new("map needs a filter or an attribute")),
            };
            chosen.push(part);
            continue;
        }
        let holds = match called {
            Some(test) => tests::holds(test, &part, &rest.positional, &mut evaluator.work)?,
            None => part.is_true(),
        };
        if holds == name.starts_with("select") {
            chosen.push(item.clone());
        }
    }
    Value::list(chosen)
}

/// A filter that a filter applies, one level deeper.
fn apply_inner(
    evaluator: &mut Evaluator,
    name: &str,
    value: Value,
    arguments: &Values,
) -> Outcome<Value> {
    if name == "map" {
        return Err(Failure::new("map of map is not known in chat templates"));
    }
    apply(evaluator, name, value, arguments)
}

/// What a path such as `function.name` leads to; undefined if it leads nowhere.
fn at_path(evaluator: &mut Evaluator, value: &Value, path: &Value) -> Outcome<Value> {
    let Value::Str(path) = path else {
        return evaluator.index(value, path);
    };
    let mut value = value.clone();
    evaluator.work.spend(path.len())?;
    for name in path.split('.') {
        if matches!(value, Value::Undefined) {
            break;
        }
        value = match name.parse::<i64>() {
            Ok(index) => evaluator.index(&value, &Value::Int(index))?,
            Err(_) => evaluator.attribute_of(&value, name)?,
        };
    }
    Ok(value)
}

/// Filters that look at an attribute of each element, if one is given.
fn by_attribute(
    evaluator: &mut Evaluator,
    name: &str,
    value: Value,
    arguments: &Values,
) -> Outcome<Value> {
    let position = match name {
        "join" | "unique" | "min" | "max" => 1,
        "sort" => 2,
        _ => 0,
    };
    let path = arguments
        .get(position, "attribute")
        .filter(|path| !matches!(path, Value::None))
        .cloned();
    if name == "attr" {
        let path = arguments
            .get(0, "name")
            .and_then(Value::as_str)
            .unwrap_or_default();
        return evaluator.attribute_of(&value, path);
    }
    let list = value.iterate(&mut evaluator.work)?;
    let mut keyed: Vec<(Value, Value)> = Vec::new();
    for item in &list.items {
        evaluator.work.spend(2 * ELEMENT)?;
        let key = match &path {
            Some(path) => at_path(evaluator, item, path)?,
            None => item.clone(),
        };
        keyed.push((key, item.clone()));
    }
    let work = &mut evaluator.work;
    let folds = matches!(name, "sort" | "unique" | "min" | "max" | "groupby");
    if folds && !arguments.flag(usize::from(name == "sort"), "case_sensitive") {
        for (key, _) in &mut keyed {
            *key = folded(key, work)?;
        }
    }
    match name {
        "join" => {
            let items = Value::list(keyed.into_iter().map(|(key, _)| key).collect())?;
            let separator = match arguments.get(0, "d") {
                Some(separator) => {
                    let mut writer = Writer::new(work);
                    writer.value(separator)?;
                    writer.text
                }
                None => String::new(),
            };
            methods::join(&items, &separator, work)
        }
        "sum" => {
            let start = arguments.get(1, "start").cloned().unwrap_or(Value::Int(0));
            keyed.iter().try_fold(start, |sum, (key, _)| {
                super::operators::apply(super::ast::Operator::Add, &sum, key, work)
            })
        }
        "sort" => {
            sort(&mut keyed, work)?;
            if arguments.flag(0, "reverse") {
                keyed.reverse();
            }
            Value::list(keyed.into_iter().map(|(_, item)| item).collect())
        }
        "unique" => {
            let mut found: Vec<(Value, Value)> = Vec::new();
            'items: for (key, item) in keyed {
                for (other, _) in &found {
                    work.spend(4)?;
                    if other.equals(&key, work)? {
                        continue 'items;
                    }
                }
                found.push((key, item));
            }
            Value::list(found.into_iter().map(|(_, item)| item).collect())
        }
        "groupby" => {
            sort(&mut keyed, work)?;
            let mut groups: Vec<(Value, Vec<Value>)> = Vec::new();
            for (key, item) in keyed {
                match groups.last_mut() {
                    Some((last, items)) if last.equals(&key, work)? => items.push(item),
                    _ => groups.push((key, vec![item])),
                }
            }
            let pair = |(key, items)| Value::sequence(vec![key, Value::list(items)?], true);
            Value::list(groups.into_iter().map(pair).collect::<Outcome<_>>()?)
        }
        _ => {
            let wanted = if name == "min" {
                Ordering::Less
            } else {
                Ordering::Greater
            };
            let mut best: Option<(Value, Value)> = None;
            for (key, item) in keyed {
                let better = match &best {
                    Some((other, _)) => key.order(other, work)? == wanted,
                    None => true,
                };
                if better {
                    best = Some((key, item));
                }
            }
            Ok(best.map_or(Value::Undefined, |(_, item)| item))
        }
    }
}

/// A string in small letters; other values as they are.
fn folded(value: &Value, work: &mut Work) -> Outcome<Value> {
    match value {
        Value::Str(text) => {
            work.spend_each(text.len(), 4)?;
            Ok(Value::str(&text.to_lowercase()))
        }
        other => Ok(other.clone()),
    }
}

/// Sorts by the keys, stably.
fn sort(keyed: &mut [(Value, Value)], work: &mut Work) -> Outcome<()> {
    let mut failure = None;
    keyed.sort_by(|(a, _), (b, _)| match a.order(b, work) {
        Ok(order) => order,
        Err(error) => {
            failure.get_or_insert(error);
            Ordering::Equal
        }
    });
    failure.map_or(Ok(()), Err)
}

fn dict_sort(value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let Value::Dict(dict) = value else {
        return Err(Failure::new(format!(
            "{} is no mapping to sort",
            value.kind()
        )));
    };
    let by_value = arguments.text(1, "by")? == Some("value");
    let mut keyed = Vec::new();
    for (key, value) in &dict.entries {
        work.spend(4 * ELEMENT)?;
        let by = if by_value { value } else { key };
        let by = if arguments.flag(0, "case_sensitive") {
            by.clone()
        } else {
            folded(by, work)?
        };
        keyed.push((by, Value::sequence(vec![key.clone(), value.clone()], true)?));
    }
    work.spend_each(keyed.len(), keyed.len().ilog2_or_zero())?;
    sort(&mut keyed, work)?;
    if arguments.flag(2, "reverse") {
        keyed.reverse();
    }
    Value::list(keyed.into_iter().map(|(_, item)| item).collect())
}

/// `batch(n)`: lists of n; `slice(n)`: n lists.
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
