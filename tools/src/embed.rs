//! `waterline embed`: vectors of texts.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::builder::RangedU64ValueParser;
use serde::Serialize;
use waterline::SamplerParams;

use crate::builtin::OpenArgs;
use crate::error::{Error, Result};
use crate::interrupt::on_first_interrupt;
use crate::progress::{self, Unit};
use crate::session::{SessionArgs, beyond_training};
use crate::text::{STDIN, json_line, read_text};
use crate::vectors::VectorArgs;
use crate::wrong_model::is_like_a_model;

/// Print the vector of each text on a line.
///
/// Without TEXT and --file, standard input has a text on each line. A model with pooled output says itself how its vectors are made;
/// any other model needs --pooling.
#[derive(clap::Args)]
pub struct Args {
    /// A GGUF file or a Hugging Face directory. Without it, the built-in model is used and the first word is TEXT.
    #[arg(value_name = "MODEL")]
    first: Option<PathBuf>,
    /// The texts.
    #[arg(value_name = "TEXT", conflicts_with = "file")]
    texts: Vec<String>,
    /// A file with a text on each line; - reads them from standard input.
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    #[command(flatten)]
    open: OpenArgs,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// The task whose prompt the model's files put before each text, such as query or document.
    #[arg(long, value_name = "NAME", help_heading = "Vectors")]
    task: Option<String>,
    /// Length to which vectors are cut, if the model's files allow it (`is_matryoshka`, `matryoshka_dimensions`).
    #[arg(long, value_name = "N", help_heading = "Vectors", value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    dimensions: Option<usize>,
    #[command(flatten)]
    vectors: VectorArgs,
    #[command(flatten)]
    session: SessionArgs,
}

/// The output of `--json`.
#[derive(Serialize)]
struct Output<'a> {
    model: &'a str,
    dimensions: usize,
    embeddings: Vec<Embedded>,
}

/// A text's vector.
#[derive(Serialize)]
struct Embedded {
    /// The number of tokens.
    tokens: usize,
    embedding: Vec<f32>,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let (path, texts) = args.read()?;
    let model = args.open.model(path)?;
    let options = args.vectors.options(args.dimensions);
    let dimensions = model.pooler(&options)?.vector().len();
    let mut inputs = Vec::with_capacity(texts.len());
    for (index, text) in texts.iter().enumerate() {
        let tokens = model.embedding_tokens(text, args.task.as_deref())?;
        if tokens.is_empty() {
            return Err(Error::usage(format!("text {} is empty", index + 1)));
        }
        inputs.push(tokens);
    }
    let longest = inputs.iter().map(Vec::len).max().unwrap_or(0);
    if let Some(warning) = beyond_training(&model, longest as u64) {
        eprintln!("{warning}");
    }
    let session = args.session.with_context(longest);
    let mut session = session.open(&model, SamplerParams::default(), 0)?;
    let canceller = session.canceller();
    on_first_interrupt(move || canceller.cancel())?;
    let bar = progress::bar(inputs.iter().map(Vec::len).sum(), Unit::Of("tokens"));
    let mut out = std::io::stdout().lock();
    let mut embeddings = Vec::new();
    for tokens in inputs {
        let mut before = 0;
        let embedding = session.embed_with_progress(&tokens, &options, |read| {
            bar.inc((read - before) as u64);
            before = read;
        })?;
        if args.json {
            let tokens = tokens.len();
            embeddings.push(Embedded { tokens, embedding });
        } else {
            let numbers = embedding.iter().map(f32::to_string).collect::<Vec<_>>();
            let line = bar.suspend(|| writeln!(out, "{}", numbers.join(" ")));
            line.map_err(Error::Stdout)?;
        }
    }
    bar.finish_and_clear();
    if args.json {
        let output = Output {
            model: model.name(),
            dimensions,
            embeddings,
        };
        let text = json_line(&output);
        out.write_all(text.as_bytes()).map_err(Error::Stdout)?;
    }
    Ok(ExitCode::SUCCESS)
}

impl Args {
    /// The model that the user named, and the texts.
    fn read(&self) -> Result<(Option<&Path>, Vec<String>)> {
        let model = self.first.as_deref().filter(|word| is_like_a_model(word));
        let mut texts: Vec<String> = Vec::new();
        if let (Some(word), None) = (&self.first, model) {
            texts.push(word.to_string_lossy().into_owned());
        }
        texts.extend(self.texts.iter().cloned());
        match (&self.file, texts.is_empty()) {
            (Some(_), false) => Err(Error::usage("--file: expected no other text")),
            (None, false) => Ok((model, texts)),
            (file, true) => {
                let file = file.as_deref().unwrap_or(Path::new(STDIN));
                let lines = read_text(file)?.lines().map(String::from).collect();
                Ok((model, lines))
            }
        }
    }
}
