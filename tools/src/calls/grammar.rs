//! Grammars of answers with tool calls, in llguidance's variant of Lark: for answers that must call a tool, and for calls whose
//! arguments fit the tool's schema.

use serde_json::{Value, json};
use waterline::Grammar;

use super::Format;

/// The calls that an answer must contain.
#[derive(Clone, Copy, PartialEq)]
pub enum Needed {
    /// Any text and calls.
    Any,
    /// At least one call, and no text.
    Some,
    /// Exactly one call, and no text.
    One,
}

impl Format {
    /// Returns a grammar of answers with calls of `tools`. `control` returns the id of the control token with a name.
    ///
    /// # Errors
    /// Returns the reason why a tool cannot be described.
    pub fn grammar(
        &self,
        tools: &[&Value],
        needed: Needed,
        control: impl Fn(&str) -> Option<u32>,
    ) -> Result<String, String> {
        let mark = |mark: &str| match control(mark) {
            Some(id) => format!("<[{id}]>"),
            None => quoted(mark),
        };
        // Where calls only open an answer, the call itself begins with the opening text.
        let open = if self.only_first { "" } else { self.open };
        let [before, between, after] = self.around.map(quoted);
        let mut rules = String::new();
        let mut names = Vec::new();
        for (index, tool) in tools.iter().enumerate() {
            let function = tool.get("function").unwrap_or(tool);
            let name = function["name"].as_str();
            let name = name.ok_or("tools: expected a function with a name")?;
            names.push(format!("call_{index}"));
            let body = (self.write)(name, &function["parameters"], index);
            rules += &format!("call_{index}: {body}\n");
        }
        rules += &format!("call: {}\n", names.join(" | "));
        let more = match self.around[1] {
            "" => String::new(),
            _ if needed == Needed::One => String::new(),
            _ => format!("({between} call)*"),
        };
        rules += &format!("rest: {before} call {more} {after} {}\n", mark(self.close));
        rules += &format!("one: {} rest\n", mark(open));
        let start = match needed {
            Needed::One => "one",
            Needed::Some if self.around[1].is_empty() && !self.only_first => "one (\"\\n\" one)*",
            Needed::Some => "one",
            Needed::Any if self.only_first => {
                rules += "TEXT: /[^{](?s:.)*/\n";
                "one | TEXT?"
            }
            Needed::Any if control(open).is_some() => {
                rules += "TEXT: /(?s:.)+/\n";
                "TEXT? (one TEXT?)*"
            }
            Needed::Any => {
                let inside = escaped(open);
                rules += &format!("text[suffix={}]: /(?s:.)*/\n", quoted(open));
                rules += &format!("LAST: /(?s:.)+/ & ~/(?s:.)*{inside}(?s:.)*/\n");
                "(text rest)* LAST?"
            }
        };
        Ok(format!("start: {start}\n{rules}"))
    }
}

/// Quotes a text for Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Escapes a text for a regular expression.
fn escaped(text: &str) -> String {
    let escape = |c: char| {
        if c.is_alphanumeric() || "_<>".contains(c) {
            c.to_string()
        } else {
            format!("\\{c}")
        }
    };
    text.chars().map(escape).collect()
}

/// Lark for JSON that fits a schema.
fn json_of(schema: &Value) -> String {
    let any = json!({ "type": "object" });
    let schema = if schema.is_null() { &any } else { schema };
    format!("%json {}", Grammar::spaced(schema))
}

/// Grammar of a call as an object with `arguments`.
pub fn arguments(name: &str, schema: &Value, _: usize) -> String {
    object(name, "arguments", schema)
}

/// Grammar of a call as an object with `parameters`.
pub fn parameters(name: &str, schema: &Value, _: usize) -> String {
    object(name, "parameters", schema)
}

fn object(name: &str, key: &str, schema: &Value) -> String {
    let head = format!("{{\"name\": {}, \"{key}\": ", quoted(name));
    format!("{} {} \"}}\"", quoted(&head), json_of(schema))
}

/// An argument of a function.
struct Argument<'a> {
    key: &'a str,
    schema: Value,
    is_required: bool,
}

/// Returns the arguments that a schema names, required arguments first.
fn listed(schema: &Value) -> Vec<Argument<'_>> {
    let required = schema["required"].as_array();
    let is_required = |key: &str| required.is_some_and(|list| list.iter().any(|item| item == key));
    let mut all = Vec::new();
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        let mut own = value.clone();
        // References point to definitions of the complete schema.
        for name in ["$defs", "definitions"] {
            if let (Some(own), Some(shared)) = (own.as_object_mut(), schema.get(name)) {
                own.insert(name.into(), shared.clone());
            }
        }
        let is_required = is_required(key);
        all.push(Argument {
            key,
            schema: own,
            is_required,
        });
    }
    all.sort_by_key(|argument| !argument.is_required);
    all
}

/// Grammar of the arguments as tags: each value is preceded by the key between `open` and `key_end`, and followed by
/// `after`. Strings are not quoted.
fn tagged(schema: &Value, index: usize, [open, key_end, after]: [&str; 3]) -> (String, String) {
    let (mut arguments, mut rules) = (String::new(), String::new());
    for (number, argument) in listed(schema).into_iter().enumerate() {
        let rule = format!("argument_{index}_{number}");
        let mark = if argument.is_required { "" } else { "?" };
        arguments += &format!(" {rule}{mark}");
        let before = quoted(&format!("{open}{}{key_end}", argument.key));
        let choices = argument.schema["enum"].as_array();
        let texts = choices.map(|all| all.iter().map(Value::as_str).collect::<Option<Vec<_>>>());
        let value = match (argument.schema["type"] == "string", texts) {
            (true, Some(Some(texts))) => {
                let texts: Vec<String> = texts.into_iter().map(quoted).collect();
                format!("({}) {}", texts.join(" | "), quoted(after))
            }
            (true, _) => {
                rules += &format!(
                    "\ntext_{index}_{number}[suffix={}]: /(?s:.)*/",
                    quoted(after)
                );
                format!("text_{index}_{number}")
            }
            (false, _) => format!("{} {}", json_of(&argument.schema), quoted(after)),
        };
        rules += &format!("\n{rule}: {before} {value}");
    }
    (arguments, rules)
}

/// Grammar of `<function=NAME>` with a tag for each argument.
pub fn functions(name: &str, schema: &Value, index: usize) -> String {
    let tags = ["<parameter=", ">\n", "\n</parameter>\n"];
    let (arguments, rules) = tagged(schema, index, tags);
    let head = quoted(&format!("<function={name}>\n"));
    format!("{head} {arguments} \"</function>\" {rules}")
}

/// Grammar of the name, followed by pairs of keys and values.
pub fn pairs(name: &str, schema: &Value, index: usize) -> String {
    let tags = ["<arg_key>", "</arg_key>\n<arg_value>", "</arg_value>"];
    let (arguments, rules) = tagged(schema, index, tags);
    format!("{} {arguments} {rules}", quoted(&format!("{name}\n")))
}

/// Grammar of a Python call with named arguments.
pub fn python(name: &str, schema: &Value, _: usize) -> String {
    let all = listed(schema);
    let one = |argument: &Argument| {
        let key = quoted(&format!("{}=", argument.key));
        format!("{key} {}", json_of(&argument.schema))
    };
    let others = |from: usize| -> String {
        let other = |argument: &Argument| {
            if argument.is_required {
                format!(" \", \" {}", one(argument))
            } else {
                format!(" (\", \" {})?", one(argument))
            }
        };
        all[from..].iter().map(other).collect()
    };
    // If no argument is required, any argument may be the first.
    let firsts = match all.first() {
        Some(first) if first.is_required => 1,
        _ => all.len(),
    };
    let beginning = |first: usize| format!("{}{}", one(&all[first]), others(first + 1));
    let mut choices: Vec<String> = (0..firsts).map(beginning).collect();
    if !all.first().is_some_and(|first| first.is_required) {
        choices.push("\"\"".into());
    }
    format!(
        "{} ({}) \")\"",
        quoted(&format!("{name}(")),
        choices.join(" | ")
    )
}
