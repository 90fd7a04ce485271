//! `waterline kernels`: builds a model's kernels ahead of time for a device without NVRTC.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use waterline::Device;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::session::{DraftArgs, SessionArgs};
use crate::text::shown;

/// Build a model's GPU kernels ahead of time.
///
/// This needs NVRTC, CUDA's compiler library, but no GPU. Copy the folder to the device and set the environment variable
/// WATERLINE_KERNELS there to its path. The kernels depend on the session's options (--context, --kv, --chunk), so use the same
/// values here and on the device.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory; the built-in model by default.
    model: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Architectures, separated by commas: sm_87 is Jetson Orin, sm_110 Jetson Thor, sm_89 Ada, sm_90 Hopper, sm_100 Blackwell.
    #[arg(
        long,
        value_name = "LIST",
        value_delimiter = ',',
        default_value = "sm_87"
    )]
    arch: Vec<String>,
    /// Number of multiprocessors of the device (Orin AGX: 16, Orin Nano: 8), which determines how work is split.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    processors: u32,
    /// The folder to write the kernels to; those that it has already are not compiled again.
    #[arg(short, long)]
    output: PathBuf,
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    drafts: DraftArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let session = args.session.with_drafts(args.drafts);
    let open = args.open.for_sessions(&session);
    let model = open.model(args.model.as_deref())?;
    for architecture in &args.arch {
        let device = Device::compile_only(architecture, args.processors, Some(args.output.clone()));
        session.open_on(&model, Some(device))?;
        let (folder, processors) = (args.output.display(), args.processors);
        let line =
            format!("{folder}: kernels for {architecture} with {processors} multiprocessors");
        writeln!(std::io::stdout(), "{}", shown(&line)).map_err(Error::Stdout)?;
    }
    Ok(ExitCode::SUCCESS)
}
