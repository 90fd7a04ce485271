//! GGUF: a file with typed metadata and aligned tensors, as ggml reads and writes it.
//!
//! ```text
//! "GGUF", version u32, tensor count u64, metadata count u64
//! metadata:  key string, type u32, value                      (strings: length u64, invalid UTF-8 is replaced)
//! tensors:   name string, dimensions u32, sizes u64 innermost first, type u32, offset u64
//! data:      from the next multiple of general.alignment (32 unless stated); offsets count from here
//! ```
//!
//! Everything is little-endian. Version 3 is read and written, version 2 is read.

mod parts;
mod read;
mod types;
mod value;
mod write;

use std::collections::HashMap;
use std::ops::Range;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

pub use value::{Array, Value};
pub use write::{NewTensor, Writer};

use crate::error::{Error, Result};
use crate::format::Format;
use crate::formats::f32::F32;
use crate::formats::f64::F64;
use crate::room::{ask_room, zeroed};
use crate::storage::{Bytes, FileAccess, Tensor};

/// Bytes of memory per name in the tables of keys and tensors.
const OF_NAME: usize = 256;

/// An opened GGUF file. Tensor data is not read until it is used.
pub struct Gguf {
    name: String,
    /// The files that contain it: one file, or the parts of a split file.
    files: Vec<PartFile>,
    metadata: Vec<(String, Value)>,
    keys: HashMap<String, usize>,
    tensors: Vec<TensorInfo>,
    names: HashMap<String, usize>,
    notes: Vec<String>,
    used_keys: Vec<AtomicBool>,
    used_tensors: Vec<AtomicBool>,
}

/// A file, with the number of tensors in it and in the files before it.
struct PartFile {
    bytes: Bytes,
    data: Range<usize>,
    tensors_end: usize,
}

/// The description of one tensor in a GGUF file.
#[derive(Clone, Debug, PartialEq)]
pub struct TensorInfo {
    /// The tensor's name.
    pub name: String,
    /// ggml's number of the tensor's format; this crate may not have the format. Type 42 with blocks of 128 numbers has the number of
    /// [`PQ2_0`](crate::PQ2_0).
    pub ggml_type: u32,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
    /// Offset of the tensor's data in the data section of its file.
    pub offset: usize,
}

impl TensorInfo {
    /// The format, if this crate has it.
    pub fn format(&self) -> Option<&'static Format> {
        Format::by_ggml_type(self.ggml_type).ok()
    }
}

impl Gguf {
    /// Maps and checks a file, or all parts of a split file, given any of them.
    pub fn open(path: impl AsRef<Path>) -> Result<Gguf> {
        Gguf::open_by(path, FileAccess::Map)
    }

    /// Maps or copies a file or its parts, and checks them.
    pub fn open_by(path: impl AsRef<Path>, access: FileAccess) -> Result<Gguf> {
        parts::open(path.as_ref(), access)
    }

    /// Parses a file in memory; error messages call it `name`.
    ///
    /// Checks the header, the metadata and the place of every tensor. An accepted file needs no further checks.
    pub fn parse(bytes: Bytes, name: impl Into<String>) -> Result<Gguf> {
        let mut gguf = Gguf {
            name: name.into(),
            files: Vec::new(),
            metadata: Vec::new(),
            keys: HashMap::new(),
            tensors: Vec::new(),
            names: HashMap::new(),
            notes: Vec::new(),
            used_keys: Vec::new(),
            used_tensors: Vec::new(),
        };
        let read = read::parse(&bytes, &gguf.name)?;
        let names = read.metadata.len() + read.tensors.len();
        ask_room(names.saturating_mul(OF_NAME))?;
        for (i, (key, _)) in read.metadata.iter().enumerate() {
            if gguf.keys.insert(key.clone(), i).is_some() {
                let item = format!("key '{key}'");
                return Err(Error::invalid(
                    &gguf.name,
                    item,
                    "it twice",
                    "each name once",
                ));
            }
        }
        gguf.used_keys
            .resize_with(read.metadata.len(), AtomicBool::default);
        gguf.metadata = read.metadata;
        gguf.notes = read.notes;
        gguf.add(bytes, read.data, read.tensors)?;
        Ok(gguf)
    }

    /// Adds the tensors of a file.
    fn add(&mut self, bytes: Bytes, data: Range<usize>, tensors: Vec<TensorInfo>) -> Result<()> {
        for tensor in tensors {
            let name = tensor.name.clone();
            if self.names.insert(name, self.tensors.len()).is_some() {
                let item = format!("tensor '{}'", tensor.name);
                return Err(Error::invalid(
                    &self.name,
                    item,
                    "it twice",
                    "each name once",
                ));
            }
            self.tensors.push(tensor);
        }
        self.used_tensors
            .resize_with(self.tensors.len(), AtomicBool::default);
        self.files.push(PartFile {
            bytes,
            data,
            tensors_end: self.tensors.len(),
        });
        Ok(())
    }

    /// The number of files: more than one for a split file.
    pub fn parts(&self) -> usize {
        self.files.len()
    }

    /// Total bytes before the tensor data, in all files.
    pub fn description_bytes(&self) -> usize {
        self.files.iter().map(|part| part.data.start).sum()
    }

    /// Name of this file in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Differences between the file and the parsed values, one sentence each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The metadata, in file order.
    pub fn metadata(&self) -> &[(String, Value)] {
        &self.metadata
    }

    /// The tensors, in file order.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// Whether the file has a tensor called `name`.
    pub fn has_tensor(&self, name: &str) -> bool {
        self.tensor_index(name).is_some()
    }

    fn tensor_index(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// Returns the value of `key`, if the file has it.
    pub fn get(&self, key: &str) -> Option<&Value> {
        let &i = self.keys.get(key)?;
        self.used_keys[i].store(true, Ordering::Relaxed);
        Some(&self.metadata[i].1)
    }

    /// The keys whose values have not been read, in file order.
    pub fn unused_keys(&self) -> impl Iterator<Item = &str> {
        let keys = self.metadata.iter().zip(&self.used_keys);
        let unused = keys.filter(|(_, used)| !used.load(Ordering::Relaxed));
        unused.map(|((key, _), _)| key.as_str())
    }

    /// The names of the tensors that have not been read, in file order.
    pub fn unused_tensors(&self) -> impl Iterator<Item = &str> {
        let tensors = self.tensors.iter().zip(&self.used_tensors);
        let unused = tensors.filter(|(_, used)| !used.load(Ordering::Relaxed));
        unused.map(|(tensor, _)| tensor.name.as_str())
    }

    /// Returns the string `key`. Like all typed getters, fails if the key is missing or has another type.
    pub fn get_str(&self, key: &str) -> Result<&str> {
        self.typed(key, "a string", Value::as_str)
    }

    /// Returns the unsigned integer `key`, stored in any integer type.
    pub fn get_u64(&self, key: &str) -> Result<u64> {
        self.typed(key, "an unsigned integer", Value::as_u64)
    }

    /// Returns the unsigned integer `key` as a size.
    pub fn get_usize(&self, key: &str) -> Result<usize> {
        self.typed(key, "a size", |value| value.as_u64()?.try_into().ok())
    }

    /// Returns the unsigned integer `key`, if it fits in 32 bits.
    pub fn get_u32(&self, key: &str) -> Result<u32> {
        self.typed(key, "an unsigned 32-bit integer", Value::as_u32)
    }

    /// Returns the float `key`, stored in 32 or 64 bits.
    pub fn get_f32(&self, key: &str) -> Result<f32> {
        self.typed(key, "a float", Value::as_f32)
    }

    /// Returns the bool `key`.
    pub fn get_bool(&self, key: &str) -> Result<bool> {
        self.typed(key, "a bool", Value::as_bool)
    }

    /// Returns the array `key`.
    pub fn get_array(&self, key: &str) -> Result<&Array> {
        self.typed(key, "an array", Value::as_array)
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<T> {
        let value = self.optional(key, expected, convert)?;
        value.ok_or_else(|| Error::Missing {
            file: self.name.clone(),
            item: format!("key '{key}'"),
        })
    }

    /// Returns the value of `key`, converted by `convert`; `None` if the file lacks the key. Fails if the value is not `expected`.
    pub fn optional<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        let wrong = || {
            Error::invalid(
                &self.name,
                format!("key '{key}'"),
                value.describe(),
                expected,
            )
        };
        convert(value).map(Some).ok_or_else(wrong)
    }

    /// Returns the tensor `name`, without a copy unless it is in F64, whose numbers are rounded to F32. Fails if it is missing or in a format that this crate does not have.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let i = self.tensor_index(name).ok_or_else(|| Error::Missing {
            file: self.name.clone(),
            item: format!("tensor '{name}'"),
        })?;
        let info = &self.tensors[i];
        self.used_tensors[i].store(true, Ordering::Relaxed);
        let Some(format) = info.format() else {
            return Err(Error::invalid(
                &self.name,
                format!("tensor '{name}'"),
                types::describe(info.ggml_type),
                format!("one of {}", crate::format::names()),
            ));
        };
        let part = self.files.iter().find(|part| i < part.tensors_end);
        let part = part.ok_or_else(|| Error::Missing {
            file: self.name.clone(),
            item: format!("the part with tensor '{name}'"),
        })?;
        let start = part.data.start + info.offset;
        let len = format.tensor_bytes(&info.shape)?;
        let data = part.bytes.slice(start..start + len);
        if format == &F64 {
            let mut values = zeroed::<f32>(len / format.block_bytes)?;
            format.decode(&data, &mut values);
            let data = Bytes::copy_from(bytemuck::cast_slice(&values))?;
            return Tensor::new(&F32, info.shape.clone(), data);
        }
        Tensor::new(format, info.shape.clone(), data)
    }
}
