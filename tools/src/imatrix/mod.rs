//! `waterline imatrix`: measures the inputs of each matrix on a text, for `quantize --imatrix`.

mod collect;
mod file;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use waterline::internal::Checkpoint;
use waterline::{Model, OpenOptions, SamplerParams};
use waterline_quant::Bytes;
use waterline_quant::gguf::Gguf;

pub use file::Imatrix;

use crate::error::{Error, Result};
use crate::eval::Windows;
use crate::interrupt::on_first_interrupt;
use crate::progress::{self, Unit};
use crate::session::SessionArgs;
use crate::text::read_text;
use crate::write_model::check_output;
use collect::Collector;

/// Measure the inputs of each matrix on a text: an importance matrix, with which quantize loses less.
///
/// The text is read in windows, each from an empty state. The output has llama-imatrix's format, which llama-quantize also
/// reads; embedding and output are left out, as there.
#[derive(clap::Args)]
pub struct Args {
    /// A plain text, similar to what the model will write. A few hundred thousand characters are enough.
    text: PathBuf,
    /// A GGUF file, preferably in f16 or bf16.
    model: PathBuf,
    /// The file to write; it appears only when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Tokens per window.
    #[arg(long, value_name = "N", default_value = "512", value_parser = RangedU64ValueParser::<usize>::new().range(4..1 << 20))]
    ctx: usize,
    /// Read only the first N windows.
    #[arg(long, value_name = "N", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    windows: Option<usize>,
    #[command(flatten)]
    session: SessionArgs,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    check_output(&args.output, Some(&args.model))?;
    let text = read_text(&args.text)?;
    if args.model.is_dir() {
        let message = "is a directory; convert makes a GGUF file of it";
        return Err(Error::input(&args.model, message));
    }
    // A single mapping, so that the address of a product's rows identifies the tensor of the file.
    let bytes = Bytes::map_file(&args.model)?;
    let name = args.model.display().to_string();
    let gguf = Gguf::parse(bytes.clone(), &name)?;
    let checkpoint = Checkpoint::from_bytes(bytes, &name, &OpenOptions::default())?;
    let collector = Collector::new(&gguf, &checkpoint.tensors)?;
    let model = Model::bind(checkpoint)?;
    let tokenizer = model.tokenizer()?;
    let mut windows = Windows::new(&text, &tokenizer, model.bos(), args.ctx)?;
    if let Some(most) = args.windows {
        windows.tokens.truncate(most.saturating_mul(args.ctx));
    }
    let session = args.session.with_context(args.ctx);
    let mut session = session.open(&model, SamplerParams::default(), 0)?;
    session.observe_products(collector.observer())?;
    let canceller = session.canceller();
    on_first_interrupt(move || canceller.cancel())?;
    let bar = progress::bar(windows.tokens.len(), Unit::Of("tokens"));
    for window in windows.tokens.chunks(args.ctx) {
        let mut window = window.to_vec();
        window[0] = windows.begin.unwrap_or(window[0]);
        session.reset()?;
        session.feed(&window)?;
        bar.inc(args.ctx as u64);
    }
    bar.finish_and_clear();
    drop(session);
    let dataset = args.text.display().to_string();
    let report = collector.write(&args.output, &dataset, [windows.count(), args.ctx])?;
    println!("{}: {report}", args.output.display());
    Ok(ExitCode::SUCCESS)
}
