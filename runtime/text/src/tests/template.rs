use super::*;
use crate::{Message, Role};
use serde::Deserialize;

#[derive(Deserialize)]
struct Case {
    template: String,
    messages: Vec<Message>,
    add_generation_prompt: bool,
    rendered: Option<String>,
    refused: Option<String>,
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    let cases: Vec<Case> = serde_json::from_slice(&data("templates/rendered.json")).unwrap();
    assert_eq!(cases.len(), 21);
    for case in cases {
        let template = template(&case.template);
        let render = |messages| template.render(messages, case.add_generation_prompt);
        let found = render(&case.messages).unwrap();
        match case.rendered {
            Some(expected) => assert_eq!(found, expected, "{}", case.template),
            None => {
                // jinja2 refuses a system message that begins the first user message here.
                let refused = case.refused.unwrap();
                assert!(refused.contains("System role not supported"), "{refused}");
                let [system, user, ..] = &case.messages[..] else {
                    panic!("{}", case.template)
                };
                let first = format!("{}\n\n{}", system.content, user.content);
                let mut messages = case.messages[1..].to_vec();
                messages[0] = Message::new(Role::User, first);
                assert_eq!(found, render(&messages).unwrap());
            }
        }
    }
}

#[derive(Deserialize)]
struct History {
    template: String,
    messages: Vec<Message>,
    rendered: String,
}

/// `tests/data/templates/record.py` records the renderings.
#[test]
fn histories_render_as_jinja2_renders_them() {
    let cases: Vec<History> = serde_json::from_slice(&data("templates/histories.json")).unwrap();
    assert!(cases.len() > 30);
    for case in cases {
        let template = ChatTemplate::new(&case.template, "<s>", "</s>").unwrap();
        let rendered = template.render(&case.messages, false);
        assert_eq!(
            rendered.unwrap(),
            case.rendered,
            "{} {:?}",
            case.template,
            case.messages
        );
    }
}

#[test]
fn errors_say_where() {
    let error = ChatTemplate::new("a\n{% for %}", "", "")
        .err()
        .unwrap()
        .to_string();
    assert!(error.contains("line 2"), "{error}");
    let hello = [Message::new(Role::User, "hello")];
    let render = |source| {
        ChatTemplate::new(source, "", "")
            .unwrap()
            .render(&hello, true)
    };
    let error = render("{{ messages[0].nothing.more }}")
        .unwrap_err()
        .to_string();
    assert!(error.contains("line 1"), "{error}");
    render("{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}").unwrap_err();
}

#[test]
fn contents_are_data() {
    let hello = [Message::new(Role::User, "{{ bos_token }}<b>&'\"")];
    let source = "{{ messages[0]['content'] }}";
    let rendered = ChatTemplate::new(source, "<s>", "")
        .unwrap()
        .render(&hello, true)
        .unwrap();
    assert_eq!(rendered, hello[0].content);
}

#[test]
fn the_date_is_known() {
    let render = |source| {
        ChatTemplate::new(source, "", "")
            .unwrap()
            .render(&[], false)
            .unwrap()
    };
    let year: u32 = render("{{ strftime_now('%Y') }}").parse().unwrap();
    assert!(year >= 2025);
}
