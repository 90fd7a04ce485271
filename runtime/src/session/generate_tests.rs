use super::*;
use crate::session::SessionOptions;

fn session() -> Session {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../tools/model/");
    let model = Model::open(format!("{folder}waterline-chat.gguf")).expect("the model");
    let mut options = SessionOptions {
        threads: 1,
        ..SessionOptions::default()
    };
    options.sampler.temperature = 0.0;
    let mut session = Session::new(Arc::clone(&model), options).expect("a session");
    let tokenizer = model.tokenizer().expect("a tokenizer");
    let prompt = tokenizer.encode("Once upon a time").expect("tokens");
    session.feed(&prompt).expect("read");
    session
}

fn limited(max_tokens: usize) -> GenerateOptions {
    GenerateOptions {
        max_tokens,
        stop_at_eos: false,
        ..GenerateOptions::default()
    }
}

fn text(pieces: &[Piece]) -> String {
    pieces.iter().map(|piece| piece.text.as_str()).collect()
}

#[test]
fn pieces_have_tokens_and_logprobs_and_the_last_one_the_reason() {
    let mut session = session();
    let mut twin = session.fork().expect("a fork");
    let mut options = limited(12);
    options.logprobs = true;
    let pieces: Result<Vec<Piece>> = session.generate(options).expect("begun").collect();
    let pieces = pieces.expect("pieces");
    assert_eq!(pieces.len(), 12);
    for piece in &pieces {
        let logits = twin.logits().expect("logits").to_vec();
        let token = twin.step().expect("a step");
        assert_eq!(piece.token, Some(token));
        let sum: f64 = logits.iter().map(|&x| f64::from(x).exp()).sum();
        let expected = f64::from(logits[token as usize]) - sum.ln();
        let found = f64::from(piece.logprob.expect("a log-probability"));
        assert!((found - expected).abs() < 1e-5, "{found} {expected}");
    }
    assert_eq!(pieces[11].finish, Some(Finish::Length));
    assert!(pieces[..11].iter().all(|piece| piece.finish.is_none()));
}

#[test]
fn a_hook_sees_logits_and_its_changes_hold_for_one_choice() {
    let mut session = session();
    let mut twin = session.fork().expect("a fork");
    let expected = twin.logits().expect("logits").to_vec();
    let best = twin.sample().expect("a token");
    let mut seen = 0;
    let mut hook = |logits: &mut [f32]| {
        if seen == 0 {
            assert_eq!(logits, expected);
        }
        logits[best as usize] = f32::NEG_INFINITY;
        seen += 1;
    };
    let generated = session
        .generate(limited(5))
        .expect("begun")
        .on_logits(&mut hook);
    let pieces: Result<Vec<Piece>> = generated.collect();
    let pieces = pieces.expect("pieces");
    assert!(pieces.iter().all(|piece| piece.token != Some(best)));
    assert_eq!(seen, 5);
    // The hook has not changed the session's own logits.
    for piece in &pieces {
        twin.feed(&[piece.token.expect("a token")]).expect("read");
    }
    assert_eq!(session.logits().unwrap(), twin.logits().unwrap());
}

#[test]
fn an_error_comes_after_the_text_that_was_held_back() {
    // The complete text is the beginning of a stop text; the choice of the fourth token fails.
    let mut open = session();
    let pieces: Result<Vec<Piece>> = open.generate(limited(3)).expect("begun").collect();
    let whole = text(&pieces.expect("pieces"));
    assert!(!whole.is_empty());
    let model = Arc::clone(open.model());
    let mut session = session();
    let mut options = limited(100);
    options.stop = vec![format!("{whole}\u{0}")];
    let mut generation = Generation::new(&model, options).expect("begun");
    let mut calls = 0;
    let mut hook = |logits: &mut [f32]| {
        calls += 1;
        if calls == 4 {
            logits.fill(f32::NAN);
        }
    };
    let mut said = String::new();
    let error = loop {
        match generation.next_with(&mut session, Some(&mut hook)) {
            Some(Ok(piece)) => said.push_str(&piece.text),
            Some(Err(error)) => break error,
            None => panic!("it ended without its error"),
        }
    };
    assert_eq!(said, whole);
    assert!(error.to_string().contains("logits"), "{error}");
    assert!(generation.next(&mut session).is_none() && generation.finish().is_none());
}
