//! An answer is read alike however it is cut into pieces, and no letter outside calls is lost.

use serde_json::Value;

use super::Start;
use super::formats::{CallFormat, FORMATS};
use super::tests::{read, read_pieces, syntax};

/// Pieces of answers, so that random texts look like calls.
fn fragments() -> Vec<String> {
    let mut all: Vec<String> = FORMATS
        .iter()
        .flat_map(|format| format.marks())
        .map(str::to_string)
        .collect();
    all.extend(
        [
            "<think>",
            "</think>",
            "{",
            "}",
            "[",
            "]",
            "(",
            ")",
            "\"",
            "'",
            ",",
            ":",
            "=",
            "\n",
            " ",
            "get_weather",
            "now",
            "city",
            "name",
            "arguments",
            "\\",
            "\\u12",
            "\\ud83d",
            "é",
            "🔥",
            "1",
            "true",
            "None",
            "functions.",
            "```json\n",
            "to=",
            "text",
            "<![CDATA[",
            "]]>",
        ]
        .map(String::from),
    );
    all
}

/// A repeatable sequence of numbers (xorshift).
fn random(seed: u64) -> impl FnMut() -> usize {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) as usize
    }
}

/// A text made of fragments, from a number.
fn random_text(seed: u64, fragments: &[String]) -> String {
    let mut next = random(seed);
    (0..next() % 30)
        .map(|_| fragments[next() % fragments.len()].clone())
        .collect()
}

#[test]
fn any_text_is_read_alike_in_any_pieces_and_no_letter_outside_calls_is_lost() {
    let fragments = fragments();
    for (number, format) in FORMATS.iter().enumerate() {
        for start in [Start::Answer, Start::Thought, Start::Content] {
            let mut syntax = syntax(format.name);
            syntax.start = start;
            for seed in 0..150 {
                let text = random_text(seed + 1000 * number as u64 + 7, &fragments);
                let answer = read(&syntax, &text);
                for is_cut in [true, false] {
                    let (cut, _) = read_pieces(&syntax, &text, 3, is_cut);
                    let whole = read_pieces(&syntax, &text, 1000, is_cut).0;
                    assert_eq!(cut, whole, "{}: {text:?} {is_cut}", format.name);
                }
                for call in &answer.calls {
                    let parsed: Result<Value, _> = serde_json::from_str(&call.arguments);
                    assert!(parsed.is_ok(), "{}: {text:?} {call:?}", format.name);
                }
                if answer.calls.is_empty()
                    && format.channels.is_none()
                    && format.wrappers.is_empty()
                {
                    let letters = |text: &str| {
                        text.chars()
                            .filter(|c| !c.is_whitespace())
                            .collect::<String>()
                    };
                    let read = letters(&answer.reasoning) + &letters(&answer.content);
                    let tags = ["<think>", "</think>"];
                    let without = |text: &str| {
                        tags.iter()
                            .fold(letters(text), |text, tag| text.replace(tag, ""))
                    };
                    assert_eq!(without(&read), without(&text), "{}: {text:?}", format.name);
                }
            }
        }
    }
}

/// An answer with two calls in a format, each of whose parts was removed, repeated or replaced up to five times.
fn changed_answer(
    format: &CallFormat,
    fragments: &[String],
    mut next: impl FnMut() -> usize,
) -> String {
    let marks = format.marks();
    let mark = |at: usize| marks.get(at).copied().unwrap_or_default();
    let call = r#"{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}"#;
    let (open, close) = (mark(0), mark(1));
    let pair = format!("get_weather{}city{}Paris{}", mark(2), mark(3), mark(4));
    let mut text = format!("<think>hm</think>See. {open}{call}{close}{open}{pair}{close}");
    for _ in 0..1 + next() % 5 {
        let from = text.floor_char_boundary(next() % (text.len() + 1));
        let to = text.floor_char_boundary(from + next() % 40).max(from);
        match next() % 5 {
            0 => text.replace_range(from..to, ""),
            1 => {
                let part = text[from..to].to_string();
                text.insert_str(from, &part);
            }
            2 => text.insert_str(from, mark(next() % marks.len())),
            3 => text.insert_str(from, &fragments[next() % fragments.len()]),
            _ => text.replace_range(
                from..to,
                ["\n", " ", "\"", ",", ":", "{", "}", "[", "]"][next() % 9],
            ),
        }
    }
    text
}

/// WATERLINE_MUTATIONS configures longer campaigns, WATERLINE_SEED others.
#[test]
fn a_changed_answer_is_read_alike_in_any_pieces() {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|text| text.parse::<u64>().ok())
    };
    let count = number("WATERLINE_MUTATIONS").unwrap_or(300);
    let seed = number("WATERLINE_SEED").unwrap_or(1) << 40;
    let fragments = fragments();
    for (index, format) in FORMATS.iter().enumerate() {
        for place in 0..count {
            let mut next = random(seed + place * FORMATS.len() as u64 + index as u64);
            let mut syntax = syntax(format.name);
            syntax.start = [Start::Answer, Start::Thought, Start::Content][next() % 3];
            syntax.keeps_thoughts = next().is_multiple_of(2);
            let is_cut = next().is_multiple_of(2);
            let text = changed_answer(format, &fragments, next);
            let pieces = |length| read_pieces(&syntax, &text, length, is_cut).0;
            let whole = pieces(usize::MAX);
            for length in [1, 3, 7] {
                assert_eq!(
                    pieces(length),
                    whole,
                    "{}: {text:?} in pieces of {length}",
                    format.name
                );
            }
        }
    }
}

#[test]
fn letters_after_a_call_that_does_not_end_are_content() {
    let text = r#"<tool_call>{"name": "get_weather", "arguments": {"city": "Paris"}, "rest"#;
    let answer = read(&syntax("hermes"), text);
    assert_eq!(answer.content, "\"rest");
    assert_eq!(answer.calls.len(), 1);
}

#[test]
fn values_beside_keys_and_stops_are_read_alike_in_any_pieces() {
    let text = "functools{\"name\": \"get_weather\", \"argum: {\"city\"\u{1a} \"Paris\", \"days\"\u{1a} 2}}functoolsget";
    let syntax = syntax("firefunction");
    let (cut, _) = read_pieces(&syntax, text, 1, false);
    assert_eq!(cut, read_pieces(&syntax, text, 1000, false).0);
    let (call, _) = read_pieces(
        &syntax,
        "functools{\"name\":\"get_weather\",\"arguments\":{}}",
        1000,
        false,
    );
    assert_eq!(call.calls.len(), 1);
}
