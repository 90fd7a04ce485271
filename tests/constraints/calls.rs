//! The grammar of tool calls in every format, and what a model writes by it.

use std::time::Duration;

use serde_json::{Map, Value, json};
use waterline::{
    Answer, AnswerParser, AnswerSyntax, CallFormat, Error, Finish, Grammar, GrammarSettings,
    NeededCalls, Tools,
};

use super::{alone, begin, model};

/// Two tools, with references and choices among their arguments.
fn tools() -> Vec<Value> {
    let tool = |name: &str, parameters: Value| json!({ "type": "function", "function": { "name": name, "parameters": parameters } });
    vec![
        tool(
            "get_weather",
            json!({
                "type": "object",
                "properties": {
                    "days": { "type": "integer", "minimum": 1, "maximum": 9 },
                    "city": { "enum": ["Paris", "Oslo \"N\""], "type": "string" },
                    "units": { "$ref": "#/$defs/units" },
                },
                "required": ["city"], "additionalProperties": false,
                "$defs": { "units": { "enum": ["C", "F"] } },
            }),
        ),
        tool(
            "note",
            json!({
                "type": "object",
                "properties": { "on": { "type": "boolean" }, "tags": {
                    "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": 9 }, "maxItems": 2,
                }},
                "additionalProperties": false,
            }),
        ),
    ]
}

/// Whether a call is of one of [`tools`], with arguments that fit.
fn fits(name: &str, arguments: &Value) -> bool {
    let fits = |(key, value): (&String, &Value)| match (name, key.as_str()) {
        ("get_weather", "days") => value.as_i64().is_some_and(|n| (1..=9).contains(&n)),
        ("get_weather", "city") => value == "Paris" || value == "Oslo \"N\"",
        ("get_weather", "units") => value == "C" || value == "F",
        ("note", "on") => value.is_boolean(),
        ("note", "tags") => value.as_array().is_some_and(|tags| {
            tags.len() <= 2 && tags.iter().all(|tag| tag.as_i64().is_some_and(|n| n <= 9))
        }),
        _ => false,
    };
    let fields = arguments.as_object().expect("an object");
    (name == "note" || fields.contains_key("city")) && fields.iter().all(fits)
}

/// The grammar of calls in a format. `control` returns the id of a control token.
fn calls_grammar(
    format: &CallFormat,
    tools: &[Value],
    needed: NeededCalls,
    control: &dyn Fn(&str) -> Option<u32>,
) -> Result<Grammar, String> {
    let settings = GrammarSettings {
        control,
        spaced: &Grammar::spaced,
    };
    let tools: Vec<&Value> = tools.iter().collect();
    format.grammar(&tools, needed, &settings).map(Grammar::Lark)
}

#[test]
fn a_model_that_has_never_seen_a_tool_calls_one_in_every_format() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let tools = tools();
    let mut ended = 0;
    for (format, seed) in CallFormat::all().iter().zip(0..) {
        for needed in [NeededCalls::One, NeededCalls::Some] {
            let grammar = calls_grammar(format, &tools, needed, &|_| None).expect("a grammar");
            let form = compiler.compile(&grammar);
            let form = form.unwrap_or_else(|error| panic!("{}: {grammar:?}: {error}", format.name));
            let ((text, finish), _) = alone(begin(&model, &form, false, (seed, 8)));
            let is_cut = finish != Some(Finish::End);
            ended += usize::from(!is_cut);
            let mut syntax = AnswerSyntax::of_model("", |_| false, Tools(tools.clone()));
            syntax.format = Some(format);
            let (mut parser, mut answer) = (AnswerParser::new(syntax), Answer::default());
            for part in [parser.push(&text), parser.finish(is_cut)].concat() {
                answer.add(&part);
            }
            if is_cut && format.name == "harmony" {
                // The thought before the call has no bound.
                continue;
            }
            assert!(!answer.calls.is_empty(), "{}: {text}", format.name);
            let whole = answer.calls.len() - usize::from(is_cut);
            for call in &answer.calls[..whole] {
                let arguments = serde_json::from_str(&call.arguments);
                let arguments = arguments.unwrap_or_else(|error| panic!("{text}: {error}"));
                assert!(fits(&call.name, &arguments), "{}: {text}", format.name);
            }
            // A call that the limit cuts before its arguments is text.
            let is_rest = is_cut && text.ends_with(&answer.content);
            assert!(
                answer.content.is_empty() || is_rest,
                "{}: {text}",
                format.name
            );
            if needed == NeededCalls::One {
                assert_eq!(answer.calls.len(), 1, "{}: {text}", format.name);
            }
        }
    }
    assert!(ended > CallFormat::all().len(), "{ended}");
}

#[test]
fn text_before_a_call_is_free_and_the_call_fits() {
    let model = model();
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let compiler = model.constraints().expect("constraints");
    let end = model.ends().next().expect("an end");
    let grammar = calls_grammar(CallFormat::generic(), &tools(), NeededCalls::Any, &|_| None);
    let form = compiler
        .compile(&grammar.expect("a grammar"))
        .expect("a form");
    let call = |city: &str| {
        format!(
            "<tool_call>\n{{\"name\": \"get_weather\", \"arguments\": {{\"city\": \"{city}\"}}}}\n</tool_call>"
        )
    };
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

#[test]
fn grammars_of_every_format_compile_with_and_without_control_tokens() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let end = model.ends().next().expect("an end");
    let is_token = |text: &str| (text.len() > 3 && !text.contains('=')).then_some(end);
    for format in CallFormat::all() {
        for needed in [NeededCalls::Any, NeededCalls::Some, NeededCalls::One] {
            for control in [&is_token as &dyn Fn(&str) -> Option<u32>, &|_| None] {
                let grammar = calls_grammar(format, &tools(), needed, control).expect("a grammar");
                if let Err(error) = compiler.compile(&grammar) {
                    panic!("{} {needed:?}: {grammar:?}: {error}", format.name);
                }
            }
        }
    }
}

#[test]
fn long_lists_of_tools_compile_or_are_refused_with_a_sentence() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let tool = |name: String, properties: Map<String, Value>, shared: Value| {
        json!({ "type": "function", "function": { "name": name, "parameters": {
            "type": "object", "properties": properties, "additionalProperties": false, "$defs": { "d": shared },
        }}})
    };
    let texts = |count: usize| (0..count).map(|n| format!("value {n}")).collect::<Vec<_>>();
    let numbered = |count: usize, schema: &dyn Fn(usize) -> Value| -> Map<String, Value> {
        (0..count).map(|n| (format!("p{n}"), schema(n))).collect()
    };
    let integer = |_| json!({ "type": "integer" });
    let described =
        |n: usize| json!({ "type": ["string", "null"], "description": format!("Parameter {n}.") });
    let reference = |n: usize| json!({ "$ref": "#/$defs/d", "description": format!("{n}") });
    // Each list takes about 120 kB as JSON.
    let lists = [
        vec![tool("f".into(), numbered(3_000, &integer), Value::Null)],
        vec![tool("f".into(), numbered(1_800, &described), Value::Null)],
        vec![tool(
            "f".into(),
            numbered(1_000, &reference),
            json!({ "enum": texts(5_000) }),
        )],
        (0..400)
            .map(|n| tool(format!("f{n}"), numbered(3, &described), Value::Null))
            .collect(),
    ];
    let mut compiled = 0;
    for (format, tools) in CallFormat::all().iter().zip(lists.iter().cycle()) {
        let Ok(grammar) = calls_grammar(format, tools, NeededCalls::Some, &|_| None) else {
            continue;
        };
        // A compilation that takes too long keeps its place until it ends.
        let outcome = loop {
            match compiler.compile(&grammar) {
                Err(Error::Memory { .. }) => std::thread::sleep(Duration::from_millis(100)),
                outcome => break outcome,
            }
        };
        match outcome {
            Ok(_) => compiled += 1,
            Err(error) => assert!(matches!(error, Error::Invalid { .. }), "{error}"),
        }
    }
    // All formats take more than 256 parameters.
    let tools = [tool("f".into(), numbered(300, &integer), Value::Null)];
    for format in CallFormat::all() {
        let grammar =
            calls_grammar(format, &tools, NeededCalls::Some, &|_| None).expect("a grammar");
        if let Err(error) = compiler.compile(&grammar) {
            panic!("{}: {error}", format.name);
        }
    }
    assert!(compiled > 0);
}
