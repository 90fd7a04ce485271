//! Tensors stored as small numbers with scales: FP8 and INT8 with a scale for each tensor, row or block (as DeepSeek, Qwen and
//! compressed-tensors store them), NVFP4 and MXFP4, and integers of two, four or eight bits in 32-bit words.
//!
//! The scales of a tensor `w`, and other tensors needed to decode it:
//! ```text
//! w_scale_inv or w_scale   factors, for blocks of the matrix whose size follows from the shapes
//! w_scale_2                a factor for all values (NVFP4 of ModelOpt)
//! w_global_scale           a divisor for all values (NVFP4 of compressed-tensors)
//! w_zero_point             the zero point, packed along the rows
//! w_packed, w_shape        the numbers of w in bytes or words, the first in the lowest bits
//! ```
//! Values are decoded to f16, or to f32 if f16 cannot hold them.

use std::collections::BTreeMap;

use half::f16;
use safetensors::tensor::Dtype;

use super::Entry;
use crate::error::{Error, Result};
use crate::storage::{Bytes, Tensor};
use crate::{F16, F32, Format};

/// Suffixes of tensors that scale activations, which this crate does not quantize.
const OF_ACTIVATIONS: [&str; 9] = [
    ".input_scale",
    ".input_scale_inv",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".activation_scale",
    ".k_scale",
    ".v_scale",
    ".q_scale",
];
/// The magnitudes of FP4 numbers.
const FP4: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

/// How a quantized tensor is stored.
pub(super) struct Packing {
    numbers: Numbers,
    /// Factors of the blocks: shape and values.
    scale: (Vec<usize>, Vec<f32>),
    /// A factor for all values.
    factor: f32,
    /// Zero points, packed like the tensor's numbers, but along the rows.
    zeros: Option<Bytes>,
}

/// The storage of a number.
#[derive(Clone, Copy)]
enum Numbers {
    /// Eight bits; the function gives the value of a byte.
    Byte(fn(u8) -> f32),
    /// Four bits, two numbers in each byte.
    Fp4,
    /// Integers of this many bits in 32-bit words, with an offset of half their range.
    Words(u32),
}

/// Finds the quantized tensors, gives them their logical names and shapes, and removes their scales from `entries`.
pub(super) fn attach(entries: &mut BTreeMap<String, Entry>) -> Result<()> {
    let mut found = false;
    let names: Vec<String> = entries.keys().cloned().collect();
    for stored in &names {
        let name = stored.strip_suffix("_packed").unwrap_or(stored);
        let scale = [format!("{name}_scale_inv"), format!("{name}_scale")];
        let scale = scale
            .iter()
            .find_map(|scale| Some((scale, entries.get(scale)?)));
        let Some(entry) = entries.get(stored).filter(|entry| is_small(entry.dtype)) else {
            continue;
        };
        let in_fp8 = scale.is_some_and(|(_, scales)| scales.dtype == Dtype::F8_E4M3);
        let scale = match scale {
            Some((scale, scales)) => (scales.shape.clone(), floats(scale, scales)?),
            None if [Dtype::F8_E4M3, Dtype::F8_E5M2].contains(&entry.dtype) => (vec![1], vec![1.0]),
            None => continue,
        };
        let part = |end: &str| entries.get(&format!("{name}{end}"));
        let (numbers, shape) = numbers(stored, entry, part("_shape"))?;
        let single = |end: &str| -> Result<Option<f32>> {
            let Some(entry) = part(end) else {
                return Ok(None);
            };
            let values = floats(&format!("{name}{end}"), entry)?;
            Ok(values.first().copied())
        };
        let of_all = [single("_scale_2")?, single("_global_scale")?];
        // NVFP4: block scales fit in eight bits only because there is another scale, common to all blocks.
        if in_fp8 && matches!(numbers, Numbers::Fp4) && of_all == [None, None] {
            let item = format!("tensor '{stored}'");
            let expected = format!("{name}_scale_2 or {name}_global_scale");
            return Err(Error::invalid(
                &entry.file,
                item,
                "block scales without a global scale",
                expected,
            ));
        }
        let factor = of_all[0].unwrap_or(1.0) / of_all[1].unwrap_or(1.0);
        if !factor.is_finite() {
            let item = format!("scale of tensor '{stored}'");
            return Err(Error::invalid(&entry.file, item, factor, "a finite number"));
        }
        let packing = Packing {
            numbers,
            scale,
            factor,
            zeros: part("_zero_point").map(|entry| entry.data.clone()),
        };
        let entry = entries.remove(stored).map(|entry| Entry {
            shape,
            packing: Some(packing),
            ..entry
        });
        for end in [
            "_scale_inv",
            "_scale",
            "_scale_2",
            "_global_scale",
            "_zero_point",
            "_shape",
        ] {
            entries.remove(&format!("{name}{end}"));
        }
        entries.extend(entry.map(|entry| (name.to_string(), entry)));
        found = true;
    }
    if found {
        entries.retain(|name, _| !OF_ACTIVATIONS.iter().any(|end| name.ends_with(end)));
    }
    Ok(())
}

fn is_small(dtype: Dtype) -> bool {
    use Dtype::{F4, F8_E4M3, F8_E5M2, I8, I32, U8};
    [F4, F8_E4M3, F8_E5M2, I8, I32, U8].contains(&dtype)
}

/// Returns how an entry's numbers are stored, and its logical shape.
fn numbers(name: &str, entry: &Entry, shape: Option<&Entry>) -> Result<(Numbers, Vec<usize>)> {
    let wrong = |found: String, expected: &str| {
        Error::invalid(&entry.file, format!("tensor '{name}'"), found, expected)
    };
    let mut logical = entry.shape.clone();
    let numbers = match entry.dtype {
        Dtype::F8_E4M3 => Numbers::Byte(e4m3),
        Dtype::F8_E5M2 => Numbers::Byte(|bits| f16::from_bits(u16::from(bits) << 8).into()),
        Dtype::I8 => Numbers::Byte(|bits| f32::from(bits as i8)),
        Dtype::F4 => Numbers::Fp4,
        Dtype::U8 => {
            let last = logical
                .last_mut()
                .ok_or_else(|| wrong("no dimension".into(), "a matrix"))?;
            *last *= 2;
            Numbers::Fp4
        }
        _ => {
            let whole = || {
                wrong(
                    "32-bit words without a shape tensor".into(),
                    "a shape of two numbers",
                )
            };
            let shape = shape
                .filter(|shape| shape.dtype == Dtype::I64)
                .ok_or_else(whole)?;
            let (sizes, []) = shape.data.as_chunks() else {
                return Err(whole());
            };
            let sizes: Vec<usize> = sizes
                .iter()
                .filter_map(|&bytes| usize::try_from(i64::from_le_bytes(bytes)).ok())
                .collect();
            let ([rows, cols], [stored_rows, words]) = (&sizes[..], &entry.shape[..]) else {
                return Err(whole());
            };
            let bits = [8, 4, 2]
                .into_iter()
                .find(|bits| cols.div_ceil(32 / bits) == *words);
            let found = || {
                wrong(
                    format!("{:?} words for {sizes:?} numbers", entry.shape),
                    "2, 4 or 8 bits each",
                )
            };
            let bits = bits
                .filter(|_| rows == stored_rows && *cols > 0)
                .ok_or_else(found)?;
            logical = sizes;
            Numbers::Words(bits as u32)
        }
    };
    match logical.len() {
        0 => Err(wrong("no dimension".into(), "a matrix")),
        _ => Ok((numbers, logical)),
    }
}

/// Decodes FP8 with four exponent bits and three mantissa bits.
fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let value = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * 2f32.powi(-9),
        _ => (8.0 + mantissa) * 2f32.powi(exponent - 10),
    };
    if bits >> 7 == 1 { -value } else { value }
}

/// Decodes scales to f32.
fn floats(name: &str, entry: &Entry) -> Result<Vec<f32>> {
    let data = &entry.data;
    Ok(match entry.dtype {
        Dtype::F32 => data
            .as_chunks()
            .0
            .iter()
            .map(|&b| f32::from_le_bytes(b))
            .collect(),
        Dtype::F16 => data
            .as_chunks()
            .0
            .iter()
            .map(|&b| f16::from_le_bytes(b).into())
            .collect(),
        Dtype::BF16 => {
            let wide = |&[low, high]: &[u8; 2]| f32::from_le_bytes([0, 0, low, high]);
            data.as_chunks().0.iter().map(wide).collect()
        }
        Dtype::F8_E4M3 => data.iter().map(|&bits| e4m3(bits)).collect(),
        // Powers of two.
        Dtype::F8_E8M0 | Dtype::U8 => data
            .iter()
            .map(|&bits| 2f64.powi(i32::from(bits) - 127) as f32)
            .collect(),
        other => return Err(entry.wrong_type(name, other, "F32, F16, BF16, F8_E4M3 or F8_E8M0")),
    })
}

/// Returns the block size if `parts` blocks cover `size` numbers.
fn block(size: usize, parts: usize) -> Option<usize> {
    if parts == 0 || parts > size {
        return None;
    }
    // Only the last block may be shorter. Published block sizes are powers of two.
    let power = size.div_ceil(parts).next_power_of_two();
    let fits = |&block: &usize| size.div_ceil(block) == parts;
    [size.div_ceil(parts), power].into_iter().rfind(fits)
}

impl Packing {
    /// Decodes the tensor `name`.
    pub fn decode(&self, name: &str, entry: &Entry) -> Result<Tensor> {
        let shape = &entry.shape;
        let cols = shape[shape.len() - 1];
        let rows: usize = shape[..shape.len() - 1].iter().product();
        let blocks = self.blocks(name, entry, [rows, cols])?;
        let halves = self.collect(entry, [rows, cols], blocks, |value| {
            let half = f16::from_f32(value);
            half.is_finite().then_some(half.to_le_bytes())
        })?;
        let (format, data): (&'static Format, _) = match halves {
            Some(data) => (&F16, data),
            None => {
                let all = self.collect(entry, [rows, cols], blocks, |value| {
                    Some(value.to_le_bytes())
                })?;
                (&F32, all.unwrap_or_default())
            }
        };
        Tensor::new(format, shape.clone(), Bytes::copy_from(&data)?)
    }

    /// Returns the rows and columns of a block with one scale.
    fn blocks(&self, name: &str, entry: &Entry, [rows, cols]: [usize; 2]) -> Result<[usize; 2]> {
        let (shape, count) = (&self.scale.0, self.scale.1.len());
        let stack = &entry.shape[..entry.shape.len().saturating_sub(2)];
        let in_blocks = |high: usize, wide: usize| {
            // A block must not extend from one matrix of a stack into the next.
            let rows = entry.shape[stack.len()];
            let whole = |height: &usize| stack.is_empty() || rows.is_multiple_of(*height);
            let height = block(rows, high).filter(whole);
            height.zip(block(cols, wide))
        };
        let size = match &shape[..] {
            _ if count == 1 => Some((rows, cols)),
            [parts] if *parts == rows => Some((1, cols)),
            [parts] if [*parts] == *stack => Some((rows / parts.max(&1), cols)),
            [leading @ .., high, wide] if leading == stack && entry.shape.len() > 1 => {
                in_blocks(*high, *wide)
            }
            _ => None,
        };
        let covers = |&(height, width): &(usize, usize)| {
            rows.div_ceil(height.max(1)) * cols.div_ceil(width.max(1)) == count
        };
        let size = size
            .filter(|size| rows * cols == 0 || covers(size))
            .ok_or_else(|| {
                let found = format!("scales {shape:?} for numbers {:?}", entry.shape);
                let item = format!("tensor '{name}'");
                Error::invalid(&entry.file, item, found, "a scale for each block")
            })?;
        Ok([size.0.max(1), size.1.max(1)])
    }

    /// Decodes every value and converts it with `store`. Returns `None` if a value cannot be stored.
    fn collect<const N: usize>(
        &self,
        entry: &Entry,
        [rows, cols]: [usize; 2],
        [height, width]: [usize; 2],
        store: impl Fn(f32) -> Option<[u8; N]>,
    ) -> Result<Option<Vec<u8>>> {
        let bytes = rows.saturating_mul(cols).saturating_mul(N);
        let mut data = Vec::new();
        data.try_reserve_exact(bytes)
            .map_err(|_| Error::Memory { bytes })?;
        let parts = cols.div_ceil(width);
        for row in 0..rows {
            let scales = &self.scale.1[row / height * parts..][..parts];
            for (part, scale) in scales.iter().enumerate() {
                for col in part * width..cols.min((part + 1) * width) {
                    let zero = self.zero(row, part, parts);
                    let number = self.number(&entry.data, row, col, cols) - zero;
                    match store(number * (scale * self.factor)) {
                        Some(stored) => data.extend(stored),
                        None => return Ok(None),
                    }
                }
            }
        }
        Ok(Some(data))
    }

    fn number(&self, data: &[u8], row: usize, col: usize, cols: usize) -> f32 {
        match self.numbers {
            Numbers::Byte(value) => value(data[row * cols + col]),
            Numbers::Fp4 => {
                let index = row * cols + col;
                let bits = data[index / 2] >> (4 * (index % 2));
                let value = FP4[usize::from(bits & 7)];
                if bits & 8 == 0 { value } else { -value }
            }
            Numbers::Words(bits) => {
                let words = cols.div_ceil(32 / bits as usize);
                packed(data, row * words, col, bits) as f32 - (1 << (bits - 1)) as f32
            }
        }
    }

    /// Returns the zero point of a block; there are `parts` columns of blocks.
    fn zero(&self, row: usize, part: usize, parts: usize) -> f32 {
        match (&self.zeros, self.numbers) {
            (Some(zeros), Numbers::Words(bits)) => {
                let in_word = 32 / bits as usize;
                let word = (row / in_word * parts + part) * 4;
                let Some(&bytes) = zeros.get(word..).and_then(|rest| rest.first_chunk()) else {
                    return 0.0;
                };
                let shift = row % in_word * bits as usize;
                let number = u32::from_le_bytes(bytes) >> shift & ((1 << bits) - 1);
                number as f32 - (1 << (bits - 1)) as f32
            }
            (Some(zeros), Numbers::Byte(value)) => zeros
                .get(row * parts + part)
                .map_or(0.0, |&byte| value(byte)),
            _ => 0.0,
        }
    }
}

/// Returns number `index` of the numbers in the words from `first` on.
fn packed(data: &[u8], first: usize, index: usize, bits: u32) -> u32 {
    let in_word = 32 / bits as usize;
    let at = 4 * (first + index / in_word);
    let word = u32::from_le_bytes([data[at], data[at + 1], data[at + 2], data[at + 3]]);
    word >> (index % in_word * bits as usize) & ((1 << bits) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn eight_bits_are_the_standards_numbers() {
        for (bits, value) in [
            (0x00, 0.0),
            (0x01, 0.001953125),
            (0x38, 1.0),
            (0x7e, 448.0),
            (0xc4, -3.0),
            (0x08, 0.015625),
        ] {
            assert_eq!(e4m3(bits), value);
        }
        assert!(e4m3(0x7f).is_nan() && e4m3(0xff).is_nan());
    }

    #[test]
    fn blocks_follow_from_shapes() {
        for (size, parts, expected) in [
            (264, 3, Some(128)),
            (256, 2, Some(128)),
            (264, 264, Some(1)),
            (264, 1, Some(512)),
            (96, 3, Some(32)),
            (100, 5, Some(20)),
            (64, 0, None),
            (4, 5, None),
            (10, 7, None),
        ] {
            assert_eq!(block(size, parts), expected, "{size} in {parts}");
        }
    }
}
