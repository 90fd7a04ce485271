//! Prompts as tokens, made from messages with the model's template or from plain text.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};
use waterline::{
    ChatTemplate, Message, Model, Result, Role, Run, Runs, TemplateOptions, TokenIds, Tokenizer,
    Turns,
};

/// A prompt, with the template's information for its answer.
pub struct Prompt {
    pub tokens: Arc<TokenIds>,
    pub borders: Vec<usize>,
    /// The number of tokens before the given text: the BOS token, if there is one.
    pub hidden: usize,
    pub template: Option<Templated>,
}

/// Information from the template that made a prompt.
#[derive(Clone)]
pub struct Templated {
    pub turns: Arc<Turns>,
    /// The text after the last control token.
    pub tail: Run,
    /// Whether the answer begins inside a thought.
    pub opens_thought: bool,
}

/// An answer and the tokens that the model generated for it.
pub struct Generated {
    pub turns: Arc<Turns>,
    pub tail: Run,
    pub text: String,
    pub tokens: Vec<u32>,
}

/// Known texts with their tokens; an answer has the tokens that the model generated.
#[derive(Default)]
pub struct Known {
    runs: Runs,
}

impl Known {
    /// Adds an answer that has ended.
    pub fn add(&self, answer: &Generated) {
        let Generated {
            turns,
            tail,
            text,
            tokens,
        } = answer;
        turns.remember(&self.runs, tail, text, tokens);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Converts requests to prompts.
pub struct Prompter {
    model: Arc<Model>,
    pub tokenizer: Arc<Tokenizer>,
    pub template: Arc<ChatTemplate>,
    known: Arc<Known>,
    /// The last used template options, already prepared, and whether their answers begin inside a thought.
    last: Mutex<Option<(Arc<Turns>, bool)>>,
}

impl Prompter {
    /// Creates the prompter. Fails if the model has no tokenizer or an unusable template.
    pub fn new(model: &Arc<Model>, known: Arc<Known>) -> Result<Self> {
        let prompter = Prompter {
            tokenizer: model.tokenizer()?,
            template: Arc::new(model.chat_template_or_chatml()?),
            model: Arc::clone(model),
            known,
            last: Mutex::default(),
        };
        prompter.turns(TemplateOptions::default())?;
        Ok(prompter)
    }

    /// The model.
    pub fn model(&self) -> &Model {
        &self.model
    }

    /// The BOS and EOS tokens and the template, in the format of vLLM's server.
    pub fn info(&self) -> Value {
        let name = |token: Option<u32>| {
            let bytes = token.map(|token| self.tokenizer.token_bytes(token));
            bytes.map(|bytes| String::from_utf8_lossy(bytes).into_owned())
        };
        json!({
            "bos_token": name(self.model.bos()),
            "eos_token": name(self.model.ends().next()),
            "chat_template": self.template.source(),
        })
    }

    /// Returns the tokens of a conversation, up to the beginning of its answer.
    pub fn chat(&self, messages: &[Message], options: TemplateOptions) -> Result<Prompt> {
        let (turns, opens_thought) = self.turns(options)?;
        let history = turns.history(messages, true, &self.known.runs)?;
        let goes_on = messages
            .last()
            .is_some_and(|last| last.role == Role::Assistant);
        Ok(Prompt {
            tokens: Arc::new(self.model.token_ids(history.tokens)?),
            borders: history.borders,
            hidden: 0,
            template: Some(Templated {
                turns,
                tail: history.tail,
                opens_thought: opens_thought && !goes_on,
            }),
        })
    }

    /// Returns the tokens of a text, after the BOS token.
    pub fn text(&self, text: &str) -> Result<Prompt> {
        let (bos, mut tokens) = (self.model.bos(), self.tokenizer.encode(text)?);
        tokens.splice(0..0, bos);
        Ok(Prompt {
            hidden: bos.iter().count(),
            ..self.tokens(tokens)?
        })
    }

    /// Returns the tokens of a text whose vector is computed.
    pub fn vector(&self, text: &str) -> Result<TokenIds> {
        self.model
            .token_ids(self.model.embedding_tokens(text, None)?)
    }

    /// Returns a prompt of the given tokens, which must exist.
    pub fn tokens(&self, tokens: Vec<u32>) -> Result<Prompt> {
        Ok(Prompt {
            tokens: Arc::new(self.model.token_ids(tokens)?),
            borders: Vec::new(),
            hidden: 0,
            template: None,
        })
    }

    fn turns(&self, options: TemplateOptions) -> Result<(Arc<Turns>, bool)> {
        if let Some((turns, opens)) = &*lock(&self.last)
            && *turns.options() == options
        {
            return Ok((Arc::clone(turns), *opens));
        }
        let (template, tokenizer) = (Arc::clone(&self.template), Arc::clone(&self.tokenizer));
        let turns = Turns::with_options(template, tokenizer, options, Default::default())?;
        let opens = turns.opens_thought()?;
        let made = (Arc::new(turns), opens);
        *lock(&self.last) = Some(made.clone());
        Ok(made)
    }
}
