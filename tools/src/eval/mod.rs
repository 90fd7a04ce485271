//! `waterline eval`: prediction quality and recall of a model.

mod documents;
mod likelihood;
mod ratio;
mod recall;

use std::process::ExitCode;

use crate::error::Result;

/// Measure how well a model predicts.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    task: Measure,
}

#[derive(clap::Subcommand)]
enum Measure {
    /// Bits per byte of a text.
    Bpb(likelihood::Args),
    /// Perplexity per token of a text.
    Ppl(likelihood::Args),
    /// Recall of facts at a distance.
    Recall(recall::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.task {
        Measure::Bpb(args) => likelihood::run(args, likelihood::Headline::BitsPerByte),
        Measure::Ppl(args) => likelihood::run(args, likelihood::Headline::Perplexity),
        Measure::Recall(args) => recall::run(args),
    }
}
