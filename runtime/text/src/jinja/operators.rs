//! Arithmetic, slices and ranges.

use super::ast::Operator;
use super::format::percent;
use super::text::Writer;
use super::value::Value;
use super::work::{ELEMENT, Work};
use super::{Failure, Outcome};

/// Longest range, the same as in transformers' sandbox.
const MAX_RANGE: i64 = 100_000;

/// Computes `a operator b`.
pub fn apply(operator: Operator, a: &Value, b: &Value, work: &mut Work) -> Outcome<Value> {
    match (operator, a, b) {
        (Operator::Add, Value::Str(x), Value::Str(y)) if x.is_safe || y.is_safe => {
            let mut writer = Writer::new(work);
            writer.html(x)?;
            writer.html(y)?;
            return writer.finish_safe();
        }
        (Operator::Concat, _, _) | (Operator::Add, Value::Str(_), Value::Str(_)) => {
            let mut writer = Writer::new(work);
            writer.value(a)?;
            writer.value(b)?;
            return writer.finish();
        }
        (Operator::Add, Value::List(x), Value::List(y)) if x.tuple == y.tuple => {
            work.spend_each(x.items.len() + y.items.len(), ELEMENT)?;
            return Value::sequence([&x.items[..], &y.items].concat(), x.tuple);
        }
        (Operator::Multiply, Value::Str(_) | Value::List(_), _) if b.as_int().is_some() => {
            return repeat(a, b.as_int().unwrap_or(0), work);
        }
        (Operator::Multiply, _, Value::Str(_) | Value::List(_)) if a.as_int().is_some() => {
            return repeat(b, a.as_int().unwrap_or(0), work);
        }
        (Operator::Remainder, Value::Str(format), _) => return percent(format, b, work),
        _ => {}
    }
    let fail = || {
        let sign = match operator {
            Operator::Add => "+",
            Operator::Subtract => "-",
            Operator::Multiply => "*",
            Operator::Divide => "/",
            Operator::FloorDivide => "//",
            Operator::Remainder => "%",
            _ => "**",
        };
        Failure::new(format!(
            "{} {sign} {} cannot be computed",
            a.kind(),
            b.kind()
        ))
    };
    if let (Some(x), Some(y)) = (a.as_int(), b.as_int()) {
        let negative_power = matches!(operator, Operator::Power) && y < 0;
        if !matches!(operator, Operator::Divide) && !negative_power {
            return integers(operator, x, y).map(Value::Int).ok_or_else(|| {
                Failure::new(format!("{x} and {y}: the result does not fit into 64 bits"))
            });
        }
    }
    let (Some(x), Some(y)) = (a.as_float(), b.as_float()) else {
        return Err(fail());
    };
    Ok(Value::Float(match operator {
        Operator::Add => x + y,
        Operator::Subtract => x - y,
        Operator::Multiply => x * y,
        Operator::Power => x.powf(y),
        _ if y == 0.0 => return Err(Failure::new("division by zero")),
        Operator::Divide => x / y,
        Operator::FloorDivide => (x / y).floor(),
        _ => x - y * (x / y).floor(),
    }))
}

/// Integer arithmetic with Python's rounding towards negative infinity.
fn integers(operator: Operator, x: i64, y: i64) -> Option<i64> {
    match operator {
        Operator::Add => x.checked_add(y),
        Operator::Subtract => x.checked_sub(y),
        Operator::Multiply => x.checked_mul(y),
        Operator::Power => x.checked_pow(u32::try_from(y).ok()?),
        Operator::FloorDivide => {
            let quotient = x.checked_div(y)?;
            Some(quotient - i64::from(x % y != 0 && (x < 0) != (y < 0)))
        }
        _ => {
            let rest = x.checked_rem(y)?;
            Some(if rest != 0 && (rest < 0) != (y < 0) {
                rest + y
            } else {
                rest
            })
        }
    }
}

fn repeat(value: &Value, times: i64, work: &mut Work) -> Outcome<Value> {
    let times = usize::try_from(times).unwrap_or(0);
    match value {
        Value::Str(text) => {
            // An empty text costs nothing, so it must not be repeated.
            let times = if text.is_empty() { 0 } else { times };
            let mut writer = Writer::new(work);
            (0..times).try_for_each(|_| writer.text(text))?;
            writer.finish()
        }
        Value::List(list) => {
            work.spend_each(times, list.items.len().saturating_mul(ELEMENT))?;
            // An empty list costs nothing, so it must not be repeated.
            let times = if list.items.is_empty() { 0 } else { times };
            let repeated = std::iter::repeat_n(&list.items, times).flatten();
            Value::sequence(repeated.cloned().collect(), list.tuple)
        }
        other => Err(Failure::new(format!("{} cannot be repeated", other.kind()))),
    }
}

/// Resolves index `at`, which counts from the end if negative.
pub fn position(at: i64, length: usize) -> Option<usize> {
    let at = if at < 0 {
        at.checked_add(length as i64)?
    } else {
        at
    };
    usize::try_from(at).ok().filter(|&at| at < length)
}

/// Computes `value[start:stop:step]`.
pub fn slice(value: &Value, bounds: [Option<i64>; 3], work: &mut Work) -> Outcome<Value> {
    let length = value.length(work)? as i64;
    let step = bounds[2].unwrap_or(1);
    if step == 0 {
        return Err(Failure::new("slice step cannot be zero"));
    }
    // Bounds are clamped to -1 ..= length - 1 for a negative step, otherwise to 0 ..= length.
    let (low, high) = if step > 0 {
        (0, length)
    } else {
        (-1, length - 1)
    };
    let bound = |bound: Option<i64>, default: i64| match bound {
        None => default,
        Some(at) if at < 0 => at.saturating_add(length).clamp(low, high),
        Some(at) => at.clamp(low, high),
    };
    let (start, stop) = if step > 0 {
        (bound(bounds[0], low), bound(bounds[1], high))
    } else {
        (bound(bounds[0], high), bound(bounds[1], low))
    };
    if let (Value::Str(text), 1) = (value, step) {
        let at = |at: i64| {
            text.char_indices()
                .nth(at as usize)
                .map_or(text.len(), |(at, _)| at)
        };
        let (start, stop) = (at(start), at(stop));
        work.spend(text.size())?;
        return Ok(Value::Str(text.slice(start.min(stop)..stop)));
    }
    let mut places = Vec::new();
    let mut at = start;
    while if step > 0 { at < stop } else { at > stop } {
        work.spend(ELEMENT)?;
        places.push(at as usize);
        at = at.saturating_add(step);
    }
    match value {
        Value::List(list) => {
            let items = places.into_iter().map(|at| list.items[at].clone());
            Value::sequence(items.collect(), list.tuple)
        }
        Value::Str(text) => {
            work.spend_each(text.len(), 8)?;
            let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
            let start = |at: usize| starts.get(at).copied().unwrap_or(text.len());
            let range = |at: usize| start(at)..start(at + 1);
            let mut writer = Writer::new(work);
            for at in places {
                writer.text(&text.slice(range(at)))?;
            }
            writer.finish()
        }
        Value::Undefined => Value::list(Vec::new()),
        other => Err(Failure::new(format!("{} cannot be sliced", other.kind()))),
    }
}

/// `range(stop)`, `range(start, stop)`, `range(start, stop, step)`.
pub fn range(arguments: &[Value], work: &mut Work) -> Outcome<Value> {
    let ints = arguments
        .iter()
        .map(Value::as_int)
        .collect::<Option<Vec<i64>>>();
    let (start, stop, step) = match ints.as_deref() {
        Some([stop]) => (0, *stop, 1),
        Some([start, stop]) => (*start, *stop, 1),
        Some([start, stop, step]) if *step != 0 => (*start, *stop, *step),
        _ => return Err(Failure::new("range takes one to three integers")),
    };
    let (start, stop, step) = (i128::from(start), i128::from(stop), i128::from(step));
    let span = if step > 0 { stop - start } else { start - stop };
    let length = (span.max(0) + step.abs() - 1) / step.abs();
    if length > i128::from(MAX_RANGE) {
        return Err(Failure::new(format!(
            "a range of {length} elements is too long"
        )));
    }
    work.spend_each(length as usize, ELEMENT)?;
    let value = |index: i128| Value::Int((start + index * step) as i64);
    Value::list((0..length).map(value).collect())
}
