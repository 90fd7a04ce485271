//! `waterline quantize`: converts a GGUF file to other number formats.

use std::path::PathBuf;
use std::process::ExitCode;

use waterline::internal::{Precision, WeightSpec};
use waterline_quant::gguf::{Array, Gguf, Value};

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::format_choice::{Choice, FormatArgs, Layout};
use crate::imatrix::Imatrix;
use crate::mix::{Facts, is_quantized};
use crate::retain::RetainArgs;
use crate::write_model::{TensorSource, Values, check_output, choose, sources, write_model};

/// Write a GGUF file in another number format.
///
/// Tensors that already have their format are copied unchanged. A llama.cpp file keeps its keys and names and still runs in
/// llama.cpp. For such a file, a name of --type means what it means to llama-quantize (q4_k is q4_k_m), and tensors that
/// llama-quantize leaves alone stay unchanged.
#[derive(clap::Args)]
pub struct Args {
    /// The file to read.
    input: PathBuf,
    #[command(flatten)]
    open: OpenArgs,
    /// The file to write; it appears only when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    /// Also quantize tensors that are already quantized, which loses more than starting from f16.
    #[arg(long)]
    requantize: bool,
    /// An importance matrix of `waterline imatrix` or llama-imatrix; weights that multiply large inputs lose the least.
    #[arg(long, value_name = "FILE")]
    imatrix: Option<PathBuf>,
    #[command(flatten)]
    formats: FormatArgs,
    #[command(flatten)]
    retain: RetainArgs,
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
    let imatrix = args.imatrix.as_deref().map(Imatrix::open).transpose()?;
    let mut checkpoint = args.open.checkpoint(Some(&args.input))?;
    let gguf = Gguf::open(&args.input)?;
    if args.retain.is_given() || gguf.get("waterline.spec").is_some() {
        let file = args.input.display().to_string();
        args.retain.apply(&mut checkpoint.spec, &file)?;
        let mut sources = sources(&checkpoint);
        if let Some(imatrix) = &imatrix {
            imatrix.apply(&mut sources)?;
        }
        let chosen = choose(&checkpoint, &sources, &args.formats)?;
        args.check(&sources, &chosen)?;
        write_model(&args.output, &checkpoint.metadata(), &sources, &chosen)?;
    } else {
        drop(checkpoint);
        args.keep_layout(&gguf, imatrix.as_ref())?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// Writes a llama.cpp file with all its keys and names.
    fn keep_layout(&self, gguf: &Gguf, imatrix: Option<&Imatrix>) -> Result<()> {
        let mut sources = Vec::with_capacity(gguf.tensors().len());
        for info in gguf.tensors() {
            let precision = if is_quantized(&info.name, &info.shape) {
                Precision::Quantized
            } else {
                Precision::Full
            };
            sources.push(TensorSource {
                weight: WeightSpec {
                    name: info.name.clone(),
                    shape: info.shape.clone(),
                    precision,
                },
                values: Values::Stored(gguf.tensor(&info.name)?),
                importance: Vec::new(),
            });
        }
        if let Some(imatrix) = imatrix {
            imatrix.apply(&mut sources)?;
        }
        let weights: Vec<&WeightSpec> = sources.iter().map(|source| &source.weight).collect();
        let chosen =
            self.formats
                .choose(&weights, facts(gguf, imatrix.is_some()), Layout::LlamaCpp)?;
        let chosen: Vec<Choice> = sources
            .iter()
            .zip(chosen)
            .map(|(source, choice)| match &source.values {
                Values::Stored(tensor) if source.weight.precision == Precision::Full => Choice {
                    wanted: tensor.format,
                    stored: tensor.format,
                },
                _ => choice,
            })
            .collect();
        self.check(&sources, &chosen)?;
        let mut metadata = self.metadata(gguf);
        metadata.extend(imatrix.map(Imatrix::metadata).unwrap_or_default());
        write_model(&self.output, &metadata, &sources, &chosen)
    }

    /// All keys but those of a split file, with the new file type.
    fn metadata(&self, gguf: &Gguf) -> Vec<(String, Value)> {
        let own = ["general.file_type", "general.quantization_version"];
        let keeps = |(key, _): &&(String, Value)| {
            !key.starts_with("split.") && !own.contains(&key.as_str())
        };
        let mut metadata: Vec<_> = gguf.metadata().iter().filter(keeps).cloned().collect();
        // ggml's second layout of quantized blocks, which all current files use.
        metadata.push((own[1].into(), Value::U32(2)));
        let file_type = self.formats.file_type();
        metadata.extend(file_type.map(|number| (own[0].into(), Value::U32(number))));
        metadata
    }

    /// Refuses to round values again that were rounded before, unless --requantize is set.
    fn check(&self, sources: &[TensorSource], chosen: &[Choice]) -> Result<()> {
        let stored = |source: &TensorSource| match &source.values {
            Values::Stored(tensor) => tensor.format,
            Values::Random(_) => unreachable!("a file has stored tensors"),
        };
        let is_rounded_twice = |(source, choice): &(&TensorSource, &Choice)| {
            let (from, to) = (stored(source), choice.stored);
            from.block_len > 1 && to.block_len > 1 && from.plain() != to.plain()
        };
        let twice = sources.iter().zip(chosen).find(is_rounded_twice);
        match twice.filter(|_| !self.requantize) {
            None => Ok(()),
            Some((source, choice)) => Err(Error::input(
                &self.input,
                format!(
                    "{} is {} already and would be rounded again to {}; start from a file in f16, or pass --requantize",
                    source.weight.name,
                    stored(source),
                    choice.stored
                ),
            )),
        }
    }
}

/// The facts on which llama-quantize's choices depend.
fn facts(gguf: &Gguf, is_weighed: bool) -> Facts {
    let architecture = gguf.get_str("general.architecture").unwrap_or_default();
    // The value of the first layer, where layers differ.
    let number = |key: &str| {
        let value = gguf.get(&format!("{architecture}.{key}"))?;
        let first = value.as_array().and_then(Array::to_i64s);
        match first {
            Some(all) => all.first().and_then(|&n| usize::try_from(n).ok()),
            None => value.as_u64().and_then(|n| usize::try_from(n).ok()),
        }
    };
    let heads = number("attention.head_count").unwrap_or(0);
    let groups = number("attention.head_count_kv").unwrap_or(heads);
    Facts {
        layers: number("block_count").unwrap_or(0),
        experts: number("expert_count").unwrap_or(0),
        group: heads.checked_div(groups).unwrap_or(0),
        is_weighed,
    }
}
