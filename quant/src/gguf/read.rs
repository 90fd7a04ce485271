//! The parser. Files are not trusted: every count, length and offset is checked against the size of the file before anything is allocated
//! or read.

use std::ops::Range;

use super::types::settle_q2_0;
use super::value::{ARRAY, STRING};
use super::{Array, TensorInfo, Value};
use crate::counted::{converted, read_list};
use crate::error::{Error, Result};
use crate::failed_download::failed_download;
use crate::room::ask_room_for_text;

/// ggml's limit on dimensions.
const MAX_DIMS: u32 = 4;
/// Arrays nested deeper are refused, so that a file cannot exhaust the stack.
const MAX_DEPTH: usize = 8;
const DEFAULT_ALIGNMENT: u64 = 32;
/// Largest number of bytes before the data section. The largest vocabularies take a tenth of it.
const MAX_DESCRIPTION: usize = 256 << 20;
/// Largest numbers of keys and of tensors. Published files have a hundred keys and a few thousand tensors.
const MAX_KEYS: usize = 1 << 16;
const MAX_TENSORS: usize = 1 << 18;
/// Largest number of values in all arrays together: twice the tokens, merges, scores and types of the largest vocabulary. In a hole of a
/// sparse file, eight bytes are a string, which takes three times its bytes in memory.
const MAX_ELEMENTS: usize = 1 << 23;
/// Longest key and longest tensor name, since error messages repeat them.
const MAX_NAME: usize = 1 << 10;

/// Number of bytes ahead of the position for whose parsed values memory is checked.
const AHEAD: usize = 64 << 10;

/// Largest number of notes.
const MAX_NOTES: usize = 16;

/// The contents of a file's header.
pub(super) struct Parsed {
    pub metadata: Vec<(String, Value)>,
    pub tensors: Vec<TensorInfo>,
    /// Position of the data section.
    pub data: Range<usize>,
    /// Differences between the file and the parsed values.
    pub notes: Vec<String>,
}

/// Parses the header: everything but the tensors' data.
pub(super) fn parse(bytes: &[u8], file: &str) -> Result<Parsed> {
    let mut cursor = Cursor {
        bytes,
        position: 0,
        roomy: 0,
        file,
        elements: 0,
        notes: Vec::new(),
    };
    if let Some((found, expected)) = failed_download(bytes) {
        return Err(Error::invalid(file, "the file", found, expected));
    }
    if !bytes.starts_with(b"GGUF") {
        let found = format!("{:02x?}", &bytes[..bytes.len().min(4)]);
        return Err(Error::invalid(
            file,
            "the first four bytes",
            found,
            "\"GGUF\"",
        ));
    }
    cursor.position = 4;
    let version = cursor.u32("version")?;
    if !(2..=3).contains(&version) {
        let note = if version.swap_bytes() <= 3 {
            " (a big-endian file)"
        } else {
            ""
        };
        return Err(Error::invalid(
            file,
            "version",
            format!("{version}{note}"),
            "2 or 3",
        ));
    }
    // Minimum sizes: an empty key with a one-byte value; an empty name, no dimensions, type, offset.
    let tensor_count = cursor.count("tensor count", 8 + 4 + 4 + 8)?;
    cursor.at_most("tensor count", tensor_count, MAX_TENSORS)?;
    let metadata_count = cursor.count("metadata count", 8 + 4 + 1)?;
    cursor.at_most("metadata count", metadata_count, MAX_KEYS)?;
    let metadata = read_list(metadata_count, |i| {
        let key = cursor.name(&format!("key {i}"))?;
        let item = format!("key '{key}'");
        let kind = cursor.u32(&item)?;
        let value = cursor.value(kind, &item)?;
        Ok((key, value))
    })?;
    let mut tensors = read_list(tensor_count, |i| cursor.tensor(i))?;

    let alignment = alignment(&metadata, file)?;
    let start = (cursor.position as u64).next_multiple_of(alignment) as usize;
    // A file without tensors may end before its padding ends.
    let data = start.min(bytes.len())..bytes.len();
    settle_q2_0(&mut tensors, alignment, data.len(), file)?;
    check_places(&tensors, alignment, data.len(), file)?;
    Ok(Parsed {
        metadata,
        tensors,
        data,
        notes: cursor.notes,
    })
}

fn alignment(metadata: &[(String, Value)], file: &str) -> Result<u64> {
    const KEY: &str = "general.alignment";
    let Some((_, value)) = metadata.iter().find(|(key, _)| key == KEY) else {
        return Ok(DEFAULT_ALIGNMENT);
    };
    value
        .as_u64()
        .filter(|n| n.is_power_of_two() && *n <= 1 << 30)
        .ok_or_else(|| {
            Error::invalid(
                file,
                format!("key '{KEY}'"),
                value.describe(),
                "a power of two up to 2^30",
            )
        })
}

/// Checks that every tensor is aligned, inside the data section, and disjoint from the others.
fn check_places(tensors: &[TensorInfo], alignment: u64, data_len: usize, file: &str) -> Result<()> {
    let mut places = read_list(tensors.len(), |i| {
        let tensor = &tensors[i];
        let invalid = |found: String, expected: String| {
            Error::invalid(file, format!("tensor '{}'", tensor.name), found, expected)
        };
        if !(tensor.offset as u64).is_multiple_of(alignment) {
            return Err(invalid(
                format!("offset {}", tensor.offset),
                format!("a multiple of {alignment}"),
            ));
        }
        // For an unknown format, only the start can be checked.
        let len = match tensor.format() {
            Some(format) => format.tensor_bytes(&tensor.shape).map_err(|e| {
                invalid(
                    format!("shape {:?}", tensor.shape),
                    format!("a shape that {format} can store ({e})"),
                )
            })?,
            None => 0,
        };
        let end = tensor
            .offset
            .checked_add(len)
            .filter(|&end| end <= data_len)
            .ok_or_else(|| {
                invalid(
                    format!("{len} bytes at offset {}", tensor.offset),
                    format!("an end within the {data_len} bytes of tensor data"),
                )
            })?;
        Ok((tensor.offset, end, &tensor.name))
    })?;
    places.sort_unstable();
    for pair in places.windows(2) {
        let ((_, end, before), (start, _, name)) = (pair[0], pair[1]);
        if start < end {
            return Err(Error::invalid(
                file,
                format!("tensor '{name}'"),
                format!("offset {start}"),
                format!("at least {end}, where tensor '{before}' ends"),
            ));
        }
    }
    Ok(())
}

struct Cursor<'a> {
    bytes: &'a [u8],
    position: usize,
    /// Position up to which memory for the parsed values has been checked.
    roomy: usize,
    file: &'a str,
    /// Number of values in the arrays so far.
    elements: usize,
    notes: Vec<String>,
}

impl<'a> Cursor<'a> {
    fn remaining(&self) -> usize {
        self.bytes.len() - self.position
    }

    fn invalid(&self, item: &str, found: impl ToString, expected: impl Into<String>) -> Error {
        Error::invalid(
            self.file,
            format!("{item} (before byte {})", self.position),
            found,
            expected,
        )
    }

    fn take(&mut self, len: usize, item: &str) -> Result<&'a [u8]> {
        if len > self.remaining() {
            let found = format!("the end of the file after {} bytes", self.remaining());
            return Err(self.invalid(item, found, format!("{len} bytes")));
        }
        if len > MAX_DESCRIPTION.saturating_sub(self.position) {
            let expected = format!("at most {MAX_DESCRIPTION} bytes before the tensors' data");
            return Err(self.invalid(item, format!("{len} bytes"), expected));
        }
        let taken = &self.bytes[self.position..][..len];
        self.position += len;
        if self.position > self.roomy {
            self.roomy = self.position + AHEAD;
            ask_room_for_text(AHEAD)?;
        }
        Ok(taken)
    }

    fn array<const N: usize>(&mut self, item: &str) -> Result<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.take(N, item)?);
        Ok(bytes)
    }

    fn u32(&mut self, item: &str) -> Result<u32> {
        self.array(item).map(u32::from_le_bytes)
    }

    fn u64(&mut self, item: &str) -> Result<u64> {
        self.array(item).map(u64::from_le_bytes)
    }

    /// Reads a count of items of at least `least` bytes each, and checks that they fit in the rest of the file.
    fn count(&mut self, item: &str, least: usize) -> Result<usize> {
        let count = self.u64(item)?;
        let most = self.remaining() / least;
        match usize::try_from(count) {
            Ok(count) if count <= most => Ok(count),
            _ => Err(self.invalid(
                item,
                count,
                format!("at most {most} in the {} bytes left", self.remaining()),
            )),
        }
    }

    /// Refuses a count above `most`.
    fn at_most(&self, item: &str, count: usize, most: usize) -> Result<()> {
        if count <= most {
            Ok(())
        } else {
            Err(self.invalid(item, count, format!("at most {most}")))
        }
    }

    /// Reads the name of a key or a tensor.
    fn name(&mut self, item: &str) -> Result<String> {
        let len = self.count(item, 1)?;
        self.at_most(&format!("length of {item}"), len, MAX_NAME)?;
        let bytes = self.take(len, item)?;
        match std::str::from_utf8(bytes) {
            Ok(name) => Ok(name.to_string()),
            Err(e) => Err(self.invalid(
                item,
                format!("bytes that are not UTF-8 ({e})"),
                "a UTF-8 string",
            )),
        }
    }

    /// Reads a string value. Bytes that are not UTF-8 are replaced, which is noted. Trailing zeros are dropped as C terminators.
    fn string(&mut self, item: &str) -> Result<String> {
        let len = self.count(item, 1)?;
        let bytes = self.take(len, item)?;
        if len > AHEAD {
            ask_room_for_text(len)?;
        }
        let end = bytes
            .iter()
            .rposition(|&byte| byte != 0)
            .map_or(0, |last| last + 1);
        let text = String::from_utf8_lossy(&bytes[..end]);
        if matches!(text, std::borrow::Cow::Owned(_)) {
            let note = format!("{item}: bytes that are not UTF-8 were replaced");
            if self.notes.len() < MAX_NOTES && self.notes.last() != Some(&note) {
                self.notes.push(note);
            }
        }
        Ok(text.into_owned())
    }

    fn bool(&mut self, item: &str) -> Result<bool> {
        match self.array(item)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [other] => Err(self.invalid(item, format!("bool {other}"), "0 or 1")),
        }
    }

    fn value(&mut self, kind: u32, item: &str) -> Result<Value> {
        Ok(match kind {
            0 => Value::U8(u8::from_le_bytes(self.array(item)?)),
            1 => Value::I8(i8::from_le_bytes(self.array(item)?)),
            2 => Value::U16(u16::from_le_bytes(self.array(item)?)),
            3 => Value::I16(i16::from_le_bytes(self.array(item)?)),
            4 => Value::U32(u32::from_le_bytes(self.array(item)?)),
            5 => Value::I32(i32::from_le_bytes(self.array(item)?)),
            6 => Value::F32(f32::from_le_bytes(self.array(item)?)),
            7 => Value::Bool(self.bool(item)?),
            STRING => Value::String(self.string(item)?),
            ARRAY => Value::Array(self.elements(item, 1)?),
            10 => Value::U64(u64::from_le_bytes(self.array(item)?)),
            11 => Value::I64(i64::from_le_bytes(self.array(item)?)),
            12 => Value::F64(f64::from_le_bytes(self.array(item)?)),
            other => {
                return Err(self.invalid(
                    item,
                    format!("value type {other}"),
                    "a type from 0 to 12",
                ));
            }
        })
    }

    fn elements(&mut self, item: &str, depth: usize) -> Result<Array> {
        if depth > MAX_DEPTH {
            let found = format!("arrays nested {depth} deep");
            return Err(self.invalid(item, found, format!("at most {MAX_DEPTH}")));
        }
        let kind = self.u32(item)?;
        Ok(match kind {
            0 => Array::U8(self.numbers(item, u8::from_le_bytes)?),
            1 => Array::I8(self.numbers(item, i8::from_le_bytes)?),
            2 => Array::U16(self.numbers(item, u16::from_le_bytes)?),
            3 => Array::I16(self.numbers(item, i16::from_le_bytes)?),
            4 => Array::U32(self.numbers(item, u32::from_le_bytes)?),
            5 => Array::I32(self.numbers(item, i32::from_le_bytes)?),
            6 => Array::F32(self.numbers(item, f32::from_le_bytes)?),
            7 => Array::Bool(self.list(item, 1, |cursor| cursor.bool(item))?),
            STRING => Array::String(self.list(item, 8, |cursor| cursor.string(item))?),
            ARRAY => {
                Array::Array(self.list(item, 4 + 8, |cursor| cursor.elements(item, depth + 1))?)
            }
            10 => Array::U64(self.numbers(item, u64::from_le_bytes)?),
            11 => Array::I64(self.numbers(item, i64::from_le_bytes)?),
            12 => Array::F64(self.numbers(item, f64::from_le_bytes)?),
            other => {
                return Err(self.invalid(
                    item,
                    format!("array of type {other}"),
                    "a type from 0 to 12",
                ));
            }
        })
    }

    fn numbers<T, const N: usize>(
        &mut self,
        item: &str,
        convert: fn([u8; N]) -> T,
    ) -> Result<Vec<T>> {
        let count = self.elements_of(item, N)?;
        let bytes = self.take(count * N, item)?;
        converted(bytes.as_chunks().0, convert)
    }

    fn list<T>(
        &mut self,
        item: &str,
        least: usize,
        read: impl Fn(&mut Cursor<'a>) -> Result<T>,
    ) -> Result<Vec<T>> {
        let count = self.elements_of(item, least)?;
        read_list(count, |_| read(self))
    }

    /// Reads the count of an array's values, and adds it to those of other arrays.
    fn elements_of(&mut self, item: &str, least: usize) -> Result<usize> {
        let count = self.count(item, least)?;
        self.elements = self.elements.saturating_add(count);
        let all = format!("the number of values in arrays up to {item}");
        self.at_most(&all, self.elements, MAX_ELEMENTS)?;
        Ok(count)
    }

    fn tensor(&mut self, index: usize) -> Result<TensorInfo> {
        let name = self.name(&format!("name of tensor {index}"))?;
        let item = format!("tensor '{name}'");
        let dims = self.u32(&item)?;
        if dims > MAX_DIMS {
            return Err(self.invalid(
                &item,
                format!("{dims} dimensions"),
                format!("at most {MAX_DIMS}"),
            ));
        }
        let mut shape = Vec::with_capacity(dims as usize);
        let mut numbers = 1usize;
        for _ in 0..dims {
            let dim = self.u64(&item)?;
            let product = usize::try_from(dim)
                .ok()
                .and_then(|dim| numbers.checked_mul(dim.max(1)));
            let Some(product) = product.filter(|&n| isize::try_from(n).is_ok()) else {
                let found = format!("dimension {dim} after {shape:?} (innermost first)");
                return Err(self.invalid(&item, found, "fewer than 2^63 numbers"));
            };
            numbers = product;
            shape.push(dim as usize);
        }
        shape.reverse();
        let ggml_type = self.u32(&item)?;
        let offset = self.u64(&item)?;
        let Ok(offset) = usize::try_from(offset) else {
            return Err(self.invalid(
                &item,
                format!("offset {offset}"),
                "an offset within the file",
            ));
        };
        Ok(TensorInfo {
            name,
            ggml_type,
            shape,
            offset,
        })
    }
}
