//! Checkpoints in the safetensors format: one file, or multiple files with an index, as model hubs store them.

mod blocks;
mod foreign;
mod names;
mod quantized;

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use safetensors::tensor::{Dtype, Metadata, SafeTensors};

use crate::error::{Error, Result};
use crate::failed_download::failed_download;
use crate::json::{ask_room_for_json, read_json, values_at_most};
use crate::regular_file::read_file;
use crate::storage::{Bytes, FileAccess, Tensor};
use crate::{BF16, F16, F32, Format};
use blocks::Blocks;
use quantized::Packing;

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";
/// Largest accepted index: a hundred bytes for each of a million tensors.
const LARGEST_INDEX: u64 = 100 << 20;
/// Largest header that the safetensors crate accepts.
const LARGEST_HEADER: u64 = 100_000_000;
/// Largest number of values in an index: half a million names of tensors and of their shards.
const MOST_NAMES: usize = 1 << 20;
/// Largest number of values in a header: thirty thousand tensors in one file.
const MOST_VALUES: usize = 1 << 19;
/// Largest number of tensors in all files, and of dimensions of a tensor.
const MOST_TENSORS: usize = 1 << 18;
const MOST_DIMENSIONS: usize = 8;
/// Longest tensor name, since error messages repeat it.
const LONGEST_NAME: usize = 1 << 10;

/// The tensors of one or more memory-mapped safetensors files, by name.
pub struct Checkpoint {
    name: String,
    access: FileAccess,
    entries: BTreeMap<String, Entry>,
    reads: Mutex<Vec<(String, usize)>>,
}

struct Entry {
    file: Arc<str>,
    dtype: Dtype,
    shape: Vec<usize>,
    data: Bytes,
    /// How the values are stored, if they are quantized.
    packing: Option<Packing>,
    /// The scales of a tensor in blocks of MXFP4.
    blocks: Option<Blocks>,
    /// Whether the values have been read.
    used: AtomicBool,
}

impl Checkpoint {
    /// Opens a folder that contains `model.safetensors`, or shards listed in `model.safetensors.index.json`.
    pub fn open(folder: impl AsRef<Path>) -> Result<Checkpoint> {
        Checkpoint::open_by(folder, FileAccess::Map)
    }

    /// Like [`Checkpoint::open`], with the files mapped or copied.
    pub fn open_by(folder: impl AsRef<Path>, access: FileAccess) -> Result<Checkpoint> {
        let folder = folder.as_ref();
        let mut checkpoint = Checkpoint {
            name: folder.display().to_string(),
            access,
            entries: BTreeMap::new(),
            reads: Mutex::default(),
        };
        let index = folder.join(INDEX);
        if folder.join(SINGLE).is_file() || !index.is_file() {
            checkpoint.add_file(&folder.join(SINGLE), |_| true)?;
            return checkpoint.complete();
        }
        let shards = read_index(&index)?;
        for (shard, tensors) in &shards {
            checkpoint.add_file(&folder.join(shard), |name| tensors.contains(name))?;
            for tensor in tensors {
                if !checkpoint.entries.contains_key(&names::unwrapped(tensor)) {
                    let file = folder.join(shard).display().to_string();
                    return Err(Error::Missing {
                        file,
                        item: format!("tensor '{tensor}', which {INDEX} lists,"),
                    });
                }
            }
        }
        checkpoint.complete()
    }

    /// Opens a single file.
    pub fn open_file(path: impl AsRef<Path>) -> Result<Checkpoint> {
        let path = path.as_ref();
        let mut checkpoint = Checkpoint {
            name: path.display().to_string(),
            access: FileAccess::Map,
            entries: BTreeMap::new(),
            reads: Mutex::default(),
        };
        checkpoint.add_file(path, |_| true)?;
        checkpoint.complete()
    }

    /// Identifies the quantized tensors among the tensors of all files.
    fn complete(mut self) -> Result<Checkpoint> {
        blocks::attach(&mut self.entries)?;
        quantized::attach(&mut self.entries)?;
        Ok(self)
    }

    fn add_file(&mut self, path: &Path, wanted: impl Fn(&str) -> bool) -> Result<()> {
        let file = path.display().to_string();
        let bytes = Bytes::open_file(path, self.access)?;
        if let Some((found, expected)) = failed_download(&bytes) {
            return Err(Error::invalid(&file, "the file", found, expected));
        }
        let values = header(&bytes).map_or(0, values_at_most);
        if values > MOST_VALUES {
            let expected = format!("at most {MOST_VALUES}");
            return Err(Error::invalid(
                &file,
                "header",
                format!("{values} values"),
                expected,
            ));
        }
        ask_room_for_json(header(&bytes).unwrap_or_default())?;
        let (header, metadata): (usize, Metadata) =
            SafeTensors::read_metadata(&bytes).map_err(|e| {
                Error::invalid(
                    &file,
                    "header",
                    e,
                    "a safetensors header that fits the file",
                )
            })?;
        let start = size_of::<u64>() + header; // the header's length comes first
        let shared: Arc<str> = file.as_str().into();
        for (name, info) in metadata.tensors() {
            if name.len() > LONGEST_NAME {
                let found = format!("a name of {} bytes", name.len());
                let expected = format!("at most {LONGEST_NAME}");
                return Err(Error::invalid(&file, "header", found, expected));
            }
            if info.shape.len() > MOST_DIMENSIONS {
                let found = format!("{} dimensions", info.shape.len());
                let expected = format!("at most {MOST_DIMENSIONS}");
                return Err(Error::invalid(
                    &file,
                    format!("tensor '{name}'"),
                    found,
                    expected,
                ));
            }
            if wanted(&name) {
                let (from, to) = info.data_offsets;
                self.entries.insert(
                    names::unwrapped(&name),
                    Entry {
                        file: Arc::clone(&shared),
                        dtype: info.dtype,
                        shape: info.shape.clone(),
                        data: bytes.slice(start + from..start + to),
                        packing: None,
                        blocks: None,
                        used: AtomicBool::new(false),
                    },
                );
            }
        }
        if self.entries.len() > MOST_TENSORS {
            let found = format!("{} tensors", self.entries.len());
            let expected = format!("at most {MOST_TENSORS}");
            return Err(Error::invalid(&file, "header", found, expected));
        }
        Ok(())
    }

    /// Name of this checkpoint in error messages.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The names of all tensors, sorted.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.entries.keys().map(String::as_str)
    }

    /// The names of the tensors that have not been read, sorted.
    pub fn unused(&self) -> impl Iterator<Item = &str> {
        let unused = |(_, entry): &(&String, &Entry)| !entry.used.load(Ordering::Relaxed);
        let entries = self.entries.iter().filter(unused);
        entries.map(|(name, _)| name.as_str())
    }

    /// The bytes of tensor `name`, if it exists. This does not count as reading the tensor.
    pub fn bytes(&self, name: &str) -> Option<&Bytes> {
        self.find(name).map(|entry| &entry.data)
    }

    /// Whether there is a tensor `name`.
    pub fn contains(&self, name: &str) -> bool {
        self.find(name).is_some()
    }

    fn find(&self, name: &str) -> Option<&Entry> {
        let own = self.entries.get(name);
        own.or_else(|| self.entries.get(names::headless(name, &self.entries)?))
    }

    /// The shape of tensor `name`, outermost dimension first, if it exists.
    pub fn shape(&self, name: &str) -> Option<&[usize]> {
        self.find(name).map(|entry| &entry.shape[..])
    }

    /// Returns the tensor `name` as floats, decoded if it is quantized, or in MXFP4 if it is stored in such blocks. Floats are not copied if they are aligned in the file.
    pub fn tensor(&self, name: &str) -> Result<Tensor> {
        let tensor = self.decoded(name)?;
        self.record(name, tensor.len());
        Ok(tensor)
    }

    fn decoded(&self, name: &str) -> Result<Tensor> {
        let entry = self.entry(name)?;
        if let Some(packing) = &entry.packing {
            return packing.decode(name, entry);
        }
        if let Some(blocks) = &entry.blocks {
            return blocks.repack(entry);
        }
        let format: &'static Format = match entry.dtype {
            Dtype::F32 => &F32,
            Dtype::F16 => &F16,
            Dtype::BF16 => &BF16,
            other => return Err(entry.wrong_type(name, other, "F32, F16 or BF16")),
        };
        let aligned = (entry.data.as_ptr() as usize).is_multiple_of(format.block_bytes);
        let data = if aligned {
            entry.data.clone()
        } else {
            Bytes::copy_from(&entry.data)?
        };
        Tensor::new(format, entry.shape.clone(), data)
    }

    /// Returns the shape and the values, in order, of the integer tensor `name`.
    pub fn read_i64(&self, name: &str) -> Result<(Vec<usize>, Vec<i64>)> {
        let entry = self.entry(name)?;
        let values = match entry.dtype {
            Dtype::I64 => entry
                .data
                .as_chunks()
                .0
                .iter()
                .map(|&b| i64::from_le_bytes(b))
                .collect(),
            Dtype::I32 => entry
                .data
                .as_chunks()
                .0
                .iter()
                .map(|&b| i32::from_le_bytes(b).into())
                .collect(),
            other => return Err(entry.wrong_type(name, other, "I64 or I32")),
        };
        self.record(name, entry.shape.iter().product());
        Ok((entry.shape.clone(), values))
    }

    /// Takes the names of the tensors that were read since the last call, each with its number of values.
    pub fn take_reads(&self) -> Vec<(String, usize)> {
        std::mem::take(&mut *self.reads.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn record(&self, name: &str, values: usize) {
        let mut reads = self.reads.lock().unwrap_or_else(PoisonError::into_inner);
        reads.push((name.into(), values));
    }

    /// Returns the entry of a tensor and marks it as used.
    fn entry(&self, name: &str) -> Result<&Entry> {
        let entry = self.find(name).ok_or_else(|| Error::Missing {
            file: self.name.clone(),
            item: format!("tensor '{name}'"),
        })?;
        entry.used.store(true, Ordering::Relaxed);
        Ok(entry)
    }
}

impl Entry {
    fn wrong_type(&self, name: &str, found: Dtype, expected: &str) -> Error {
        Error::invalid(
            &self.file,
            format!("tensor '{name}'"),
            format!("{found:?} numbers"),
            expected,
        )
    }
}

/// The header of a file, if the file is long enough to contain it.
fn header(bytes: &[u8]) -> Option<&[u8]> {
    let (length, rest) = bytes.split_first_chunk()?;
    let length = u64::from_le_bytes(*length);
    rest.get(
        ..usize::try_from(length)
            .ok()
            .filter(|_| length <= LARGEST_HEADER)?,
    )
}

/// Reads the index: shard file name -> names of its tensors.
fn read_index(path: &Path) -> Result<BTreeMap<String, BTreeSet<String>>> {
    let file = path.display().to_string();
    let text = read_file(path, LARGEST_INDEX).map_err(|e| Error::io(path, "read", e))?;
    let json = read_json(&text, MOST_NAMES)
        .map_err(|found| Error::invalid(&file, "the text", found, "JSON"))?;
    let map = json
        .get("weight_map")
        .and_then(|map| map.as_object())
        .ok_or_else(|| Error::Missing {
            file: file.clone(),
            item: "object 'weight_map'".to_string(),
        })?;
    let mut shards = BTreeMap::<String, BTreeSet<String>>::new();
    for (tensor, shard) in map {
        // Only a plain file name: the index must not lead outside its folder.
        let shard = shard
            .as_str()
            .filter(|name| Path::new(name).file_name() == Some(name.as_ref()));
        let Some(shard) = shard else {
            let found = map[tensor].to_string();
            return Err(Error::invalid(
                &file,
                format!("weight_map entry '{tensor}'"),
                found,
                "a file name",
            ));
        };
        shards
            .entry(shard.to_string())
            .or_default()
            .insert(tensor.clone());
    }
    Ok(shards)
}
