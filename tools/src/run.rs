//! `waterline run`: a prompt in, its completion out.

use std::io::{IsTerminal, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Instant;

use serde_json::json;
use waterline::Turns;
use waterline::{Finish, Model, Session};

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::samples;
use crate::sampling::SamplingArgs;
use crate::session::{DraftArgs, LimitArgs, SessionArgs, feed};
use crate::text::{NO_TEMPLATE, json_line, shown, utf8};
use crate::wrong_model::{is_like_a_model, quoted};

/// Complete a prompt and end.
///
/// The completion goes to standard output as it is generated. If the context becomes full, what was generated stays
/// there and the status is 1.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory; without one the built-in model, and the first word is TEXT.
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// The prompt; - reads it from standard input.
    #[arg(value_name = "TEXT", conflicts_with = "source")]
    text: Option<String>,
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
    /// Complete the prompt so many times, all at once, each with a seed of its own, counted up from --seed.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "json_stream", value_parser = clap::value_parser!(u32).range(1..=1024))]
    samples: u32,
    /// Print a JSON object for each piece of text, then the one of --json.
    #[arg(long, conflicts_with = "json")]
    json_stream: bool,
    #[command(flatten)]
    sampling: SamplingArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (model, prompt) = read_prompt(args)?;
    let session = args.session.with_drafts(args.drafts);
    let model = args.open.for_sessions(&session).model(model)?;
    let (tokens, end) = encode(&model, &prompt, args)?;
    let mut session = session.open(&model, args.sampling.params(), 0)?;
    let interrupt = Interrupt::cancelling(session.canceller())?;

    let start = Instant::now();
    feed(&mut session, &tokens)?;
    let prefill = start.elapsed().as_secs_f64();
    if args.samples > 1 {
        let options = args.limits.options(end);
        let samples = samples::complete(session, args.samples as usize, &options, &interrupt)?;
        return samples.print(args.json);
    }
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
        _ => Ok(ExitCode::SUCCESS),
    }
}

/// Which model, and the prompt's text.
fn read_prompt(args: &Args) -> Result<(Option<&Path>, String)> {
    const STDIN: &str = "-";
    let from_stdin = || {
        let mut bytes = Vec::new();
        std::io::stdin()
            .read_to_end(&mut bytes)
            .map_err(|e| Error::io("standard input", e))?;
        utf8(bytes, "standard input")
    };
    let from_text = |text: &str| match text {
        STDIN => from_stdin(),
        _ => Ok(text.to_string()),
    };
    let model = args.first.as_deref();
    if let Some(text) = &args.prompt {
        return Ok((model, text.clone()));
    }
    if let Some(path) = &args.file {
        let text = match path.as_os_str() == STDIN {
            true => from_stdin()?,
            false => utf8(std::fs::read(path).map_err(|e| Error::io(path, e))?, path)?,
        };
        return Ok((model, text));
    }
    match (model, &args.text) {
        (Some(word), Some(text)) if !is_like_a_model(word) && Path::new(text).exists() => {
            let [word, text] = [&*word.to_string_lossy(), text.as_str()].map(quoted);
            Err(Error::usage(format!(
                "the model stands before the text: waterline run {text} {word}"
            )))
        }
        (model, Some(text)) => Ok((model, from_text(text)?)),
        (Some(word), None) if !is_like_a_model(word) => {
            Ok((None, from_text(&word.to_string_lossy())?))
        }
        (Some(path), None) => {
            // A path that is no model is the first thing to say.
            args.open.checkpoint(Some(path))?;
            let path = quoted(&path.display().to_string());
            Err(Error::usage(format!(
                "no prompt: waterline run {path} \"Once upon a time\", or -f FILE, or - for standard input; \
                 to talk: waterline chat {path}"
            )))
        }
        (None, None) => Err(Error::usage(
            "no prompt: waterline run \"Once upon a time\", or -f FILE, or - for standard input; \
             to talk: waterline chat",
        )),
    }
}

/// The prompt's tokens, and the token that ends an answer besides the model's own.
fn encode(model: &Arc<Model>, prompt: &str, args: &Args) -> Result<(Vec<u32>, Option<u32>)> {
    let tokenizer = model.tokenizer()?;
    if args.chat {
        if !model.has_chat_template() {
            eprintln!("{NO_TEMPLATE}");
        }
        let mut turns = Turns::new(Arc::new(model.chat_template_or_chatml()?), tokenizer)?;
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
        self.seconds = start.elapsed().as_secs_f64();
        Ok(())
    }

    fn finish_name(&self) -> &'static str {
        finish_name(self.error.as_ref(), self.finish)
    }
}

/// Why a completion ended, in a word.
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
