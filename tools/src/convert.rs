//! `waterline convert`: converts a Hugging Face directory to one GGUF file.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::format_choice::FormatArgs;
use crate::retain::RetainArgs;
use crate::write_model::{check_output, choose, sources, write_model};
use crate::wrong_model::quoted;

/// Convert a Hugging Face directory to one GGUF file.
///
/// DIR holds config.json, the weights as safetensors, and, if the model has them, tokenizer.json and the chat template.
#[derive(clap::Args)]
pub struct Args {
    /// The directory.
    dir: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
    /// The file to write; it appears only when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    formats: FormatArgs,
    #[command(flatten)]
    retain: RetainArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    if !args.dir.is_dir() {
        let reason = format!(
            "is not a directory; for a GGUF file: waterline quantize {} -o {} --type T",
            quoted(&args.dir.display().to_string()),
            quoted(&args.output.display().to_string())
        );
        return Err(Error::input(&args.dir, reason));
    }
    check_output(&args.output, Some(&args.dir))?;
    let mut checkpoint = args.open.checkpoint(Some(&args.dir))?;
    let file = args.dir.display().to_string();
    args.retain.apply(&mut checkpoint.spec, &file)?;
    let sources = sources(&checkpoint);
    let chosen = choose(&checkpoint, &sources, &args.formats)?;
    write_model(&args.output, &checkpoint.metadata(), &sources, &chosen)?;
    Ok(ExitCode::SUCCESS)
}
