//! `waterline run`: a prompt in, its completion out.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use waterline::text::Turns;
use waterline::{Finish, Model, Session};

use crate::builtin::open_model;
use crate::error::{Error, Result};
use crate::interrupt::on_interrupt;
use crate::sampling::SamplingArgs;
use crate::session::{LimitArgs, SessionArgs, feed};
use crate::text::{printable, utf8};

/// Complete a prompt and end.
///
/// The completion goes to standard output as it is generated. If the context becomes full, what was generated stays
/// there and the status is 1.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory.
    #[arg(value_name = "MODEL")]
    model: Option<PathBuf>,
    /// Read the prompt from standard input.
    #[arg(value_name = "-", value_parser = ["-"])]
    dash: Option<String>,
    /// The prompt.
    #[arg(
        short,
        long,
        value_name = "TEXT",
        group = "source",
        allow_hyphen_values = true
    )]
    prompt: Option<String>,
    /// A file with the prompt; - is standard input.
    #[arg(short, long, value_name = "FILE", group = "source")]
    file: Option<PathBuf>,
    #[command(flatten)]
    limits: LimitArgs,
    /// Do not put the token that begins a text before the prompt.
    #[arg(long)]
    raw: bool,
    /// Make the prompt a user's message, by the model's chat template.
    #[arg(long, conflicts_with = "raw")]
    chat: bool,
    /// Print one JSON object at the end instead of the text.
    #[arg(long)]
    json: bool,
    /// Print a JSON object for each piece of text, then the one of --json.
    #[arg(long, conflicts_with = "json")]
    json_stream: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (model, prompt) = read_prompt(args)?;
    let model = open_model(model)?;
    let (tokens, end) = encode(&model, &prompt, args)?;
    let mut session = args.session.open(&model, args.sampling.params(), 0)?;
    let canceller = session.canceller();
    on_interrupt(move || canceller.cancel())?;

    let start = Instant::now();
    feed(&mut session, &tokens)?;
    let prefill = start.elapsed().as_secs_f64();
    let mut completion = Completion {
        text: String::new(),
        tokens: 0,
        finish: None,
        seconds: 0.0,
        error: None,
    };
    completion.generate(&mut session, args, end)?;

    let mut out = std::io::stdout();
    if args.json || args.json_stream {
        let per_second = |n: usize, seconds: f64| {
            if seconds > 0.0 {
                n as f64 / seconds
            } else {
                0.0
            }
        };
        let summary = json!({
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
        writeln!(out, "{summary}").map_err(Error::Stdout)?;
    } else {
        writeln!(out).map_err(Error::Stdout)?;
    }
    match (completion.error, completion.finish) {
        (Some(error), _) => Err(error),
        (None, Some(Finish::Cancelled)) => Err(Error::Interrupted),
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Which model, and the prompt's text.
fn read_prompt(args: &Args) -> Result<(Option<&Path>, String)> {
    let is_dash = |path: &Path| path.as_os_str() == "-";
    let mut model = args.model.as_deref();
    let mut stdin = args.dash.is_some() || args.file.as_deref().is_some_and(is_dash);
    if model.is_some_and(is_dash) {
        (model, stdin) = (None, true);
    }
    let text = match (&args.prompt, &args.file) {
        (Some(text), _) => text.clone(),
        (None, Some(path)) if !is_dash(path) => {
            utf8(std::fs::read(path).map_err(|e| Error::io(path, e))?, path)?
        }
        _ if stdin => {
            let mut bytes = Vec::new();
            std::io::stdin()
                .read_to_end(&mut bytes)
                .map_err(|e| Error::io("standard input", e))?;
            utf8(bytes, "standard input")?
        }
        _ => {
            return Err(Error::usage(
                "no prompt: give -p TEXT, -f FILE, or - for standard input",
            ));
        }
    };
    Ok((model, text))
}

/// The prompt's tokens, and the token that ends an answer besides the model's own.
fn encode(model: &Arc<Model>, prompt: &str, args: &Args) -> Result<(Vec<u32>, Option<u32>)> {
    let tokenizer = model.tokenizer()?;
    if args.chat {
        let mut turns = Turns::new(Arc::new(model.chat_template()?), tokenizer)?;
        return Ok((turns.user(prompt)?, turns.end_token()));
    }
    let bos = if args.raw { None } else { model.bos() };
    let tokens: Vec<u32> = bos.into_iter().chain(tokenizer.encode(prompt)?).collect();
    if tokens.is_empty() {
        return Err(Error::usage(
            "the prompt is empty, and nothing can follow nothing",
        ));
    }
    Ok((tokens, None))
}

/// What came out of a prompt.
struct Completion {
    text: String,
    tokens: usize,
    finish: Option<Finish>,
    seconds: f64,
    error: Option<Error>,
}

impl Completion {
    /// Generates; text goes out as it comes unless all is printed at the end.
    fn generate(&mut self, session: &mut Session, args: &Args, end: Option<u32>) -> Result<()> {
        let mut out = std::io::stdout();
        let terminal = out.is_terminal();
        let start = Instant::now();
        let mut pieces = session.generate(args.limits.options(end))?;
        for piece in pieces.by_ref() {
            let piece = match piece {
                Ok(piece) => piece,
                Err(error) => {
                    self.error = Some(error.into());
                    break;
                }
            };
            let shown = match (args.json, args.json_stream) {
                (true, _) => String::new(),
                (_, true) => format!("{}\n", json!({ "text": piece })),
                _ if terminal => printable(&piece),
                _ => piece.clone(),
            };
            out.write_all(shown.as_bytes())
                .and_then(|()| out.flush())
                .map_err(Error::Stdout)?;
            self.text.push_str(&piece);
        }
        (self.tokens, self.finish) = (pieces.tokens(), pieces.finish());
        self.seconds = start.elapsed().as_secs_f64();
        Ok(())
    }

    fn finish_name(&self) -> &'static str {
        match (&self.error, self.finish) {
            (Some(Error::Library(waterline::Error::ContextFull { .. })), _) => "context",
            (Some(_), _) | (None, None) => "error",
            (None, Some(Finish::End)) => "end",
            (None, Some(Finish::Stop)) => "stop",
            (None, Some(Finish::Length)) => "length",
            (None, Some(Finish::Cancelled)) => "cancelled",
        }
    }
}
