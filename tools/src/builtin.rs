//! The model that is built into the program, and the choice between it and a file.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use waterline::internal::Checkpoint;
use waterline::{Model, OpenOptions};
use waterline_quant::Bytes;

use crate::error::{Error, Result};
use crate::session::SessionArgs;
use crate::text::shown;
use crate::wrong_model::explain;

const NAME: &str = "the built-in model";

/// Tensors in a GGUF file are aligned to 64 bytes from its start.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

#[cfg(feature = "builtin-model")]
static FILE: Option<&Aligned<[u8]>> =
    Some(&Aligned(*include_bytes!("../model/waterline-chat.gguf")));
#[cfg(not(feature = "builtin-model"))]
static FILE: Option<&Aligned<[u8]>> = None;

/// Options for opening a model.
#[derive(Clone, Copy, Default, clap::Args)]
pub struct OpenArgs {
    /// Open a model even if its files hold unused tensors; without them it may be another model.
    #[arg(long)]
    allow_unused: bool,
    /// Copy the model's files into memory, so that they may be rewritten or truncated while in use.
    #[arg(long)]
    copy: bool,
    /// Whether to read the MTP block, with which sessions draft.
    #[arg(skip)]
    mtp: bool,
}

impl OpenArgs {
    /// Copies these options for models of sessions with `args`.
    pub fn for_sessions(self, args: &SessionArgs) -> Self {
        OpenArgs {
            mtp: args.mtp(),
            ..self
        }
    }

    /// Opens the model at `path`, or the built-in model.
    pub fn model(self, path: Option<&Path>) -> Result<Arc<Model>> {
        Ok(Model::bind(self.checkpoint(path)?)?)
    }

    /// Opens the files of a model without binding the weights.
    pub fn checkpoint(self, path: Option<&Path>) -> Result<Checkpoint> {
        let options = OpenOptions {
            allow_unused: self.allow_unused,
            copy: self.copy,
            mtp: self.mtp,
        };
        let path = path.map(path_of).transpose()?;
        let checkpoint = match path.as_deref() {
            Some(path) => Checkpoint::open_with(path, &options)
                .map_err(|error| explain(path, error.into()))?,
            None => Checkpoint {
                name: NAME.into(),
                ..Checkpoint::from_bytes(Bytes::from_static(bytes()?), NAME, &options)?
            },
        };
        for note in &checkpoint.notes {
            eprintln!("note: {}", shown(note));
        }
        Ok(checkpoint)
    }
}

/// The path of the model that a word of the command line names.
///
/// # Errors
/// The word names a model of a hub that cannot be downloaded, or several downloaded models.
pub fn path_of(word: &Path) -> Result<PathBuf> {
    #[cfg(feature = "pull")]
    return crate::pull::resolved(word);
    #[cfg(not(feature = "pull"))]
    Ok(word.into())
}

/// Returns the file of the built-in model, if the program contains one.
pub fn bytes() -> Result<&'static [u8]> {
    let file = FILE.ok_or_else(|| {
        Error::usage(
            "this program was built without a built-in model; name a model, such as model.gguf",
        )
    })?;
    Ok(&file.0)
}

/// Whether `model` is the built-in model.
pub fn is_builtin(model: &Model) -> bool {
    model.file() == NAME
}
