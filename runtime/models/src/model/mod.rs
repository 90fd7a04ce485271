//! A model: its dimensions, its tensors, and its program.

mod binding;
mod checkpoint;
mod embedding;
mod mtp;
mod per_layer;
mod sampling;
mod spec;
mod text_files;

pub use binding::lower;
pub use checkpoint::{Checkpoint, OpenOptions};
pub use embedding::{Embedding, Lengths, Pooling};
pub use mtp::{Draft, MtpSpec};
pub use sampling::{PARAMETERS, Parameter, Sampling, TEMPERATURE};
pub use spec::{LayerSpec, ModelSpec};
pub use text_files::{DEFAULT_TEMPLATE, TextFiles, TokenNames};
