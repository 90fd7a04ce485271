//! The `waterline` command.

mod allocations;
mod bench;
mod builtin;
mod chat;
mod check;
mod check_state;
mod clocks;
mod completions;
mod convert;
mod device;
mod embed;
mod error;
mod eval;
mod examples;
mod flags;
mod format_choice;
mod gbnf;
mod grammar;
mod hyperparameters;
mod imatrix;
mod inspect;
mod inspect_state;
mod interrupt;
mod invocation;
mod kernels;
mod machine;
mod man;
mod mix;
mod page;
mod plot;
mod presets;
mod progress;
mod prompt;
mod provenance;
#[cfg(feature = "pull")]
mod pull;
mod quantize;
mod random;
mod read;
mod replay;
mod retain;
mod retention;
mod run;
mod samples;
mod sampling;
#[cfg(feature = "serve")]
mod serve;
mod session;
mod sha256;
mod splitmix;
mod synth;
mod template_args;
mod text;
mod theirs;
mod tokenize;
mod units;
mod vectors;
mod verify;
mod write_model;
mod wrong_model;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use crate::error::Error;

const EXIT_STATUS: &str = "\
Exit status:
  0    done
  1    the task failed: the context was full, an answer was cut before its schema was satisfied, a result could not be written,
       verify found a difference
  2    bad usage, or a file that cannot be read or used
  130  interrupted by Ctrl-C, or ended by SIGTERM or SIGHUP

A model is a GGUF file, a Hugging Face directory, hf:org/name, which is downloaded, or a name that waterline list shows. Without one, the
built-in model is used.";

/// Recurrent and hybrid language models in fixed memory.
///
/// Without a command, starts a chat with the given model or the built-in one.
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
    #[cfg(feature = "serve")]
    Serve(serve::Args),
    Embed(embed::Args),
    Read(read::Args),
    Check(check_state::Args),
    Replay(replay::Args),
    Inspect(inspect::Args),
    Convert(convert::Args),
    Imatrix(imatrix::Args),
    Quantize(quantize::Args),
    #[cfg(feature = "pull")]
    Pull(pull::Args),
    #[cfg(feature = "pull")]
    List(pull::list::Args),
    #[cfg(feature = "pull")]
    Rm(pull::rm::Args),
    Verify(verify::Args),
    Synth(synth::Args),
    Eval(eval::Args),
    Bench(bench::Args),
    Kernels(kernels::Args),
    Tokenize(tokenize::Args),
    Completions(completions::Args),
    Man(man::Args),
}

/// All commands and flags, with examples.
fn command_line() -> clap::Command {
    // The last of several flags wins, as in other programs.
    examples::added(Cli::command().args_override_self(true))
}

/// Parses the command line; exits if it is invalid.
fn parse() -> Cli {
    let mut known = command_line();
    // Arguments of flattened groups exist only after `build`.
    known.build();
    let arguments: Vec<OsString> = std::env::args_os().collect();
    let (arguments, notes) = invocation::complete(arguments, &known);
    let parsed = known.clone().try_get_matches_from(&arguments);
    match parsed.and_then(|matches| Cli::from_arg_matches(&matches)) {
        Ok(cli) => {
            for note in notes {
                eprintln!("note: {note}");
            }
            cli
        }
        Err(error) => {
            if let Some(sentence) = invocation::meant(&error, &arguments, &known) {
                let error = Error::usage(sentence);
                std::process::exit(error.report().into());
            }
            error.exit()
        }
    }
}

fn main() -> ExitCode {
    let result = match parse().command {
        Command::Chat(args) => chat::run(&args),
        Command::Run(args) => run::run(&args),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(&args),
        Command::Embed(args) => embed::run(&args),
        Command::Read(args) => read::run(&args),
        Command::Check(args) => check_state::run(&args),
        Command::Replay(args) => replay::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Convert(args) => convert::run(&args),
        Command::Imatrix(args) => imatrix::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        #[cfg(feature = "pull")]
        Command::Pull(args) => pull::run(&args),
        #[cfg(feature = "pull")]
        Command::List(args) => pull::list::run(&args),
        #[cfg(feature = "pull")]
        Command::Rm(args) => pull::rm::run(&args),
        Command::Verify(args) => verify::run(&args),
        Command::Synth(args) => synth::run(&args),
        Command::Eval(args) => eval::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Kernels(args) => kernels::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Completions(args) => completions::run(&args, command_line()),
        Command::Man(args) => man::run(&args, command_line()),
    };
    match result {
        Ok(status) => status,
        Err(error) if error.is_closed_pipe() => ExitCode::SUCCESS,
        Err(error) => ExitCode::from(error.report()),
    }
}
