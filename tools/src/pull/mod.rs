//! `waterline pull`, and `hf:org/name` where a model is named: models from a hub, kept where other programs look for them too.

mod choice;
mod hub;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::error::{Error, Result};
use hub::Hub;

/// Before the name of a model on the hub.
const SCHEMES: [&str; 2] = ["hf://", "hf:"];

/// Download a model, and print where it is.
///
/// A repository with GGUF files gives the largest quantization that fits into half of this machine's free memory, or the one that is
/// named after a colon, by its file or by a part of its name such as Q4_K_M. Others give a Hugging Face directory. Files are kept in
/// the cache that Hugging Face's programs share (HF_HOME, HF_HUB_CACHE); what was cut off goes on where it ended. HF_TOKEN is the
/// token for models that need one, HF_ENDPOINT another hub.
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

/// The name on the hub, if this is how one is named.
pub fn on_hub(path: &Path) -> Option<&str> {
    without_scheme(path.to_str()?)
}

fn without_scheme(text: &str) -> Option<&str> {
    SCHEMES.iter().find_map(|scheme| text.strip_prefix(scheme))
}

/// The GGUF file or the directory of a model on the hub, downloaded where it is not in the cache.
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
