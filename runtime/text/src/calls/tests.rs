//! Answers of each format as models write them, with the mistakes that they make.

use serde_json::{Value, json};

use super::formats::FORMATS;
use super::*;

fn tools() -> Tools {
    Tools(vec![
        json!({ "type": "function", "function": { "name": "get_weather", "parameters": {
            "type": "object",
            "properties": {
                "city": { "type": "string" },
                "days": { "type": "integer" },
                "units": { "anyOf": [{ "type": "string" }, { "type": "null" }] },
                "tags": { "type": "array", "items": { "type": "string" } },
                "options": { "type": "object" },
            },
            "required": ["city"],
        }}}),
        json!({ "type": "function", "function": { "name": "now", "parameters": { "type": "object", "properties": {} } } }),
    ])
}

pub(super) fn syntax(name: &str) -> AnswerSyntax {
    let format = FORMATS.iter().find(|format| format.name == name);
    let mut syntax = AnswerSyntax::of_model("", |_| false, tools());
    syntax.format = Some(format.expect("a format"));
    syntax.has_thoughts = true;
    if format.is_some_and(|format| format.name == "harmony") {
        syntax.tags = ThoughtTags::of_template("<|channel|><|end|>").expect("tags");
    }
    syntax
}

pub(super) fn read_pieces(
    syntax: &AnswerSyntax,
    text: &str,
    piece: usize,
    is_cut: bool,
) -> (Answer, Vec<AnswerPart>) {
    let mut parser = AnswerParser::new(syntax.clone());
    let letters: Vec<char> = text.chars().collect();
    let pieces = letters
        .chunks(piece)
        .map(|letters| letters.iter().collect::<String>());
    let mut parts: Vec<AnswerPart> = pieces.flat_map(|piece| parser.push(&piece)).collect();
    parts.extend(parser.finish(is_cut));
    let mut answer = Answer::default();
    parts.iter().for_each(|part| answer.add(part));
    (answer, parts)
}

/// Reads an answer in pieces of several lengths, which must not matter.
pub(super) fn read(syntax: &AnswerSyntax, text: &str) -> Answer {
    let (answer, _) = read_pieces(syntax, text, 1, false);
    for piece in [2, 3, 7, 1 << 20] {
        assert_eq!(
            read_pieces(syntax, text, piece, false).0,
            answer,
            "{text:?} in pieces of {piece}"
        );
    }
    answer
}

fn call(name: &str, arguments: Value) -> (String, Value) {
    (name.into(), arguments)
}

fn calls(answer: &Answer) -> Vec<(String, Value)> {
    let value = |call: &ToolCall| {
        let arguments = serde_json::from_str(&call.arguments);
        (
            call.name.clone(),
            arguments.unwrap_or_else(|error| panic!("{error}: {}", call.arguments)),
        )
    };
    answer.calls.iter().map(value).collect()
}

#[test]
fn mistakes_of_models_do_not_hide_a_call() {
    let paris = || vec![call("get_weather", json!({ "city": "Paris" }))];
    let two = || vec![call("get_weather", json!({ "city": "Paris", "days": 3 }))];
    for (format, text, expected) in [
        (
            "hermes",
            "{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "Let me see.\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "hermes",
            "```json\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n```",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}}\n</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}\n</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{'name': 'get_weather', 'arguments': {'city': 'Paris', 'days': 3,}}</tool_call>",
            two(),
        ),
        (
            "hermes",
            "<tool_call>{\"arguments\": {\"city\": \"Paris\"}, \"name\": \"get_weather\"}</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": \"{\\\"city\\\": \\\"Paris\\\"}\"}</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{\"function\": {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}}</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"city\": \"Paris\"}</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
            paris(),
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"now\"}</tool_call>",
            vec![call("now", json!({}))],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"now\", \"arguments\": null}</tool_call>",
            vec![call("now", json!({}))],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"say \"hi\" now\"}}</tool_call>",
            vec![call("get_weather", json!({ "city": "say \"hi\" now" }))],
        ),
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"a\nb\", \"options\": {\"on\": True, \"n\": None}}}</tool_call>",
            vec![call(
                "get_weather",
                json!({ "city": "a\nb", "options": { "on": true, "n": null } }),
            )],
        ),
        (
            "qwen3_coder",
            "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>\n</tool_call>",
            paris(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</function>\n</tool_call>",
            paris(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            two(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</tool_call>",
            paris(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis\n</parameter>",
            paris(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>",
            paris(),
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\na </parameter> b\n</parameter>\n<parameter=tags>\n['a', 'b']\n</parameter>\n</function>\n</tool_call>",
            vec![call(
                "get_weather",
                json!({ "city": "a </parameter> b", "tags": ["a", "b"] }),
            )],
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\n1\n</parameter>\n<parameter=units>\n12345\n</parameter>\n<parameter=options>\n{'theme': 'dark', 'on': True, 'n': None}\n</parameter>\n</function>\n</tool_call>",
            vec![call(
                "get_weather",
                json!({ "city": "1", "units": "12345", "options": { "theme": "dark", "on": true, "n": null } }),
            )],
        ),
        (
            "glm",
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
            paris(),
        ),
        (
            "glm",
            "get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>",
            paris(),
        ),
        (
            "glm",
            "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
            two(),
        ),
        (
            "glm",
            "<tool_call>now</tool_call>",
            vec![call("now", json!({}))],
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city='Paris', days=3)]<|tool_call_end|>",
            two(),
        ),
        ("lfm2", "[get_weather(city=\"Paris\")]", paris()),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city=\"Paris\")]",
            paris(),
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(\"Paris\", 3)]<|tool_call_end|>",
            two(),
        ),
        (
            "lfm2",
            "<|tool_call_start|>get_weather(city=\"Paris\")<|tool_call_end|>",
            paris(),
        ),
        (
            "lfm2",
            "<|tool_call_start|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]<|tool_call_end|>",
            paris(),
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city=\"Paris\"), now()]<|tool_call_end|>",
            vec![
                call("get_weather", json!({ "city": "Paris" })),
                call("now", json!({})),
            ],
        ),
        (
            "llama3",
            "{\"type\": \"function\", \"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "llama3",
            "<|python_tag|>{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "llama3",
            "{\"name\": \"get_weather\", \"parameters\": {\"city\": \"Paris\"}}; {\"name\": \"now\", \"parameters\": {}}",
            vec![
                call("get_weather", json!({ "city": "Paris" })),
                call("now", json!({})),
            ],
        ),
        (
            "kimi-k2",
            "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"city\": \"Paris\"}",
            paris(),
        ),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|><|tool_call_end|><|tool_calls_section_end|>",
            vec![call("now", json!({}))],
        ),
        (
            "mistral",
            "[TOOL_CALLS][{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}, \"id\": \"123456789\"}]",
            paris(),
        ),
        (
            "mistral",
            "[TOOL_CALLS] {\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "mistral-args",
            "[TOOL_CALLS]get_weather[ARGS]{\"city\": \"Paris\"}",
            paris(),
        ),
        (
            "mistral-args",
            "[TOOL_CALLS]get_weather{\"city\": \"Paris\"}",
            paris(),
        ),
        (
            "granite",
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]",
            paris(),
        ),
        (
            "granite",
            "<|tool_call|>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}",
            paris(),
        ),
        (
            "phi-4",
            "<|tool_call|>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]<|/tool_call|>",
            paris(),
        ),
        (
            "nemotron",
            "<TOOLCALL>[{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}]</TOOLCALL>",
            paris(),
        ),
        (
            "nemotron",
            "<TOOLCALL>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}</TOOLCALL>",
            paris(),
        ),
        (
            "minimax",
            "<tool_calls>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n{\"name\": \"now\", \"arguments\": {}}\n</tool_calls>",
            vec![
                call("get_weather", json!({ "city": "Paris" })),
                call("now", json!({})),
            ],
        ),
        (
            "harmony",
            "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": \"Paris\"}<|call|>",
            paris(),
        ),
    ] {
        let answer = read(&syntax(format), text);
        assert_eq!(calls(&answer), expected, "{format}: {text}\n{answer:?}");
        assert!(
            answer.content.trim().is_empty() || answer.content == "Let me see.\n",
            "{format}: {text}\n{answer:?}"
        );
    }
}

#[test]
fn thoughts_are_where_the_model_opens_them() {
    let tagged = |start: Start| {
        let mut syntax = syntax("hermes");
        syntax.start = start;
        syntax
    };
    let called = "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>";
    for (start, text, reasoning, content, count) in [
        (Start::Answer, "<think>hm</think>Yes", "hm", "Yes", 0),
        (
            Start::Answer,
            "\n<think>\nhm\n</think>\n\nYes",
            "hm",
            "Yes",
            0,
        ),
        (Start::Thought, "hm\n</think>\n\nYes", "hm", "Yes", 0),
        (
            Start::Thought,
            "<think>hm</think>Yes",
            "<think>hm",
            "Yes",
            0,
        ),
        (Start::Answer, "hm</think>Yes", "hm", "Yes", 0),
        (
            Start::Answer,
            "Write `<think>` to start and `</think>` to end.",
            "",
            "Write `<think>` to start and `</think>` to end.",
            0,
        ),
        (
            Start::Answer,
            "Close with `</think>`.",
            "",
            "Close with `</think>`.",
            0,
        ),
        (Start::Content, "a</think>b", "", "a</think>b", 0),
        (
            Start::Answer,
            "<think>a</think>b <think>c</think>",
            "a",
            "b <think>c</think>",
            0,
        ),
        (Start::Thought, &format!("hm {called}"), "hm", "", 1),
        (Start::Thought, &format!("hm {called}</think>"), "hm", "", 1),
        (
            Start::Thought,
            &format!("hm {called} so</think>Yes"),
            &format!("hm {called} so"),
            "Yes",
            0,
        ),
        (
            Start::Thought,
            &format!("hm {called} so</think>{called}"),
            &format!("hm {called} so"),
            "",
            1,
        ),
        (
            Start::Answer,
            &format!("<think>hm {called}\nDone."),
            "hm",
            "Done.",
            1,
        ),
        (Start::Thought, "cut in the mid", "cut in the mid", "", 0),
    ] {
        let answer = read(&tagged(start), text);
        assert_eq!(answer.reasoning.trim(), reasoning, "{start:?} {text}");
        assert_eq!(
            (answer.content.as_str(), answer.calls.len()),
            (content, count),
            "{start:?} {text}"
        );
    }
}

#[test]
fn a_cut_call_is_a_cut_call() {
    for (format, text, arguments) in [
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Par",
            "{\"city\":\"Par",
        ),
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arg",
            "",
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nPar",
            "{\"city\":\"Par",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city=\"Par",
            "{\"city\":\"Par",
        ),
        (
            "kimi-k2",
            "<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{\"ci",
            "{\"ci",
        ),
        // The limit is inside the closing text of a whole call.
        (
            "hermes",
            "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\"}}\n</tool_ca",
            "{\"city\":\"Oslo\"}",
        ),
    ] {
        for piece in [1, 5, 1000] {
            let (answer, _) = read_pieces(&syntax(format), text, piece, true);
            assert_eq!(answer.calls.len(), 1, "{format}: {answer:?}");
            assert_eq!(answer.calls[0].arguments, arguments, "{format}");
            assert_eq!(answer.content, "", "{format}");
        }
    }
}

#[test]
fn arguments_arrive_in_pieces() {
    for (format, text) in [
        (
            "hermes",
            "<tool_call>{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris and London\", \"days\": 3}}</tool_call>",
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nParis and London\n</parameter>\n</function>\n</tool_call>",
        ),
        (
            "lfm2",
            "<|tool_call_start|>[get_weather(city=\"Paris and London\")]<|tool_call_end|>",
        ),
    ] {
        let (_, parts) = read_pieces(&syntax(format), text, 4, false);
        let pieces = parts
            .iter()
            .filter(|part| matches!(part, AnswerPart::CallArguments(_)))
            .count();
        assert!(pieces > 4, "{format}: {parts:?}");
    }
}

#[test]
fn a_call_that_a_limit_cuts_after_its_name_is_a_call() {
    let syntax = syntax("hermes");
    for rest in ["", ",", ", \"argu", ", \"arguments\"", ", \"arguments\": "] {
        let text = format!("See.<tool_call>\n{{\"name\": \"get_weather\"{rest}");
        let (answer, _) = read_pieces(&syntax, &text, 3, true);
        assert_eq!(answer.content, "See.", "{rest}");
        let [call] = &answer.calls[..] else {
            panic!("{rest}: {answer:?}")
        };
        assert_eq!((&*call.name, &*call.arguments), ("get_weather", ""));
    }
}

#[test]
fn a_grammar_is_linear_in_the_tools() {
    let control = |_: &str| None;
    let spaced = |schema: &Value| schema.clone();
    let settings = GrammarSettings {
        control: &control,
        spaced: &spaced,
    };
    let size = |format: &CallFormat, count: usize| {
        let properties =
            (0..count).map(|n| (format!("argument_{n}"), json!({ "$ref": "#/$defs/d" })));
        let properties: serde_json::Map<String, Value> = properties.collect();
        let definition =
            json!({ "enum": (0..100).map(|n| format!("value {n}")).collect::<Vec<_>>() });
        let tool = json!({ "name": "f", "parameters": { "type": "object", "properties": properties, "$defs": { "d": definition } } });
        format.grammar(&[&tool], NeededCalls::Some, &settings)
    };
    for format in &FORMATS {
        let small = size(format, 100).expect("a grammar").len();
        let large = size(format, 400).expect("a grammar").len();
        assert!(large < 5 * small, "{}: {small} {large}", format.name);
    }
    let lfm2 = CallFormat::of_model("<|tool_call_start|>", |_| false).expect("a format");
    let error = size(lfm2, 50_000).expect_err("too large");
    assert!(error.contains("524288"), "{error}");
}
