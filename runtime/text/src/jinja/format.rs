//! Python's two ways to insert values into text: `"%s" % value` and `"{}".format(value)`.

use super::expr::Values;
use super::marked::Text;
use super::methods::pad;
use super::text::Writer;
use super::value::Value;
use super::work::Work;
use super::{Failure, Outcome};

/// Most digits after the point, and most characters that a field is padded to.
const MOST: usize = 100;

/// The format of a field: `[[fill]align][0][width][.precision][kind]`, where the align sign of `%` is `-`.
#[derive(Default)]
struct Spec {
    fill: Option<char>,
    align: Option<char>,
    width: usize,
    precision: Option<usize>,
    kind: Option<char>,
}

impl Spec {
    /// Parses the specification at the beginning of `text`. Also returns the text after it.
    fn parse(text: &str) -> Outcome<(Spec, &str)> {
        let mut spec = Spec::default();
        let mut characters = text.chars();
        let is_align = |c: &char| "<>^".contains(*c);
        spec.align = characters.next().filter(is_align);
        let second = characters.next().filter(is_align);
        let mut rest = text;
        if second.is_some() && !text.starts_with('%') {
            (spec.fill, spec.align) = (text.chars().next(), second);
            rest = characters.as_str();
        } else if spec.align.is_some() {
            rest = &text[1..];
        }
        while let Some(flag) = rest.chars().next().filter(|c| "+-0 #".contains(*c)) {
            match flag {
                '-' => spec.align = Some('<'),
                '0' => spec.fill = Some('0'),
                _ => {}
            }
            rest = &rest[1..];
        }
        (spec.width, rest) = number(rest)?;
        if let Some(after) = rest.strip_prefix('.') {
            let (precision, after) = number(after)?;
            (spec.precision, rest) = (Some(precision), after);
        }
        Ok((spec, rest))
    }

    /// Writes `value`. Texts are aligned to the left unless `right`.
    fn write(&self, value: &Value, right: bool, writer: &mut Writer) -> Outcome<()> {
        let digits = self.precision.unwrap_or(6);
        let is_text = self.kind.is_none_or(|kind| "sr".contains(kind));
        let mut inner = Writer::new(writer.work);
        match (self.kind, value.as_int(), value.as_float()) {
            (Some('r'), ..) => inner.repr(value)?,
            (Some('f'), _, Some(float)) => inner.push(&format!("{float:.digits$}"))?,
            (Some('%'), _, Some(float)) => inner.push(&format!("{:.digits$}%", 100.0 * float))?,
            (Some('d' | 'i'), integer, Some(float)) => {
                inner.push(&integer.unwrap_or(float as i64).to_string())?;
            }
            (Some('x'), Some(integer), _) => inner.push(&format!("{integer:x}"))?,
            (Some('X'), Some(integer), _) => inner.push(&format!("{integer:X}"))?,
            (Some('s') | None, ..) => inner.value(value)?,
            _ => {
                let reason = "unknown format, or a value of the wrong type for it";
                return Err(Failure::new(reason));
            }
        }
        let mut text = inner.finish_text()?;
        if is_text && let Some(most) = self.precision {
            let end = text.char_indices().nth(most);
            text = text.slice(0..end.map_or(text.len(), |(at, _)| at));
        }
        let is_number = !is_text || value.as_float().is_some();
        let method = match self.align {
            Some('<') => "ljust",
            Some('^') => "center",
            None if is_number && self.fill == Some('0') => "zfill",
            None if !is_number && !right => "ljust",
            _ => "rjust",
        };
        let fill = Text::template(&self.fill.unwrap_or(' ').to_string());
        let padded = pad(&text, self.width as i64, &fill, method, writer.work)?;
        writer.value(&padded)
    }
}

/// The number at the beginning of `text`, 0 if there is none, and the text after it.
fn number(text: &str) -> Outcome<(usize, &str)> {
    let length = text.find(|c: char| !c.is_ascii_digit());
    let (digits, rest) = text.split_at(length.unwrap_or(text.len()));
    match digits.parse() {
        Ok(number) if number <= MOST => Ok((number, rest)),
        _ if digits.is_empty() => Ok((0, rest)),
        _ => Err(Failure::new("a number in a format is too large")),
    }
}

/// Computes `format % value`.
pub fn percent(format: &Text, value: &Value, work: &mut Work) -> Outcome<Value> {
    let one = [value.clone()];
    let mut values = match value {
        Value::List(list) if list.tuple => list.items.iter(),
        _ => one.iter(),
    };
    let mut writer = Writer::new(work);
    let mut rest: &str = format;
    while let Some((before, after)) = rest.split_once('%') {
        writer.text(&format.part(before))?;
        if let Some(after) = after.strip_prefix('%') {
            writer.push("%")?;
            rest = after;
            continue;
        }
        let named = after
            .strip_prefix('(')
            .and_then(|after| after.split_once(')'));
        let (mut spec, after) = Spec::parse(named.map_or(after, |(_, after)| after))?;
        spec.kind = after.chars().next();
        let Some(kind) = spec.kind else {
            return Err(Failure::new("incomplete format"));
        };
        rest = &after[kind.len_utf8()..];
        let value = match (named, value) {
            (Some((name, _)), Value::Dict(dict)) => dict.get_str(name, writer.work)?,
            _ => values.next(),
        };
        let missing = || Failure::new("not enough values for the format string");
        spec.write(value.ok_or_else(missing)?, true, &mut writer)?;
    }
    if values.next().is_some() && matches!(value, Value::List(list) if list.tuple) {
        return Err(Failure::new("too many values for the format string"));
    }
    writer.text(&format.part(rest))?;
    writer.finish()
}

/// Computes `format.format(values)`.
pub fn braces(format: &Text, values: &Values, work: &mut Work) -> Outcome<Value> {
    let mut writer = Writer::new(work);
    let mut rest: &str = format;
    let mut next = 0;
    while let Some(at) = rest.find(['{', '}']) {
        writer.text(&format.part(&rest[..at]))?;
        let (brace, after) = rest[at..].split_at(1);
        if let Some(after) = after.strip_prefix(brace) {
            writer.push(brace)?;
            rest = after;
            continue;
        }
        let field = after.split_once('}').filter(|_| brace == "{");
        let Some((field, after)) = field else {
            return Err(Failure::new("unmatched brace in a format string"));
        };
        let (name, spec) = field.split_once(':').unwrap_or((field, ""));
        let (name, kind) = name.split_once('!').unwrap_or((name, ""));
        let value = match name {
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
        let (mut spec, last) = Spec::parse(spec)?;
        let mut kinds = last.chars().chain(kind.chars());
        spec.kind = kinds.next();
        if kinds.next().is_some() {
            return Err(Failure::new("unknown format"));
        }
        spec.write(value, false, &mut writer)?;
        rest = after;
    }
    writer.text(&format.part(rest))?;
    writer.finish()
}
