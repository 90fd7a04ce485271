//! Quantized number formats, matrix products over them, and the files that hold them.
//!
//! Reading order: [`Format`] (the layout of a block; one file per format under `formats/`), [`Activations`] and
//! [`Matrix`] (products of quantized rows with f32 inputs), `kernel.rs` and `simd/` (how a product is tiled and computed
//! on each CPU), [`Bytes`] and [`Tensor`] (storage), [`gguf`], [`imatrix`] and [`safetensors`] (files), [`NewFile`] (atomic file
//! creation).
//!
//! Every format is bit-compatible with ggml's format of the same name.

mod activations;
mod aligned;
mod counted;
mod cpu;
mod device;
mod error;
mod few;
mod format;
mod formats;
pub mod gguf;
pub mod imatrix;
mod json;
mod kernel;
mod matrix;
mod observe;
mod panel;
mod plain_read;
mod regular_file;
mod room;
mod rounding;
pub mod safetensors;
mod simd;
mod storage;
mod stray;
mod vocabulary;

pub use activations::{Activations, Loading};
pub use counted::read_bytes;
pub use cpu::Simd;
pub use device::DEVICE_FILES;
pub use error::{Error, Result, reason};
pub use few::{Few, ShortList};
pub use format::{
    BF16, BF16_IN_BF16, F16, F16_IN_F16, F32, FORMATS, Format, IQ4_NL, IQ4_XS, MXFP4, Q2_K, Q3_K,
    Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, REORDERED,
};
pub use json::{read_json, values_at_most};
pub use matrix::{Matrix, Output};
pub use observe::{ObservedProduct, ProductObserver};
pub use plain_read::plain_read;
pub use regular_file::{NewFile, create_private_folder, open_file, read_file};
pub use room::{ask_room, ask_room_for_text, zeroed};
pub use rounding::Rounding;
pub use storage::{Bytes, FileAccess, Tensor};
pub use stray::stray;
pub use vocabulary::{MOST_ADDED, MOST_TOKENS, Vocabulary};
