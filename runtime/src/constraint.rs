//! Constraints: restrict answers to a JSON schema, a regular expression or a grammar. Before each choice, llguidance masks the tokens
//! that cannot follow. Time and memory are bounded for compilation and for each mask.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use llguidance::api::TopLevelGrammar;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use serde_json::{Value, json};

use crate::error::{Error, Result};
use crate::grammar::Grammar;
use crate::text::Tokenizer;

/// Deepest nesting of a schema or of a grammar's brackets; parsers recurse once per level.
const MOST_DEPTH: usize = 100;
/// Largest size of a grammar in bytes.
const MOST_BYTES: usize = 1 << 20;
/// The text that ends a thought.
const THOUGHT_END: &[u8] = b"</think>";
/// Compiles grammars for a model's vocabulary.
pub struct Constraints {
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
        Ok(Arc::new(Constraints { factory, tokenizer }))
    }

    /// Compiles a grammar.
    ///
    /// # Errors
    /// [`Error::Invalid`] if the grammar matches nothing, is malformed or is too large.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint> {
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
        let depth = match grammar {
            Grammar::JsonObject => 1,
            Grammar::JsonSchema(schema) => depth_of_json(schema),
            Grammar::Regex(text) | Grammar::Lark(text) => depth_of_text(text),
        };
        if depth > MOST_DEPTH {
            let reason = format!("found {depth} levels of brackets, expected at most {MOST_DEPTH}");
            return Err(Error::invalid("grammar", reason));
        }
        let bytes = match grammar {
            Grammar::JsonObject => 0,
            Grammar::JsonSchema(schema) => schema.to_string().len(),
            Grammar::Regex(text) | Grammar::Lark(text) => text.len(),
        };
        if bytes > MOST_BYTES {
            let reason = format!("found {bytes} bytes, expected at most {MOST_BYTES}");
            return Err(Error::invalid("grammar", reason));
        }
        let parser = guarded(|| self.factory.create_parser(parse(grammar)))?;
        let mut constraint = Constraint {
            matcher: Matcher::new(Ok(parser)),
            thought: None,
            tokens: self.factory.tok_env().clone(),
            tokenizer: Arc::clone(&self.tokenizer),
        };
        // Reports a grammar that matches nothing now rather than after the prompt is read.
        constraint.check(|matcher| matcher.compute_mask_or_eos().map(|_| ()))?;
        Ok(constraint)
    }
}

/// Nesting depth of objects and arrays, computed without recursion.
fn depth_of_json(value: &Value) -> usize {
    let (mut deepest, mut open) = (0, vec![(value, 1)]);
    while let Some((value, depth)) = open.pop() {
        deepest = deepest.max(depth);
        match value {
            Value::Array(items) => open.extend(items.iter().map(|item| (item, depth + 1))),
            Value::Object(map) => open.extend(map.values().map(|item| (item, depth + 1))),
            _ => {}
        }
    }
    deepest
}

/// Nesting depth of brackets in a text, including those inside quotes.
fn depth_of_text(text: &str) -> usize {
    let (mut deepest, mut depth) = (0usize, 0usize);
    for byte in text.bytes() {
        match byte {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}

/// The progress of an answer in its grammar. A clone advances independently.
#[derive(Clone)]
pub struct Constraint {
    matcher: Matcher,
    /// The end of the thought's text so far; `None` outside a thought.
    thought: Option<Vec<u8>>,
    tokens: TokEnv,
    tokenizer: Arc<Tokenizer>,
}

impl Constraint {
    /// Suspends the constraint until the end of the thought with which the answer begins.
    pub fn after_thought(mut self) -> Self {
        self.thought = Some(Vec::new());
        self
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
        if self.thought.is_some() {
            return Ok(());
        }
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
        if let Some(thought) = &mut self.thought {
            thought.extend_from_slice(self.tokens.tok_trie().token(token));
            if thought.ends_with(THOUGHT_END) {
                self.thought = None;
            } else if thought.len() > 2 * THOUGHT_END.len() {
                thought.drain(..thought.len() - THOUGHT_END.len());
            }
            return Ok(());
        }
        if self.matcher.is_stopped() {
            return Ok(());
        }
        self.check(|matcher| matcher.consume_token(token))
    }

    /// The tokens of the text that the grammar forces next. They are only drafts, because other tokens may spell the same text.
    pub(crate) fn forced(&mut self) -> Vec<u32> {
        if self.thought.is_some() || self.matcher.is_stopped() {
            return Vec::new();
        }
        let bytes = self.matcher.compute_ff_bytes();
        let text = match std::str::from_utf8(&bytes) {
            Ok(text) => text,
            Err(error) => str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or(""),
        };
        self.tokenizer.encode(text).unwrap_or_default()
    }

    /// The length of the longest prefix of `tokens` that can follow. In a thought all tokens can.
    pub(crate) fn allowed(&mut self, tokens: &[u32]) -> usize {
        match self.thought {
            Some(_) => tokens.len(),
            None => self.matcher.validate_tokens(tokens).unwrap_or(0),
        }
    }

    fn check<T>(&mut self, work: impl FnOnce(&mut Matcher) -> anyhow::Result<T>) -> Result<T> {
        work(&mut self.matcher).map_err(|error| refused(&error.to_string()))
    }
}

fn guarded<T>(work: impl FnOnce() -> anyhow::Result<T>) -> Result<T> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => Ok(done),
        Ok(Err(error)) => Err(refused(&error.to_string())),
        Err(_) => Err(refused("internal error: the grammar library panicked")),
    }
}

fn refused(reason: &str) -> Error {
    let reason: String = reason.chars().take(1_000).collect();
    Error::invalid("grammar", reason)
}
