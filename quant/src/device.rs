//! Number formats on a GPU: their source files and the layout in which kernels read a matrix.

use crate::format::Format;
use crate::formats::{FORMATS, grids};
use crate::matrix::Matrix;
use crate::rounding::Rounding;

/// Returns the paths of the CUDA files of number formats in `src`, in the order in which a translation unit includes them. A prelude before
/// them declares the types and functions that they use and [`device_constants`].
pub fn device_files() -> impl Iterator<Item = String> {
    let shared = [
        "formats/formats",
        "rounding",
        "formats/k_quants",
        "formats/wide",
        "formats/grids",
    ]
    .map(String::from);
    let each = |format: &&Format| format!("formats/{}", format.name.to_lowercase());
    let files = shared.into_iter().chain(FORMATS.iter().map(each));
    files.map(|path| path + ".cu")
}

/// Returns the definitions of constants for kernels: numbers of formats and of roundings, and sets of formats.
pub fn device_constants() -> String {
    let names = FORMATS.map(|format| format.name).join(", ");
    let set = |has: fn(&Format) -> bool| {
        let bit = |(number, &format): (usize, &&Format)| usize::from(has(format)) << number;
        FORMATS.iter().enumerate().map(bit).sum::<usize>()
    };
    let (integer, contiguous) = (set(Format::is_integer_dot), set(|f| f.block_len == 32));
    let roundings = [
        ("IN_F32", None),
        ("TO_BF16", Some(Rounding::Bf16)),
        ("TO_F16", Some(Rounding::Halves)),
        ("IN_SUPER_BLOCKS", Some(Rounding::SuperBlocks)),
        ("IN_BLOCKS", Some(Rounding::Blocks)),
    ];
    let roundings =
        roundings.map(|(name, rounding)| format!("{name} = {}", Rounding::device_number(rounding)));
    let roundings = roundings.join(", ");
    let grids: Vec<String> = grids::entries().map(|entry| entry.to_string()).collect();
    let grids = grids.join(",");
    format!(
        "enum {{ {names}, format_count }};
// Formats whose products use inputs in 8 bits, and those whose units are contiguous, codes and scales each.
constexpr u64 integer_formats = {integer}, contiguous_formats = {contiguous};
// How inputs of a product are rounded.
enum {{ {roundings} }};
// An entry of the grids of the IQ formats, as grids.rs stores them. Only a kernel that calls this holds them.
__device__ inline u32 stored_grid(int entry) {{
  static const u16 entries[] = {{ {grids} }};
  return entries[entry];
}}
"
    )
}

impl Matrix {
    /// Whether kernels read the bytes as they are stored.
    pub fn has_device_layout(&self) -> bool {
        self.format().reordered.is_none() && self.format().device_apart.is_empty()
    }

    /// Returns the bytes in the order in which kernels read them, or `None` if that is the stored order. The order is that of
    /// [`Format::plain`](crate::Format::plain). In a format whose block length would leave the codes unaligned, the scales of all blocks
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
