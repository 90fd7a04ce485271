//! The waterline command.

mod allocations;
mod bench;
mod builtin;
mod chat;
mod convert;
mod device;
mod error;
mod eval;
mod format_choice;
mod inspect;
mod interrupt;
mod kernels;
mod machine;
mod page;
mod plot;
mod presets;
mod progress;
mod quantize;
mod random;
mod retain;
mod run;
mod sampling;
mod session;
mod splitmix;
mod synth;
mod text;
mod units;
mod verify;
mod write_model;

use std::ffi::OsString;
use std::io::Write;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

const EXIT_STATUS: &str = "\
Exit status:
  0    done
  1    the task failed: the context was full, a result could not be written, verify found a difference
  2    bad usage, or a file that cannot be read or used
  130  interrupted by Ctrl-C

A model is a GGUF file or a Hugging Face directory. Without one, the built-in model is used.";

/// Recurrent and hybrid language models in fixed memory.
///
/// Without a command: a chat with the built-in model.
#[derive(Parser)]
#[command(name = "waterline", version, after_help = EXIT_STATUS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    Chat(chat::Args),
    Run(run::Args),
    Inspect(inspect::Args),
    Convert(convert::Args),
    Quantize(quantize::Args),
    Verify(verify::Args),
    Synth(synth::Args),
    Eval(eval::Args),
    Bench(bench::Args),
    Kernels(kernels::Args),
}

fn main() -> ExitCode {
    let mut arguments: Vec<OsString> = std::env::args_os().collect();
    if arguments.len() <= 1 {
        arguments = vec!["waterline".into(), "chat".into()];
    }
    let result = match Cli::parse_from(arguments).command {
        Command::Chat(args) => chat::run(&args),
        Command::Run(args) => run::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Kernels(args) => kernels::run(&args),
    };
    match result {
        Ok(status) => status,
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => {
            // Nobody is left to tell if standard error is closed as well.
            let _ = writeln!(std::io::stderr(), "waterline: {error}");
            error.exit_code()
        }
    }
}
