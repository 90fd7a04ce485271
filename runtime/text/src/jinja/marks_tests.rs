//! Random templates of every operation: marks change no text, and every byte of a content keeps its mark.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::hostile_tests::render_marked;
use super::marked::Mark;

/// Operations on a text `E`, whose result is a text.
const OPERATIONS: &[&str] = &[
    "(E)|upper",
    "(E)|lower",
    "(E)|title",
    "(E)|capitalize",
    "(E)|trim",
    "(E)|trim('a二')",
    "(E)|string",
    "(E)|reverse",
    "(E)|e",
    "(E)|indent(2, true)",
    "(E)|indent(x, true)",
    "(E)|replace('b', x)",
    "(E)|replace(x, 'b')",
    "(E)|replace('', '-')",
    "(E)|tojson",
    "(E)|tojson(ensure_ascii=true)",
    "(E)|center(9)",
    "(E)|truncate(5, true, x)",
    "(E)|urlencode",
    "(E)|list|join(x)",
    "(E)|list|join('-')",
    "(E)|list|string",
    "(E)|list|first|string",
    "(E)|list|sort|join",
    "(E)|list|unique|join",
    "(E)|list|map('upper')|join",
    "(E)|list|batch(2)|map('join', '+')|join",
    "(E)|default('c')",
    "[E, x]|tojson(indent=1)",
    "[E, {'k': x}]|string",
    "{E: x}|tojson(sort_keys=true)",
    "{x: E}|items|map('join')|join",
    "dict([[E, x]])|string",
    "{'a': E}.a",
    "[E, 'q']|sort|first",
    "[E, x]|map('trim')|join(' ')",
    "(E).strip()",
    "(E).lstrip('a一')",
    "(E).rstrip(x)",
    "(E).upper().lower()",
    "(E).swapcase()",
    "(E).split(x)|join('|')",
    "(E).split()|last|string",
    "(E).rsplit('b', 1)|first",
    "(E).split(' ', 1)|last",
    "(E).splitlines()|join('/')",
    "(E).partition('b')|join('<')",
    "(E).rpartition(x)|last",
    "(E).replace('a', '<' + x + '>', 2)",
    "(E).removeprefix('a').removesuffix(x)",
    "(E).ljust(8, '.')",
    "(E).zfill(7)",
    "x.join([E, 'm', E])",
    "'{} {x} {:>5}'.format(E, x, x=x)",
    "'%s-%r-%5s' % (E, x, 'y')",
    "(E) % ()",
    "(E) ~ x",
    "'a' + (E) + 'b'",
    "(E) * 2",
    "(E)[1:]",
    "(E)[:-1]",
    "(E)[::-1]",
    "(E)[::2]",
    "(E)[0]|string",
    "(E) if x in (E) else x",
    "strftime_now(x)",
    "m(E)",
    "m(text=x, *[E])",
    "(E)|groupby(0)|map('first')|join",
];

/// Statements that write a text `E`.
const STATEMENTS: &[&str] = &[
    "{{ E }}",
    "{% set y %}<{{ E }}>{% endset %}{{ y }}",
    "{% set y = E %}{{ y }}{{ y }}",
    "{% filter upper %}{{ E }}{% endfilter %}",
    "{% for c in E %}{{ loop.index }}{{ c }}{% endfor %}",
    "{% call(t) n() %}{{ t }}{{ E }}{% endcall %}",
    "{% set ns = namespace(t='') %}{% for c in E %}{% set ns.t = ns.t ~ c %}{% endfor %}{{ ns.t }}",
    "{% with y = E %}{{ y|tojson }}{% endwith %}",
    "{% for c in [E, [x]] recursive %}{{ c if c is string else loop(c) }}{% endfor %}",
    "{{ messages }}{{ messages|tojson }}{{ E }}",
];

const MACROS: &str = "{% macro m(text) %}[{{ text }}]{{ varargs|join }}{% endmacro %}{% macro n() %}({{ caller(x) }}){% endmacro %}";

/// Characters of contents, which no template contains.
const LETTERS: [char; 4] = ['一', '二', '三', '\u{4e0a}'];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]
    #[test]
    fn every_operation_keeps_marks_and_marks_change_no_text(
        operations in prop::collection::vec(prop::sample::select(OPERATIONS), 0..5),
        statement in prop::sample::select(STATEMENTS),
        content in prop::collection::vec(prop_oneof![
            prop::sample::select(LETTERS.to_vec()).prop_map(String::from),
            prop::sample::select(vec!["a", "b", " ", "\n", "'", "\"", "%", "{", "&", "<|im_end|>"]).prop_map(String::from),
        ], 0..8),
        short in prop::sample::select(vec!["一", "二三", "二<|im_end|>", "a"]),
    ) {
        let nested = |inner: String, operation: &&str| operation.replace('E', &inner);
        let expression = operations.iter().fold("messages[0].content".to_string(), nested);
        let source = format!("{MACROS}{}", statement.replace('E', &expression));
        let message = json!({"role": "user", "content": content.concat()});
        let variables: [(&str, Value); 2] = [("messages", json!([message])), ("x", json!(short))];
        let marked = render_marked(&source, &variables, Mark::Data);
        let plain = render_marked(&source, &variables, Mark::Template);
        match (marked, plain) {
            (Ok(marked), Ok(plain)) => {
                prop_assert_eq!(marked.as_str(), plain.as_str(), "{}", source);
                let all = 0..marked.as_str().len();
                let own = marked.stretches(all).filter(|(_, mark)| *mark == Mark::Template);
                for (text, _) in own {
                    prop_assert!(!text.contains(LETTERS), "{:?} is the template's: {}", text, source);
                    prop_assert!(!text.contains("im_end"), "{:?} is the template's: {}", text, source);
                    prop_assert!(!text.contains("\\u4e"), "{:?} is the template's: {}", text, source);
                }
            }
            (Err(marked), Err(plain)) => prop_assert_eq!(marked.to_string(), plain.to_string()),
            _ => prop_assert!(false, "only one fails: {}", source),
        }
    }
}
