//! Parses calls as chat templates write them, with random arguments, split into pieces at random positions.

use serde_json::{Map, Value, json};
use waterline::{ChatTemplate, Message};

use super::*;
use crate::splitmix::SplitMix64;

/// Parts of published templates that write a model's calls. The last format, LFM2's, is written by Rust code.
const TEMPLATES: [(&str, &str); 8] = [
    (
        "hermes",
        r#"{% for t in m.tool_calls %}{% if (loop.first and m.content) or not loop.first %}{{ '\n' }}{% endif %}{{ '<tool_call>\n{"name": "' }}{{ t.function.name }}{{ '", "arguments": ' }}{{ t.function.arguments | tojson }}{{ '}\n</tool_call>' }}{% endfor %}"#,
    ),
    (
        "qwen3_coder",
        r#"{% for t in m.tool_calls %}{{ '\n<tool_call>\n<function=' + t.function.name + '>\n' }}{% for k, v in t.function.arguments|items %}{{ '<parameter=' + k + '>\n' }}{% set v = v | tojson if v is mapping or (v is sequence and v is not string) else v | string %}{{ v }}{{ '\n</parameter>\n' }}{% endfor %}{{ '</function>\n</tool_call>' }}{% endfor %}"#,
    ),
    (
        "bailing",
        r#"{% for t in m.tool_calls %}{% if not loop.first %}{{ '\n' }}{% endif %}{{ '<tool_call>' + t.function.name + '\n' }}{% for k, v in t.function.arguments.items() %}{{ '<arg_key>' + k + '</arg_key>\n<arg_value>' }}{% if v is string %}{{ v }}{% else %}{{ v | tojson(ensure_ascii=False) }}{% endif %}{{ '</arg_value>' }}{% endfor %}{{ '\n</tool_call>' }}{% endfor %}"#,
    ),
    (
        "nemotron",
        r#"{{ '<TOOLCALL>[' }}{% for t in m.tool_calls %}{{ '{"name": "' + t.function.name + '", "arguments": ' }}{{ t.function.arguments | tojson }}{{ '}' }}{{ ', ' if not loop.last }}{% endfor %}{{ ']</TOOLCALL>' }}"#,
    ),
    (
        "granite",
        r#"{{ '<|tool_call|>[' }}{% for t in m.tool_calls %}{{ '{"name": "' + t.function.name + '", "arguments": ' }}{{ t.function.arguments | tojson }}{{ '}' }}{{ ', ' if not loop.last }}{% endfor %}{{ ']' }}"#,
    ),
    (
        "minimax",
        r#"{{ '<tool_calls>\n' }}{% for t in m.tool_calls %}{{ '{"name": "' + t.function.name + '", "arguments": ' }}{{ t.function.arguments | tojson }}{{ '}\n' }}{% endfor %}{{ '</tool_calls>' }}"#,
    ),
    (
        "llama3",
        r#"{% set t = m.tool_calls[0].function %}{{ '{"name": "' + t.name + '", ' }}{{ '"parameters": ' }}{{ t.arguments | tojson }}{{ '}' }}"#,
    ),
    ("lfm2", ""),
];

/// Number of calls for each format.
const CALLS: usize = 200;

struct Random(SplitMix64);

impl Random {
    fn below(&mut self, most: usize) -> usize {
        self.0.below(most)
    }

    fn pick<'a>(&mut self, of: &[&'a str]) -> &'a str {
        self.0.one_of(of)
    }

    /// A text with characters that formats could mistake for their syntax.
    fn text(&mut self) -> String {
        const PARTS: [&str; 14] = [
            "Paris",
            " ",
            "\n",
            "\"",
            "'",
            "\\",
            "é🔥",
            "{",
            "}",
            "<b>",
            "[1, 2]",
            "</tool_call",
            "a=b",
            ", ",
        ];
        let count = 1 + self.below(5);
        let text: String = (0..count).map(|_| self.pick(&PARTS)).collect();
        // Tags hold texts without surrounding white space.
        format!("t{}t", text)
    }

    fn value(&mut self, depth: usize) -> Value {
        match self.below(if depth == 0 { 5 } else { 7 }) {
            0 => self.text().into(),
            1 => (self.below(2_000) as i64 - 1_000).into(),
            2 => (self.below(2) == 0).into(),
            3 => json!(self.below(1_000) as f64 / 8.0),
            4 => self.pick(&["12", "true", "None", "1.5", "word"]).into(),
            5 => (0..self.below(3)).map(|_| self.value(depth - 1)).collect(),
            _ => {
                let names = ["a", "b key", "c"];
                let names = &names[..self.below(3)];
                Value::Object(
                    names
                        .iter()
                        .map(|&n| (n.into(), self.value(depth - 1)))
                        .collect(),
                )
            }
        }
    }

    fn call(&mut self) -> Call {
        let names = ["city", "days", "units", "x_1"];
        let names = &names[..self.below(5)];
        let arguments: Map<String, Value> = names
            .iter()
            .map(|&name| (name.into(), self.value(2)))
            .collect();
        Call {
            name: self.pick(&["get_weather", "search.web", "f"]).into(),
            arguments: arguments.into(),
        }
    }
}

/// The tools, with the types of the calls' arguments.
fn tools(calls: &[Call]) -> Tools {
    let kind = |value: &Value| match value {
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::Array(_) => "array",
        _ => "object",
    };
    let tool = |call: &Call| {
        let arguments = call.arguments.as_object().into_iter().flatten();
        let types = arguments.map(|(name, value)| (name.clone(), json!({ "type": kind(value) })));
        json!({ "type": "function", "function": {
            "name": call.name,
            "parameters": { "type": "object", "properties": Map::from_iter(types) },
        }})
    };
    Tools(calls.iter().map(tool).collect())
}

/// Formats a value as Python.
fn python(value: &Value) -> String {
    match value {
        Value::Null => "None".into(),
        Value::Bool(is) => if *is { "True" } else { "False" }.into(),
        Value::Number(number) => number.to_string(),
        Value::String(text) => {
            let text = text
                .replace('\\', "\\\\")
                .replace('\n', "\\n")
                .replace('\'', "\\'");
            format!("'{text}'")
        }
        Value::Array(list) => {
            format!(
                "[{}]",
                list.iter().map(python).collect::<Vec<_>>().join(", ")
            )
        }
        Value::Object(fields) => {
            let field = |(key, value): (&String, &Value)| format!("'{key}': {}", python(value));
            format!(
                "{{{}}}",
                fields.iter().map(field).collect::<Vec<_>>().join(", ")
            )
        }
    }
}

/// The answer that a model with this format writes for these calls.
fn written(format: &str, template: &str, calls: &[Call]) -> String {
    if format == "lfm2" {
        let argument = |(key, value): (&String, &Value)| format!("{key}={}", python(value));
        let call = |call: &Call| {
            let arguments = call.arguments.as_object().into_iter().flatten();
            let arguments: Vec<String> = arguments.map(argument).collect();
            format!("{}({})", call.name, arguments.join(", "))
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        return format!("<|tool_call_start|>[{}]<|tool_call_end|>", calls.join(", "));
    }
    let source = format!("{{% for m in messages %}}{template}{{% endfor %}}");
    let template = ChatTemplate::new(&source, "", "").expect("a template");
    let calls: Vec<Value> = calls
        .iter()
        .map(|call| json!({ "function": { "name": call.name, "arguments": call.arguments } }))
        .collect();
    let message = json!({ "role": "assistant", "content": "", "tool_calls": calls });
    let message: Message = serde_json::from_value(message).expect("a message");
    template.render(&[message], false).expect("a rendering")
}

fn read(format: &'static Format, tools: Tools, text: &str, random: &mut Random) -> Vec<Said> {
    let mut calls = Calls::new(format, tools);
    let (mut said, mut rest) = (Vec::new(), text);
    while let Some(c) = rest.chars().next() {
        let mut end = (c.len_utf8() + random.below(9)).min(rest.len());
        while !rest.is_char_boundary(end) {
            end += 1;
        }
        said.extend(calls.push(&rest[..end]));
        rest = &rest[end..];
    }
    said.extend(calls.finish());
    said
}

#[test]
fn two_hundred_calls_of_each_format_are_read_as_their_template_writes_them() {
    for (name, template) in TEMPLATES {
        let format = FORMATS.iter().find(|format| format.name == name);
        let format = format.expect("a format");
        let mut random = Random(SplitMix64(51));
        let mut count = 0;
        while count < CALLS {
            let several = if name == "llama3" {
                1
            } else {
                1 + random.below(3)
            };
            let mut calls: Vec<Call> = (0..several).map(|_| random.call()).collect();
            // A tool has one schema.
            let first = calls[0].clone();
            calls.retain(|call| call.name != first.name);
            calls.insert(0, first);
            calls.dedup_by(|a, b| a.name == b.name);
            count += calls.len();
            let text = written(name, template, &calls);
            let before = if format.only_first {
                ""
            } else {
                random.pick(&["", "Let me see. "])
            };
            let said = read(
                format,
                tools(&calls),
                &format!("{before}{text}"),
                &mut random,
            );
            let shown: String = said
                .iter()
                .filter_map(|said| match said {
                    Said::Text(text) => Some(text.as_str()),
                    Said::Call(_) => None,
                })
                .collect();
            assert_eq!(shown.trim(), before.trim(), "{name}: {text}");
            let found: Vec<&Call> = said
                .iter()
                .filter_map(|said| match said {
                    Said::Call(call) => Some(call),
                    Said::Text(_) => None,
                })
                .collect();
            assert_eq!(found, calls.iter().collect::<Vec<_>>(), "{name}: {text}");
        }
    }
}

#[test]
fn text_that_is_no_call_comes_back_as_it_was() {
    let mut random = Random(SplitMix64(7));
    for format in &FORMATS {
        let whole = format!("{}not a call{}", format.open, format.close);
        let half = format!(
            "a < b <tool {{ \"name\": 3 }} {}",
            &format.open[..format.open.len() - 1]
        );
        for text in [
            "",
            "plain",
            "<",
            "{",
            "{\"a\": 1}",
            &whole,
            &half,
            "<|python_tag|",
            "é🔥<tool_call",
        ] {
            let said = read(format, Tools::default(), text, &mut random);
            let back: String = said
                .iter()
                .map(|said| match said {
                    Said::Text(text) => text.as_str(),
                    Said::Call(call) => panic!("{}: {text:?}: {call:?}", format.name),
                })
                .collect();
            assert_eq!(back, text, "{}", format.name);
        }
    }
}

#[test]
fn templates_say_their_format() {
    for (template, expected) in [
        (
            "x <tool_call>\n{\"name\": ...}\n</tool_call>",
            Some("hermes"),
        ),
        (
            "<tool_call>\n<function=f>\n<parameter=p>",
            Some("qwen3_coder"),
        ),
        ("<tool_call>{name}\n<arg_key>k</arg_key>", Some("bailing")),
        ("<|tool_call_start|>[f()]<|tool_call_end|>", Some("lfm2")),
        (
            "{\"name\": function name, \"parameters\": dictionary}",
            Some("llama3"),
        ),
        ("'\"parameters\": '", Some("llama3")),
        ("{{ message.content }}", None),
    ] {
        let found = Format::of_template(template).map(|format| format.name);
        assert_eq!(found, expected, "{template}");
    }
}

#[test]
fn any_text_is_read_in_bounded_time() {
    let mut random = Random(SplitMix64(9));
    for format in &FORMATS {
        for _ in 0..200 {
            let count = random.below(40);
            let parts = [
                format.open,
                format.close,
                "[",
                "(",
                "{",
                "\"",
                "f(",
                "a=",
                "\\u",
                "\\ud83d",
                "<parameter=",
                ">",
                "é",
                ",",
            ];
            let text: String = (0..count).map(|_| random.pick(&parts)).collect();
            read(format, Tools::default(), &text, &mut random);
        }
        let deep = format!("{}{}", format.open, "[".repeat(100_000));
        let mut calls = Calls::new(format, Tools::default());
        calls.push(&deep);
        calls.finish();
    }
}

/// The tools that a model must call in the tests of grammars.
fn two_tools() -> Vec<Value> {
    vec![
        json!({ "type": "function", "function": { "name": "get_weather", "parameters": {
            "type": "object",
            "properties": {
                "days": { "type": "integer", "minimum": 1, "maximum": 9 },
                "city": { "enum": ["Paris", "Oslo \"N\""], "type": "string" },
                "units": { "$ref": "#/$defs/units" },
            },
            "required": ["city"], "additionalProperties": false,
            "$defs": { "units": { "enum": ["C", "F"] } },
        }}}),
        json!({ "type": "function", "function": { "name": "note", "parameters": {
            "type": "object",
            "properties": { "on": { "type": "boolean" }, "tags": {
                "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "maxItems": 2,
            }},
            "additionalProperties": false,
        }}}),
    ]
}

/// Whether a call is of one of [`two_tools`], with arguments that fit.
fn fits(call: &Call) -> bool {
    let fields = call.arguments.as_object().expect("an object");
    let fits = |(key, value): (&String, &Value)| match (call.name.as_str(), key.as_str()) {
        ("get_weather", "days") => value.as_i64().is_some_and(|n| (1..=9).contains(&n)),
        ("get_weather", "city") => value == "Paris" || value == "Oslo \"N\"",
        ("get_weather", "units") => value == "C" || value == "F",
        ("note", "on") => value.is_boolean(),
        ("note", "tags") => value.as_array().is_some_and(|tags| {
            tags.len() <= 2 && tags.iter().all(|tag| tag.as_i64().is_some_and(|n| n <= 9))
        }),
        _ => false,
    };
    (call.name == "note" || fields.contains_key("city")) && fields.iter().all(fits)
}

/// A model that has never seen a tool calls a tool in any format, with arguments that fit.
#[cfg(all(feature = "constraints", feature = "builtin-model"))]
#[test]
fn answers_that_must_call_call_in_every_format() {
    use waterline::{Finish, GenerateOptions, Grammar, Session, SessionOptions};

    let model = crate::builtin::OpenArgs::default()
        .model(None)
        .expect("the model");
    let compiler = model.constraints().expect("constraints");
    let tools = two_tools();
    let listed: Vec<&Value> = tools.iter().collect();
    let mut options = SessionOptions::default();
    (options.threads, options.lookup) = (1, 8);
    let mut session = Session::new(model.clone(), options).expect("a session");
    let prompt = model.tokenizer().expect("a tokenizer").encode("Tell me:");
    let prompt = prompt.expect("tokens");
    for format in &FORMATS {
        for (needed, seed) in [Needed::One, Needed::Some].into_iter().zip(0..) {
            let grammar = format
                .grammar(&listed, needed, |_| None)
                .expect("a grammar");
            let form = compiler.compile(&Grammar::Lark(grammar.clone()));
            let form = form.unwrap_or_else(|error| panic!("{grammar}: {error}"));
            let mut params = session.sampler().clone();
            params.seed = seed;
            session.set_sampler(params).expect("a sampler");
            session.reset().expect("reset");
            session.feed(&prompt).expect("read");
            let mut limits = GenerateOptions::default();
            limits.max_tokens = 200;
            let mut pieces = session.generate(limits).expect("begun").constrained(form);
            let text: String = pieces
                .by_ref()
                .map(|piece| piece.expect("a piece").text)
                .collect();
            let ended = pieces.finish() == Some(Finish::End);
            assert!(ended || needed == Needed::Some, "{}: {text}", format.name);
            let mut calls = Calls::new(format, Tools(tools.clone()));
            let said: Vec<Said> = [calls.push(&text), calls.finish()].concat();
            for said in said
                .iter()
                .take(if ended { said.len() } else { said.len() - 1 })
            {
                match said {
                    Said::Call(call) => assert!(fits(call), "{}: {call:?}", format.name),
                    Said::Text(_) => panic!("{}: {text}", format.name),
                }
            }
            assert!(
                !said.is_empty() && (needed != Needed::One || said.len() == 1),
                "{text}"
            );
        }
    }
}

/// Text before a call is free; the call must fit its schema.
#[cfg(all(feature = "constraints", feature = "builtin-model"))]
#[test]
fn calls_that_are_free_to_come_still_fit() {
    use waterline::Grammar;

    let model = crate::builtin::OpenArgs::default()
        .model(None)
        .expect("the model");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let compiler = model.constraints().expect("constraints");
    let tools = two_tools();
    let listed: Vec<&Value> = tools.iter().collect();
    let hermes = FORMATS
        .iter()
        .find(|format| format.name == "hermes")
        .expect("a format");
    let grammar = hermes
        .grammar(&listed, Needed::Any, |_| None)
        .expect("a grammar");
    let form = compiler.compile(&Grammar::Lark(grammar)).expect("a form");
    let call = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>"
        )
    };
    let end = model.ends().next().expect("an end");
    let takes = |text: &str, ends: bool| {
        let mut form = form.clone();
        let mut tokens = tokenizer.encode(text).expect("tokens");
        tokens.extend(ends.then_some(end));
        tokens.into_iter().all(|token| {
            let mut logits = vec![0.0; model.spec().vocab];
            form.apply(&mut logits).is_ok()
                && logits[token as usize] == 0.0
                && form.take(token).is_ok()
        })
    };
    for text in [
        "",
        "Nothing.",
        "a <tool_ca",
        &call("Paris"),
        &format!("Yes. {}{0} Done.", call("Paris")),
    ] {
        assert!(takes(text, true), "{text}");
    }
    for text in [
        &call("Rome"),
        &format!("Yes. {}", call("Rome")),
        "<tool_call>{}",
    ] {
        assert!(!takes(text, false), "{text}");
    }
}
