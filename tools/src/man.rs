//! `waterline man`: manual pages.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Command;

use crate::error::{Error, Result};

/// Write manual pages of the program and of each command.
#[derive(clap::Args)]
pub struct Args {
    /// The output folder, which is created if it does not exist.
    #[arg(value_name = "DIR")]
    folder: PathBuf,
}

/// Runs the command for the program whose command line is `program`.
pub fn run(args: &Args, program: Command) -> Result<ExitCode> {
    let written = std::fs::create_dir_all(&args.folder)
        .and_then(|()| clap_mangen::generate_to(program, &args.folder));
    written.map_err(|error| Error::io(&args.folder, error))?;
    Ok(ExitCode::SUCCESS)
}
