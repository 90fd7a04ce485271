//! Number formats on a GPU: their source text and the layout in which kernels read a matrix.

use crate::matrix::Matrix;

/// The CUDA files of number formats in `src`, in the order in which a translation unit has them, after a prelude that declares the types
/// and functions which they use.
pub const DEVICE_FILES: [&str; 19] = [
    "formats/formats.cu",
    "rounding.cu",
    "formats/f32.cu",
    "formats/f16.cu",
    "formats/bf16.cu",
    "formats/q8_0.cu",
    "formats/q4_0.cu",
    "formats/q5_0.cu",
    "formats/iq4_nl.cu",
    "formats/iq4_xs.cu",
    "formats/mxfp4.cu",
    "formats/k_quants.cu",
    "formats/q4_1.cu",
    "formats/q5_1.cu",
    "formats/q2_k.cu",
    "formats/q3_k.cu",
    "formats/q4_k.cu",
    "formats/q5_k.cu",
    "formats/q6_k.cu",
];

impl Matrix {
    /// Whether kernels read the stored bytes.
    pub fn has_device_layout(&self) -> bool {
        self.format().reordered.is_none() && self.format().device_apart.is_empty()
    }

    /// The bytes in the order in which kernels read them, or `None` if that is the stored order. The order is that of
    /// [`Format::plain`](crate::Format::plain). If a block's length would leave its codes unaligned, the scales of the whole matrix
    /// follow all codes.
    pub fn device_layout(&self) -> Option<Vec<u8>> {
        let reordered = self.format().reordered.as_ref();
        let restored = reordered.map(|reordered| reordered.restored(self.bytes()));
        let format = self.format().plain();
        let apart = format.device_apart.clone();
        if apart.is_empty() {
            return restored;
        }
        let bytes = restored.as_deref().unwrap_or(self.bytes());
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
