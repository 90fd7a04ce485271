//! Budgets of thoughts: the closing tag comes after as many tokens, and then the answer, with the same bytes alone, with drafts, with a
//! schema and in batches.

use std::sync::Arc;

use serde_json::{Value, json};
use waterline::{
    Batch, Finish, GenerateOptions, Generation, Grammar, Model, Session, SessionOptions,
    ThoughtOptions, ThoughtTags,
};

/// An answer to generate.
#[derive(Clone, Copy)]
struct Case {
    budget: usize,
    /// Whether the prompt opens the thought.
    is_open: bool,
    /// Whether the answer after the thought must be JSON.
    has_schema: bool,
    temperature: f32,
    seed: u64,
    /// Longest draft.
    lookup: usize,
}

fn model() -> Arc<Model> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/model/");
    Model::open(format!("{folder}waterline-chat.gguf")).expect("the model")
}

fn begin(model: &Arc<Model>, case: Case) -> (Session, Generation) {
    let mut options = SessionOptions::default();
    (options.threads, options.lookup) = (1, case.lookup);
    (options.sampler.temperature, options.sampler.seed) = (case.temperature, case.seed);
    // With a schema the answer ends at an end token, which the thought may not have.
    let ends = model.ends().filter(|_| case.has_schema);
    options.sampler.logit_bias = ends.map(|end| (end, -1e9)).collect();
    let mut session = Session::new(Arc::clone(model), options).expect("a session");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let prompt = tokenizer
        .encode("The cat sat. The cat sat. The cat")
        .expect("tokens");
    session.feed(&prompt).expect("read");
    let mut options = GenerateOptions::default();
    (options.max_tokens, options.stop_at_eos) = (120, false);
    let mut thought = ThoughtOptions::new(ThoughtTags::THINK, case.is_open);
    thought.budget = Some(case.budget);
    options.thought = Some(thought);
    let generation = Generation::new(model, options).expect("a generation");
    let mut generation = generation.with_drafts(&session);
    if case.has_schema {
        let schema = json!({
            "type": "object", "properties": { "a": { "type": "integer", "minimum": 0, "maximum": 99 } },
            "required": ["a"], "additionalProperties": false,
        });
        let compiler = model.constraints().expect("constraints");
        let form = compiler.compile(&Grammar::JsonSchema(schema));
        generation.constrain(form.expect("a form"));
    }
    (session, generation)
}

/// Generates an answer alone: its text, its tokens, and the number of accepted tokens of drafts.
fn alone((mut session, mut generation): (Session, Generation)) -> (String, Vec<u32>, u64) {
    let (mut text, mut tokens) = (String::new(), Vec::new());
    while let Some(piece) = generation.next(&mut session) {
        let piece = piece.expect("a piece");
        text.push_str(&piece.text);
        tokens.extend(piece.token);
    }
    (text, tokens, session.drafts().1)
}

/// Generates answers in one batch. Tokens are chosen on the host only where an answer needs it.
fn together(mut answers: Vec<(Session, Generation)>) -> Vec<String> {
    let mut batch = Batch::new(&answers[0].0, answers.len()).expect("a batch");
    let mut texts = vec![String::new(); answers.len()];
    loop {
        let mut running: Vec<(usize, &mut (Session, Generation))> = answers
            .iter_mut()
            .enumerate()
            .filter(|(_, (_, generation))| generation.wants_token())
            .collect();
        if running.is_empty() {
            return texts;
        }
        let needs_choice = running
            .iter()
            .any(|(_, (_, generation))| generation.needs_choice());
        let chosen: Vec<u32> = running
            .iter_mut()
            .filter(|_| needs_choice)
            .map(|(_, (session, generation))| generation.choose(session).expect("a token"))
            .collect();
        let mut sessions: Vec<&mut Session> = running
            .iter_mut()
            .map(|(_, (session, _))| session)
            .collect();
        let tokens = if needs_choice {
            batch.feed(&mut sessions, &chosen).expect("read");
            chosen
        } else {
            batch.step(&mut sessions).expect("tokens").to_vec()
        };
        for ((index, (_, generation)), token) in running.into_iter().zip(tokens) {
            texts[index].push_str(&generation.push(token).text);
        }
    }
}

#[test]
fn a_budget_closes_the_thought_and_the_answer_has_the_same_bytes_everywhere() {
    let model = model();
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let closing = tokenizer.encode("</think>").expect("tokens");
    let mut accepted = 0;
    for budget in [0, 1, 50] {
        for has_schema in [false, true] {
            for temperature in [0.0, 0.8] {
                let case = |seed: u64, lookup: usize| Case {
                    budget,
                    is_open: true,
                    has_schema,
                    temperature,
                    seed,
                    lookup,
                };
                let (text, tokens, _) = alone(begin(&model, case(1, 0)));
                // The tag comes after exactly as many tokens, and the answer after it.
                let end = budget + closing.len();
                assert_eq!(tokens[budget..end], closing, "{text}");
                assert!(tokens.len() > end, "{text}");
                let (_, answer) = text.split_once("</think>").expect("a closing tag");
                if has_schema {
                    let value: Value = serde_json::from_str(answer).expect("JSON");
                    assert!(value["a"].is_u64(), "{answer}");
                }
                let drafted = alone(begin(&model, case(1, 12)));
                assert_eq!((&drafted.0, &drafted.1), (&text, &tokens), "{budget}");
                accepted += drafted.2;
                let one = together(vec![begin(&model, case(1, 0))]);
                assert_eq!(one[0], text, "{budget}");
                let seeds = [5, 1, 6, 7];
                let four = seeds.map(|seed| begin(&model, case(seed, 0)));
                let four = together(four.into());
                assert_eq!(four[1], text, "{budget}");
                assert_eq!(four[2], alone(begin(&model, case(6, 12))).0, "{budget}");
            }
        }
    }
    assert!(accepted > 100, "{accepted} tokens of drafts accepted");
}

#[test]
fn only_the_first_token_of_an_answer_opens_a_thought() {
    let model = model();
    let tokenizer = model.tokenizer().expect("a tokenizer");
    for (begun, opens) in [
        ("<think>", true),
        (" \n<think>", true),
        ("a <think>", false),
    ] {
        let case = Case {
            budget: 2,
            is_open: false,
            has_schema: false,
            temperature: 0.0,
            seed: 1,
            lookup: 0,
        };
        let (mut session, mut generation) = begin(&model, case);
        let mut text = String::new();
        for token in tokenizer.encode(begun).expect("tokens") {
            session.feed(&[token]).expect("read");
            text.push_str(&generation.push(token).text);
        }
        while let Some(piece) = generation.next(&mut session) {
            text.push_str(&piece.expect("a piece").text);
        }
        assert_eq!(text.contains("</think>"), opens, "{text}");
        assert_eq!(generation.finish(), Some(Finish::Length));
    }
}
