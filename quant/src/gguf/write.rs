//! The writer: first the header, then tensor data streamed in order, under a temporary name until the file is complete.

use std::io::Write;
use std::path::{Path, PathBuf};

use super::{Array, Value};
use crate::error::{Error, Result};
use crate::format::Format;
use crate::regular_file::NewFile;

/// Tensors start on cache lines, so that the mapped file is suitable for aligned loads and for a GPU.
const ALIGNMENT: usize = 64;

/// A tensor to be written.
#[derive(Clone, Debug)]
pub struct NewTensor {
    /// The tensor's name.
    pub name: String,
    /// The format in which its data will be stored.
    pub format: &'static Format,
    /// The dimensions, outermost first.
    pub shape: Vec<usize>,
}

/// Writes one GGUF file. The file appears under its name when [`Writer::finish`] has succeeded. Dropping the writer earlier removes the
/// partial file.
pub struct Writer {
    path: PathBuf,
    file: NewFile,
    tensors: Vec<(String, usize)>, // name, bytes
    current: usize,
    written: usize, // of the current tensor
}

impl Writer {
    /// Starts `path` and writes everything but the data. `general.alignment` is set here; one in `metadata` is ignored.
    pub fn create(
        path: impl AsRef<Path>,
        metadata: &[(String, Value)],
        tensors: &[NewTensor],
    ) -> Result<Writer> {
        let path = path.as_ref();
        let (header, sizes) = header(path, metadata, tensors)?;
        let file = NewFile::create(path).map_err(|e| Error::io(path, "write", e))?;
        let mut writer = Writer {
            path: path.to_path_buf(),
            file,
            tensors: sizes,
            current: 0,
            written: 0,
        };
        writer.write_all(&header)?;
        writer.skip_empty();
        Ok(writer)
    }

    /// Writes the next bytes of the current tensor: all of them or a part, but not beyond its end. Tensors follow each other in the order
    /// given to [`Writer::create`].
    pub fn write_tensor(&mut self, bytes: &[u8]) -> Result<()> {
        if bytes.is_empty() {
            return Ok(());
        }
        let Some((name, size)) = self.tensors.get(self.current) else {
            return Err(self.invalid("the data", format!("{} more bytes", bytes.len()), "the end"));
        };
        let left = size - self.written;
        if bytes.len() > left {
            let item = format!("tensor '{name}'");
            return Err(self.invalid(
                item,
                format!("{} bytes", bytes.len()),
                format!("at most {left}"),
            ));
        }
        self.written += bytes.len();
        let complete = self.written == *size;
        let padding = size.next_multiple_of(ALIGNMENT) - size;
        self.write_all(bytes)?;
        if complete {
            self.write_all(&[0; ALIGNMENT][..padding])?;
            self.current += 1;
            self.written = 0;
            self.skip_empty();
        }
        Ok(())
    }

    /// Completes the file: when this returns, all data is on disk and the name is in place.
    pub fn finish(self) -> Result<()> {
        if let Some((name, size)) = self.tensors.get(self.current) {
            let item = format!("tensor '{name}'");
            return Err(self.invalid(item, format!("{} bytes", self.written), format!("{size}")));
        }
        let path = self.path;
        self.file.finish().map_err(|e| Error::io(&path, "write", e))
    }

    fn write_all(&mut self, bytes: &[u8]) -> Result<()> {
        self.file
            .write_all(bytes)
            .map_err(|e| Error::io(&self.path, "write", e))
    }

    fn skip_empty(&mut self) {
        while self
            .tensors
            .get(self.current)
            .is_some_and(|(_, size)| *size == 0)
        {
            self.current += 1;
        }
    }

    fn invalid(
        &self,
        item: impl Into<String>,
        found: String,
        expected: impl Into<String>,
    ) -> Error {
        Error::invalid(&self.path.display().to_string(), item, found, expected)
    }
}

type Header = (Vec<u8>, Vec<(String, usize)>);

/// Returns the bytes before the data, and the name and size of each tensor.
fn header(path: &Path, metadata: &[(String, Value)], tensors: &[NewTensor]) -> Result<Header> {
    const KEY: &str = "general.alignment";
    let mut header = b"GGUF".to_vec();
    header.extend(3u32.to_le_bytes());
    header.extend((tensors.len() as u64).to_le_bytes());
    let metadata: Vec<_> = metadata.iter().filter(|(key, _)| key != KEY).collect();
    header.extend((metadata.len() as u64 + 1).to_le_bytes());
    let alignment = (KEY.to_string(), Value::U32(ALIGNMENT as u32));
    for (key, value) in metadata.into_iter().chain([&alignment]) {
        put_string(&mut header, key);
        header.extend(value.type_id().to_le_bytes());
        put_value(&mut header, value);
    }
    let (mut sizes, mut offset) = (Vec::new(), 0usize);
    for NewTensor {
        name,
        format,
        shape,
    } in tensors
    {
        let size = format.tensor_bytes(shape).map_err(|e| {
            let item = format!("tensor '{name}'");
            Error::invalid(
                &path.display().to_string(),
                item,
                format!("shape {shape:?}"),
                format!("{e}"),
            )
        })?;
        put_string(&mut header, name);
        header.extend((shape.len() as u32).to_le_bytes());
        for &dim in shape.iter().rev() {
            header.extend((dim as u64).to_le_bytes());
        }
        header.extend(format.ggml_type.to_le_bytes());
        header.extend((offset as u64).to_le_bytes());
        sizes.push((name.clone(), size));
        offset = size
            .checked_next_multiple_of(ALIGNMENT)
            .and_then(|size| offset.checked_add(size))
            .ok_or_else(|| Error::TooLarge {
                shape: shape.clone(),
            })?;
    }
    header.resize(header.len().next_multiple_of(ALIGNMENT), 0);
    Ok((header, sizes))
}

fn put_string(out: &mut Vec<u8>, string: &str) {
    out.extend((string.len() as u64).to_le_bytes());
    out.extend(string.as_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(value) => out.extend(value.to_le_bytes()),
        Value::I8(value) => out.extend(value.to_le_bytes()),
        Value::U16(value) => out.extend(value.to_le_bytes()),
        Value::I16(value) => out.extend(value.to_le_bytes()),
        Value::U32(value) => out.extend(value.to_le_bytes()),
        Value::I32(value) => out.extend(value.to_le_bytes()),
        Value::F32(value) => out.extend(value.to_le_bytes()),
        Value::Bool(value) => out.push(u8::from(*value)),
        Value::String(value) => put_string(out, value),
        Value::Array(value) => put_array(out, value),
        Value::U64(value) => out.extend(value.to_le_bytes()),
        Value::I64(value) => out.extend(value.to_le_bytes()),
        Value::F64(value) => out.extend(value.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    out.extend(array.element_type().to_le_bytes());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(values) => out.extend(values),
        Array::I8(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::U16(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::I16(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::U32(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::I32(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::F32(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::Bool(values) => out.extend(values.iter().map(|&v| u8::from(v))),
        Array::String(values) => values.iter().for_each(|v| put_string(out, v)),
        Array::Array(values) => values.iter().for_each(|v| put_array(out, v)),
        Array::U64(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::I64(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        Array::F64(values) => out.extend(values.iter().flat_map(|v| v.to_le_bytes())),
    }
}
