//! The rows of llama.cpp's chat test, which `tools/reference/chat_rows.py` extracts to the file that CHAT_ROWS names.

use serde_json::Value;

use super::{Answer, AnswerParser, AnswerSyntax, Start, Tools};

/// Templates of models that do not open here.
const NOT_OPENED: [&str; 6] = [
    "gemma-4",
    "MiniMax-M3",
    "muse-glimmer",
    "GigaChat3-10B",
    "Kimi-K3",
    "none",
];

fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_default()
}

/// Arguments as JSON; those of a cut call are not compared.
fn json(text: &str) -> Option<Value> {
    serde_json::from_str(text).ok()
}

fn difference(row: &Value) -> Option<String> {
    let options = &row["options"];
    let tools = Tools(row["tools"].as_array().cloned().unwrap_or_default());
    // The vocabularies of LFM2 have a token that its templates lack.
    let is_token =
        |token: &str| token == "<|tool_call_start|>" && text(row, "template").starts_with("LFM2");
    let mut syntax = AnswerSyntax::of_model(text(row, "source"), is_token, tools);
    let prompt = text(row, "prompt");
    syntax.start = syntax.start_after(prompt);
    let mut expected = row["expect"].clone();
    if !options["continue_final_message"].is_null() {
        // The prompt ends with a part of the answer, which the test counts as the answer's.
        let last = options["messages"]
            .as_array()
            .and_then(|messages| messages.last())
            .expect("a message");
        let thinks = text(options, "continue_final_message").ends_with("REASONING");
        syntax.start = if thinks {
            Start::Thought
        } else {
            Start::Content
        };
        for (key, is_given) in [("reasoning", true), ("content", !thinks)] {
            if is_given && !text(&expected, key).is_empty() {
                let rest = text(&expected, key)
                    .strip_prefix(text(last, key).trim_end())
                    .unwrap_or("nothing");
                expected[key] = rest.into();
            }
        }
    }
    let keeps = options["reasoning_format"].is_null()
        || text(options, "reasoning_format").ends_with("NONE");
    syntax.keeps_thoughts = keeps;
    if syntax.tags.open.starts_with("Here")
        && let Some(rest) = text(&expected, "reasoning").strip_prefix(syntax.tags.open)
    {
        expected["reasoning"] = rest.into();
    }
    let mut parser = AnswerParser::new(syntax.clone());
    let input = text(row, "input");
    let mut answer = Answer::default();
    for c in input.chars() {
        parser
            .push(c.encode_utf8(&mut [0; 4]))
            .iter()
            .for_each(|part| answer.add(part));
    }
    let is_cut = options["is_partial"] == true;
    parser
        .finish(is_cut)
        .iter()
        .for_each(|part| answer.add(part));
    if keeps
        && syntax.start == Start::Thought
        && text(&expected, "content").starts_with(syntax.tags.open)
    {
        let at = prompt.rfind(syntax.tags.open).unwrap_or(prompt.len());
        answer.content.insert_str(0, &prompt[at..]);
    }
    let mut whole = Answer::default();
    let mut parser = AnswerParser::new(syntax.clone());
    let parts = [parser.push(input), parser.finish(is_cut)].concat();
    parts.iter().for_each(|part| whole.add(part));
    let mut differences = String::new();
    if (whole.calls != answer.calls) || whole.reasoning != answer.reasoning {
        differences += &format!("\n  whole: {whole:?}");
    }
    for (key, found) in [
        ("content", &answer.content),
        ("reasoning", &answer.reasoning),
    ] {
        if text(&expected, key).trim() != found.trim() {
            differences += &format!(
                "\n  {key}: {:?}, expected {:?}",
                found,
                text(&expected, key)
            );
        }
    }
    let calls = expected["calls"].as_array().cloned().unwrap_or_default();
    let same = calls.len() == answer.calls.len()
        && calls.iter().zip(&answer.calls).all(|(expected, call)| {
            text(expected, "name") == call.name
                && json(text(expected, "arguments")) == json(&call.arguments)
                && (text(expected, "id").is_empty()
                    || Some(text(expected, "id")) == call.id.as_deref())
        });
    if !same {
        differences += &format!("\n  calls: {:?}, expected {calls:?}", answer.calls);
    }
    let format = syntax.format.map(|format| format.name);
    let head = format!(
        "{}:{} {format:?} {:?} {input:?}",
        text(row, "template"),
        row["line"],
        syntax.start
    );
    (!differences.is_empty()).then(|| head + &differences)
}

#[test]
fn answers_are_read_as_llama_cpp_reads_them() {
    let Some(path) = std::env::var_os("CHAT_ROWS") else {
        return;
    };
    let rows: Vec<Value> =
        serde_json::from_slice(&std::fs::read(path).expect("rows")).expect("JSON");
    let opened = |row: &&Value| {
        !NOT_OPENED
            .iter()
            .any(|name| text(row, "template").contains(name))
    };
    let rows: Vec<&Value> = rows.iter().filter(opened).collect();
    let differences: Vec<String> = rows.iter().filter_map(|row| difference(row)).collect();
    assert!(
        differences.len() <= 5,
        "{} of {} rows differ:\n{}",
        differences.len(),
        rows.len(),
        differences.join("\n")
    );
}
