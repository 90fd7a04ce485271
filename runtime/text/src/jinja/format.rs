//! Python's two ways to insert values into text: `"%s" % value` and `"{}".format(value)`.

use super::expr::Values;
use super::text::Writer;
use super::value::Value;
use super::work::Work;
use super::{Failure, Outcome};

/// Computes `format % value`, with %s, %r, %d, %i, %f, %.Nf and %%.
pub fn percent(format: &str, value: &Value, work: &mut Work) -> Outcome<Value> {
    let one = [value.clone()];
    let mut values = match value {
        Value::List(list) if list.tuple => list.items.iter(),
        _ => one.iter(),
    };
    let mut writer = Writer::new(work);
    let mut rest = format;
    while let Some((before, after)) = rest.split_once('%') {
        writer.push(before)?;
        let digits = after.strip_prefix('.').map(|after| {
            let length = after
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(after.len());
            &after[..length]
        });
        let kind_at = digits.map_or(0, |digits| 1 + digits.len());
        let kind = after[kind_at..].chars().next();
        rest = &after[kind_at + kind.map_or(0, char::len_utf8)..];
        if kind == Some('%') {
            writer.push("%")?;
            continue;
        }
        let Some(value) = values.next() else {
            return Err(Failure::new("not enough values for the format string"));
        };
        match (kind, value) {
            (Some('s'), value) => writer.value(value)?,
            (Some('r'), value) => writer.repr(value)?,
            (Some('d' | 'i'), value) if value.as_float().is_some() => {
                let value = value
                    .as_int()
                    .unwrap_or(value.as_float().unwrap_or(0.0) as i64);
                writer.push(&value.to_string())?;
            }
            (Some('f'), value) if value.as_float().is_some() => {
                let digits: usize = digits
                    .map_or(Some(6), |digits| digits.parse().ok())
                    .unwrap_or(usize::MAX);
                if digits > 100 {
                    return Err(Failure::new("too many digits in a format"));
                }
                writer.push(&format!("{:.digits$}", value.as_float().unwrap_or(0.0)))?;
            }
            _ => {
                return Err(Failure::new(
                    "unknown format, or a value of the wrong type for it",
                ));
            }
        }
    }
    writer.push(rest)?;
    done(writer)
}

/// Computes `format.format(values)`. Fields with a format specification are not supported.
pub fn braces(format: &str, values: &Values, work: &mut Work) -> Outcome<Value> {
    let mut writer = Writer::new(work);
    let mut rest = format;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        writer.push(&rest[..at])?;
        let brace = &rest[at..at + 1];
        let after = &rest[at + 1..];
        if let Some(after) = after.strip_prefix(brace) {
            writer.push(brace)?;
            rest = after;
            continue;
        }
        let field = after.split_once('}').filter(|_| brace == "{");
        let Some((field, after)) = field else {
            return Err(Failure::new("unmatched brace in a format string"));
        };
        let value = match field {
            "" => {
                next += 1;
                values.positional.get(next - 1)
            }
            name => match name.parse::<usize>() {
                Ok(index) => values.positional.get(index),
                Err(_) => values.get(usize::MAX, name),
            },
        };
        let Some(value) = value else {
            return Err(Failure::new("a format string names a missing value"));
        };
        writer.value(value)?;
        rest = after;
    }
    writer.push(rest)?;
    done(writer)
}

fn done(writer: Writer) -> Outcome<Value> {
    writer.work.spend(writer.text.len())?;
    Ok(Value::str(&writer.text))
}
