//! A newcomer's first program, from README.md and the documentation of the items that it names: completing
//! with log-probabilities and a hook, and a conversation continued from existing messages.

use std::path::Path;
use std::sync::Arc;

use waterline::{
    Chat, Finish, GenerateOptions, Message, Model, Result, Role, Session, SessionOptions,
};

fn builtin() -> Result<Arc<Model>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/model");
    Model::open(folder.join("waterline-chat.gguf"))
}

fn greedy() -> SessionOptions {
    let mut options = SessionOptions::default();
    options.sampler.temperature = 0.0;
    options
}

#[test]
fn a_text_is_completed_with_log_probabilities() -> Result<()> {
    let model = builtin()?;
    let mut session = Session::new(model.clone(), greedy())?;
    session.feed(&model.tokenizer()?.encode("Once upon a time")?)?;
    let mut options = GenerateOptions::default();
    options.max_tokens = 10;
    options.logprobs = true;
    let mut text = String::new();
    let mut finish = None;
    for piece in session.generate(options)? {
        let piece = piece?;
        assert!(piece.logprob.is_some_and(|logprob| logprob < 0.0));
        text.push_str(&piece.text);
        finish = piece.finish;
    }
    assert!(!text.is_empty() && finish == Some(Finish::Length));
    Ok(())
}

#[test]
fn a_hook_forbids_words() -> Result<()> {
    let model = builtin()?;
    let tokenizer = model.tokenizer()?;
    let forbidden = tokenizer.encode(" was")?;
    let mut session = Session::new(model.clone(), greedy())?;
    session.feed(&tokenizer.encode("Once upon a time there")?)?;
    let mut hook = |logits: &mut [f32]| logits[forbidden[0] as usize] = f32::NEG_INFINITY;
    let pieces = session.generate(Default::default())?.on_logits(&mut hook);
    for piece in pieces.take(20) {
        assert_ne!(piece?.token, Some(forbidden[0]));
    }
    Ok(())
}

#[test]
fn a_conversation_goes_on_from_messages_said_elsewhere() -> Result<()> {
    let model = builtin()?;
    let plan = Session::plan(&model, &greedy())?;
    let mut session = Session::new(model.clone(), greedy())?;
    assert_eq!(session.state_bytes(), plan.state_bytes);
    let mut chat = Chat::new(&session)?;
    let said = vec![
        Message::new(Role::User, "My name is Anna."),
        Message::new(Role::Assistant, "Nice to meet you, Anna!"),
    ];
    chat.set_messages(&mut session, said, |_, _| ())?;
    chat.send(&mut session, "What is my name?", |_, _| ())?;
    let mut options = GenerateOptions::default();
    options.stop_tokens.extend(chat.end_token());
    let mut answer = String::new();
    for piece in session.generate(options)? {
        answer += &piece?.text;
    }
    chat.answered(&mut session, &answer)?;
    assert!(answer.contains("Anna"), "{answer}");
    assert_eq!(chat.messages().len(), 4);
    Ok(())
}
