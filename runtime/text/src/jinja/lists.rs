//! Filters that process each element of a list.

use std::cmp::Ordering;

use super::eval::Evaluator;
use super::expr::Values;
use super::filters::apply;
use super::methods;
use super::tests;
use super::text::{Writer, log2};
use super::value::Value;
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// `map`, `select`, `reject`, `selectattr` and `rejectattr`.
pub fn choose(
    evaluator: &mut Evaluator,
    name: &str,
    value: &Value,
    arguments: &Values,
) -> Outcome<Value> {
    // Like in Jinja2, a false value has no elements.
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

/// Applies a filter inside `map`, which must not be `map` itself.
fn apply_inner(
    evaluator: &mut Evaluator,
    name: &str,
    value: Value,
    arguments: &Values,
) -> Outcome<Value> {
    if name == "map" {
        return Err(Failure::new("map cannot apply map"));
    }
    apply(evaluator, name, value, arguments)
}

/// The value at a path such as `function.name`; undefined if it does not exist.
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
            Err(_) => evaluator.index(&value, &Value::str(name))?,
        };
    }
    Ok(value)
}

/// Filters that use an attribute of each element, if one is given.
pub(crate) fn by_attribute(
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
            let mut writer = Writer::new(work);
            if let Some(separator) = arguments.get(0, "d") {
                writer.value(separator)?;
            }
            let separator = writer.finish_text()?;
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

/// Converts a string to lower case; other values stay unchanged.
fn folded(value: &Value, work: &mut Work) -> Outcome<Value> {
    match value {
        Value::Str(text) => {
            work.spend_each(text.len(), 4)?;
            Ok(Value::Str(methods::lower(text)))
        }
        other => Ok(other.clone()),
    }
}

/// A stable merge sort by key. The standard library's sorts may panic here, because integers and floats together have no total order.
fn sort(keyed: &mut Vec<(Value, Value)>, work: &mut Work) -> Outcome<()> {
    let length = keyed.len();
    let mut from: Vec<usize> = (0..length).collect();
    let mut to = from.clone();
    let mut width = 1;
    while width < length {
        for start in (0..length).step_by(2 * width) {
            let (middle, end) = ((start + width).min(length), (start + 2 * width).min(length));
            let (mut first, mut second) = (start, middle);
            for place in &mut to[start..end] {
                let takes_second = first == middle
                    || second < end
                        && keyed[from[second]]
                            .0
                            .order(&keyed[from[first]].0, work)?
                            .is_lt();
                let next = if takes_second {
                    &mut second
                } else {
                    &mut first
                };
                *place = from[*next];
                *next += 1;
            }
        }
        std::mem::swap(&mut from, &mut to);
        width *= 2;
    }
    *keyed = from.into_iter().map(|at| keyed[at].clone()).collect();
    Ok(())
}

pub(crate) fn dict_sort(value: &Value, arguments: &Values, work: &mut Work) -> Outcome<Value> {
    let Value::Dict(dict) = value else {
        return Err(Failure::new(format!(
            "dictsort needs a mapping, found {}",
            value.kind()
        )));
    };
    let by_value = arguments.text(1, "by")?.is_some_and(|by| &**by == "value");
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
    work.spend_each(keyed.len(), log2(keyed.len()))?;
    sort(&mut keyed, work)?;
    if arguments.flag(2, "reverse") {
        keyed.reverse();
    }
    Value::list(keyed.into_iter().map(|(_, item)| item).collect())
}
