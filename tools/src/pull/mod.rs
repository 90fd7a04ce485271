//! `waterline pull`, and `hf:org/name` in place of a model: models from a hub, stored in the cache that other programs share.

mod choice;
mod client;
mod hub;
pub mod list;
mod pulled;
pub mod rm;
mod transfer;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::{Error, Result};
use crate::text::shown;
use hub::Hub;

/// Prefixes of a model's name on the hub.
const SCHEMES: [&str; 2] = ["hf://", "hf:"];

/// Download a model and print its path.
///
/// From a repository with GGUF files, this downloads the largest quantization that fits into half of this machine's free
/// memory, or the file named after a colon, by its name or a word or part of it such as Q4_K_M. Other repositories are downloaded as
/// Hugging Face directories. Files are stored in the cache that Hugging Face's programs share (HF_HOME, HF_HUB_CACHE), and an
/// interrupted download resumes where it ended. HF_TOKEN, or what `hf auth login` has saved, is the token for models that need one; HF_ENDPOINT names another hub.
#[derive(clap::Args)]
pub struct Args {
    /// org/name or org/name:FILE
    #[arg(value_name = "MODEL")]
    model: String,
}

/// Runs the command.
pub fn run(args: &Args) -> Result<ExitCode> {
    let path = download(without_scheme(&args.model).unwrap_or(&args.model))?;
    println!("{}", path.display());
    Ok(ExitCode::SUCCESS)
}

/// The path of the model that a word names: `hf:org/name` is downloaded, the name of a downloaded model leads to it, and everything else
/// is a path itself.
///
/// # Errors
/// The download fails, several models have the name, or the model is incomplete.
pub fn resolved(word: &Path) -> Result<PathBuf> {
    let Some(text) = word.to_str() else {
        return Ok(word.into());
    };
    if let Some(name) = without_scheme(text) {
        return download(name);
    }
    if word.exists() {
        return Ok(word.into());
    }
    let Some(model) = pulled::find(text)? else {
        return Ok(word.into());
    };
    model.path.ok_or_else(|| {
        let reason = format!(
            "its download has not ended; waterline pull {} continues it",
            model.repository
        );
        Error::usage(shown(&format!("{text}: {reason}")))
    })
}

/// Whether a word is the name of downloaded models.
pub fn is_pulled(word: &str) -> bool {
    !matches!(pulled::find(word), Ok(None))
}

fn without_scheme(text: &str) -> Option<&str> {
    SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme))
}

/// Downloads a model from the hub unless it is in the cache. Returns the path of its GGUF file or directory.
pub fn download(model: &str) -> Result<PathBuf> {
    let (name, wanted) = match model.split_once(':') {
        Some((name, wanted)) => (name, Some(wanted)),
        None => (model, None),
    };
    let is_part = |part: &str| {
        let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        !part.is_empty() && !part.starts_with('.') && part.chars().all(is_plain)
    };
    match name.split_once('/') {
        Some((org, repo)) if is_part(org) && is_part(repo) => {}
        _ => {
            return Err(Error::usage(format!(
                "{model:?}: expected org/name or org/name:FILE"
            )));
        }
    }
    let hub = Hub::new(name)?;
    let revision = hub.revision()?;
    let choice = choice::choose(name, &revision.files, wanted)?;
    if let Some(note) = &choice.note {
        eprintln!("{note}");
    }
    for file in &choice.files {
        hub.fetch(&revision, file)?;
    }
    let folder = hub.snapshot(&revision);
    Ok(match &choice.path {
        Some(path) => folder.join(path),
        None => folder,
    })
}
