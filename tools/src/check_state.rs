//! `waterline check`: compares a state file with the text that it claims to have read.

use std::path::PathBuf;
use std::process::ExitCode;

use waterline::StateFile;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::Interrupt;
use crate::progress::{Unit, bar};
use crate::read::tokens_of;
use crate::session::SessionArgs;
use crate::splitmix::SplitMix64;

/// Check that a state file is the state of a text.
///
/// All hashes and all tokens are compared. Then random segments are read again, each from the checkpoint before it, and every bit of the
/// checkpoint after it is compared. The exit status is 1 if anything differs; the message names the segment.
#[derive(clap::Args)]
pub struct Args {
    /// The state file.
    #[arg(value_name = "STATE")]
    state: PathBuf,
    /// Files with its text; - reads it from standard input.
    #[arg(required = true, value_name = "TEXT")]
    files: Vec<PathBuf>,
    /// A GGUF file or a Hugging Face directory; the built-in model by default.
    #[arg(short, long, value_name = "MODEL")]
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// The number of segments to read again; 0 reads all.
    #[arg(long, value_name = "N", default_value_t = 8)]
    segments: usize,
    /// Seed of the choice of segments; random by default.
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let file = StateFile::open(&args.state)?;
    file.verify()?;
    let open = args.open.for_sessions(&args.session);
    let model = open.model(args.model.as_deref())?;
    let session = args.session.like(file.description());
    let session = session.with_context(file.tokens().len());
    let mut session = session.open(&model, model.sampler(), 0)?;
    session.check_state_file(&file)?;
    compare_tokens(&file, &tokens_of(&model, &args.files)?)?;
    let device = session.device_class();
    if file.description().device != device {
        let theirs = &file.description().device;
        eprintln!(
            "note: it was read on {theirs} and is checked on {device}, whose bits may differ"
        );
    }
    let _interrupt = Interrupt::cancelling(session.canceller())?;
    let all = file.records().len();
    let count = match args.segments {
        0 => all,
        count => count.min(all),
    };
    let mut random = SplitMix64(args.seed.unwrap_or(model.sampler().seed));
    let mut chosen = random.distinct((0..all).collect(), count);
    chosen.sort_unstable();
    let bar = bar(count, Unit::Of("segments"));
    for index in chosen {
        session.check_segment(&file, index)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    let tokens = file.tokens().len();
    println!("{count} of {all} segments of {tokens} tokens were read again: no bit differs");
    Ok(ExitCode::SUCCESS)
}

/// Fails at the first segment whose tokens are not those of the text.
fn compare_tokens(file: &StateFile, text: &[u32]) -> Result<()> {
    let pairs = file.tokens().iter().zip(text);
    let equal = pairs.take_while(|(one, other)| one == other).count();
    let differs = |reason: String| {
        Err(Error::Library(waterline::Error::Snapshot {
            file: file.path().display().to_string(),
            reason,
        }))
    };
    if equal < file.tokens().len() {
        let is_before = |position: u64| position as usize <= equal;
        let index = file.records().filter(|it| is_before(it.position)).count();
        return differs(format!(
            "segment {index}: the text differs from its token {equal} on"
        ));
    }
    if equal < text.len() {
        return differs(format!(
            "the text has {} tokens more than the file",
            text.len() - equal
        ));
    }
    Ok(())
}
