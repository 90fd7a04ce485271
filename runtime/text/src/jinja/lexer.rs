//! Splits source into tokens, with the white space rules that transformers configures: the newline after a statement is removed, and so
//! are blanks before a statement at the beginning of a line.

use super::{Failure, Outcome};

#[derive(Clone, Debug, PartialEq)]
pub enum Token {
    Text(String),
    /// `{{` and `}}`
    EmitBegin,
    EmitEnd,
    /// `{%` and `%}`
    StatementBegin,
    StatementEnd,
    Name(String),
    Str(String),
    Int(i64),
    Float(f64),
    Op(&'static str),
    End,
}

/// Longest operators first.
const OPERATORS: [&str; 26] = [
    "**", "//", "==", "!=", "<=", ">=", "+", "-", "*", "/", "%", "~", "<", ">", "=", "(", ")", "[",
    "]", "{", "}", ",", ".", ":", "|", ";",
];

/// The tokens with their lines. The last is [`Token::End`].
pub fn tokens(source: &str) -> Outcome<Vec<(Token, u32)>> {
    let source = source.replace("\r\n", "\n").replace('\r', "\n");
    let mut lexer = Lexer {
        rest: source.strip_suffix('\n').unwrap_or(&source),
        line: 1,
        tokens: Vec::new(),
        line_start: true,
    };
    lexer.run()?;
    Ok(lexer.tokens)
}

struct Lexer<'s> {
    rest: &'s str,
    line: u32,
    tokens: Vec<(Token, u32)>,
    /// Whether the remaining text begins at the start of a line.
    line_start: bool,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Emit,
    Statement,
    Comment,
}

impl<'s> Lexer<'s> {
    fn run(&mut self) -> Outcome<()> {
        while let Some(at) = self.find_tag() {
            let kind = match self.rest.as_bytes()[at + 1] {
                b'{' => Kind::Emit,
                b'%' => Kind::Statement,
                _ => Kind::Comment,
            };
            let sign = self.rest.as_bytes().get(at + 2).copied();
            let mut text = &self.rest[..at];
            if sign == Some(b'-') {
                text = text.trim_end();
            } else if sign != Some(b'+') && kind != Kind::Emit {
                text = self.without_indentation(text);
            }
            let text = text.to_string();
            let skipped = at + 2 + usize::from(matches!(sign, Some(b'-' | b'+')));
            self.push_text(text, at);
            self.advance(skipped - at);
            match kind {
                Kind::Comment => self.comment()?,
                Kind::Statement if self.raw()? => {}
                Kind::Statement => self.tag(Token::StatementBegin, "%}", Token::StatementEnd)?,
                Kind::Emit => self.tag(Token::EmitBegin, "}}", Token::EmitEnd)?,
            }
        }
        let text = self.rest.to_string();
        self.push_text(text, self.rest.len());
        self.push(Token::End);
        Ok(())
    }

    /// The position of the next `{{`, `{%` or `{#`.
    fn find_tag(&self) -> Option<usize> {
        let bytes = self.rest.as_bytes();
        let mut starts = self.rest.match_indices('{').map(|(at, _)| at);
        starts.find(|&at| matches!(bytes.get(at + 1), Some(b'{' | b'%' | b'#')))
    }

    /// Removes blanks between the beginning of a line and a tag.
    fn without_indentation<'t>(&self, text: &'t str) -> &'t str {
        let cut = text.trim_end_matches([' ', '\t']);
        let alone = cut.ends_with('\n') || (cut.is_empty() && self.line_start);
        if alone { cut } else { text }
    }

    /// Adds text and advances past the `length` source bytes that it was made from.
    fn push_text(&mut self, text: String, length: usize) {
        if !text.is_empty() {
            self.push(Token::Text(text));
        }
        self.advance(length);
    }

    fn push(&mut self, token: Token) {
        self.tokens.push((token, self.line));
    }

    fn advance(&mut self, length: usize) {
        let (done, rest) = self.rest.split_at(length);
        self.line += done.bytes().filter(|&byte| byte == b'\n').count() as u32;
        self.rest = rest;
    }

    fn fail<T>(&self, reason: impl Into<String>) -> Outcome<T> {
        Err(Failure::at(self.line, reason))
    }

    /// Advances past the white space that the end of a tag strips.
    fn after_tag(&mut self, strips: bool, keeps: bool, trims_newline: bool) {
        let length = if strips {
            self.rest.len() - self.rest.trim_start().len()
        } else {
            usize::from(trims_newline && !keeps && self.rest.starts_with('\n'))
        };
        self.line_start = self.rest[..length].ends_with('\n');
        self.advance(length);
    }

    fn comment(&mut self) -> Outcome<()> {
        let Some(end) = self.rest.find("#}") else {
            return self.fail("unterminated comment");
        };
        let sign = self.rest[..end].bytes().last();
        self.advance(end + 2);
        self.after_tag(sign == Some(b'-'), sign == Some(b'+'), true);
        Ok(())
    }

    /// Reads `raw %}...{% endraw %}`, if present.
    fn raw(&mut self) -> Outcome<bool> {
        let Some(after) = self.rest.trim_start().strip_prefix("raw") else {
            return Ok(false);
        };
        let after = after.trim_start();
        let (strips, after) = match after.strip_prefix('-') {
            Some(after) => (true, after),
            None => (false, after),
        };
        let Some(after) = after.strip_prefix("%}") else {
            return Ok(false);
        };
        self.advance(self.rest.len() - after.len());
        self.after_tag(strips, false, true);
        let mut from = 0;
        while let Some(found) = self.rest[from..].find("{%") {
            let at = from + found;
            let inside = &self.rest[at + 2..];
            let strips_before = inside.starts_with('-');
            let inside = inside.trim_start_matches(['-', '+']).trim_start();
            let end = inside.strip_prefix("endraw").map(str::trim_start);
            let strips_after = end.is_some_and(|end| end.starts_with('-'));
            let end = end.and_then(|end| end.trim_start_matches('-').strip_prefix("%}"));
            if let Some(end) = end {
                let text = &self.rest[..at];
                let text = if strips_before {
                    text.trim_end()
                } else {
                    self.without_indentation(text)
                };
                let (text, length) = (text.to_string(), self.rest.len() - end.len());
                self.push_text(text, length);
                self.after_tag(strips_after, false, true);
                return Ok(true);
            }
            from = at + 2;
        }
        self.fail("unterminated {% raw %}")
    }

    /// Reads the tokens of a tag up to its end.
    fn tag(&mut self, begin: Token, end: &str, end_token: Token) -> Outcome<()> {
        self.push(begin);
        let mut open = 0usize;
        loop {
            let blanks = self.rest.len() - self.rest.trim_start().len();
            self.advance(blanks);
            if open == 0 {
                let signed = self.rest.strip_prefix(['-', '+']).unwrap_or(self.rest);
                if signed.starts_with(end) {
                    let sign = self.rest.as_bytes()[0];
                    self.push(end_token);
                    self.advance(self.rest.len() - signed.len() + end.len());
                    self.after_tag(sign == b'-', sign == b'+', end == "%}");
                    return Ok(());
                }
            }
            let Some(first) = self.rest.chars().next() else {
                return self.fail("unterminated tag");
            };
            if first == '"' || first == '\'' {
                self.string(first)?;
            } else if first.is_ascii_digit() {
                self.number()?;
            } else if first.is_alphabetic() || first == '_' {
                let length = self.rest.find(|c: char| !c.is_alphanumeric() && c != '_');
                let length = length.unwrap_or(self.rest.len());
                self.push(Token::Name(self.rest[..length].into()));
                self.advance(length);
            } else {
                let Some(operator) = OPERATORS
                    .iter()
                    .find(|operator| self.rest.starts_with(**operator))
                else {
                    return self.fail(format!("unexpected {first:?}"));
                };
                match *operator {
                    "(" | "[" | "{" => open += 1,
                    ")" | "]" | "}" => open = open.saturating_sub(1),
                    _ => {}
                }
                self.push(Token::Op(operator));
                self.advance(operator.len());
            }
        }
    }

    fn number(&mut self) -> Outcome<()> {
        let text = self.rest;
        let digits = |text: &str| {
            text.find(|c: char| !c.is_ascii_digit() && c != '_')
                .unwrap_or(text.len())
        };
        let radix = match text.get(..2) {
            Some("0x" | "0X") => 16,
            Some("0o" | "0O") => 8,
            Some("0b" | "0B") => 2,
            _ => 10,
        };
        let mut length = digits(text);
        let mut float = false;
        if radix != 10 {
            length = 2 + text[2..]
                .find(|c: char| !c.is_alphanumeric())
                .unwrap_or(text.len() - 2);
        } else {
            if text[length..].starts_with('.')
                && text[length + 1..].starts_with(|c: char| c.is_ascii_digit())
            {
                length += 1 + digits(&text[length + 1..]);
                float = true;
            }
            let exponent = text[length..].strip_prefix(['e', 'E']);
            let signed = exponent.map(|rest| rest.strip_prefix(['+', '-']).unwrap_or(rest));
            if let Some(rest) = signed.filter(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
            {
                length = text.len() - rest.len() + digits(rest);
                float = true;
            }
        }
        let plain = text[..length].replace('_', "");
        let token = if float {
            plain.parse().ok().map(Token::Float)
        } else {
            i64::from_str_radix(
                plain.get(2..).filter(|_| radix != 10).unwrap_or(&plain),
                radix,
            )
            .ok()
            .map(Token::Int)
        };
        let Some(token) = token else {
            return self.fail("invalid number");
        };
        self.push(token);
        self.advance(length);
        Ok(())
    }

    /// Reads a string with Python's escapes.
    fn string(&mut self, quote: char) -> Outcome<()> {
        let mut value = String::new();
        let mut characters = self.rest[1..].char_indices().peekable();
        while let Some((at, character)) = characters.next() {
            if character == quote {
                self.push(Token::Str(value));
                self.advance(1 + at + 1);
                return Ok(());
            }
            if character != '\\' {
                value.push(character);
                continue;
            }
            let Some((_, escape)) = characters.next() else {
                break;
            };
            let digits = match escape {
                'x' => 2,
                'u' => 4,
                'U' => 8,
                _ => 0,
            };
            match escape {
                '\n' => {}
                'n' => value.push('\n'),
                't' => value.push('\t'),
                'r' => value.push('\r'),
                'a' => value.push('\x07'),
                'b' => value.push('\x08'),
                'f' => value.push('\x0c'),
                'v' => value.push('\x0b'),
                '\\' | '\'' | '"' => value.push(escape),
                '0'..='7' => {
                    let mut code = escape as u32 - '0' as u32;
                    for _ in 0..2 {
                        let digit = characters.peek().and_then(|&(_, c)| c.to_digit(8));
                        let Some(digit) = digit else { break };
                        code = code * 8 + digit;
                        characters.next();
                    }
                    value.extend(char::from_u32(code));
                }
                'x' | 'u' | 'U' => {
                    let mut code = 0u32;
                    for _ in 0..digits {
                        let digit = characters.next().and_then(|(_, c)| c.to_digit(16));
                        let Some(digit) = digit else {
                            return self.fail("invalid escape sequence in a string");
                        };
                        code = code.wrapping_mul(16) + digit;
                    }
                    value.push(char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER));
                }
                other => value.extend(['\\', other]),
            }
        }
        self.fail("unterminated string")
    }
}
