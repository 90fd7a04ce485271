//! `waterline quantize`: a GGUF file in other number formats.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::format_choice::FormatArgs;
use crate::write_model::{check_output, sources, write_model};

/// Write a GGUF file in another number format.
///
/// Tensors that already have their format are copied bit by bit. To go from one quantized format to another loses more
/// than to start from f16.
#[derive(clap::Args)]
pub struct Args {
    /// The file to read.
    input: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
    /// The file to write; it appears when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    formats: FormatArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if args.input.is_dir() {
        return Err(Error::input(
            &args.input,
            "is a directory; convert reads Hugging Face directories",
        ));
    }
    check_output(&args.output, Some(&args.input))?;
    let checkpoint = args.open.checkpoint(Some(&args.input))?;
    write_model(
        &args.output,
        &checkpoint.metadata(),
        &sources(&checkpoint),
        &args.formats,
    )?;
    Ok(ExitCode::SUCCESS)
}
