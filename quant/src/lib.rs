//! Quantized number formats, matrix products over them, and the files that hold them.
//!
//! Reading order: [`Format`] (the layout of a block; one file per format under `formats/`), [`Activations`] and [`Matrix`] (products of
//! quantized rows with f32 inputs), `kernel.rs` and `simd/` (the tiling of a product and its computation on each CPU), [`Bytes`] and
//! [`Tensor`] (storage), [`gguf`], [`imatrix`] and [`safetensors`] (files), [`NewFile`] (atomic file creation).
//!
//! Every format is bit-compatible with the ggml format of the same name.

mod activations;
mod aligned;
mod counted;
mod cpu;
mod device;
mod error;
mod failed_download;
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
mod private_file;
mod regular_file;
mod room;
mod rounding;
pub mod safetensors;
mod simd;
mod storage;
mod vocabulary;

pub use activations::{Activations, Loading};
pub use counted::{read_bytes, read_sparse};
pub use cpu::Simd;
pub use device::{device_constants, device_files};
pub use error::{Error, Result, reason};
pub use failed_download::failed_download;
pub use few::{Few, ShortList};
pub use format::{Format, REORDERED};
pub use formats::FORMATS;
pub use formats::bf16::{BF16, BF16_IN_BF16};
pub use formats::f16::{F16, F16_IN_F16};
pub use formats::f32::F32;
pub use formats::f64::F64;
pub use formats::iq4_nl::IQ4_NL;
pub use formats::mxfp4::MXFP4;
pub use formats::nvfp4::{NVFP4, NVFP4S, nvfp4_with_scales};
pub use formats::q1_0::Q1_0;
pub use formats::q2_0::{PQ2_0, Q2_0};
pub use formats::q2_k::Q2_K;
pub use formats::q3_k::Q3_K;
pub use formats::q4_0::Q4_0;
pub use formats::q4_1::Q4_1;
pub use formats::q4_k::Q4_K;
pub use formats::q5_0::Q5_0;
pub use formats::q5_1::Q5_1;
pub use formats::q5_k::Q5_K;
pub use formats::q6_k::Q6_K;
pub use formats::q8_0::Q8_0;
pub use formats::tq1_0::PTQ1_0;
pub use json::{read_json, values_at_most};
pub use matrix::{Matrix, Output};
pub use observe::{ObservedProduct, ProductObserver};
pub use plain_read::plain_read;
pub use private_file::{
    cache_folder, check_private_folder, create_private_folder, open_private_file,
};
pub use regular_file::{NewFile, open_file, read_file};
pub use room::{ask_room, ask_room_for_text, zeroed};
pub use rounding::Rounding;
pub use storage::{Bytes, FileAccess, FileStamp, Tensor};
pub use vocabulary::{MOST_ADDED, MOST_TOKENS, Vocabulary};
