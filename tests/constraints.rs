//! Constrained answers to random schemas, from a model that has never seen JSON, with and without a thought before the answer, alone, with
//! drafts and in batches of eight. An independent validator checks every finished answer against its schema; the answer has the same bytes
//! alone, with drafts and in a batch.

#[path = "constraints/calls.rs"]
mod calls;

use std::sync::Arc;

use fastrand::Rng;
use serde_json::{Map, Value, json};
use waterline::{
    Batch, Constraint, Error, Finish, GenerateOptions, Generation, Grammar, Model, Session,
    SessionOptions, ThoughtOptions, ThoughtTags,
};

/// Returns the number of schemas in a run; a campaign sets more.
fn schemas() -> u64 {
    let set = std::env::var("WATERLINE_SCHEMAS").ok();
    set.and_then(|count| count.parse().ok()).unwrap_or(32)
}

fn model() -> Arc<Model> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/model/");
    Model::open(format!("{folder}waterline-chat.gguf")).expect("the model")
}

fn session(model: &Arc<Model>, seed: u64, lookup: usize) -> Session {
    let mut options = SessionOptions::default();
    (options.threads, options.lookup, options.sampler.seed) = (1, lookup, seed);
    Session::new(Arc::clone(model), options).expect("a session")
}

/// Returns a random schema of up to `depth` levels.
fn schema(random: &mut Rng, depth: usize) -> Value {
    match random.u8(..if depth == 0 { 6 } else { 9 }) {
        0 => json!({ "type": "boolean" }),
        1 => {
            let least = random.i32(-50..50);
            json!({ "type": "integer", "minimum": least, "maximum": least + random.i32(0..500) })
        }
        2 => json!({ "enum": ["red", "a \"b\" é", 7, null, true] }),
        3 => json!({ "type": "string", "maxLength": random.u8(0..12) }),
        4 => json!({ "const": { "k": [1, "x"] } }),
        5 => json!({ "type": "string", "pattern": "^[a-c]{1,4}-[0-9]{2}$" }),
        6 => {
            let least = random.usize(0..3);
            json!({
                "type": "array", "items": schema(random, depth - 1),
                "minItems": least, "maxItems": least + random.usize(0..3),
            })
        }
        7 => json!({ "anyOf": [schema(random, depth - 1), schema(random, depth - 1)] }),
        _ => {
            let count = random.usize(1..4);
            let names = (0..count).map(|i| format!("key{i}"));
            let properties: Map<String, Value> = names
                .map(|name| (name, schema(random, depth - 1)))
                .collect();
            let required: Vec<&String> = properties.keys().filter(|_| random.bool()).collect();
            json!({
                "type": "object", "required": required, "properties": properties,
                "additionalProperties": false,
            })
        }
    }
}

/// Returns whether a value is valid under a schema from [`schema`].
fn describes(schema: &Value, value: &Value) -> bool {
    if let Some(all) = schema["enum"].as_array() {
        return all.contains(value);
    }
    if let Some(only) = schema.get("const") {
        return only == value;
    }
    if let Some(any) = schema["anyOf"].as_array() {
        return any.iter().any(|schema| describes(schema, value));
    }
    match (schema["type"].as_str(), value) {
        (Some("boolean"), Value::Bool(_)) => true,
        (Some("integer"), Value::Number(number)) => {
            let within = |n: i64| {
                schema["minimum"].as_i64() <= Some(n) && Some(n) <= schema["maximum"].as_i64()
            };
            number.as_i64().is_some_and(within)
        }
        (Some("string"), Value::String(text)) => {
            let length = text.chars().count() as u64;
            let is_short = schema["maxLength"]
                .as_u64()
                .is_none_or(|most| length <= most);
            let fits = |(letters, digits): (&str, &str)| {
                (1..=4).contains(&letters.len())
                    && letters.bytes().all(|b| (b'a'..=b'c').contains(&b))
                    && digits.len() == 2
                    && digits.bytes().all(|b| b.is_ascii_digit())
            };
            let has_pattern = schema.get("pattern").is_some();
            is_short && (!has_pattern || text.split_once('-').is_some_and(fits))
        }
        (Some("array"), Value::Array(list)) => {
            let count = list.len() as u64;
            schema["minItems"].as_u64() <= Some(count)
                && Some(count) <= schema["maxItems"].as_u64()
                && list.iter().all(|item| describes(&schema["items"], item))
        }
        (Some("object"), Value::Object(fields)) => {
            let required = schema["required"].as_array().into_iter().flatten();
            let mut required = required.filter_map(Value::as_str);
            let known = |(name, value): (&String, &Value)| {
                let schema = schema["properties"].get(name);
                schema.is_some_and(|schema| describes(schema, value))
            };
            required.all(|name| fields.contains_key(name)) && fields.iter().all(known)
        }
        _ => false,
    }
}

/// Begins an answer whose session has read a prompt. If `thinks` is set, it begins with a thought, which is not constrained and ends after
/// a few tokens. `seed` and `lookup`, the maximum draft length, are given.
fn begin(
    model: &Arc<Model>,
    form: &Constraint,
    thinks: bool,
    (seed, lookup): (u64, usize),
) -> (Session, Generation) {
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let prompt = tokenizer.encode("Tell me a story:").expect("tokens");
    let mut session = session(model, seed, lookup);
    session.feed(&prompt).expect("read");
    let mut options = GenerateOptions::default();
    options.max_tokens = 160;
    let mut thought = ThoughtOptions::new(ThoughtTags::THINK, true);
    thought.budget = Some(seed as usize % 9);
    options.thought = Some(thought).filter(|_| thinks);
    let generation = Generation::new(model, options).expect("a generation");
    let mut generation = generation.with_drafts(&session);
    generation.constrain(form.clone());
    (session, generation)
}

/// Generates one answer alone; returns its text, its end, and the numbers of tokens drafted and accepted.
fn alone(
    (mut session, mut generation): (Session, Generation),
) -> ((String, Option<Finish>), (u64, u64)) {
    let mut text = String::new();
    while let Some(piece) = generation.next(&mut session) {
        text.push_str(&piece.expect("a piece").text);
    }
    ((text, generation.finish()), session.drafts())
}

/// Generates up to eight answers in a batch; returns their texts and ends.
fn together(mut answers: Vec<(Session, Generation)>) -> Vec<(String, Option<Finish>)> {
    let mut batch = Batch::new(&answers[0].0, answers.len()).expect("a batch");
    let mut texts = vec![String::new(); answers.len()];
    while answers
        .iter()
        .any(|(_, generation)| generation.finish().is_none())
    {
        let mut running: Vec<(usize, &mut (Session, Generation))> = answers
            .iter_mut()
            .enumerate()
            .filter(|(_, (_, generation))| generation.finish().is_none())
            .collect();
        let chosen: Vec<u32> = running
            .iter_mut()
            .map(|(_, (session, generation))| generation.choose(session).expect("a token"))
            .collect();
        let mut sessions: Vec<&mut Session> = running
            .iter_mut()
            .map(|(_, (session, _))| session)
            .collect();
        batch.feed(&mut sessions, &chosen).expect("read");
        for ((index, (_, generation)), token) in running.into_iter().zip(chosen) {
            texts[index].push_str(&generation.push(token).text);
        }
    }
    let ends = answers.iter().map(|(_, generation)| generation.finish());
    texts.into_iter().zip(ends).collect()
}

#[test]
fn every_finished_answer_fits_its_schema_alone_and_in_a_batch() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let mut random = Rng::with_seed(51);
    let (mut finished, mut accepted) = (0, 0);
    let all: Vec<(Value, Constraint)> = (0..schemas())
        .map(|_| {
            let schema = schema(&mut random, 2);
            let form = compiler.compile(&Grammar::JsonSchema(schema.clone()));
            let form = form.unwrap_or_else(|error| panic!("{schema}: {error}"));
            (schema, form)
        })
        .collect();
    for (group, cases) in all.chunks(8).enumerate() {
        for thinks in [false, true] {
            let begun = |i: usize, lookup: usize| {
                let seed = (group * 8 + i) as u64;
                begin(&model, &cases[i].1, thinks, (seed, lookup))
            };
            let answers = together((0..cases.len()).map(|i| begun(i, 0)).collect());
            for (i, (schema, _)) in cases.iter().enumerate() {
                let (text, finish) = &answers[i];
                if *finish == Some(Finish::End) {
                    finished += 1;
                    let answer = match text.split_once("</think>") {
                        Some((_, answer)) if thinks => answer,
                        _ => text,
                    };
                    let value = serde_json::from_str(answer);
                    let value = value.unwrap_or_else(|error| panic!("{schema}: {text}: {error}"));
                    assert!(describes(schema, &value), "{schema}: {text}");
                }
                let (drafted, drafts) = alone(begun(i, 12));
                assert_eq!(drafted, answers[i], "{schema}");
                accepted += drafts.1;
                if i % 4 == 0 {
                    assert_eq!(alone(begun(i, 0)).0, answers[i], "{schema}");
                }
            }
        }
    }
    // Few answers may be cut off, such as long lists.
    assert!(finished * 10 >= schemas() * 2 * 9, "{finished} finished");
    assert!(accepted > schemas(), "{accepted} tokens of drafts accepted");
}

#[test]
fn generate_takes_a_constraint_and_ends_by_it() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let mut session = session(&model, 3, 0);
    let tokens = model.tokenizer().expect("a tokenizer").encode("One, two");
    for (grammar, expected) in [
        (
            Grammar::Regex("(yes|no), [0-9]{3}".into()),
            &["yes, ", "no, "][..],
        ),
        (
            Grammar::Lark("start: \"<\" /[a-z]{2}/ \">\"".into()),
            &["<"],
        ),
        (Grammar::JsonObject, &["{"]),
    ] {
        session.reset().expect("reset");
        session
            .feed(tokens.as_ref().expect("tokens"))
            .expect("read");
        let form = compiler.compile(&grammar).expect("a form");
        let pieces = session.generate(GenerateOptions::default()).expect("begun");
        let text: waterline::Result<Vec<String>> = pieces
            .constrained(form)
            .map(|piece| Ok(piece?.text))
            .collect();
        let text = text.expect("pieces").concat();
        assert!(
            expected.iter().any(|begin| text.starts_with(begin)),
            "{text}"
        );
    }
}

#[test]
fn forms_that_cannot_be_are_refused_with_a_reason() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let deep = (0..2_000).fold(
        json!({ "type": "string" }),
        |inner, _| json!({ "items": inner }),
    );
    let wrong = [
        Grammar::JsonSchema(json!(false)),
        Grammar::JsonSchema(json!({ "type": "nothing" })),
        Grammar::JsonSchema(json!({ "type": "integer", "minimum": 5, "maximum": 4 })),
        Grammar::JsonSchema(json!({ "$ref": "#/$defs/none" })),
        Grammar::JsonSchema(json!({ "type": "string", "pattern": "((((a{999}){999}){999}){999}" })),
        Grammar::JsonSchema(json!({ "type": "string", "pattern": "(" })),
        Grammar::JsonSchema(json!({ "const": "x".repeat(2 << 20) })),
        Grammar::Regex("(".into()),
        Grammar::Lark("begin: \"a\"".into()),
        Grammar::Lark(String::new()),
        Grammar::JsonSchema(deep),
        Grammar::Regex(format!("{}x{}", "(".repeat(5_000), ")".repeat(5_000))),
        Grammar::Lark(format!(
            "start: {}\"x\"{}",
            "(".repeat(5_000),
            ")".repeat(5_000)
        )),
    ];
    for grammar in wrong {
        match compiler.compile(&grammar) {
            Err(Error::Invalid { what, reason }) => {
                assert!(what == "grammar" && !reason.is_empty())
            }
            Err(error) => panic!("{grammar:?}: {error}"),
            Ok(_) => panic!("{:.200}: compiled", format!("{grammar:?}")),
        }
    }
    // These may be rejected or accepted, but must neither crash the program nor take unbounded time.
    for grammar in [
        Grammar::Regex("(((((x{900}){900}){900}){900}){900})".into()),
        Grammar::Lark("start: start start".into()),
    ] {
        let _ = compiler.compile(&grammar);
    }
}

#[test]
fn references_and_recursion_within_a_schema_hold() {
    let model = model();
    let compiler = model.constraints().expect("constraints");
    let schema = json!({
        "$defs": { "node": {
            "type": "object", "properties": {
                "name": { "type": "string", "maxLength": 4 },
                "next": { "anyOf": [{ "$ref": "#/$defs/node" }, { "type": "null" }] },
            },
            "required": ["name", "next"], "additionalProperties": false,
        }},
        "$ref": "#/$defs/node",
    });
    let form = compiler
        .compile(&Grammar::JsonSchema(schema))
        .expect("a form");
    let answers = together(
        (0..4)
            .map(|seed| begin(&model, &form, false, (seed, 0)))
            .collect(),
    );
    for (text, finish) in answers {
        if finish == Some(Finish::End) {
            let mut node: Value = serde_json::from_str(&text).expect("JSON");
            while !node.is_null() {
                assert!(
                    node["name"].as_str().expect("a name").chars().count() <= 4,
                    "{text}"
                );
                node = node["next"].take();
            }
        }
    }
}

#[test]
fn deep_grammars_need_no_more_stack_than_there_is() {
    let constraints = model().constraints().expect("constraints");
    let rules = |name: &str| -> String {
        let rule = |i: usize| format!("{name}{i}: {name}{} \"a\"\n", i + 1);
        let rules: String = (0..8000).map(rule).collect();
        format!("start: {name}0\n{rules}{name}8000: \"b\"\n")
    };
    let names: Vec<String> = (0..4000).map(|i| format!("r{i}")).collect();
    let reference =
        |i: usize| json!({ "properties": { "x": { "$ref": format!("#/$defs/d{i}") } } });
    let defined = (0..2000).map(|i| (format!("d{i}"), reference(i + 1)));
    let mut defined: Map<String, Value> = defined.collect();
    defined.insert("d2000".into(), json!({ "type": "integer" }));
    let nested = (0..90).fold(json!({}), |inner, _| json!({ "items": inner }));
    let grammars = [
        Grammar::Lark(rules("r")),
        Grammar::Lark(rules("T")),
        Grammar::JsonSchema(json!({ "type": "object", "required": names })),
        Grammar::JsonSchema(json!({ "$ref": "#/$defs/d0", "$defs": defined })),
        Grammar::JsonSchema(json!({ "prefixItems": vec![json!({}); 4000] })),
        Grammar::JsonSchema(nested),
    ];
    // The caller's stack does not matter.
    let small = std::thread::Builder::new().stack_size(256 << 10);
    let compiled = small.spawn(move || {
        for grammar in &grammars {
            // Deep grammars are compiled or refused with a sentence.
            if let Err(error) = constraints.compile(grammar) {
                assert!(matches!(error, Error::Invalid { .. }), "{error}");
            }
        }
    });
    compiled.expect("a thread").join().expect("no overflow");
}
