//! Grammars in llama.cpp's notation (GBNF), translated to llguidance's variant of Lark.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::iter::Peekable;
use std::str::Chars;

use serde_json::Value;

/// Deepest nesting of brackets; the parser recurses once per level.
const MOST_DEPTH: usize = 100;
/// Most repetitions of an item.
const MOST_REPETITIONS: u32 = 2_000;

/// An item of a rule.
enum Item {
    Text(String),
    /// Ranges of characters, or those outside them.
    Class(bool, Vec<(char, char)>),
    Any,
    /// A token by its id.
    Token(u32),
    Rule(String),
    Choice(Vec<Vec<Item>>),
    Repeat(Box<Item>, u32, Option<u32>),
}

/// Translates a grammar.
///
/// # Errors
/// Returns the reason why the text is no grammar.
pub fn to_lark(text: &str) -> Result<String, String> {
    let rules = Parser::new(text).rules()?;
    if !rules.contains_key("root") {
        return Err("expected a rule `root`".into());
    }
    let numbers: BTreeMap<&str, usize> = rules.keys().map(|name| &**name).zip(0..).collect();
    let mut references = vec![Vec::new(); rules.len()];
    for (name, choices) in &rules {
        let found = &mut references[numbers[&**name]];
        each(choices, &mut |item| {
            if let Item::Rule(other) = item {
                let number = numbers.get(&**other);
                found.push(*number.ok_or_else(|| format!("there is no rule `{other}`"))?);
            }
            Ok(())
        })?;
    }
    // Without recursion and tokens the grammar is a regular expression, which is one lexeme: then no choice between lexemes
    // leaves a text out.
    let mut has_token = false;
    for choices in rules.values() {
        each(choices, &mut |item| {
            has_token |= matches!(item, Item::Token(_));
            Ok(())
        })?;
    }
    let prefix = match has_token || is_recursive(&references) {
        true => "rule_",
        false => "TERM_",
    };
    let mut lark = format!("start: {prefix}{}\n", numbers["root"]);
    for (name, choices) in &rules {
        let _ = write!(lark, "{prefix}{}: ", numbers[&**name]);
        write_choices(&mut lark, choices, &|name| {
            format!("{prefix}{}", numbers[name])
        });
        lark.push('\n');
    }
    Ok(lark)
}

/// Calls `visit` with each item, also inside others.
fn each<'a>(
    choices: &'a [Vec<Item>],
    visit: &mut impl FnMut(&'a Item) -> Result<(), String>,
) -> Result<(), String> {
    for item in choices.iter().flatten() {
        visit(item)?;
        match item {
            Item::Choice(choices) => each(choices, visit)?,
            Item::Repeat(inner, ..) => match &**inner {
                Item::Choice(choices) => each(choices, visit)?,
                inner => visit(inner)?,
            },
            _ => {}
        }
    }
    Ok(())
}

/// Whether a rule refers to itself, directly or through others.
fn is_recursive(references: &[Vec<usize>]) -> bool {
    // Rules all of whose references are done leave one round after another; a cycle never leaves.
    let mut is_done = vec![false; references.len()];
    loop {
        let mut has_changed = false;
        for (rule, others) in references.iter().enumerate() {
            if !is_done[rule] && others.iter().all(|&other| is_done[other]) {
                (is_done[rule], has_changed) = (true, true);
            }
        }
        if !has_changed {
            return is_done.contains(&false);
        }
    }
}

fn write_choices(lark: &mut String, choices: &[Vec<Item>], name: &impl Fn(&str) -> String) {
    for (index, items) in choices.iter().enumerate() {
        lark.push_str(if index > 0 { " | " } else { "" });
        if items.is_empty() {
            lark.push_str("\"\"");
        }
        for (index, item) in items.iter().enumerate() {
            lark.push_str(if index > 0 { " " } else { "" });
            write_item(lark, item, name);
        }
    }
}

fn write_item(lark: &mut String, item: &Item, name: &impl Fn(&str) -> String) {
    let _ = match item {
        Item::Text(text) => write!(lark, "{}", Value::from(&**text)),
        Item::Any => write!(lark, "/(?s:.)/"),
        Item::Token(id) => write!(lark, "<[{id}]>"),
        Item::Rule(rule) => write!(lark, "{}", name(rule)),
        Item::Class(is_negated, ranges) => {
            let not = if *is_negated { "^" } else { "" };
            let range = |&(first, last): &(char, char)| {
                format!("\\x{{{:x}}}-\\x{{{:x}}}", first as u32, last as u32)
            };
            let ranges: String = ranges.iter().map(range).collect();
            write!(lark, "/[{not}{ranges}]/")
        }
        Item::Choice(choices) => {
            lark.push('(');
            write_choices(lark, choices, name);
            write!(lark, ")")
        }
        Item::Repeat(inner, least, most) => {
            write_item(lark, inner, name);
            match (least, most) {
                (0, Some(1)) => write!(lark, "?"),
                (0, None) => write!(lark, "*"),
                (1, None) => write!(lark, "+"),
                (least, None) => write!(lark, "{{{least},}}"),
                (least, Some(most)) => write!(lark, "{{{least},{most}}}"),
            }
        }
    };
}

/// A parser of rules. A line break ends nothing: a rule ends where the next one begins.
struct Parser<'a> {
    chars: Peekable<Chars<'a>>,
    depth: usize,
}

impl<'a> Parser<'a> {
    fn new(text: &'a str) -> Self {
        Parser {
            chars: text.chars().peekable(),
            depth: 0,
        }
    }

    fn rules(mut self) -> Result<BTreeMap<String, Vec<Vec<Item>>>, String> {
        let mut rules = BTreeMap::new();
        let mut next = self.start()?;
        while let Some(name) = next {
            let (choices, following) = self.choices()?;
            next = following;
            if self.space().is_some() && next.is_none() {
                return Err(format!("rule `{name}`: found a `)` without its `(`"));
            }
            if rules.insert(name.clone(), choices).is_some() {
                return Err(format!("rule `{name}` occurs twice"));
            }
        }
        Ok(rules)
    }

    /// The name of the first rule.
    fn start(&mut self) -> Result<Option<String>, String> {
        if self.space().is_none() {
            return Ok(None);
        }
        let name = self.word();
        match !name.is_empty() && self.is_definition() {
            true => Ok(Some(name)),
            false => Err("expected `NAME ::= ...`".into()),
        }
    }

    /// Reads alternatives up to `)`, the end, or the next rule, whose name is returned.
    fn choices(&mut self) -> Result<(Vec<Vec<Item>>, Option<String>), String> {
        let mut choices = vec![Vec::new()];
        loop {
            let items = choices.last_mut().expect("an alternative");
            let Some(next) = self.space() else {
                return Ok((choices, None));
            };
            let item = match next {
                ')' => return Ok((choices, None)),
                '|' => {
                    self.chars.next();
                    choices.push(Vec::new());
                    continue;
                }
                '*' | '+' | '?' | '{' => {
                    let inner = items.pop();
                    let inner = inner.ok_or_else(|| format!("found `{next}` after nothing"))?;
                    self.repeat(inner)?
                }
                '"' => self.text()?,
                '[' => self.class()?,
                '.' => {
                    self.chars.next();
                    Item::Any
                }
                '(' => self.group()?,
                '<' => self.token()?,
                _ => {
                    let name = self.word();
                    if name.is_empty() {
                        return Err(format!("found `{next}`, expected an item of a rule"));
                    }
                    if self.is_definition() {
                        if self.depth > 0 {
                            return Err(format!("expected `)` before rule `{name}`"));
                        }
                        return Ok((choices, Some(name)));
                    }
                    Item::Rule(name)
                }
            };
            items.push(item);
        }
    }

    fn group(&mut self) -> Result<Item, String> {
        self.chars.next();
        self.depth += 1;
        if self.depth > MOST_DEPTH {
            return Err(format!("expected at most {MOST_DEPTH} levels of brackets"));
        }
        let (choices, _) = self.choices()?;
        self.depth -= 1;
        match self.chars.next() {
            Some(')') => Ok(Item::Choice(choices)),
            _ => Err("expected `)`".into()),
        }
    }

    fn repeat(&mut self, inner: Item) -> Result<Item, String> {
        let (least, most) = match self.chars.next() {
            Some('*') => (0, None),
            Some('+') => (1, None),
            Some('?') => (0, Some(1)),
            _ => {
                let bounds: String = self.chars.by_ref().take_while(|&c| c != '}').collect();
                let (least, most) = bounds.split_once(',').unwrap_or((&bounds, &bounds));
                let number = |text: &str| text.trim().parse::<u32>();
                let least = if least.trim().is_empty() {
                    Ok(0)
                } else {
                    number(least)
                };
                let most = match most.trim() {
                    "" => Ok(None),
                    most => number(most).map(Some),
                };
                match (least, most) {
                    (Ok(least), Ok(most)) => (least, most),
                    _ => return Err(format!("found {{{bounds}}}, expected {{LEAST,MOST}}")),
                }
            }
        };
        let largest = most.unwrap_or(least).max(least);
        if most.is_some_and(|most| most < least) || largest > MOST_REPETITIONS {
            return Err(format!(
                "expected repetitions in ascending order, at most {MOST_REPETITIONS}"
            ));
        }
        // An item that never occurs is an empty text.
        match most {
            Some(0) => Ok(Item::Text(String::new())),
            _ => Ok(Item::Repeat(
                Box::new(Item::Choice(vec![vec![inner]])),
                least,
                most,
            )),
        }
    }

    fn text(&mut self) -> Result<Item, String> {
        self.chars.next();
        let mut text = String::new();
        loop {
            match self.chars.next() {
                None => return Err("expected `\"` at the end of a text".into()),
                Some('"') => return Ok(Item::Text(text)),
                Some('\\') => text.push(self.escaped()?),
                Some(c) => text.push(c),
            }
        }
    }

    fn class(&mut self) -> Result<Item, String> {
        self.chars.next();
        let is_negated = self.chars.next_if_eq(&'^').is_some();
        let mut ranges = Vec::new();
        loop {
            let first = match self.chars.next() {
                None => return Err("expected `]`".into()),
                Some(']') if ranges.is_empty() => return Err("found an empty class `[]`".into()),
                Some(']') => return Ok(Item::Class(is_negated, ranges)),
                Some('\\') => self.escaped()?,
                Some(c) => c,
            };
            let mut last = first;
            let mut ahead = self.chars.clone();
            if ahead.next() == Some('-') && ahead.next().is_some_and(|c| c != ']') {
                self.chars.next();
                last = match self.chars.next() {
                    Some('\\') => self.escaped()?,
                    other => other.unwrap_or(first),
                };
            }
            if last < first {
                return Err(format!(
                    "found the range {first}-{last}, expected ascending order"
                ));
            }
            ranges.push((first, last));
        }
    }

    /// Reads `<[ID]>`.
    fn token(&mut self) -> Result<Item, String> {
        let mark: String = self.chars.by_ref().take_while(|&c| c != '>').collect();
        let id = mark
            .strip_prefix("<[")
            .and_then(|rest| rest.strip_suffix(']'));
        let id = id.and_then(|id| id.trim().parse().ok());
        id.map(Item::Token)
            .ok_or_else(|| format!("found `{mark}>`, expected a token as `<[ID]>`"))
    }

    /// Reads the rest of an escape sequence.
    fn escaped(&mut self) -> Result<char, String> {
        let digits = match self.chars.next() {
            Some('n') => return Ok('\n'),
            Some('t') => return Ok('\t'),
            Some('r') => return Ok('\r'),
            Some('x') => 2,
            Some('u') => 4,
            Some('U') => 8,
            Some(c) => return Ok(c),
            None => return Err("found `\\` at the end".into()),
        };
        let hex: String = self.chars.by_ref().take(digits).collect();
        let code = u32::from_str_radix(&hex, 16).ok().and_then(char::from_u32);
        code.ok_or_else(|| format!("found `{hex}`, expected {digits} digits of a character"))
    }

    /// Skips white space and comments. Returns the next character.
    fn space(&mut self) -> Option<char> {
        loop {
            match *self.chars.peek()? {
                '#' => self
                    .chars
                    .by_ref()
                    .take_while(|&c| c != '\n')
                    .for_each(drop),
                c if c.is_whitespace() => drop(self.chars.next()),
                c => return Some(c),
            }
        }
    }

    /// Reads a name.
    fn word(&mut self) -> String {
        let is_part = |c: &char| c.is_ascii_alphanumeric() || "-_".contains(*c);
        std::iter::from_fn(|| self.chars.next_if(is_part)).collect()
    }

    /// Reads `::=` if it follows.
    fn is_definition(&mut self) -> bool {
        self.space();
        let mut ahead = self.chars.clone();
        let is_next = "::=".chars().all(|c| ahead.next() == Some(c));
        if is_next {
            self.chars = ahead;
        }
        is_next
    }
}

#[cfg(test)]
mod tests {
    use super::to_lark;

    #[test]
    fn a_grammar_without_recursion_is_one_lexeme() {
        let lark = to_lark(
            "# c\nroot ::= \"yes\" | no-way{2,3}\n  | [^a-z\\]]+\nno-way ::= \"\\x6e\\\"\"?",
        );
        let lark = lark.expect("a grammar");
        let lines = [
            "start: TERM_1",
            r#"TERM_0: ("n\"")?"#,
            r#"TERM_1: "yes" | (TERM_0){2,3} | (/[^\x{61}-\x{7a}\x{5d}-\x{5d}]/)+"#,
        ];
        assert_eq!(lark.trim_end(), lines.join("\n"));
    }

    #[test]
    fn a_recursive_grammar_has_rules() {
        let lark = to_lark("root ::= (\"(\" root \")\" | .) <[7]> | ").expect("a grammar");
        let rule = r#"rule_0: ("(" rule_0 ")" | /(?s:.)/) <[7]> | """#;
        assert_eq!(lark, format!("start: rule_0\n{rule}\n"));
    }

    #[test]
    fn broken_grammars_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "expected a rule `root`"),
            ("a ::= \"b\"", "expected a rule `root`"),
            ("root ::= (\"a\"", "expected `)`"),
            ("root ::= \"a\")", "found a `)` without its `(`"),
            (
                "root ::= (\"a\"\nb ::= \"c\"",
                "expected `)` before rule `b`",
            ),
            ("root ::= a", "there is no rule `a`"),
            ("root ::= \"a", "expected `\"`"),
            ("root ::= [a", "expected `]`"),
            ("root ::= [z-a]", "ascending"),
            ("root ::= *", "after nothing"),
            ("root ::= \"a\"{3,2}", "ascending"),
            ("root ::= \"a\"{x}", "expected {LEAST,MOST}"),
            ("root ::= <think>", "expected a token"),
            ("root = \"a\"", "expected `NAME ::= ...`"),
            ("root ::= \"\\uzzzz\"", "digits"),
            ("root ::= \"a\"\nroot ::= \"b\"", "twice"),
        ] {
            let found = to_lark(text).expect_err(text);
            assert!(found.contains(reason), "{text}: {found}");
        }
        assert!(to_lark(&format!("root ::= {}", "(".repeat(5_000))).is_err());
    }
}
