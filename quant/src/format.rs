//! Number formats as values: name, block size, encoder, decoder and kernels.

use std::ops::Range;

use crate::cpu::Simd;
use crate::error::{Error, Result};
use crate::formats::FORMATS;
use crate::formats::f64::F64;
use crate::formats::q4_0x16::Q4_0X16;
use crate::kernel::Kernel;
use crate::rounding::Rounding;

pub(crate) type Encode = fn(&[f32], Option<&[f32]>, &mut [u8]);
pub(crate) type Decode = fn(&[u8], &mut [f32]);

/// A format for storing numbers: every row of a matrix is a sequence of equal-sized blocks.
pub struct Format {
    /// ggml's name of the format: "F32", "Q4_K", ...
    pub name: &'static str,
    /// ggml's number of the format, as stored in GGUF files.
    pub ggml_type: u32,
    /// Values in a block; 1 for the float formats.
    pub block_len: usize,
    /// Bytes in a block.
    pub block_bytes: usize,
    pub(crate) rounding: Option<Rounding>,
    /// The bytes of a block that GPU kernels read from a separate place.
    pub(crate) device_apart: Range<usize>,
    /// Whether GPU kernels multiply chunks of 8-bit inputs with this format on tensor cores: its .cu file has `tiles`, `load` and `unpack`.
    pub code_tiles: bool,
    /// Whether GPU kernels multiply the slots of a batch with this format on tensor cores: its .cu file has `code_words`.
    pub slot_tiles: bool,
    /// Set for a format that stores another format's values in a different order.
    pub(crate) reordered: Option<Reordered>,
    /// Encodes one row with the mean squares of its inputs, or any number of rows without them.
    /// `None` if this program only reads the format.
    pub(crate) encode: Option<Encode>,
    pub(crate) decode: Decode,
    pub(crate) kernel: fn(Simd) -> Kernel,
}

/// The other format with the same values, bit for bit, and the conversions in both directions.
pub(crate) struct Reordered {
    pub(crate) of: &'static Format,
    pub(crate) order: fn(&[u8]) -> Vec<u8>,
    pub(crate) restore: fn(&[u8], &mut [u8]),
}

impl Reordered {
    /// Returns the bytes in the other format.
    pub(crate) fn restored(&self, stored: &[u8]) -> Vec<u8> {
        let mut restored = vec![0; stored.len()];
        (self.restore)(stored, &mut restored);
        restored
    }
}

/// The format that only files have: [`Gguf::tensor`](crate::gguf::Gguf::tensor) rounds its numbers to F32.
static IN_FILES: [&Format; 1] = [&F64];

/// Formats that store another format's values in a different order, for CPUs. No other program reads them.
pub static REORDERED: [&Format; 1] = [&Q4_0X16];

impl Format {
    /// Bytes of a block, usually its scales, that follow all codes in [`crate::Matrix::device_layout`].
    pub fn device_apart_bytes(&self) -> usize {
        self.device_apart.len()
    }

    /// Returns the format called `name`, ignoring case.
    pub fn by_name(name: &str) -> Result<&'static Format> {
        known()
            .find(|format| format.name.eq_ignore_ascii_case(name))
            .ok_or_else(|| unknown(format!("'{name}'")))
    }

    /// Returns the format with ggml's number `ggml_type`.
    pub fn by_ggml_type(ggml_type: u32) -> Result<&'static Format> {
        known()
            .find(|format| format.ggml_type == ggml_type)
            .ok_or_else(|| unknown(format!("with ggml type {ggml_type}")))
    }

    /// Returns the format with the same values in ggml's order: itself for all formats but [`REORDERED`].
    pub fn plain(&'static self) -> &'static Format {
        self.reordered
            .as_ref()
            .map_or(self, |reordered| reordered.of)
    }

    /// Converts `stored`, in `format`, to this format if that only changes the order and rounds nothing.
    pub fn reorder(&'static self, stored: &[u8], format: &'static Format) -> Option<Vec<u8>> {
        match (&format.reordered, &self.reordered) {
            _ if self == format => Some(stored.to_vec()),
            (Some(from), None) if from.of == self => Some(from.restored(stored)),
            (None, Some(to)) if to.of == format => Some((to.order)(stored)),
            _ => None,
        }
    }

    /// Bytes of a row of `cols` values. Fails if they are not a whole number of blocks.
    pub fn row_bytes(&self, cols: usize) -> Result<usize> {
        if !cols.is_multiple_of(self.block_len) {
            return Err(Error::PartialBlock {
                format: self.name,
                cols,
                block_len: self.block_len,
            });
        }
        (cols / self.block_len)
            .checked_mul(self.block_bytes)
            .ok_or_else(|| Error::TooLarge { shape: vec![cols] })
    }

    /// Bytes of a tensor of `shape` (outermost dimension first). A tensor without dimensions holds one value.
    pub fn tensor_bytes(&self, shape: &[usize]) -> Result<usize> {
        let cols = shape.last().copied().unwrap_or(1);
        let bytes = shape
            .iter()
            .rev()
            .skip(1)
            .try_fold(self.row_bytes(cols)?, |bytes, &dim| bytes.checked_mul(dim));
        // The size must be countable even without its zero dimensions: viewing a part of the tensor may drop them.
        let numbers = shape.iter().try_fold(size_of::<f32>(), |numbers, &dim| {
            numbers.checked_mul(dim.max(1))
        });
        match (
            bytes,
            numbers.filter(|&numbers| isize::try_from(numbers).is_ok()),
        ) {
            (Some(bytes), Some(_)) => Ok(bytes),
            _ => Err(Error::TooLarge {
                shape: shape.to_vec(),
            }),
        }
    }

    /// Encodes `src` into `dst`. Values beyond the format's range become its largest value or infinity, as in ggml.
    ///
    /// # Panics
    /// If the format [has no encoder](Format::has_encoder), if `src` is not a whole number of blocks, or if `dst` does not have exactly the
    /// length that they need.
    pub fn encode(&self, src: &[f32], dst: &mut [u8]) {
        self.check_lengths(src.len(), dst.len());
        self.encoder()(src, None, dst);
    }

    /// Encodes a row of a matrix such that values which large inputs multiply lose the least, as llama-quantize does with an importance
    /// matrix. `importance` holds the mean square of each column's input. F32, F16, BF16, Q8_0 and MXFP4 ignore it.
    ///
    /// # Panics
    /// As for [`Format::encode`], and if `importance` and the row differ in length.
    pub fn encode_row(&self, row: &[f32], importance: &[f32], dst: &mut [u8]) {
        self.check_lengths(row.len(), dst.len());
        assert_eq!(
            row.len(),
            importance.len(),
            "expected one importance per column"
        );
        self.encoder()(row, Some(importance), dst);
    }

    /// Whether numbers can be encoded in this format. The formats with grids and those of this program alone are only read.
    pub fn has_encoder(&self) -> bool {
        self.encode.is_some()
    }

    fn encoder(&self) -> Encode {
        self.encode
            .unwrap_or_else(|| panic!("{} has no encoder", self.name))
    }

    /// Encodes `src`. If the format has no encoder, writes blocks of random bits whose numbers have about the magnitude of those in `src`:
    /// weights for tests and measurements.
    ///
    /// # Panics
    /// As for [`Format::encode`].
    #[doc(hidden)]
    pub fn encode_or_imitate(&self, src: &[f32], dst: &mut [u8]) {
        self.check_lengths(src.len(), dst.len());
        if self.has_encoder() {
            return self.encode(src, dst);
        }
        let mut state = src.iter().fold(1, |state: u64, x| {
            state.rotate_left(5) ^ u64::from(x.to_bits()).wrapping_mul(0x9e37_79b9_7f4a_7c15)
        }) | 1;
        let largest = |x: &[f32]| x.iter().fold(0.0, |max: f32, x| max.max(x.abs()));
        let mut decoded = vec![0.0; self.block_len];
        let blocks = src.chunks_exact(self.block_len);
        for (values, block) in blocks.zip(dst.chunks_exact_mut(self.block_bytes)) {
            let wanted = largest(values);
            // Most blocks need a few dozen draws, since the exponent of the scale is random.
            let draws = if wanted > 0.0 { 4096 } else { 0 };
            block.fill(0);
            for _ in 0..draws {
                for byte in &mut *block {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    *byte = (state >> 32) as u8;
                }
                (self.decode)(block, &mut decoded);
                let found = largest(&decoded);
                if found > wanted / 2.0 && found <= wanted * 1.5 {
                    break;
                }
                block.fill(0);
            }
        }
    }

    /// Decodes the values stored in `src`.
    ///
    /// # Panics
    /// If `dst` is not a whole number of blocks, or `src` does not have exactly the length of these blocks.
    pub fn decode(&self, src: &[u8], dst: &mut [f32]) {
        self.check_lengths(dst.len(), src.len());
        (self.decode)(src, dst);
    }

    fn check_lengths(&self, numbers: usize, bytes: usize) {
        assert!(
            numbers.is_multiple_of(self.block_len)
                && numbers / self.block_len * self.block_bytes == bytes,
            "{numbers} numbers do not make {bytes} bytes of {}",
            self.name
        );
    }

    /// How the inputs of products are rounded ([`Activations::load`](crate::Activations::load)); `None` if products use the f32 inputs.
    pub fn rounding(&self) -> Option<Rounding> {
        self.rounding
    }

    /// Whether products use inputs rounded to 8 bits.
    pub fn is_integer_dot(&self) -> bool {
        self.rounding.is_some_and(Rounding::is_integer)
    }
}

fn known() -> impl Iterator<Item = &'static Format> {
    FORMATS.into_iter().chain(REORDERED).chain(IN_FILES)
}

/// The names of all formats, for messages.
pub(crate) fn names() -> String {
    let names: Vec<_> = known().map(|format| format.name).collect();
    names.join(", ")
}

fn unknown(found: String) -> Error {
    Error::UnknownFormat {
        found,
        expected: names(),
    }
}

impl PartialEq for Format {
    fn eq(&self, other: &Format) -> bool {
        self.ggml_type == other.ggml_type
    }
}

impl Eq for Format {}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

impl std::fmt::Display for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}
