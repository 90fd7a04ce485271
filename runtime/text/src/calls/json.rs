//! Converts the JSON and Python literals that models write to JSON, as they arrive: single quotes, raw line breaks, `True` and `None`,
//! tuples, keyword arguments, missing and surplus brackets. Any text becomes JSON; `is_guessed` says whether it had mistakes.

use serde_json::{Number, Value};

use super::marks::{Begins, begins};

/// Maximum nesting; deeper brackets are skipped.
const DEEPEST: usize = 64;
/// Gemma's quotes.
const TOKEN_QUOTE: &str = "<|\"|>";

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expects {
    Key,
    Colon,
    Value,
    Comma,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Bracket {
    Object,
    Array,
    /// The parentheses of a Python call, which become an object.
    Call,
}

#[derive(Clone, Debug)]
struct Level {
    bracket: Bracket,
    expects: Expects,
    count: usize,
    /// The bracket that closes the level.
    close: char,
}

/// A value that arrives in pieces.
#[derive(Clone, Debug, Default)]
pub struct Literal {
    levels: Vec<Level>,
    /// The quote of the open string.
    quote: Option<&'static str>,
    /// Brackets beyond [`DEEPEST`].
    skipped: usize,
    /// The JSON that was not taken yet.
    pub json: String,
    /// Whether the value is complete.
    pub is_done: bool,
    /// Whether the text had mistakes.
    pub is_guessed: bool,
    /// Whether the value has begun.
    has_begun: bool,
    /// Names of positional arguments of a Python call.
    positions: Vec<String>,
}

impl Literal {
    /// The arguments of a Python call after its opening parenthesis; `positions` names the arguments without a keyword.
    pub fn arguments(positions: Vec<String>) -> Self {
        let mut literal = Literal {
            positions,
            ..Literal::default()
        };
        literal.enter(Bracket::Call, ')');
        literal
    }

    /// Parses a complete text; `None` if it is not a literal without mistakes.
    pub fn parse(text: &str) -> Option<Value> {
        let (value, is_guessed, rest) = Self::guess(text);
        value.filter(|_| !is_guessed && rest.trim().is_empty())
    }

    /// Parses the value with which a text begins. Returns it with whether it had to be guessed and the rest of the text.
    pub fn guess(text: &str) -> (Option<Value>, bool, &str) {
        let mut literal = Literal::default();
        let read = literal.push(text, true, "");
        literal.is_guessed |= !literal.is_done;
        literal.finish();
        (
            serde_json::from_str(&literal.json).ok(),
            literal.is_guessed,
            &text[read..],
        )
    }

    /// Reads `text` as far as it can be decided and returns the number of bytes read. `is_last`: nothing follows. The value ends before
    /// `stop`, outside strings.
    pub fn push(&mut self, text: &str, is_last: bool, stop: &str) -> usize {
        let mut at = 0;
        while !self.is_done && at < text.len() {
            let rest = &text[at..];
            let read = match self.quote {
                Some(quote) => self.in_string(rest, quote, is_last, stop),
                None => self.between(rest, is_last, stop),
            };
            if read == 0 {
                break;
            }
            at += read;
        }
        at
    }

    /// Completes an unfinished value. One that has not begun is an empty object.
    pub fn finish(&mut self) {
        if self.is_done {
            return;
        }
        if self.quote.take().is_some() {
            self.json.push('"');
            self.after_scalar();
        }
        while !self.levels.is_empty() {
            self.close_level();
        }
        if !self.has_begun {
            self.json += "{}";
        }
        self.is_done = true;
    }

    fn expects(&self) -> Expects {
        self.levels
            .last()
            .map_or(Expects::Value, |level| level.expects)
    }

    fn between(&mut self, rest: &str, is_last: bool, stop: &str) -> usize {
        if !stop.is_empty() {
            if rest.starts_with(stop) {
                self.is_guessed = true;
                self.finish();
                return 0;
            }
            if !is_last && stop.starts_with(rest) {
                return 0;
            }
        }
        let Some(c) = rest.chars().next() else {
            return 0;
        };
        if !is_last && TOKEN_QUOTE.starts_with(rest) {
            return 0;
        }
        if rest.starts_with(TOKEN_QUOTE) {
            self.begin_string(TOKEN_QUOTE);
            return TOKEN_QUOTE.len();
        }
        match c {
            c if c.is_whitespace() => {}
            '{' | '[' | '(' => self.open(c),
            '}' | ']' | ')' => self.close(c),
            ',' => self.comma(),
            ':' | '=' if self.expects() == Expects::Colon => self.set(Expects::Value),
            '"' => self.begin_string("\""),
            '\'' => self.begin_string("'"),
            _ => return self.word(rest, is_last, stop),
        }
        c.len_utf8()
    }

    fn set(&mut self, expects: Expects) {
        if let Some(level) = self.levels.last_mut() {
            level.expects = expects;
        }
    }

    fn comma(&mut self) {
        match self
            .levels
            .last()
            .map(|level| (level.bracket, level.expects))
        {
            Some((Bracket::Array, Expects::Comma)) => self.set(Expects::Value),
            Some((Bracket::Array, _)) | None => self.is_guessed = true,
            Some((_, Expects::Comma)) => self.set(Expects::Key),
            Some((_, Expects::Key)) => self.is_guessed = true,
            Some(_) => {
                self.missing_value();
                self.set(Expects::Key);
            }
        }
    }

    /// Writes what precedes a key or a value.
    fn before(&mut self, is_key: bool) {
        self.has_begun = true;
        let Some(level) = self.levels.last_mut() else {
            return;
        };
        let is_array = level.bracket == Bracket::Array;
        match level.expects {
            Expects::Colon => {
                self.is_guessed = true;
                level.expects = Expects::Value;
            }
            Expects::Comma => {
                self.is_guessed = true;
                level.expects = if is_array {
                    Expects::Value
                } else {
                    Expects::Key
                };
            }
            _ => {}
        }
        if is_array || level.expects == Expects::Key {
            level.count += 1;
            if level.count > 1 {
                self.json.push(',');
            }
        }
        if !is_key && level.expects == Expects::Key {
            // A value without a key is an argument by position.
            self.is_guessed |= level.bracket != Bracket::Call;
            let place = level.count - 1;
            level.expects = Expects::Value;
            let name = self.positions.get(place).cloned();
            self.json += &Value::from(name.unwrap_or_else(|| place.to_string())).to_string();
        }
        if !is_key && !is_array {
            self.json.push(':');
        }
    }

    fn open(&mut self, c: char) {
        if self.levels.len() >= DEEPEST {
            self.is_guessed = true;
            self.skipped += 1;
            return;
        }
        self.before(false);
        let (bracket, close) = match c {
            '{' => (Bracket::Object, '}'),
            '[' => (Bracket::Array, ']'),
            _ => (Bracket::Array, ')'),
        };
        self.enter(bracket, close);
    }

    fn enter(&mut self, bracket: Bracket, close: char) {
        self.has_begun = true;
        let (open, expects) = match bracket {
            Bracket::Array => ('[', Expects::Value),
            _ => ('{', Expects::Key),
        };
        self.json.push(open);
        self.levels.push(Level {
            bracket,
            expects,
            count: 0,
            close,
        });
    }

    fn close(&mut self, c: char) {
        if self.skipped > 0 {
            self.skipped -= 1;
            return;
        }
        let Some(depth) = self.levels.iter().rposition(|level| level.close == c) else {
            self.is_guessed = true;
            return;
        };
        self.is_guessed |= depth + 1 != self.levels.len();
        while self.levels.len() > depth {
            self.close_level();
        }
    }

    fn missing_value(&mut self) {
        if let Some(level) = self.levels.last() {
            match level.expects {
                Expects::Colon => self.json += ":null",
                Expects::Value if level.bracket != Bracket::Array => self.json += ":null",
                _ => return,
            }
            self.is_guessed = true;
        }
    }

    fn close_level(&mut self) {
        self.missing_value();
        if let Some(level) = self.levels.pop() {
            self.json.push(if level.bracket == Bracket::Array {
                ']'
            } else {
                '}'
            });
        }
        self.after_value();
    }

    fn after_value(&mut self) {
        self.set(Expects::Comma);
        self.is_done = self.levels.is_empty();
    }

    fn after_scalar(&mut self) {
        if self.expects() == Expects::Key {
            self.set(Expects::Colon);
            return;
        }
        self.after_value();
    }

    fn begin_string(&mut self, quote: &'static str) {
        let is_key = self.levels.last().is_some_and(|level| {
            level.bracket == Bracket::Object
                && matches!(level.expects, Expects::Key | Expects::Comma)
        });
        self.before(is_key);
        self.json.push('"');
        self.quote = Some(quote);
    }

    fn in_string(&mut self, rest: &str, quote: &'static str, is_last: bool, stop: &str) -> usize {
        if let Some(after) = rest.strip_prefix(quote) {
            let after = after.trim_start();
            let ends = match after.chars().next() {
                _ if quote == TOKEN_QUOTE => true,
                None if is_last => true,
                None => return 0,
                Some(c) if ",:}])".contains(c) => true,
                Some(_) if self.levels.is_empty() => true,
                Some(_) if stop.is_empty() => false,
                Some(_) if after.starts_with(stop) => true,
                Some(_) if !is_last && stop.starts_with(after) => return 0,
                Some(_) => false,
            };
            if ends {
                self.quote = None;
                self.json.push('"');
                self.after_scalar();
            } else {
                self.is_guessed = true;
                self.put(quote.chars().next().unwrap_or('"'));
            }
            return quote.len();
        }
        if quote == TOKEN_QUOTE && !is_last && TOKEN_QUOTE.starts_with(rest) {
            return 0;
        }
        let Some(c) = rest.chars().next() else {
            return 0;
        };
        if c != '\\' {
            self.put(c);
            return c.len_utf8();
        }
        self.escape(rest, is_last)
    }

    /// Writes a character of a string.
    fn put(&mut self, c: char) {
        match c {
            '"' => self.json += "\\\"",
            '\\' => self.json += "\\\\",
            '\n' => self.json += "\\n",
            '\r' => self.json += "\\r",
            '\t' => self.json += "\\t",
            c if c < ' ' => self.json += &format!("\\u{:04x}", c as u32),
            c => self.json.push(c),
        }
    }

    /// Reads an escape of JSON or Python.
    fn escape(&mut self, rest: &str, is_last: bool) -> usize {
        let Some(c) = rest[1..].chars().next() else {
            if is_last {
                self.put('\\');
            }
            return usize::from(is_last);
        };
        let plain = match c {
            'n' => '\n',
            't' => '\t',
            'r' => '\r',
            'b' => '\u{8}',
            'f' => '\u{c}',
            '"' | '\'' | '\\' | '/' => c,
            'x' | 'u' | 'U' => return self.code(rest, c, is_last),
            _ => {
                // Python keeps the backslash of an unknown escape.
                self.put('\\');
                return 1;
            }
        };
        self.put(plain);
        1 + c.len_utf8()
    }

    fn code(&mut self, rest: &str, kind: char, is_last: bool) -> usize {
        let digits = match kind {
            'x' => 2,
            'u' => 4,
            _ => 8,
        };
        let hex = |from: usize, digits: usize| {
            let text = rest.get(from..from + digits)?;
            text.bytes()
                .all(|b| b.is_ascii_hexdigit())
                .then(|| u32::from_str_radix(text, 16).ok())?
        };
        let whole = 2 + digits;
        // A surrogate pair, as in JSON.
        let wanted = if hex(2, digits).is_some_and(|code| (0xd800..0xdc00).contains(&code)) {
            whole + 6
        } else {
            whole
        };
        let is_hex = |b: u8| b.is_ascii_hexdigit() || b == b'\\' || b == b'u';
        if rest.len() < wanted && !is_last && rest[2..].bytes().all(is_hex) {
            return 0;
        }
        let Some(code) = hex(2, digits) else {
            self.put('\\');
            return 1;
        };
        if wanted > whole {
            let low = rest
                .get(whole..whole + 2)
                .filter(|mark| *mark == "\\u")
                .and_then(|_| hex(whole + 2, 4));
            if let Some(low) = low.filter(|low| (0xdc00..0xe000).contains(low)) {
                let pair = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
                self.put(char::from_u32(pair).unwrap_or(char::REPLACEMENT_CHARACTER));
                return wanted;
            }
        }
        self.put(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
        whole
    }

    /// Reads a number, a constant, a key without quotes, or text without quotes.
    fn word(&mut self, rest: &str, is_last: bool, stop: &str) -> usize {
        let is_key = self.levels.last().is_some_and(|level| {
            level.bracket != Bracket::Array
                && matches!(level.expects, Expects::Key | Expects::Comma)
        });
        let ends = |c: char| ",}])\n".contains(c) || (is_key && ":=({[\"'".contains(c));
        let mut end = rest.find(ends).unwrap_or(rest.len());
        // A character that ends words may be part of the stop.
        let stops = |at: &usize| match begins(&rest[*at..], stop, is_last) {
            Begins::No => false,
            Begins::Yes | Begins::Unknown => true,
        };
        if let Some(at) = rest[..end].char_indices().map(|(at, _)| at).find(stops) {
            if !rest[at..].starts_with(stop) {
                return 0;
            }
            end = at;
        }
        if end == rest.len() && !is_last {
            return 0;
        }
        if end == 0 {
            // A bracket or quote that cannot stand here.
            self.is_guessed = true;
            return rest.chars().next().map_or(0, char::len_utf8);
        }
        let word = rest[..end].trim();
        let names_value = is_key && rest[end..].starts_with(['=', ':']);
        if names_value {
            self.before(true);
            self.json += &Value::from(word).to_string();
            self.set(Expects::Colon);
            return end;
        }
        self.before(false);
        let value = match word {
            "true" | "True" | "TRUE" => Value::from(true),
            "false" | "False" | "FALSE" => Value::from(false),
            "null" | "None" => Value::Null,
            "undefined" | "NaN" | "nan" => {
                self.is_guessed = true;
                Value::Null
            }
            word => match number(word) {
                Some(number) => {
                    self.json += &number;
                    self.after_value();
                    return end;
                }
                None => {
                    self.is_guessed = true;
                    Value::from(word)
                }
            },
        };
        self.json += &value.to_string();
        self.after_value();
        end
    }
}

/// A number as JSON writes it.
fn number(word: &str) -> Option<String> {
    if word.parse::<Number>().is_ok() {
        return Some(word.into());
    }
    let plain = word.replace('_', "");
    let plain = plain.strip_prefix('+').unwrap_or(&plain);
    if !plain.starts_with(|c: char| c.is_ascii_digit() || "-.".contains(c)) {
        return None;
    }
    let hex = plain
        .strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok());
    let whole = hex
        .map(|n| n.to_string())
        .or_else(|| plain.parse::<i64>().ok().map(|n| n.to_string()));
    whole.or_else(|| Number::from_f64(plain.parse().ok()?).map(|n| n.to_string()))
}
