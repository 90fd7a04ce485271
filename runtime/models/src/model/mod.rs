//! What a model is: its dimensions, its tensors, and the program that they become.

mod binding;
mod checkpoint;
mod mtp;
mod spec;

pub use binding::lower;
pub use checkpoint::{Checkpoint, OpenOptions, TextFiles};
pub use mtp::{Draft, MtpSpec};
pub use spec::{LayerSpec, ModelSpec};
