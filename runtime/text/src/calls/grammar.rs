//! Grammars of answers with calls, in llguidance's variant of Lark: for answers that must call a tool, and for calls whose arguments fit
//! the tool's schema. A grammar's size is linear in that of the tools; shared definitions and equal schemas are written once a rule.

use std::collections::{BTreeSet, HashMap};

use serde_json::{Map, Value, json};

use super::Tools;
use super::formats::{Body, CallFormat, Tags};
use super::tools::Kinds;

/// Largest grammar in bytes.
const MOST_BYTES: usize = 1 << 19;

/// The calls that an answer must contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NeededCalls {
    /// Any text and calls.
    Any,
    /// At least one call, and no text.
    Some,
    /// Exactly one call, and no text.
    One,
}

/// What a grammar depends on beside the tools.
pub struct GrammarSettings<'a> {
    /// The id of the control token with a name.
    pub control: &'a dyn Fn(&str) -> Option<u32>,
    /// Adds the settings of JSON's white space to a schema.
    pub spaced: &'a dyn Fn(&Value) -> Value,
}

impl CallFormat {
    /// Returns a grammar of answers with calls of `tools`.
    ///
    /// # Errors
    /// Returns the reason why a tool cannot be described, such as a schema that makes the grammar too large.
    pub fn grammar(
        &self,
        tools: &[&Value],
        needed: NeededCalls,
        settings: &GrammarSettings,
    ) -> Result<String, String> {
        let mut writer = Writer {
            format: self,
            settings,
            rules: String::new(),
            shared: HashMap::new(),
            function: 0,
        };
        writer.grammar(tools, needed)
    }
}

struct Writer<'a> {
    format: &'a CallFormat,
    settings: &'a GrammarSettings<'a>,
    rules: String,
    /// Rules by what they stand for.
    shared: HashMap<String, String>,
    /// The index of the function that is described.
    function: usize,
}

/// An argument of a function.
struct Argument<'a> {
    key: &'a str,
    schema: &'a Value,
    /// The schema of all arguments.
    whole: &'a Value,
    is_required: bool,
}

impl Writer<'_> {
    fn grammar(&mut self, tools: &[&Value], needed: NeededCalls) -> Result<String, String> {
        let format = self.format;
        let opening = format.opening();
        let mut names = Vec::new();
        for (index, tool) in tools.iter().enumerate() {
            let function = tool.get("function").unwrap_or(tool);
            let name = function["name"]
                .as_str()
                .ok_or("tools: expected a function with a name")?;
            let all = Tools(vec![function.clone()]);
            self.function = index;
            let body = self.body(name, &function["parameters"], &all)?;
            self.rule(&format!("call_{index}"), &body)?;
            names.push(format!("call_{index}"));
        }
        self.rule("call", &names.join(" | "))?;
        let is_list = matches!(
            format.body,
            Body::Object { is_list: true, .. } | Body::NameAsKey | Body::Python
        );
        let [open, close] = if is_list {
            ["\"[\"", "\"]\""]
        } else {
            ["", ""]
        };
        let (section, call) = (format.section, format.call);
        // The text that begins a call, without the white space that follows it: models forget that, and the rest then still has to fit.
        let begins = match section[0].is_empty() {
            true => call[0],
            false => section[0],
        };
        let (begins, space) = begins.split_at(begins.trim_end().len());
        let space = self.literal(space);
        let (before_call, after_call) = match section[0].is_empty() {
            true => (String::new(), self.literal(call[1])),
            false => (self.literal(call[0]), self.literal(call[1])),
        };
        let between = self.literal(format.between);
        let mark = self.literal(begins);
        let has_more = needed != NeededCalls::One && !section[0].is_empty();
        let more = if has_more {
            format!("({between} {before_call} call {after_call})*")
        } else {
            String::new()
        };
        let end = self.literal(section[1]);
        if let Some(channels) = format.channels {
            return self.channels(channels.function.is_empty(), needed);
        }
        self.rule(
            "rest",
            &format!("{space} {open} {before_call} call {after_call} {more} {close} {end}"),
        )?;
        self.rule("one", &format!("{mark} rest"))?;
        let repeated = format!("one ({between} one)*");
        let start = match needed {
            NeededCalls::One => "one".to_string(),
            NeededCalls::Some if has_more || format.name == "llama3" => "one".into(),
            NeededCalls::Some => repeated,
            NeededCalls::Any if mark.is_empty() => {
                let first = opening.chars().next().unwrap_or('{');
                let first = escaped(&first.to_string());
                self.rule("TEXT", &format!("/[^{first}](?s:.)*/"))?;
                format!("{repeated} | TEXT?")
            }
            NeededCalls::Any if mark.starts_with("<[") => {
                self.rule("TEXT", "/(?s:.)+/")?;
                "TEXT? (one TEXT?)*".into()
            }
            NeededCalls::Any => {
                self.rules += &format!("text[suffix={}]: /(?s:.)*/\n", quoted(begins));
                self.rule(
                    "LAST",
                    &format!("/(?s:.)+/ & ~/(?s:.)*{}(?s:.)*/", escaped(begins)),
                )?;
                "(text rest)* LAST?".into()
            }
        };
        Ok(format!("start: {start}\n{}", self.rules))
    }

    /// The grammar of messages with headers.
    fn channels(&mut self, by_line: bool, needed: NeededCalls) -> Result<String, String> {
        self.rule(
            "TEXT",
            if by_line {
                "/([^>]|>[^>]|>>[^>])*/"
            } else {
                "/(?s:.)*/"
            },
        )?;
        let [next, head, text] = match by_line {
            true => [
                "\">>>\"".to_string(),
                String::new(),
                "\"all\\n\" TEXT".into(),
            ],
            false => [
                self.literal("<|end|><|start|>assistant"),
                self.literal("<|channel|>commentary to=functions."),
                format!(
                    "{} (\"final\" | \"commentary\" | \"analysis\") {} TEXT",
                    self.literal("<|channel|>"),
                    self.literal("<|message|>")
                ),
            ],
        };
        let thought = format!(
            "({} \"analysis\" {} TEXT {next})*",
            self.literal("<|channel|>"),
            self.literal("<|message|>")
        );
        let thought = if by_line { String::new() } else { thought };
        let start = match needed {
            NeededCalls::Any => format!("({head} call | {text}) ({next} ({head} call | {text}))*"),
            _ => format!("{thought} {head} call"),
        };
        Ok(format!("start: {start}\n{}", self.rules))
    }

    fn rule(&mut self, name: &str, body: &str) -> Result<(), String> {
        self.rules += &format!("{name}: {body}\n");
        match self.rules.len() > MOST_BYTES {
            true => Err(format!(
                "tools: their grammar takes more than {MOST_BYTES} bytes"
            )),
            false => Ok(()),
        }
    }

    /// A text, with control tokens where it has their names.
    fn literal(&self, text: &str) -> String {
        let mut parts = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let close = if c == '<' { '>' } else { ']' };
            let mark = if "<[".contains(c) {
                rest.find(close).map(|end| &rest[..=end])
            } else {
                None
            };
            match mark.and_then(|mark| Some((mark, (self.settings.control)(mark)?))) {
                Some((mark, id)) => {
                    parts.extend((!plain.is_empty()).then(|| quoted(&plain)));
                    plain.clear();
                    parts.push(format!("<[{id}]>"));
                    rest = &rest[mark.len()..];
                }
                None => {
                    plain.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
        parts.extend((!plain.is_empty()).then(|| quoted(&plain)));
        parts.join(" ")
    }

    /// A rule for JSON that fits a schema; equal schemas have one rule.
    fn json(&mut self, schema: &Value) -> Result<String, String> {
        let any = json!({ "type": "object" });
        let schema = if schema.is_null() { &any } else { schema };
        let text = format!("%json {}", (self.settings.spaced)(schema));
        if let Some(name) = self.shared.get(&text) {
            return Ok(name.clone());
        }
        let name = format!("json_{}", self.shared.len());
        self.rule(&name, &text)?;
        self.shared.insert(text, name.clone());
        Ok(name)
    }

    /// A rule for an argument as JSON. Arguments with one schema share it before their definitions are copied.
    fn argument(&mut self, argument: &Argument) -> Result<String, String> {
        let key = format!("{} {}", self.function, argument.schema);
        if let Some(name) = self.shared.get(&key) {
            return Ok(name.clone());
        }
        let name = self.json(&argument.complete())?;
        self.shared.insert(key, name.clone());
        Ok(name)
    }

    fn body(&mut self, name: &str, schema: &Value, tools: &Tools) -> Result<String, String> {
        match self.format.body {
            Body::Object {
                name: name_key,
                arguments,
                ..
            } => {
                let head = format!("{{\"{name_key}\": {}, \"{arguments}\": ", quoted(name));
                Ok(format!("{} {} \"}}\"", quoted(&head), self.json(schema)?))
            }
            Body::NameAsKey => {
                let head = format!("{{{}: ", quoted(name));
                Ok(format!("{} {} \"}}\"", quoted(&head), self.json(schema)?))
            }
            Body::NameThenObject { before, after, end } => {
                let [before, after, end] = [before, after, end].map(|text| self.literal(text));
                Ok(format!(
                    "{before} {} {after} {} {end}",
                    quoted(name),
                    self.json(schema)?
                ))
            }
            Body::Tags(tags) => self.tags(tags, name, schema, tools),
            Body::Python => self.python(name, schema),
        }
    }

    fn tags(
        &mut self,
        tags: Tags,
        name: &str,
        schema: &Value,
        tools: &Tools,
    ) -> Result<String, String> {
        let [after_name, around, after] = tags.space;
        let head = format!(
            "{}{name}{}{}{after_name}",
            tags.name[0], tags.name[1], tags.tag_end
        );
        let mut all = self.literal(&head);
        let [open, close] = tags.value;
        let is_dsml = tags.name[0].contains("DSML");
        for argument in listed(schema) {
            let kinds = tools.kinds(name, argument.key);
            let hint = match is_dsml {
                false => "",
                true if kinds.has(Kinds::STRING) => " string=\"true\"",
                true => " string=\"false\"",
            };
            let before = format!(
                "{}{}{}{hint}{}{open}{around}",
                tags.key[0], argument.key, tags.key[1], tags.tag_end
            );
            let (before, close) = (self.literal(&before), format!("{around}{close}"));
            let value = self.tagged_value(&argument, kinds, &close)?;
            let mark = if argument.is_required { "" } else { "?" };
            all += &format!(" ({before} {value} {}){mark}", self.literal(after));
        }
        Ok(format!("{all} {}", self.literal(tags.end)))
    }

    /// A value up to its closing tag. Strings are not quoted.
    fn tagged_value(
        &mut self,
        argument: &Argument,
        kinds: Kinds,
        close: &str,
    ) -> Result<String, String> {
        let end = self.literal(close);
        let choices = argument.schema["enum"].as_array();
        let texts: Option<Vec<&str>> =
            choices.and_then(|all| all.iter().map(Value::as_str).collect());
        match texts {
            Some(texts) if !texts.is_empty() => {
                let texts: Vec<String> = texts.into_iter().map(quoted).collect();
                return Ok(format!("({}) {end}", texts.join(" | ")));
            }
            _ if !kinds.has(Kinds::STRING) => {
                return Ok(format!("{} {end}", self.argument(argument)?));
            }
            _ => {}
        }
        if end.contains("<[") {
            let key = "VALUE".to_string();
            if self.shared.insert(key.clone(), key).is_none() {
                self.rule("VALUE", "/(?s:.)*/")?;
            }
            return Ok(format!("VALUE {end}"));
        }
        let key = format!("text {close}");
        if let Some(name) = self.shared.get(&key) {
            return Ok(name.clone());
        }
        let name = format!("value_{}", self.shared.len());
        self.rules += &format!("{name}[suffix={}]: /(?s:.)*/\n", quoted(close));
        self.shared.insert(key, name.clone());
        Ok(name)
    }

    /// A Python call with keyword arguments.
    fn python(&mut self, name: &str, schema: &Value) -> Result<String, String> {
        let mut items = Vec::new();
        let mut required = 0;
        for argument in listed(schema) {
            required += usize::from(argument.is_required);
            let key = quoted(&format!("{}=", argument.key));
            items.push(format!("{key} {}", self.argument(&argument)?));
        }
        let optional = items.split_off(required);
        let open = quoted(&format!("{name}("));
        let mut list = items.join(" \", \" ");
        match (required, optional.len()) {
            (_, 0) => {}
            (0, _) => list = format!("({})?", self.some_of(&optional)?),
            _ => {
                list += &optional
                    .iter()
                    .map(|item| format!(" (\", \" {item})?"))
                    .collect::<String>()
            }
        }
        Ok(format!("{open} {list} \")\""))
    }

    /// At least one of `items`, in their order. The rules halve the list, so that they are few and not deeply nested.
    fn some_of(&mut self, items: &[String]) -> Result<String, String> {
        if let [item] = items {
            return Ok(item.clone());
        }
        let (first, second) = items.split_at(items.len() / 2);
        let (first, second) = (self.some_of(first)?, self.some_of(second)?);
        let name = format!("some_{}", self.shared.len());
        self.shared.insert(name.clone(), name.clone());
        self.rule(&format!("{name}_second"), &second)?;
        self.rule(
            &name,
            &format!("{first} (\", \" {name}_second)? | {name}_second"),
        )?;
        Ok(name)
    }
}

/// The arguments that a schema names, required ones first.
fn listed(schema: &Value) -> Vec<Argument<'_>> {
    let required: BTreeSet<&str> = schema["required"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let mut all = Vec::new();
    for (key, value) in schema["properties"].as_object().into_iter().flatten() {
        all.push(Argument {
            key,
            schema: value,
            whole: schema,
            is_required: required.contains(key.as_str()),
        });
    }
    all.sort_by_key(|argument| !argument.is_required);
    all
}

impl Argument<'_> {
    /// The schema with the definitions that it refers to.
    fn complete(&self) -> Value {
        let mut own = self.schema.clone();
        if let Some(own) = own.as_object_mut() {
            for (place, name, definition) in referred(self.schema, self.whole) {
                let list = own.entry(place).or_insert_with(|| Map::new().into());
                if let Some(list) = list.as_object_mut() {
                    list.insert(name.into(), definition.clone());
                }
            }
        }
        own
    }
}

/// The definitions of `whole` that a schema refers to, directly or through others.
fn referred<'a>(schema: &'a Value, whole: &'a Value) -> Vec<(&'a str, &'a str, &'a Value)> {
    let mut found: Vec<(&str, &str, &Value)> = Vec::new();
    let (mut open, mut seen) = (vec![schema], BTreeSet::new());
    while let Some(value) = open.pop() {
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                open.extend(fields.values());
                let target = fields.get("$ref").and_then(Value::as_str);
                let target = target.and_then(|text| text.strip_prefix("#/")?.split_once('/'));
                if let Some((place, name)) = target
                    && let name = name.split('/').next().unwrap_or(name)
                    && let Some(definition) = whole[place].get(name)
                    && seen.insert((place, name))
                {
                    found.push((place, name, definition));
                    open.push(definition);
                }
            }
            _ => {}
        }
    }
    found
}

/// Quotes a text for Lark.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Escapes a text for a regular expression.
fn escaped(text: &str) -> String {
    let escape = |c: char| match c {
        '\n' => "\\n".into(),
        c if c.is_ascii_punctuation() && !"_<>".contains(c) => format!("\\{c}"),
        c => c.to_string(),
    };
    text.chars().map(escape).collect()
}
