//! `waterline run`: answers or continues a prompt.

use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use serde_json::json;
use waterline::{Constraint, Finish, Generate, Model, Receipt, StateFile};

use crate::builtin::{OpenArgs, is_builtin};
use crate::error::{Error, Result};
use crate::grammar::GrammarArgs;
use crate::interrupt::Interrupt;
use crate::prompt::{EncodingArgs, PromptArgs, rendered};
use crate::samples;
use crate::sampling::SamplingArgs;
use crate::session::{DraftArgs, LimitArgs, SessionArgs, beyond_training, feed, overflows_cache};
use crate::text::{json_line, shown, write};
use crate::write_model::check_output;

/// Printed when the prompt is read a second time.
const OVERFLOW: &str = "note: keys or values of this prompt are beyond 65504, the most that a cache of f16 holds; it is read \
                        again with --kv f32";

/// Tokens of context for the answer after a state.
pub const ROOM: usize = 4096;

/// Printed when JSON is written for a model with a template and no flag says how the prompt is read.
const CONTINUES: &str = "note: with --json the prompt is continued as it is; --chat applies the model's template, --raw is silent";

/// Answer a prompt and exit.
///
/// The prompt is a user's message in the model's chat template. It is continued as it is with --raw, if the model has no
/// template, for the built-in model, which writes stories, and with --json and --json-stream unless --chat is given. The answer is
/// written to standard output as it is generated. If the context becomes full, or the token limit cuts an answer that a schema or a
/// grammar restricts, the text generated so far remains and the exit status is 1.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    prompt: PromptArgs,
    #[command(flatten)]
    open: OpenArgs,
    /// Continue the text of the prompt instead of answering it.
    #[arg(long, conflicts_with_all = ["chat", "system"])]
    raw: bool,
    /// Print the prompt as the model sees it, with the names of control tokens, on standard error.
    #[arg(long)]
    show_prompt: bool,
    /// Continue from a state file that waterline read wrote, instead of an empty state.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    /// Write a receipt of the answer, from which waterline replay generates it again.
    #[arg(long, value_name = "FILE")]
    receipt: Option<PathBuf>,
    /// Print one JSON object at the end instead of the text.
    #[arg(long)]
    json: bool,
    /// Generate N completions of the prompt at once, with seeds counting up from --seed.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "json_stream", value_parser = clap::value_parser!(u32).range(1..=1024))]
    samples: u32,
    /// Print a JSON object for each piece of text, then the object that --json prints.
    #[arg(long, conflicts_with = "json")]
    json_stream: bool,
    #[command(flatten)]
    limits: LimitArgs,
    #[command(flatten)]
    encoding: EncodingArgs,
    #[command(flatten)]
    form: GrammarArgs,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

impl Args {
    /// Whether the prompt is a message. A program that reads JSON chooses itself: its prompts may hold a template's text already.
    fn is_message(&self, model: &Model) -> bool {
        let continues = self.raw || self.encoding.is_text();
        if continues || self.encoding.is_message() {
            return !continues;
        }
        let has_template = model.has_chat_template() && !is_builtin(model);
        let is_read_by_program = self.json || self.json_stream;
        if has_template && is_read_by_program {
            eprintln!("{CONTINUES}");
        }
        has_template && !is_read_by_program
    }
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (model, prompt) = args.prompt.read("run", &args.open)?;
    let session = args.session.with_drafts(args.drafts);
    let model = args.open.for_sessions(&session).model(model)?;
    let is_message = args.is_message(&model);
    let prompt = args.encoding.encode(&model, &prompt, is_message)?;
    let tokens = &prompt.tokens;
    if args.show_prompt {
        eprintln!("{}", shown(&rendered(&*model.tokenizer()?, tokens)));
    }
    let (grammar, constraint) = args.form.compile(&model)?.unzip();
    if let Some(path) = &args.receipt {
        check_output(path, None)?;
        if args.samples > 1 {
            return Err(Error::usage(
                "--receipt: expected one answer, without --samples",
            ));
        }
    }
    if constraint.is_some() && args.samples > 1 {
        return Err(Error::usage(
            "--samples: cannot be combined with --schema, --grammar or --json-object",
        ));
    }
    let state = args.state.as_deref().map(StateFile::open).transpose()?;
    let before = state.as_ref().map_or(0, |state| state.tokens().len());
    let tokens = tokens_after(state.as_ref(), &model, tokens);
    let warned = warn_beyond_training(&model, (before + tokens.len()) as u64);
    let options = match before {
        0 => session,
        before => session.with_context(before + tokens.len() + ROOM),
    };
    let mut session = options.open(&model, args.sampling.params(&model), 0)?;
    let interrupt = Interrupt::cancelling(session.canceller())?;

    let start = Instant::now();
    if let Some(state) = &state {
        session.open_state(state, state.records().len() - 1)?;
    }
    feed(&mut session, tokens)?;
    if state.is_none() && overflows_cache(&session)? {
        eprintln!("{OVERFLOW}");
        drop(session);
        session = options
            .with_f32_cache()
            .open(&model, args.sampling.params(&model), 0)?;
        interrupt.follow(session.canceller())?;
        feed(&mut session, tokens)?;
    }
    let prefill = start.elapsed().as_secs_f64();
    if args.samples > 1 {
        let options = args.limits.options(prompt.end, prompt.thought);
        let samples = samples::complete(session, args.samples as usize, &options, &interrupt)?;
        return samples.print(args.json);
    }
    let mut completion = Completion {
        text: String::new(),
        tokens: 0,
        finish: None,
        seconds: 0.0,
        error: None,
        is_cut: false,
        receipt: None,
    };
    let limits = args.limits.options(prompt.end, prompt.thought);
    if args.receipt.is_some() {
        let (settings, sampler) = (session.receipt_session(), session.sampler().clone());
        let mut receipt = Receipt::new(&model, settings, tokens.to_vec(), sampler)?;
        if let Some(state) = &state {
            receipt.set_state(state);
        }
        (receipt.options, receipt.grammar) = (limits.clone(), grammar);
        completion.receipt = Some(receipt);
    }
    completion.generate(session.generate(limits)?, constraint, args)?;
    if let Some((path, receipt)) = args.receipt.as_ref().zip(completion.receipt.as_mut()) {
        receipt.seal();
        write(path, &json_line(receipt))?;
    }
    if !warned {
        warn_beyond_training(&model, session.position());
    }

    if completion.is_cut {
        eprintln!("{}", cut(completion.tokens));
    }
    let mut out = std::io::stdout();
    if args.json || args.json_stream {
        let per_second = |n: usize, seconds: f64| {
            if seconds > 0.0 {
                n as f64 / seconds
            } else {
                0.0
            }
        };
        let mut summary = json!({
            "text": completion.text,
            "tokens": completion.tokens,
            "prompt_tokens": tokens.len(),
            "finish": completion.finish_name(),
            "error": completion.error.as_ref().map(Error::to_string),
            "prefill_tokens_per_s": per_second(tokens.len(), prefill),
            "decode_tokens_per_s": per_second(completion.tokens, completion.seconds),
            "ms_per_token": 1e3 * completion.seconds / completion.tokens.max(1) as f64,
            "position": session.position(),
            "state_bytes": session.state_bytes(),
            "seed": session.sampler().seed,
        });
        if let (drafted @ 1.., accepted) = session.drafts() {
            summary["drafts"] = json!({ "drafted": drafted, "accepted": accepted });
        }
        out.write_all(json_line(&summary).as_bytes())
            .map_err(Error::Stdout)?;
    } else {
        writeln!(out).map_err(Error::Stdout)?;
    }
    match (completion.error, completion.finish) {
        (Some(error), _) => Err(error),
        (None, Some(Finish::Cancelled)) => Err(Error::Interrupted),
        _ => Ok(ExitCode::from(u8::from(completion.is_cut))),
    }
}

/// The tokens of a prompt after a state: without the BOS token, if the state begins with it.
pub fn tokens_after<'a>(state: Option<&StateFile>, model: &Model, tokens: &'a [u32]) -> &'a [u32] {
    match (state, tokens) {
        (Some(state), [first, rest @ ..])
            if model.bos() == Some(*first) && state.tokens().first() == Some(first) =>
        {
            rest
        }
        _ => tokens,
    }
}

/// A note that an answer is not what its grammar requires.
fn cut(tokens: usize) -> String {
    format!(
        "note: the answer ends after {tokens} tokens, before its schema or grammar is satisfied; -n N allows more tokens"
    )
}

/// Warns if `tokens` exceeds the number of tokens that the model was trained on. Returns whether it does.
fn warn_beyond_training(model: &Model, tokens: u64) -> bool {
    let warning = beyond_training(model, tokens);
    if let Some(warning) = &warning {
        eprintln!("{warning}");
    }
    warning.is_some()
}

/// The completion of a prompt.
struct Completion {
    text: String,
    tokens: usize,
    finish: Option<Finish>,
    seconds: f64,
    error: Option<Error>,
    /// Whether the answer ends before its grammar does.
    is_cut: bool,
    /// The receipt, if one is written.
    receipt: Option<Receipt>,
}

impl Completion {
    /// Generates the completion and prints the text as it is generated, unless everything is printed at the end.
    fn generate(
        &mut self,
        mut pieces: Generate<'_>,
        constraint: Option<Constraint>,
        args: &Args,
    ) -> Result<()> {
        let mut out = std::io::stdout();
        let terminal = out.is_terminal();
        let start = Instant::now();
        if let Some(constraint) = constraint {
            pieces = pieces.constrained(constraint);
        }
        for piece in pieces.by_ref() {
            if let (Some(receipt), Ok(piece)) = (&mut self.receipt, &piece) {
                receipt.add(piece);
            }
            let piece = match piece {
                Ok(piece) if piece.text.is_empty() => continue,
                Ok(piece) => piece.text,
                Err(error) => {
                    self.error = Some(error.into());
                    break;
                }
            };
            let out_text = match (args.json, args.json_stream) {
                (true, _) => String::new(),
                (_, true) => json_line(&json!({ "text": piece })),
                _ if terminal => shown(&piece),
                _ => piece.clone(),
            };
            out.write_all(out_text.as_bytes())
                .and_then(|()| out.flush())
                .map_err(Error::Stdout)?;
            self.text.push_str(&piece);
        }
        (self.tokens, self.finish) = (pieces.tokens(), pieces.finish());
        let is_limited = matches!(self.finish, Some(Finish::Length | Finish::Stop));
        self.is_cut = is_limited && !pieces.is_complete();
        self.seconds = start.elapsed().as_secs_f64();
        Ok(())
    }

    fn finish_name(&self) -> &'static str {
        finish_name(self.error.as_ref(), self.finish)
    }
}

/// One word for why a completion ended.
pub fn finish_name(error: Option<&Error>, finish: Option<Finish>) -> &'static str {
    match (error, finish) {
        (_, Some(Finish::End)) => "end",
        (_, Some(Finish::Stop)) => "stop",
        (_, Some(Finish::Length)) => "length",
        (Some(Error::Library(waterline::Error::ContextFull { .. })), _) => "context",
        (None, Some(Finish::Cancelled)) | (Some(Error::Interrupted), _) => "cancelled",
        (Some(_), _) | (None, None) => "error",
    }
}
