//! `waterline completions`: completion scripts for shells.

use std::io::Write;
use std::process::ExitCode;

use clap::Command;
use clap_complete::Shell;

use crate::error::{Error, Result};

/// Print a script with which a shell completes commands and flags.
#[derive(clap::Args)]
pub struct Args {
    /// The shell.
    shell: Shell,
}

/// Runs the command for the program whose command line is `program`.
pub fn run(args: &Args, mut program: Command) -> Result<ExitCode> {
    let name = program.get_name().to_string();
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut program, name, &mut script);
    let mut out = std::io::stdout().lock();
    out.write_all(&script).map_err(Error::Stdout)?;
    Ok(ExitCode::SUCCESS)
}
