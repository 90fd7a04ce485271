//! What kernels on a GPU need of the number formats: their source text and the layout in which they read a matrix.

use crate::matrix::Matrix;

/// The formats' part of a translation unit, after a prelude that declares the types and functions which it uses.
pub const DEVICE_SOURCE: &str = concat!(
    include_str!("formats/formats.cu"),
    include_str!("rounding.cu"),
    include_str!("formats/f32.cu"),
    include_str!("formats/f16.cu"),
    include_str!("formats/bf16.cu"),
    include_str!("formats/q8_0.cu"),
    include_str!("formats/q4_0.cu"),
    include_str!("formats/q5_0.cu"),
    include_str!("formats/iq4_nl.cu"),
    include_str!("formats/iq4_xs.cu"),
    include_str!("formats/mxfp4.cu"),
    include_str!("formats/k_quants.cu"),
    include_str!("formats/q4_1.cu"),
    include_str!("formats/q5_1.cu"),
    include_str!("formats/q2_k.cu"),
    include_str!("formats/q3_k.cu"),
    include_str!("formats/q4_k.cu"),
    include_str!("formats/q5_k.cu"),
    include_str!("formats/q6_k.cu"),
);

impl Matrix {
    /// The bytes in the order in which kernels read them, where that is not the stored one: blocks whose length would
    /// leave their codes unaligned lose their scales, and the scales of the whole matrix follow.
    pub fn device_layout(&self) -> Option<Vec<u8>> {
        let format = self.format();
        let apart = format.device_apart.clone();
        if apart.is_empty() {
            return None;
        }
        let bytes = self.bytes();
        let mut packed = Vec::with_capacity(bytes.len());
        for block in bytes.chunks_exact(format.block_bytes) {
            packed.extend_from_slice(&block[..apart.start]);
            packed.extend_from_slice(&block[apart.end..]);
        }
        for block in bytes.chunks_exact(format.block_bytes) {
            packed.extend_from_slice(&block[apart.clone()]);
        }
        Some(packed)
    }
}
