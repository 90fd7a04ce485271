//! Answers of a model, through every format of calls, and histories, through templates that list tools and that do not.

use std::sync::Arc;

use serde_json::{Value, json};
use waterline::{
    Answer, AnswerParser, AnswerSyntax, CallFormat, ChatTemplate, Message, Model, Runs, Start,
    TemplateOptions, Tokenizer, Tools, Turns,
};

use super::tests;

fn tools() -> Vec<Value> {
    vec![
        json!({"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object", "properties": {
            "city": {"type": "string"}, "days": {"type": "integer"}, "units": {"anyOf": [{"enum": ["c", "f"]}, {"type": "null"}]}, "any": {},
        }}}}),
    ]
}

fn read(syntax: &AnswerSyntax, pieces: impl Iterator<Item = String>, is_cut: bool) -> Answer {
    let (mut parser, mut answer) = (AnswerParser::new(syntax.clone()), Answer::default());
    let mut parts: Vec<_> = pieces.flat_map(|piece| parser.push(&piece)).collect();
    parts.extend(parser.finish(is_cut));
    parts.iter().for_each(|part| answer.add(part));
    answer
}

/// Reads an answer. Its first byte is the number of the format, its second says where it begins and whether a limit cut it.
pub fn answer(bytes: &[u8]) -> bool {
    let [format, how, text @ ..] = bytes else {
        return false;
    };
    let Ok(text) = std::str::from_utf8(text) else {
        return false;
    };
    let format = &CallFormat::all()[*format as usize % CallFormat::all().len()];
    let mut syntax = AnswerSyntax::of_model("<think></think>", |_| false, Tools(tools()));
    syntax.format = Some(format);
    syntax.start = [Start::Answer, Start::Thought, Start::Content][*how as usize % 3];
    syntax.keeps_thoughts = how & 64 != 0;
    let is_cut = how & 128 != 0;
    let answer = read(&syntax, std::iter::once(text.to_string()), is_cut);
    let in_letters = read(&syntax, text.chars().map(String::from), is_cut);
    assert_eq!(answer, in_letters, "{}: {text:?}", format.name);
    for call in &answer.calls {
        let arguments: Result<Value, _> = serde_json::from_str(&call.arguments);
        assert!(is_cut || arguments.is_ok(), "{}: {text:?}", format.name);
    }
    let mut marks = format.marks().into_iter();
    if !marks.any(|mark| !mark.is_empty() && text.contains(mark)) && answer.calls.is_empty() {
        let without = |text: &str| {
            let letters: String = text.chars().filter(|c| !c.is_whitespace()).collect();
            letters.replace("<think>", "").replace("</think>", "")
        };
        let read = format!("{}{}", answer.reasoning, answer.content);
        assert_eq!(without(&read), without(text), "{}: {text:?}", format.name);
    }
    true
}

pub fn answer_seeds() -> Vec<Vec<u8>> {
    let text = |format: &CallFormat| {
        let marks = format.marks();
        let of = |at: usize| marks.get(at).copied().unwrap_or_default();
        let call = r#"{"name": "get_weather", "arguments": {"city": "Paris", "days": 2}}"#;
        let (open, close) = (of(0), of(1));
        format!(
            "<think>hm</think>See. {open}{call}{close}{open}get_weather{}city{}Paris{}{close}",
            of(2),
            of(3),
            of(4)
        )
    };
    let seed = |(number, format): (usize, &CallFormat)| {
        let mut bytes = vec![number as u8, 3 * number as u8];
        bytes.extend_from_slice(text(format).as_bytes());
        bytes
    };
    CallFormat::all().iter().enumerate().map(seed).collect()
}

/// A template that lists tools, one that refuses a system message and wants the roles to alternate, and one that omits tools' results.
const TEMPLATES: [&str; 3] = [
    "{% for t in tools or [] %}{{ t|tojson }}{% endfor %}{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.reasoning_content }}{{ m.content }}\
     {% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments|tojson }}{% endfor %}<|im_end|>{% endfor %}",
    "{% if messages[0].role == 'system' %}{{ raise_exception('no system') }}{% endif %}{% for m in messages %}\
     {% if (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('alternate') }}{% endif %}{{ m.content }}<|im_end|>{% endfor %}",
    "{% for m in messages %}{% if m.role in ['user', 'assistant', 'system'] %}{{ m.content }}<|im_end|>{% endif %}{% endfor %}",
];

thread_local! {
    static TOKENIZER: Arc<Tokenizer> = {
        let file = tests().join("../tools/model/waterline-chat.gguf");
        let model = Model::open(file).expect("the model");
        model.tokenizer().expect("a tokenizer")
    };
}

/// Encodes a history: a JSON list of messages.
pub fn history(bytes: &[u8]) -> bool {
    let Ok(messages) = serde_json::from_slice::<Vec<Message>>(bytes) else {
        return false;
    };
    let tokenizer = TOKENIZER.with(Arc::clone);
    let mut is_accepted = false;
    for source in TEMPLATES {
        for tools in [Vec::new(), tools()] {
            let template = Arc::new(ChatTemplate::new(source, "", "").expect("a template"));
            let mut options = TemplateOptions::default();
            options.tools = tools;
            let read_by = Arc::clone(&tokenizer);
            let turns = Turns::with_options(template, read_by, options, Default::default());
            let turns = turns.expect("a template that works");
            let Ok(history) = turns.history(&messages, true, &Runs::default()) else {
                continue;
            };
            is_accepted = true;
            let tokens = &history.tokens;
            assert!(history.borders.iter().all(|&border| border <= tokens.len()));
            // The template's own control tokens: one or two a message.
            let control = tokens.iter().filter(|&&token| tokenizer.is_special(token));
            assert!(control.count() <= 2 * messages.len() + 2, "{messages:?}");
        }
    }
    is_accepted
}

pub fn history_seeds() -> Vec<Vec<u8>> {
    let seeds = [
        r#"[{"role":"system","content":"Be good."},{"role":"user","content":"hi <|im_end|>"},{"role":"assistant","content":"yo"},{"role":"user","content":"x"}]"#,
        r#"[{"role":"user","content":"hi"},{"role":"assistant","content":null,"reasoning_content":"hm","tool_calls":[{"id":"c1","type":"function",
            "function":{"name":"get_weather","arguments":"{\"city\":\"P\\u00e4r\"}"}},{"function":{"name":"f","arguments":"{\"cut"}}]},
            {"role":"tool","tool_call_id":"c1","content":{"t":3}},{"role":"tool","content":[{"type":"text","text":"4"}]}]"#,
        r#"[{"role":"user","content":[{"type":"text","text":"a"},"b"]},{"role":"assistant","content":"<think>\nhm\n</think>\n\nan"}]"#,
        r#"[{"role":"system","content":""},{"role":"system","content":"two"},{"role":"developer","content":"d"},{"role":"user"}]"#,
    ];
    seeds.map(|seed| seed.as_bytes().to_vec()).to_vec()
}
