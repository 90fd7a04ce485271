//! Calls as a list of Python calls with literals, in the format of LFM2: `[get_weather(city="Paris", days=3)]`.

use serde_json::{Map, Number, Value};

use super::{Call, Tools, json};

/// Maximum nesting of lists.
const DEEPEST: usize = 64;

/// Parses the calls of a text as Python, or as JSON if the prompt requested that.
pub fn calls(text: &str, tools: &Tools) -> Option<Vec<Call>> {
    let mut reader = Reader { rest: text.trim() };
    reader.calls().or_else(|| json::calls(text, tools))
}

struct Reader<'a> {
    rest: &'a str,
}

impl Reader<'_> {
    fn calls(&mut self) -> Option<Vec<Call>> {
        let listed = self.takes("[");
        let mut calls = vec![self.call()?];
        while self.takes(",") {
            calls.push(self.call()?);
        }
        if listed && !self.takes("]") {
            return None;
        }
        self.rest.trim().is_empty().then_some(calls)
    }

    fn call(&mut self) -> Option<Call> {
        let name = self.name()?;
        if !self.takes("(") {
            return None;
        }
        let mut arguments = Map::new();
        while !self.takes(")") {
            if !arguments.is_empty() && !self.takes(",") {
                return None;
            }
            let key = self.name()?;
            if !self.takes("=") {
                return None;
            }
            arguments.insert(key, self.value(DEEPEST)?);
        }
        Some(Call {
            name,
            arguments: Value::Object(arguments),
        })
    }

    /// Consumes leading white space and `text`, if `text` comes next.
    fn takes(&mut self, text: &str) -> bool {
        let rest = self.rest.trim_start();
        match rest.strip_prefix(text) {
            Some(after) => {
                self.rest = after;
                true
            }
            None => false,
        }
    }

    fn name(&mut self) -> Option<String> {
        let rest = self.rest.trim_start();
        let is_part = |c: char| c.is_alphanumeric() || "_.-".contains(c);
        let end = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
        let (name, after) = rest.split_at(end);
        self.rest = after;
        (!name.is_empty()).then(|| name.into())
    }

    fn value(&mut self, deep: usize) -> Option<Value> {
        let deep = deep.checked_sub(1)?;
        let rest = self.rest.trim_start();
        match rest.chars().next()? {
            quote @ ('"' | '\'') => {
                self.rest = &rest[1..];
                self.string(quote).map(Value::String)
            }
            '[' | '(' => {
                let close = if rest.starts_with('[') { "]" } else { ")" };
                self.rest = &rest[1..];
                let mut list = Vec::new();
                while !self.takes(close) {
                    if !list.is_empty() && !self.takes(",") {
                        return None;
                    }
                    if self.takes(close) {
                        break;
                    }
                    list.push(self.value(deep)?);
                }
                Some(Value::Array(list))
            }
            '{' => {
                self.rest = &rest[1..];
                let mut map = Map::new();
                while !self.takes("}") {
                    if !map.is_empty() && !self.takes(",") {
                        return None;
                    }
                    let Value::String(key) = self.value(deep)? else {
                        return None;
                    };
                    if !self.takes(":") {
                        return None;
                    }
                    map.insert(key, self.value(deep)?);
                }
                Some(Value::Object(map))
            }
            _ => self.plain(),
        }
    }

    /// Parses a number or a named constant.
    fn plain(&mut self) -> Option<Value> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| !(c.is_alphanumeric() || "_.+-".contains(c)));
        let (word, after) = rest.split_at(end.unwrap_or(rest.len()));
        self.rest = after;
        match word {
            "True" | "true" => Some(true.into()),
            "False" | "false" => Some(false.into()),
            "None" | "null" => Some(Value::Null),
            _ => word.parse::<Number>().ok().map(Value::Number),
        }
    }

    /// Parses the rest of a string after its opening quote.
    fn string(&mut self, quote: char) -> Option<String> {
        let mut text = String::new();
        let mut characters = self.rest.chars();
        loop {
            let c = characters.next()?;
            if c == quote {
                break;
            }
            if c != '\\' {
                text.push(c);
                continue;
            }
            match characters.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'b' => text.push('\u{8}'),
                'f' => text.push('\u{c}'),
                '0' => text.push('\0'),
                x @ ('x' | 'u' | 'U') => {
                    let digits = match x {
                        'x' => 2,
                        'u' => 4,
                        _ => 8,
                    };
                    let code = hex(&mut characters, digits)?;
                    text.push(match code {
                        0xd800..0xdc00 => {
                            // A surrogate pair, as in JSON.
                            let low = (characters.next()? == '\\' && characters.next()? == 'u')
                                .then(|| hex(&mut characters, 4))??;
                            let pair =
                                0x10000 + ((code - 0xd800) << 10) + low.checked_sub(0xdc00)?;
                            char::from_u32(pair)?
                        }
                        code => char::from_u32(code)?,
                    });
                }
                '\n' => {}
                other @ ('\\' | '\'' | '"' | '/') => text.push(other),
                // Python keeps the backslash of an unknown escape.
                other => text.extend(['\\', other]),
            }
        }
        self.rest = characters.as_str();
        Some(text)
    }
}

fn hex(characters: &mut std::str::Chars, digits: usize) -> Option<u32> {
    let text: String = characters.take(digits).collect();
    (text.chars().count() == digits).then_some(())?;
    u32::from_str_radix(&text, 16).ok()
}
