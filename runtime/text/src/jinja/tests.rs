//! Jinja's tests: the names after `is`.

use super::filters;
use super::methods::is_cased;
use super::value::Value;
use super::work::Work;
use super::{Failure, Outcome};

const NAMES: &str = "boolean callable defined divisibleby eq equalto escaped even false filter float ge greaterthan gt in integer iterable le \
    lessthan lower lt mapping ne none number odd sameas sequence string test true undefined upper == != < <= > >=";

/// Whether a test holds for a value.
pub fn holds(name: &str, value: &Value, arguments: &[Value], work: &mut Work) -> Outcome<bool> {
    let argument = || {
        arguments
            .first()
            .ok_or_else(|| Failure::new(format!("the test {name:?} needs an argument")))
    };
    let integer = || {
        value
            .as_int()
            .ok_or_else(|| Failure::new(format!("the test {name:?} is for integers")))
    };
    Ok(match name {
        "defined" => !matches!(value, Value::Undefined),
        "undefined" => matches!(value, Value::Undefined),
        "none" => matches!(value, Value::None),
        "boolean" => matches!(value, Value::Bool(_)),
        "true" => matches!(value, Value::Bool(true)),
        "false" => matches!(value, Value::Bool(false)),
        "integer" => matches!(value, Value::Int(_)),
        "float" => matches!(value, Value::Float(_)),
        "number" => value.as_float().is_some(),
        "string" => matches!(value, Value::Str(_)),
        "mapping" => matches!(value, Value::Dict(_)),
        "sequence" | "iterable" => {
            matches!(
                value,
                Value::Str(_) | Value::List(_) | Value::Dict(_) | Value::Undefined
            )
        }
        "callable" => matches!(
            value,
            Value::Macro(..) | Value::Function(_) | Value::Method(_)
        ),
        "odd" => integer()? % 2 != 0,
        "even" => integer()? % 2 == 0,
        "divisibleby" => match argument()?.as_int() {
            Some(by) if by != 0 => integer()?.checked_rem(by) == Some(0),
            _ => return Err(Failure::new("divisibleby needs an integer other than 0")),
        },
        "eq" | "equalto" | "==" => value.equals(argument()?, work)?,
        "ne" | "!=" => !value.equals(argument()?, work)?,
        "lt" | "lessthan" | "<" => value.order(argument()?, work)?.is_lt(),
        "le" | "<=" => value.order(argument()?, work)?.is_le(),
        "gt" | "greaterthan" | ">" => value.order(argument()?, work)?.is_gt(),
        "ge" | ">=" => value.order(argument()?, work)?.is_ge(),
        "sameas" => value.is_same(argument()?, work)?,
        "escaped" => matches!(value, Value::Str(text) if text.is_safe),
        "filter" | "test" => {
            let names = if name == "filter" {
                filters::NAMES
            } else {
                NAMES
            };
            let wanted = value.as_str().unwrap_or_default();
            names.split(' ').any(|known| known == wanted)
        }
        "in" => argument()?.contains(value, work)?,
        "lower" | "upper" => {
            let text = value.as_str().unwrap_or_default();
            work.spend(text.len())?;
            let is_case = if name == "lower" {
                char::is_lowercase
            } else {
                char::is_uppercase
            };
            is_cased(text, is_case)
        }
        _ => {
            return Err(Failure::new(format!(
                "the test {name:?} is not known in chat templates"
            )));
        }
    })
}
