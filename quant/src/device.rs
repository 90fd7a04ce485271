//! What kernels on a GPU need of the number formats: their source text and the layout in which they read a matrix.

use crate::matrix::Matrix;

/// The formats' part of a translation unit, after a prelude that declares the types and functions which it uses.
pub const DEVICE_SOURCE: &str = concat!(
    include_str!("formats/formats.cu"),
    include_str!("formats/f32.cu"),
    include_str!("formats/f16.cu"),
    include_str!("formats/bf16.cu"),
    include_str!("formats/q8_0.cu"),
    include_str!("formats/q4_0.cu"),
    include_str!("formats/k_quants.cu"),
    include_str!("formats/q4_k.cu"),
    include_str!("formats/q5_k.cu"),
    include_str!("formats/q6_k.cu"),
);

impl Matrix {
    /// The bytes in the order in which kernels read them, where that is not the stored one: blocks whose length would
    /// leave their codes unaligned lose their scale, and the scales of the whole matrix follow.
    pub fn device_layout(&self) -> Option<Vec<u8>> {
        let format = self.format();
        let scale = format.device_scale?;
        let bytes = self.bytes();
        let mut packed = Vec::with_capacity(bytes.len());
        for block in bytes.chunks_exact(format.block_bytes) {
            packed.extend_from_slice(&block[..scale]);
            packed.extend_from_slice(&block[scale + 2..]);
        }
        for block in bytes.chunks_exact(format.block_bytes) {
            packed.extend_from_slice(&block[scale..scale + 2]);
        }
        Some(packed)
    }
}
