//! The model that is part of the program, and the choice between it and a file.

use std::path::Path;
use std::sync::Arc;

use waterline::{Checkpoint, Model};
use waterline_quant::Bytes;

use crate::error::Result;
use crate::wrong_model::explain;

const NAME: &str = "the built-in model";

/// Tensors in a GGUF file are aligned to 64 bytes from its start.
#[repr(C, align(64))]
struct Aligned<T: ?Sized>(T);

static FILE: &Aligned<[u8]> = &Aligned(*include_bytes!("../model/waterline-chat.gguf"));

/// Opens the model at `path`, or else the built-in one.
pub fn open_model(path: Option<&Path>) -> Result<Arc<Model>> {
    Ok(Model::bind(open_checkpoint(path)?)?)
}

/// The file of the built-in model.
pub fn bytes() -> &'static [u8] {
    &FILE.0
}

/// Whether a model is the one of the program.
pub fn is_builtin(model: &Model) -> bool {
    model.file() == NAME
}

/// Opens the files of a model without binding the weights.
pub fn open_checkpoint(path: Option<&Path>) -> Result<Checkpoint> {
    Ok(match path {
        Some(path) => Checkpoint::open(path).map_err(|error| explain(path, error.into()))?,
        None => Checkpoint {
            name: NAME.into(),
            ..Checkpoint::from_bytes(Bytes::from_static(&FILE.0), NAME)?
        },
    })
}
