//! Random calls, as published templates write them, are read back.

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use proptest::sample::select;
use serde_json::{Map, Value, json};

use super::*;
use crate::{ChatTemplate, Message};

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
        "glm",
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

/// A text with characters that formats could mistake for their syntax. Tags hold texts without surrounding white space.
fn text() -> impl Strategy<Value = String> {
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
    vec(select(&PARTS[..]), 1..6).prop_map(|parts| format!("t{}t", parts.concat()))
}

fn value() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        text().prop_map(Value::from),
        (-1_000..1_000).prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        (0..1_000).prop_map(|n| json!(f64::from(n) / 8.0)),
        select(&["12", "true", "None", "1.5", "word"][..]).prop_map(Value::from),
    ];
    leaf.prop_recursive(2, 12, 3, |inner| {
        let field = (select(&["a", "b key", "c"][..]), inner.clone());
        let field = field.prop_map(|(key, value)| (key.to_string(), value));
        prop_oneof![
            vec(inner, 0..3).prop_map(Value::from),
            vec(field, 0..3).prop_map(|all| Value::Object(all.into_iter().collect())),
        ]
    })
}

/// Calls of different functions.
fn calls() -> impl Strategy<Value = Vec<(String, Value)>> {
    let key = select(&["city", "days", "units", "x_1"][..]).prop_map(String::from);
    let arguments = vec((key, value()), 0..5);
    let arguments = arguments.prop_map(|all| Value::Object(all.into_iter().collect()));
    let name = select(&["get_weather", "search.web", "f"][..]).prop_map(String::from);
    btree_map(name, arguments, 1..4).prop_map(|calls| calls.into_iter().collect())
}

/// The tools, with the types of the calls' arguments.
fn tools(calls: &[(String, Value)]) -> Tools {
    let kind = |value: &Value| match value {
        Value::String(_) => "string",
        Value::Bool(_) => "boolean",
        Value::Number(number) if number.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::Array(_) => "array",
        _ => "object",
    };
    let tool = |(name, arguments): &(String, Value)| {
        let arguments = arguments.as_object().into_iter().flatten();
        let types = arguments.map(|(key, value)| (key.clone(), json!({ "type": kind(value) })));
        json!({ "name": name, "parameters": { "type": "object", "properties": Map::from_iter(types) } })
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
fn written(format: &str, template: &str, calls: &[(String, Value)]) -> String {
    if format == "lfm2" {
        let argument = |(key, value): (&String, &Value)| format!("{key}={}", python(value));
        let call = |(name, arguments): &(String, Value)| {
            let arguments = arguments.as_object().into_iter().flatten();
            let arguments: Vec<String> = arguments.map(argument).collect();
            format!("{name}({})", arguments.join(", "))
        };
        let calls: Vec<String> = calls.iter().map(call).collect();
        return format!("<|tool_call_start|>[{}]<|tool_call_end|>", calls.join(", "));
    }
    let source = format!("{{% for m in messages %}}{template}{{% endfor %}}");
    let template = ChatTemplate::new(&source, "", "").expect("a template");
    let calls: Vec<Value> = calls
        .iter()
        .map(|(name, arguments)| json!({ "function": { "name": name, "arguments": arguments } }))
        .collect();
    let message = json!({ "role": "assistant", "content": "", "tool_calls": calls });
    let message: Message = serde_json::from_value(message).expect("a message");
    template.render(&[message], false).expect("a rendering")
}

proptest! {
    #[test]
    fn calls_are_read_as_templates_write_them(
        calls in calls(), speaks in any::<bool>(), lengths in vec(1..10_usize, 1..9),
    ) {
        for (name, template) in TEMPLATES {
            let calls = if name == "llama3" { &calls[..1] } else { &calls[..] };
            let before = if speaks && name != "llama3" { "Let me see. " } else { "" };
            let text = format!("{before}{}", written(name, template, calls));
            let mut syntax = AnswerSyntax::of_model("", |_| false, tools(calls));
            syntax.format = CallFormat::all().iter().find(|format| format.name == name);
            prop_assert!(syntax.format.is_some(), "{name}");
            let (mut parser, mut answer) = (AnswerParser::new(syntax), Answer::default());
            let (mut letters, mut lengths) = (text.chars(), lengths.iter().cycle());
            let mut parts = Vec::new();
            while !letters.as_str().is_empty() {
                let piece: String = letters.by_ref().take(*lengths.next().unwrap_or(&1)).collect();
                parts.extend(parser.push(&piece));
            }
            parts.extend(parser.finish(false));
            parts.iter().for_each(|part| answer.add(part));
            prop_assert_eq!(answer.content.trim(), before.trim(), "{}: {}", name, text);
            let read: Vec<_> = answer.calls.iter().map(|call| (call.name.clone(), call.value())).collect();
            prop_assert_eq!(&read[..], calls, "{}: {}", name, text);
        }
    }
}
