//! `waterline eval`: prediction quality and recall of a model.

mod ablation;
mod choice;
mod documents;
mod likelihood;
mod log_sum;
mod mean;
mod output;
mod perplexity;
mod ratio;
mod recall;
mod saved_logits;
mod shared;
mod windows;

use std::process::ExitCode;

pub use windows::Windows;

use crate::error::Result;

/// Measure a model's predictions.
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
    Ppl(perplexity::Args),
    /// Multiple-choice questions.
    Choice(choice::Args),
    /// Recall of facts at a distance.
    Recall(recall::Args),
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    match &args.task {
        Measure::Bpb(args) => likelihood::run(args, likelihood::Headline::BitsPerByte),
        Measure::Ppl(args) => perplexity::run(args),
        Measure::Choice(args) => choice::run(args),
        Measure::Recall(args) => recall::run(args),
    }
}

/// The index of the largest value; the first of equal values.
fn largest(values: &[f32]) -> usize {
    let mut best = 0;
    for (i, value) in values.iter().enumerate() {
        if *value > values[best] {
            best = i;
        }
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_equal_logits_wins() {
        assert_eq!(largest(&[0.0, 2.0, -1.0, 2.0]), 1);
        assert_eq!(largest(&[f32::NEG_INFINITY, 1.0]), 1);
    }
}
