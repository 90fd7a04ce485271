//! `waterline synth`: models with random weights, for measurements and tests.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use waterline::ModelSpec;
use waterline::Tokenizer;
use waterline::internal::Tensors;
use waterline::internal::TextFiles;
use waterline::internal::{Checkpoint, WeightSpec};

use crate::error::{Error, Result};
use crate::format_choice::FormatArgs;
use crate::presets::{self, PRESETS, Preset};
use crate::random::{Distribution, Random};
use crate::text;
use crate::write_model::{TensorSource, Values, check_output, choose, write_model};

/// Write a model with random weights, for measurements and tests.
///
/// It runs as fast as a trained model of its shape, but its text is meaningless.
#[derive(clap::Args)]
pub struct Args {
    /// The model's shape.
    #[arg(value_parser = preset_parser(), required_unless_present = "shape")]
    preset: Option<Preset>,
    /// A custom shape: JSON in the format of the preset files (tools/presets in the sources).
    #[arg(long, value_name = "FILE", conflicts_with = "preset")]
    shape: Option<PathBuf>,
    /// Write only the first N layers, for example one to measure it.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    layers: Option<u32>,
    /// Leave out the feed-forward networks, to measure mixers alone.
    #[arg(long)]
    mixers_only: bool,
    /// Another vocabulary size, for example a small one to measure without the output matrix.
    #[arg(long, value_name = "N")]
    vocab: Option<usize>,
    /// The file to write; it appears only when it is complete.
    #[arg(short, long, value_name = "FILE")]
    output: PathBuf,
    #[command(flatten)]
    formats: FormatArgs,
    /// Seed of the weights.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// A directory with tokenizer.json and tokenizer_config.json to include in the file.
    #[arg(long, value_name = "DIR")]
    tokenizer: Option<PathBuf>,
}

fn preset_parser() -> impl TypedValueParser<Value = Preset> {
    let value = |preset: &Preset| {
        let value = PossibleValue::new(preset.name);
        match preset.about() {
            Ok(about) => value.help(match about.paper {
                Some(paper) => format!("{} ({paper}; {})", about.about, about.table),
                None => format!("{} ({})", about.about, about.table),
            }),
            Err(_) => value,
        }
    };
    PossibleValuesParser::new(PRESETS.iter().map(value))
        .try_map(|name| presets::by_name(&name).ok_or("no such preset"))
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    check_output(&args.output, None)?;
    let (name, spec) = named_spec(args)?;
    let text = match &args.tokenizer {
        Some(dir) => text_files(dir, &spec)?,
        None => TextFiles::default(),
    };
    let checkpoint = Checkpoint {
        file: args.output.display().to_string(),
        name: format!("{name} with random weights"),
        spec,
        tensors: Tensors::new(),
        text,
        trained_context: None,
        notes: Vec::new(),
    };
    let sources: Vec<TensorSource> = checkpoint
        .stored()
        .into_iter()
        .enumerate()
        .map(|(i, (weight, stored))| {
            let random = Random::new(args.seed, i, distribution(&weight));
            TensorSource {
                weight: stored,
                values: Values::Random(random),
                importance: Vec::new(),
            }
        })
        .collect();
    let chosen = choose(&checkpoint, &sources, &args.formats)?;
    write_model(&args.output, &checkpoint.metadata(), &sources, &chosen)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the name and the dimensions of the shape, changed as the options require.
fn named_spec(args: &Args) -> Result<(String, ModelSpec)> {
    let (name, mut spec) = match (&args.preset, &args.shape) {
        (_, Some(path)) => {
            let file = path.display().to_string();
            let spec = presets::spec(&file, &text::read_file(path)?)?;
            let stem = path.file_stem().unwrap_or_default();
            (stem.to_string_lossy().into_owned(), spec)
        }
        (Some(preset), None) => (preset.name.to_string(), preset.spec()?),
        (None, None) => return Err(Error::usage("expected a preset or --shape")),
    };
    if let Some(layers) = args.layers.map(|n| n as usize) {
        if layers > spec.layers.len() {
            let reason = format!("{name} has {} layers", spec.layers.len());
            return Err(Error::usage(format!("--layers {layers}: {reason}")));
        }
        spec.layers.truncate(layers);
    }
    if args.mixers_only {
        spec.remove_feed_forward();
    }
    spec.vocab = args.vocab.unwrap_or(spec.vocab);
    spec.check(&name)?;
    Ok((name, spec))
}

/// Returns a distribution of values that keeps activations of order one through any number of layers.
fn distribution(weight: &WeightSpec) -> Distribution {
    let name = weight.name.as_str();
    let inputs: usize = weight.shape.iter().skip(1).product();
    if name.ends_with("norm.weight") {
        return Distribution::Constant(1.0);
    }
    if name.ends_with("A_log") {
        return Distribution::LogUniform(1.0, 16.0);
    }
    // Mamba's rates.
    if name.ends_with(".A") {
        return Distribution::Uniform(-16.0, -1.0);
    }
    // Skips and gains of channels.
    if name.ends_with(".D") || name.ends_with(".E") {
        return Distribution::Constant(1.0);
    }
    // HGRN2's smallest decays.
    if name.ends_with("lower_bound") {
        return Distribution::Uniform(0.0, 0.9);
    }
    if name.ends_with("dt_bias") || name.ends_with("dt_proj.bias") {
        return Distribution::InverseSoftplus(0.001, 0.1);
    }
    if name.ends_with("bias") {
        return Distribution::Normal(0.1);
    }
    Distribution::Normal((inputs as f32).powf(-0.5))
}

/// Reads the tokenizer's files in `dir`, with the ids of the tokens that tokenizer_config.json names.
fn text_files(dir: &Path, spec: &ModelSpec) -> Result<TextFiles> {
    let read = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(|e| Error::io(path, e))
    };
    let json = read("tokenizer.json")?;
    let tokenizer = Tokenizer::from_json(&json, &dir.join("tokenizer.json").display().to_string())?;
    if tokenizer.vocab_size() > spec.vocab {
        let reason = format!(
            "{} tokens, but the preset has {}",
            tokenizer.vocab_size(),
            spec.vocab
        );
        return Err(Error::input(dir, reason));
    }
    let path = dir.join("tokenizer_config.json");
    let config = text::utf8(read("tokenizer_config.json")?, &path)?;
    let config: serde_json::Value =
        serde_json::from_str(&config).map_err(|e| Error::input(&path, e.to_string()))?;
    let token = |key: &str| match config[key].as_str() {
        None => Ok(None),
        Some(name) => match tokenizer.token_id(name) {
            None => Err(Error::input(
                &path,
                format!("{key}: {name:?} is not a token"),
            )),
            id => Ok(id),
        },
    };
    let template = config["chat_template"].as_str();
    let template = template.map(|template| ("default".to_string(), template.to_string()));
    let (bos, eos) = (token("bos_token")?, token("eos_token")?);
    Ok(TextFiles {
        bos,
        adds_bos: bos.is_some(),
        eos,
        ends: eos.into_iter().collect(),
        templates: template.into_iter().collect(),
        tokenizer: Some(json),
        ..TextFiles::default()
    })
}
