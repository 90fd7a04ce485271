//! `waterline replay`: generates the answer of a receipt again.

use std::path::PathBuf;
use std::process::ExitCode;

use waterline::{Difference, Model, Receipt, StateFile};

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::progress::{Unit, bar};
use crate::session::{DraftArgs, SessionArgs};
use crate::text::{read_text, shown};

/// Generate the answer of a receipt again and compare it.
///
/// The receipt is a file that waterline run --receipt wrote, or the field receipt of a server's answer. Its session options apply: the
/// context, the caches, and without --exact the threads and the chunks too. The exit status is 1 if a token differs; the message says which.
#[derive(clap::Args)]
pub struct Args {
    /// The receipt; - reads it from standard input.
    #[arg(value_name = "RECEIPT")]
    receipt: PathBuf,
    /// A GGUF file or a Hugging Face directory; the built-in model by default.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    /// The state file from which the answer continued.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let text = read_text(&args.receipt)?;
    let receipt: Receipt = serde_json::from_str(&text)
        .map_err(|error| Error::input(&args.receipt, format!("no receipt: {error}")))?;
    let session = args.session.with_drafts(args.drafts);
    let model = args.open.for_sessions(&session);
    let model = model.model(args.model.as_deref())?;
    let state = args.state.as_deref().map(StateFile::open).transpose()?;
    let mut session = session.open_for(&model, &receipt)?;
    let (theirs, own) = (&receipt.session.device, session.device_class());
    if *theirs != own {
        eprintln!(
            "note: the answer is from {theirs} and is replayed on {own}, whose bits may differ"
        );
    }
    let _interrupt = Interrupt::cancelling(session.canceller())?;
    let bar = bar(
        receipt.prompt.len() + receipt.answer.len(),
        Unit::Of("tokens"),
    );
    let difference = receipt.replay(&mut session, state.as_ref(), |tokens| {
        bar.set_position(tokens as u64)
    })?;
    bar.finish_and_clear();
    let reason = match difference {
        Some(difference) => sentence(&model, &receipt, difference)?,
        None if !receipt.is_sealed() => {
            "the receipt was changed: its hash is of other contents".into()
        }
        None => {
            let count = receipt.answer.len();
            println!("{count} tokens were generated again: none differs");
            return Ok(ExitCode::SUCCESS);
        }
    };
    Err(Error::Differs {
        path: args.receipt.clone(),
        reason,
    })
}

/// The first token that differs.
fn sentence(model: &Model, receipt: &Receipt, difference: Difference) -> Result<String> {
    let tokenizer = model.tokenizer()?;
    let name = |token: Option<u32>| match token {
        None => "the end".into(),
        Some(token) => {
            let text = String::from_utf8_lossy(tokenizer.token_bytes(token)).into_owned();
            format!("{:?} ({token})", shown(&text))
        }
    };
    Ok(format!(
        "token {} of {} differs: expected {}, found {}",
        difference.index,
        receipt.answer.len(),
        name(difference.expected),
        name(difference.found)
    ))
}
