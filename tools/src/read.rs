//! `waterline read`: reads texts once and writes the state after them.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use waterline::{Model, SEGMENT, StateWriter};

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::progress::{Unit, bar};
use crate::session::SessionArgs;
use crate::text::read_text;
use crate::units;
use crate::write_model::check_output;

/// Read texts once and write their state, from which chat, run and serve continue.
///
/// The texts are read one after another, as one. The file has a checkpoint every --segment tokens, so that waterline check can read any
/// segment again. Until it is complete it is called OUTPUT.partial; a run that was killed continues there.
#[derive(clap::Args)]
pub struct Args {
    /// Files with the text; - reads it from standard input.
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// The state file to write.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// A GGUF file or a Hugging Face directory; the built-in model by default.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Tokens between two checkpoints.
    #[arg(long, value_name = "N", default_value_t = SEGMENT as u32, value_parser = clap::value_parser!(u32).range(1..))]
    segment: u32,
    #[command(flatten)]
    session: SessionArgs,
}

/// The tokens of texts read one after another, after the model's BOS token if it has one.
pub fn tokens_of(model: &Arc<Model>, files: &[PathBuf]) -> Result<Vec<u32>> {
    let mut text = String::new();
    for file in files {
        text += &read_text(file)?;
    }
    let tokens = model.tokenizer()?.encode(&text)?;
    let tokens: Vec<u32> = model.bos().into_iter().chain(tokens).collect();
    if tokens.is_empty() {
        return Err(Error::usage("the text is empty"));
    }
    Ok(tokens)
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    for input in args.files.iter().chain(&args.model) {
        check_output(&args.output, Some(input))?;
    }
    let model = args
        .open
        .for_sessions(&args.session)
        .model(args.model.as_deref())?;
    let tokens = tokens_of(&model, &args.files)?;
    let session = args.session.with_context(tokens.len());
    let mut sampler = model.sampler();
    // The file depends on nothing but the text and the session.
    sampler.seed = 0;
    let mut session = session.open(&model, sampler, 0)?;
    let _interrupt = Interrupt::cancelling(session.canceller())?;
    let description = session.describe()?;
    let (mut writer, found) = StateWriter::begin(&args.output, &description).map_err(output)?;
    if let Some(found) = found {
        if !tokens.starts_with(found.tokens()) {
            let partial = found.path().display();
            return Err(Error::usage(format!(
                "{partial}: it holds another text; remove it to begin again"
            )));
        }
        session.open_state(&found, found.records().len() - 1)?;
        let read = units::thousands(session.position());
        eprintln!("note: {read} tokens were read by an earlier run");
    }
    let bar = bar(tokens.len(), Unit::Of("tokens"));
    let segment = args.segment as usize;
    let read = session.read_into(&mut writer, &tokens, segment, |read| {
        bar.set_position(read as u64)
    });
    read.map_err(output)?;
    bar.finish_and_clear();
    writer.finish().map_err(output)?;
    Ok(ExitCode::SUCCESS)
}

/// An error of the writer: the system's errors are about the output.
fn output(error: waterline::Error) -> Error {
    match error {
        waterline::Error::Io { path, source, .. } => Error::Output(waterline_quant::Error::Io {
            path,
            action: "write",
            source,
        }),
        other => other.into(),
    }
}
