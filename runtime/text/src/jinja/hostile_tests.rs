//! Compares one feature at a time with Jinja2, and renders hostile templates.

use super::marked::{Mark, Marked};
use super::*;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

/// Renders with these variables, whose texts come from messages.
fn render_with(source: &str, variables: &[(&str, Value)]) -> Outcome<Marked> {
    render_marked(source, variables, Mark::Data)
}

/// Renders with these variables, whose texts have the origin `mark`.
pub(super) fn render_marked(
    source: &str,
    variables: &[(&str, Value)],
    mark: Mark,
) -> Outcome<Marked> {
    let values = |work: &mut Work| {
        let value = |(name, json): &(&str, Value)| {
            let value = value::Value::from_json(json, mark, work)?;
            Ok((name.to_string(), value))
        };
        variables.iter().map(value).collect()
    };
    Template::new(source)?.render(values, &Canceller::default())
}

fn render(source: &str) -> Outcome<String> {
    let variables = [("messages", json!([{"role": "user", "content": "hello"}]))];
    Ok(render_with(source, &variables)?.as_str().into())
}

/// The rows of llama.cpp's template test, which `tools/reference/template_rows.py` extracts to the file that TEMPLATE_ROWS names.
#[test]
fn templates_render_as_jinja2_renders_them() {
    let Some(path) = std::env::var_os("TEMPLATE_ROWS") else {
        return;
    };
    let rows = std::fs::read(path).expect("rows");
    let rows: Vec<Value> = serde_json::from_slice(&rows).expect("JSON");
    for row in &rows {
        let variables = row["variables"].as_object().expect("variables");
        let variables: Vec<(&str, Value)> = variables
            .iter()
            .map(|(name, value)| (name.as_str(), value.clone()))
            .collect();
        let found = render_with(row["source"].as_str().expect("a template"), &variables);
        let found = found.map(|text| text.as_str().to_string());
        assert_eq!(found.ok().as_deref(), row["expected"].as_str(), "{row}");
    }
}

#[test]
fn features_render_as_jinja2_renders_them() {
    let recorded: Value =
        serde_json::from_str(include_str!("../../tests/data/templates/expressions.json"))
            .expect("JSON");
    let context = recorded["context"].as_object().expect("variables");
    let context: Vec<_> = context
        .iter()
        .map(|(name, value)| (name.as_str(), value.clone()))
        .collect();
    let cases = recorded["cases"].as_array().expect("cases");
    assert!(cases.len() >= 24);
    for case in cases {
        let source = case["source"].as_str().expect("a source");
        let rendered = render_with(source, &context).expect(source);
        let expected = case["rendered"].as_str().expect("text");
        assert_eq!(rendered.as_str(), expected, "{source}");
    }
}

/// Sources that crash or exhaust an engine that trusts them.
fn hostile() -> Vec<String> {
    let deep = |open: &str, middle: &str, close: &str, times| {
        format!(
            "{{{{ {}{middle}{} }}}}",
            open.repeat(times),
            close.repeat(times)
        )
    };
    let double = |step: &str| {
        format!("{{% set ns = namespace(x='ab') %}}{{% for i in range(99) %}}{step}{{% endfor %}}")
    };
    let mut sources = vec![
        deep("", "x", "|e", 40_000),
        deep("-", "1", "", 40_000),
        deep("not ", "x", "", 40_000),
        deep("(", "1", ")", 40_000),
        deep("[", "1", "]", 40_000),
        deep("{1:", "1", "}", 40_000),
        deep("", "x", ".a", 40_000),
        deep("", "x", "[0]", 40_000),
        deep("", "x", "()", 40_000),
        deep("", "1", "+1", 40_000),
        deep("", "1", "~1", 40_000),
        deep("", "1", "**1", 40_000),
        deep("", "1", " and 1", 30_000),
        deep("", "1", " is defined", 20_000),
        deep("", "1", " if 1", 40_000),
        deep("", "1", " if 1 else 1", 20_000),
        "{% if 1 %}".repeat(20_000),
        "{% for x in [1] %}".repeat(10_000),
        "{% for x in range(99999) %}".repeat(3) + &"{% endfor %}".repeat(3),
        "{{ 1|tojson(4000000000) }}{{ [1]|tojson(4000000000) }}".into(),
        "{{ [1]|tojson(indent=4000000000) }}".into(),
        "{{ [1]|tojson(indent=9223372036854775807) }}".into(),
        "{{ 'a'|indent(4000000000) }}".into(),
        "{{ 'a' * 4000000000 }}{{ [1] * 4000000000 }}".into(),
        "{{ [] * 9223372036854775807 }}{{ '' * 9223372036854775807 }}{{ range(9223372036854775807) }}".into(),
        "{{ range(-9223372036854775807, 9223372036854775807, 1)|list }}".into(),
        "{{ [1]|batch(9223372036854775807, 1) }}".into(),
        "{{ [1]|slice(9223372036854775807) }}".into(),
        "{{ 'a'[::-9223372036854775807] }}{{ [1][-9223372036854775807:9223372036854775807:9223372036854775807] }}".into(),
        "{{ '%.4000000000f' % 1.0 }}".into(),
        "{{ '%99999s' % 1 }}{{ '{:99999999999}'.format(1) }}".into(),
        "{{ 2 ** 99999999999 }}".into(),
        "{{ -9223372036854775807 - 1 }}{{ (-9223372036854775807 - 1) // -1 }}".into(),
        "{{ (-9223372036854775807 - 1) % -1 }}".into(),
        "{{ (-9223372036854775807 - 1)|abs }}".into(),
        "{{ 1.0|round(2147483648) }}{{ 1 // 0 }}".into(),
        // A namespace that contains itself.
        "{% set ns = namespace() %}{% set ns.a = ns %}{{ ns }}{{ ns == ns }}{{ [ns]|tojson }}".into(),
        "{% set ns = namespace() %}{% set ns.a = [ns] %}{% set ns.a = [ns.a, ns] %}{{ ns.a }}{{ ns.a == ns.a }}{{ x.y }}".into(),
        // Values that contain the previous value twice, 99 levels deep.
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}".into(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x == ns.x }}".into(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x < ns.x }}".into(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = {'a': ns.x, 'b': ns.x} %}{% endfor %}{{ ns.x|tojson }}".into(),
        "{% set ns = namespace(x=[1]) %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}{{ ns.x }}".into(),
        // Text that doubles.
        double("{% set ns.x = ns.x ~ ns.x %}"),
        double("{% set ns.x = ns.x + ns.x %}"),
        double("{% set ns.x = ns.x * 2 %}"),
        double("{% set ns.x = ns.x|replace('a', 'aa') %}"),
        double("{% set ns.x = ns.x|replace('', 'ab') %}"),
        double("{% set ns.x = ns.x.replace('b', ns.x) %}"),
        double("{% set ns.x = [ns.x, ns.x]|join(ns.x) %}"),
        double("{% set ns.x = '%s%s' % (ns.x, ns.x) %}"),
        double("{% set ns.x = '{0}{0}'.format(ns.x) %}"),
        double("{% set ns.x = ns.x|tojson|tojson|tojson %}"),
        double("{% set ns.x = ns.x|list|string %}"),
        double("{% set ns.x = ns.x|indent(ns.x, true) ~ '\\n\\n' %}"),
        double("{% set ns.x = ns.x|e|e|e|e %}&&"),
        double("{% set ns.x = ns.x[:] ~ ns.x[::-1] %}"),
        double("{% set t %}{{ ns.x }}{{ ns.x }}{% endset %}{% set ns.x = t %}"),
        double("{% filter replace('a', 'aaaa') %}{{ ns.x }}{% endfilter %}{% set ns.x = ns.x ~ ns.x %}"),
        double("{% set ns.x = ns.x|list + ns.x|list %}{% set ns.x = ns.x|join %}"),
        // Macros that call themselves, and macros that double the work.
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}".into(),
        "{% macro m(n) %}{% if n %}{{ m(n - 1) }}{{ m(n - 1) }}{% endif %}{% endmacro %}{{ m(60) }}".into(),
        "{% macro m(a=m()) %}{% endmacro %}{{ m() }}".into(),
        "{% macro a() %}{{ b() }}{% endmacro %}{% macro b() %}{{ a() }}{% endmacro %}{{ a() }}".into(),
        "{% macro m() %}{{ [[[[[[[[m()]]]]]]]] }}{% endmacro %}{{ m() }}".into(),
        "{% macro m() %}{% if 1 %}{% if 1 %}{% for x in [1] %}{{ m() }}{% endfor %}{% endif %}{% endif %}{% endmacro %}{{ m() }}".into(),
        // Practically endless work.
        "{% set a = range(99999)|list %}{% for x in a %}{% if x in a|reverse|list %}{% endif %}{% endfor %}".into(),
        "{% set a = range(99999)|list %}{{ a|unique }}{{ a|sort }}{{ a|map('string')|sort }}".into(),
        "{% set a = 'a' * 9999999 %}{% for x in range(99999) %}{% if a == a ~ '' %}{% endif %}{% endfor %}".into(),
        "{% set a = 'a' * 999999 %}{% for x in range(99999) %}{{ a.find('b') }}{{ a.strip('ab') }}{% endfor %}".into(),
        "{% for x in range(99999) %}{% set ns = namespace() %}{% endfor %}".into(),
        "{% set a = ('a' * 99999).split('a') %}{{ a }}{{ a|join(a|join('bbbbbbbbbbbbbbbbbbbbb')) }}".into(),
        "{% set a = range(99999)|list %}{% for x in a %}{% for y in a %}{% if -1 in a %}{% endif %}{% endfor %}{% endfor %}".into(),
        "{% set a = range(99999)|list %}{% for x in a %}{{ a.index(99998) }}{{ a.count(1) }}{{ a|select('in', a)|list }}{% endfor %}".into(),
        "{% set d = dict(a=1) %}{% for x in range(99999) %}{% set d = dict(d, b=x) %}{% endfor %}{{ d.c }}".into(),
        "{% set ns = namespace() %}{% for x in range(99999) %}{% set ns.x = [ns.x, x][-1:] %}{{ ns.x[0] }}{% endfor %}".into(),
        // A loop that contains the previous loop, without a list that would count the depth.
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for x in [ns.x] %}{% set ns.x = loop %}{% endfor %}{% endfor %}".into(),
        "{% set ns = namespace(x=1) %}{% for i in range(99999) %}{% for x in {'a': ns.x}.values() %}{% set ns.x = loop %}{% endfor %}{% endfor %}{{ ns.x }}".into(),
        "{% macro m(n) %}{% for x in [n] %}{{ m(loop) }}{% endfor %}{% endmacro %}{{ m(1) }}".into(),
        // Values without an order, or without a total order.
        "{{ ('nan ' * 99).split()|map('float')|sort }}{{ ('1 nan 3 2 ' * 99).split()|map('float')|sort }}".into(),
        "{{ ([9007199254740993, 9007199254740992.0, 9007199254740992] * 99)|sort|unique }}".into(),
        "{{ ([1, 'a', [2], none, 1.5] * 99)|sort }}{{ ([[1, 'nan'|float], [1, 2], ['a']] * 99)|sort }}".into(),
        "{{ ('1 nan 3 2 ' * 99).split()|map('float')|groupby|list }}".into(),
        // Endless output, and formats within formats.
        "{% for x in range(99999) %}{{ 'a' * 99999 }}{% endfor %}".into(),
        "{% macro m(n) %}{{ 'a' * 999999 }}{{ m(n) if n < 99 }}{% endmacro %}{{ m(0)|length }}".into(),
        "{{ '%s' * 99999 % (range(99999)|list) }}{{ ('%s' * 99999) % 'a' }}{{ '{}' * 99999 }}".into(),
        "{{ ('{0}' * 99999).format('a' * 99999) }}{{ ('%.100f' * 9999) % ((1e308,) * 9999) }}".into(),
        "{{ 'a'.join(range(99999)|map('string')) }}{{ range(99999)|map('format', 1)|list }}".into(),
        "{{ range(0, 9223372036854775807, 92233720368548)|sum }}{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807)|list }}".into(),
        "{{ 'ab'[-9223372036854775807:] }}{{ 'ab'[9223372036854775807::-1] }}{{ 'ab'[::9223372036854775807] }}{{ 'ab'[1:0:-9223372036854775807] }}".into(),
        "{% set ns = namespace(s='') %}{% for i in range(99999) %}{% set ns.s = ns.s ~ 'a' %}{% endfor %}{{ ns.s|length }}".into(),
        "{% for x in range(9) recursive %}{{ loop(range(9)) }}{% endfor %}".into(),
        "{% set loop = 1 %}{{ loop.index }}{% set messages = 1 %}{{ messages[0].x }}".into(),
        // Malformed.
        "{{".into(), "{%".into(), "{#".into(), "{{ '".into(), "{{ \"\\".into(), "{% raw %}".into(), "{{ '\\u12".into(),
        "{{ '\\U99999999' }}{{ 1e999 }}{{ 1e999|int }}{{ 1e999|tojson }}{{ 1x }}".into(),
        "{{ 99999999999999999999 }}".into(), "{{ 0x }}".into(), "{{ é日 }}".repeat(10) + "{{ ❤ }}",
        "{% set %}".into(), "{% set a, b = 1 %}".into(), "{% for a, b in [1] %}{% endfor %}".into(), "{% endif %}".into(),
        "{{ a[1:2:3:4] }}".into(), "{{ [1][::0] }}".into(), "{{ f(a=1, 2) }}".into(), "{{ f(*a) }}".into(),
        "{{ {[1]: 2} }}".into(), "{{ namespace(1) }}{{ dict(1) }}{{ messages.append(1) }}".into(),
        "{% import 'x' %}".into(), "{% include '/etc/passwd' %}".into(), "{{ ''.__class__.__mro__ }}".into(),
        "{{ messages|map('map', 'map')|list }}".into(), "{{ loop }}{{ loop.index }}".into(),
        "{% break %}".into(), "a".repeat(MAX_SOURCE + 1),
    ];
    sources.push(format!("{{{{ '{}' }}}}", "a".repeat(200_000)));
    sources.push(format!("{{{{ {} }}}}", "x,".repeat(100_000)));
    sources.push("{{ x }}".repeat(36_000));
    sources.push(format!(
        "{}{}",
        "{% set y = 1 %}".repeat(9_000),
        "{{ y }}".repeat(17_000)
    ));
    sources
}

/// Runs `run` and returns its result. Panics if it does not end.
fn within_20_seconds<T: Send + 'static>(what: &str, run: impl FnOnce() -> T + Send + 'static) -> T {
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::spawn(move || sender.send(run()));
    let result = receiver.recv_timeout(Duration::from_secs(20));
    result.unwrap_or_else(|_| panic!("no end, or a panic: {}", &what[..what.len().min(300)]))
}

#[test]
fn hostile_templates_end_with_a_result_or_an_error() {
    for source in hostile() {
        let copy = source.clone();
        if let Err(failure) = within_20_seconds(&source, move || render(&copy)) {
            let text = failure.to_string();
            assert_ne!(failure.message, PANICKED, "{source:.300}");
            assert!(!text.chars().any(char::is_control), "{text:?}");
            assert!(text.chars().count() < 2 * MAX_MESSAGE);
        }
    }
}

#[test]
fn what_must_fail_fails_with_its_reason() {
    let fails = |source: &str, reason: &str| {
        let failure = render(source).expect_err(source).to_string();
        // On a busy machine the time limit may be reached before the work limit.
        let late = reason == "does more" && failure.contains("takes too long");
        assert!(failure.contains(reason) || late, "{source:.100}: {failure}");
    };
    fails(
        "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
        "nests too deep",
    );
    fails(
        "{% set ns = namespace(x=1) %}{% for i in range(200) %}{% for x in [ns.x] %}{% set ns.x = loop %}{% endfor %}{% endfor %}",
        "nests too deep",
    );
    fails(
        "{{ ('1 nan 3 2 ' * 99).split()|map('float')|sort }}",
        "cannot be compared",
    );
    fails(
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "does more",
    );
    fails(
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "does more",
    );
    fails(
        &format!("{{{{ x{} }}}}", "|e".repeat(40_000)),
        "nests too deep",
    );
    fails("\n\n{{ messages.x.y }}", "line 3: \"x\" is undefined");
    fails(
        "{{ raise_exception('\\x1b[31m\\x07no') }}",
        "\\u{1b}[31m\\u{7}no",
    );
    fails(
        "{{ messages|frobnicate }}",
        "the filter \"frobnicate\" is not known",
    );
    fails(&"a".repeat(MAX_SOURCE + 1), "at most 262144");
}

#[test]
fn a_rendering_ends_when_it_is_cancelled() {
    let source = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}";
    let template = Template::new(source).expect("a template");
    let (canceller, over) = (Canceller::default(), AtomicBool::new(false));
    let (started, wait) = std::sync::mpsc::channel();
    let failure = std::thread::scope(|scope| {
        let (canceller, over) = (&canceller, &over);
        scope.spawn(move || {
            wait.recv().expect("a start");
            while !over.load(Ordering::Relaxed) {
                canceller.cancel();
                std::thread::yield_now();
            }
        });
        started.send(()).expect("a listener");
        let none = |_: &mut Work| Ok(Vec::new());
        let failure = template.render(none, canceller).expect_err("no end");
        over.store(true, Ordering::Relaxed);
        failure
    });
    assert_eq!(failure.message, "it was cancelled");
}

#[test]
fn a_rendering_is_no_longer_than_its_variables_explain() {
    let write = |times: usize| {
        let source = format!(
            "{{% for i in range({times}) %}}{}{{% endfor %}}",
            "a".repeat(1024)
        );
        render(&source)
    };
    assert_eq!(write(64).expect("as much").len(), MAX_OUTPUT);
    let failure = write(80).expect_err("more");
    assert!(failure.to_string().contains("writes more"), "{failure}");
    // Output may grow with the input.
    let long = "a".repeat(2 * MAX_OUTPUT);
    let rendered = render_with("{{ text }}{{ text|tojson }}", &[("text", json!(long))]);
    let rendered = rendered.expect("both");
    assert_eq!(rendered.as_str().len(), 4 * MAX_OUTPUT + 2);
}

/// Applies `WATERLINE_MUTATIONS` random changes to real templates, 2,000 by default.
#[test]
fn mutated_templates_end_with_a_result_or_an_error() {
    let seeds: Vec<String> = hostile()
        .into_iter()
        .filter(|source| source.len() < 4_000)
        .chain(
            ["chatml", "gemma", "llama2", "llama3", "qwen3", "zephyr"].map(|name| {
                let path = format!(
                    "{}/tests/data/templates/{name}.jinja",
                    env!("CARGO_MANIFEST_DIR")
                );
                std::fs::read_to_string(path).expect("a template")
            }),
        )
        .collect();
    const PARTS: [&str; 24] = [
        "{{",
        "}}",
        "{%",
        "%}",
        "-",
        "|",
        "(",
        ")",
        "[",
        "]",
        "{",
        "}",
        "'",
        " if ",
        "{% endfor %}",
        "{% for x in a %}",
        "|tojson",
        "|join",
        "ns.x",
        " ~ ",
        " * 99999999",
        ".split('')",
        "[::-1]",
        "\u{1f525}",
    ];
    let count = std::env::var("WATERLINE_MUTATIONS")
        .map_or(2_000, |count| count.parse().expect("a number"));
    let mut random = 0x9e37_79b9_7f4a_7c15u64;
    let mut next = move |below: usize| {
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        (random % below.max(1) as u64) as usize
    };
    let (mut rendered, mut failed) = (0, 0);
    for _ in 0..count {
        let mut source: Vec<char> = seeds[next(seeds.len())].chars().collect();
        for _ in 0..1 + next(4) {
            let at = next(source.len() + 1);
            let end = (at + next(12)).min(source.len());
            match next(4) {
                0 => drop(source.drain(at..end)),
                1 => drop(source.splice(at..at, PARTS[next(PARTS.len())].chars())),
                2 => drop(source.splice(at..end, PARTS[next(PARTS.len())].chars())),
                _ => {
                    let other: Vec<char> = seeds[next(seeds.len())].chars().collect();
                    let from = next(other.len());
                    let to = (from + next(200)).min(other.len());
                    drop(source.splice(at..at, other[from..to].iter().copied()));
                }
            }
        }
        let source: String = source.into_iter().collect();
        let copy = source.clone();
        match within_20_seconds(&source, move || render(&copy)) {
            Ok(_) => rendered += 1,
            Err(failure) => {
                assert_ne!(failure.message, PANICKED, "{source}");
                failed += 1;
            }
        }
    }
    println!("{rendered} rendered, {failed} refused");
    assert!(rendered > count / 20 && failed > count / 20);
}
