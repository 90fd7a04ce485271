//! Constraints: restrict answers to a JSON schema, a regular expression or a grammar. Before each choice, llguidance masks the tokens
//! that cannot follow. Time and memory are bounded for compilation and for each mask.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread::Builder;
use std::time::Duration;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::grammar_limits;
use crate::text::Tokenizer;

/// Grammars that may be compiled at once by all callers of a model, and the longest time that a caller waits. A compilation cannot be stopped: one that exceeds
/// its time keeps its place until it ends.
pub(crate) const MOST_AT_ONCE: usize = 4;
pub(crate) const LONGEST: Duration = Duration::from_secs(5);
/// Keywords of a schema whose values are data.
const DATA: [&str; 4] = ["const", "default", "enum", "examples"];

/// Compiles grammars for a model's vocabulary.
pub struct Constraints {
    compiler: Arc<Compiler>,
    /// The number of compilations that run.
    running: Arc<AtomicUsize>,
}

struct Compiler {
    factory: ParserFactory,
    tokenizer: Arc<Tokenizer>,
}

impl Constraints {
    /// Creates a compiler for a model with `vocab` tokens, whose answers end with one of `ends`.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the model has no end token.
    pub(crate) fn new(
        file: &str,
        tokenizer: Arc<Tokenizer>,
        vocab: usize,
        mut ends: Vec<u32>,
    ) -> Result<Arc<Self>> {
        ends.retain(|&token| (token as usize) < vocab);
        let Some(&end) = ends.first() else {
            let reason = format!("{file} has no end token");
            return Err(Error::invalid("constraint", reason));
        };
        let word = |id: u32| {
            let bytes = tokenizer.token_bytes(id).to_vec();
            // A control token is never part of a text.
            if tokenizer.is_special(id) || ends.contains(&id) {
                [&[TokTrie::SPECIAL_TOKEN_MARKER], &bytes[..]].concat()
            } else {
                bytes
            }
        };
        let make = || -> anyhow::Result<ParserFactory> {
            let words: Vec<Vec<u8>> = (0..vocab as u32).map(word).collect();
            let trie = TokTrie::from(&TokRxInfo::new(vocab as u32, end), &words);
            let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie.with_eos_tokens(&ends)));
            let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &[])?;
            factory.quiet().limits_mut().verbose_errors = false;
            Ok(factory)
        };
        let factory = guarded(make)?;
        Ok(Arc::new(Constraints {
            compiler: Arc::new(Compiler { factory, tokenizer }),
            running: Arc::default(),
        }))
    }

    /// Compiles a grammar, on a thread with a large stack.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grammar matches nothing, is malformed, too large or takes too long; [`Error::Memory`] if the system
    /// refuses a thread, or others compile too many grammars.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        grammar_limits::check(grammar)?;
        let place = Place::take(&self.running)?;
        let (compiler, grammar) = (Arc::clone(&self.compiler), grammar.clone());
        let (sender, receiver) = sync_channel(1);
        let work = move || {
            let compiled = compiler.compile(&grammar);
            drop(place);
            let _ = sender.send(compiled);
        };
        let builder = Builder::new().name("grammar".into());
        let thread = builder.stack_size(grammar_limits::STACK).spawn(work);
        let thread = thread.map_err(|_| no_thread("use a simpler grammar"))?;
        match receiver.recv_timeout(LONGEST) {
            Ok(compiled) => {
                let _ = thread.join();
                compiled
            }
            Err(RecvTimeoutError::Timeout) => {
                let seconds = LONGEST.as_secs();
                Err(refused(&format!(
                    "compiling it takes more than {seconds} seconds"
                )))
            }
            Err(RecvTimeoutError::Disconnected) => Err(refused(FAILED)),
        }
    }
}

/// One of the compilations that run.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(running: &Arc<AtomicUsize>) -> Result<Self> {
        let place = Place(Arc::clone(running));
        if running.fetch_add(1, Relaxed) >= MOST_AT_ONCE {
            return Err(no_thread("try again when other grammars are compiled"));
        }
        Ok(place)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

fn no_thread(advice: &'static str) -> Error {
    Error::memory("a thread that compiles a grammar", advice)
}

impl Compiler {
    fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
        let parse = |grammar: &Grammar| match grammar {
            Grammar::JsonObject => {
                TopLevelGrammar::from_json_schema(Grammar::spaced(&json!({ "type": "object" })))
            }
            Grammar::JsonSchema(schema) => {
                TopLevelGrammar::from_json_schema(Grammar::spaced(schema))
            }
            Grammar::Regex(regex) => TopLevelGrammar::from_regex(regex),
            Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        };
        let parser = guarded(|| self.factory.create_parser(parse(grammar)))?;
        let mut constraint = Constraint {
            matcher: Matcher::new(Ok(parser)),
            tokens: self.factory.tok_env().clone(),
            tokenizer: Arc::clone(&self.tokenizer),
        };
        // Reports a grammar that matches nothing now rather than after the prompt is read.
        constraint.check(|matcher| matcher.compute_mask_or_eos().map(|_| ()))?;
        Ok(constraint)
    }
}

impl Constraints {
    /// Prepares a schema that describes a wish rather than a contract: [`Grammar::lenient`] without the patterns that are no regular
    /// expressions, such as those with lookahead. Returns sentences that name these patterns.
    pub fn relax(&self, schema: &Value) -> (Value, Vec<String>) {
        let (mut schema, mut notes) = (schema.clone(), Vec::new());
        let is_regular = |pattern: &str| {
            let text = json!({ "type": "string", "pattern": pattern });
            self.compile(&Grammar::JsonSchema(text)).is_ok()
        };
        let mut open = vec![&mut schema];
        while let Some(value) = open.pop() {
            match value {
                Value::Array(items) => open.extend(items),
                Value::Object(map) => {
                    if let Some(pattern) = map.get("pattern").and_then(Value::as_str)
                        && !is_regular(pattern)
                    {
                        notes.push(format!("the pattern {pattern:?} is left to the model"));
                        map.remove("pattern");
                    }
                    let is_schema = |key: &str| !DATA.contains(&key);
                    open.extend(
                        map.iter_mut()
                            .filter(|(key, _)| is_schema(key))
                            .map(|(_, v)| v),
                    );
                }
                _ => {}
            }
        }
        (Grammar::lenient(&schema), notes)
    }
}

/// The progress of an answer in its grammar. A clone advances independently.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    tokens: TokEnv,
    tokenizer: Arc<Tokenizer>,
}

impl Constraint {
    /// Sentences about keywords of a schema that the grammar leaves to the model.
    pub fn warnings(&mut self) -> Vec<String> {
        self.matcher.grammar_warnings()
    }

    /// The tokens that end the answer.
    pub(crate) fn ends(&self) -> &[u32] {
        self.tokens.tok_trie().eos_tokens()
    }

    /// Masks the tokens that cannot follow in the logits `[vocab]` of the next token.
    ///
    /// # Errors
    /// [`Error::Invalid`] if computing the mask exceeds the work limit per token.
    pub fn apply(&mut self, logits: &mut [f32]) -> Result<()> {
        let mask = self.check(Matcher::compute_mask_or_eos)?;
        for (bits, logits) in mask.as_slice().iter().zip(logits.chunks_mut(32)) {
            if *bits != u32::MAX {
                for (bit, logit) in logits.iter_mut().enumerate() {
                    if bits >> bit & 1 == 0 {
                        *logit = f32::NEG_INFINITY;
                    }
                }
            }
        }
        Ok(())
    }

    /// Advances past a token of the answer.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a token that cannot follow.
    pub fn take(&mut self, token: u32) -> Result<()> {
        if self.matcher.is_stopped() {
            return Ok(());
        }
        self.check(|matcher| matcher.consume_token(token))
    }

    /// Whether the answer so far is a complete text of the grammar.
    pub(crate) fn is_complete(&mut self) -> bool {
        self.matcher.is_stopped() || self.matcher.is_accepting().unwrap_or(false)
    }

    /// The tokens of the text that the grammar forces next. They are only drafts, because other tokens may spell the same text.
    pub(crate) fn forced(&mut self) -> Vec<u32> {
        if self.matcher.is_stopped() {
            return Vec::new();
        }
        let bytes = self.matcher.compute_ff_bytes();
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        };
        self.tokenizer.encode(text).unwrap_or_default()
    }

    /// The length of the longest prefix of `tokens` that can follow.
    pub(crate) fn allowed(&mut self, tokens: &[u32]) -> usize {
        self.matcher.validate_tokens(tokens).unwrap_or(0)
    }

    fn check<T>(&mut self, work: impl FnOnce(&mut Matcher) -> anyhow::Result<T>) -> Result<T> {
        work(&mut self.matcher).map_err(|error| refused(&error.to_string()))
    }
}

fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(refused(&error.to_string())),
        Err(_) => Err(refused(FAILED)),
    }
}

/// The error for a panic inside llguidance, whose text is not for users.
const FAILED: &str = "internal error: the grammar library failed";

fn refused(reason: &str) -> Error {
    let reason = if reason.contains("panic") {
        FAILED
    } else {
        reason
    };
    let reason: String = reason.chars().take(1_000).collect();
    Error::invalid("grammar", reason)
}
