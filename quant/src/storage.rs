//! Storage of numbers: a shared range of a mapped file, of static data or of owned memory.

use std::io::Read;
use std::ops::{Deref, Range};
use std::path::Path;
use std::sync::Arc;

use crate::aligned::Aligned;
use crate::error::{Error, Result};
use crate::format::Format;
use crate::regular_file::open_file;

enum Storage {
    Mapped(memmap2::Mmap, Option<FileStamp>),
    Static(&'static [u8]),
    Owned(Aligned),
}

impl Storage {
    fn as_slice(&self) -> &[u8] {
        match self {
            Storage::Mapped(map, _) => map,
            Storage::Static(bytes) => bytes,
            Storage::Owned(bytes) => bytes.as_slice(),
        }
    }
}

/// Identifies the contents of a file without reading them: device, inode, size, and the times of the last changes of contents and inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileStamp {
    file: [u64; 3],
    /// Seconds since 1970 and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
}

impl FileStamp {
    #[cfg(unix)]
    fn new(found: &std::fs::Metadata) -> Option<Self> {
        use std::os::unix::fs::MetadataExt;
        Some(FileStamp {
            file: [found.dev(), found.ino(), found.size()],
            modified: (found.mtime(), found.mtime_nsec()),
            changed: (found.ctime(), found.ctime_nsec()),
        })
    }

    #[cfg(not(unix))]
    fn new(_found: &std::fs::Metadata) -> Option<Self> {
        None
    }

    /// All numbers of the stamp.
    pub fn numbers(&self) -> [u64; 7] {
        let [device, inode, size] = self.file;
        let times = [self.modified, self.changed].map(|(s, ns)| [s as u64, ns as u64]);
        let [[s, ns], [changed_s, changed_ns]] = times;
        [device, inode, size, s, ns, changed_s, changed_ns]
    }

    /// The time of the last change, in seconds since 1970.
    pub fn newest(&self) -> i64 {
        self.modified.0.max(self.changed.0)
    }
}

/// A read-only range of bytes. Cloning and slicing share the storage.
#[derive(Clone)]
pub struct Bytes {
    storage: Arc<Storage>,
    range: Range<usize>,
}

/// How the bytes of a file are brought into memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FileAccess {
    /// The file is mapped and read in place. Shortening the file while it is mapped ends the process.
    #[default]
    Map,
    /// The file is copied into memory, and may change afterwards.
    Copy,
}

impl Bytes {
    /// Opens a complete file.
    pub fn open_file(path: impl AsRef<Path>, access: FileAccess) -> Result<Bytes> {
        match access {
            FileAccess::Map => Bytes::map_file(path),
            FileAccess::Copy => Bytes::copy_file(path),
        }
    }

    /// Copies a complete file into memory that starts on a 64-byte boundary.
    ///
    /// # Errors
    /// [`Error::Io`], also if the file becomes shorter during the copy, and [`Error::Memory`].
    pub fn copy_file(path: impl AsRef<Path>) -> Result<Bytes> {
        let path = path.as_ref();
        let failed = |e| Error::io(path, "read", e);
        let mut file = open_file(path).map_err(|e| Error::io(path, "open", e))?;
        let length = file.metadata().map_err(failed)?.len();
        let length = usize::try_from(length).map_err(|_| Error::Memory { bytes: usize::MAX })?;
        let mut aligned = Aligned::zeroed(length)?;
        file.read_exact(aligned.as_mut_slice()).map_err(failed)?;
        Ok(Bytes::new(Storage::Owned(aligned)))
    }

    /// Maps a complete file. It must not be shortened or rewritten in place while it is mapped; replacing it by renaming another file over
    /// it is harmless.
    pub fn map_file(path: impl AsRef<Path>) -> Result<Bytes> {
        let path = path.as_ref();
        let file = open_file(path).map_err(|e| Error::io(path, "open", e))?;
        let found = file.metadata().map_err(|e| Error::io(path, "open", e))?;
        // SAFETY: the map is private to this process and read-only; the documentation above requires that the file is not shortened.
        let map = unsafe { memmap2::Mmap::map(&file) }.map_err(|e| Error::io(path, "map", e))?;
        Ok(Bytes::new(Storage::Mapped(map, FileStamp::new(&found))))
    }

    /// Wraps bytes that are part of the program.
    pub fn from_static(bytes: &'static [u8]) -> Bytes {
        Bytes::new(Storage::Static(bytes))
    }

    /// Copies `bytes` to memory that starts on a 64-byte boundary.
    ///
    /// # Panics
    /// If the system refuses the memory; [`Bytes::copy_from`] returns an error instead.
    pub fn from_vec(bytes: Vec<u8>) -> Bytes {
        Bytes::copy_from(&bytes).expect("memory for a copy")
    }

    /// Copies `bytes` to memory that starts on a 64-byte boundary.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the system refuses the memory.
    pub fn copy_from(bytes: &[u8]) -> Result<Bytes> {
        let mut aligned = Aligned::zeroed(bytes.len())?;
        aligned.as_mut_slice().copy_from_slice(bytes);
        Ok(Bytes::new(Storage::Owned(aligned)))
    }

    /// Copies all parts, one after another, to memory that starts on a 64-byte boundary.
    ///
    /// # Errors
    /// [`Error::Memory`](crate::Error::Memory) if the system refuses the memory.
    pub fn concat(parts: &[&[u8]]) -> Result<Bytes> {
        let mut aligned = Aligned::zeroed(parts.iter().map(|part| part.len()).sum())?;
        let mut rest: &mut [u8] = aligned.as_mut_slice();
        for part in parts {
            let (to, after) = rest.split_at_mut(part.len());
            to.copy_from_slice(part);
            rest = after;
        }
        Ok(Bytes::new(Storage::Owned(aligned)))
    }

    fn new(storage: Storage) -> Bytes {
        let range = 0..storage.as_slice().len();
        Bytes {
            storage: Arc::new(storage),
            range,
        }
    }

    /// Returns the complete mapping that contains these bytes; `None` if they are not part of a mapped file.
    pub fn mapping(&self) -> Option<Bytes> {
        match &*self.storage {
            Storage::Mapped(map, _) => Some(Bytes {
                storage: self.storage.clone(),
                range: 0..map.len(),
            }),
            Storage::Static(_) | Storage::Owned(_) => None,
        }
    }

    /// Returns the stamp of the mapped file that contains these bytes, and their offset in it; `None` if they are not part of one, or on
    /// systems without file numbers.
    pub fn stamp(&self) -> Option<(FileStamp, usize)> {
        match &*self.storage {
            Storage::Mapped(_, stamp) => stamp.map(|stamp| (stamp, self.range.start)),
            Storage::Static(_) | Storage::Owned(_) => None,
        }
    }

    /// Returns the part `range` of these bytes.
    ///
    /// # Panics
    /// If `range` is not within `0..self.len()`.
    pub fn slice(&self, range: Range<usize>) -> Bytes {
        assert!(
            range.start <= range.end && range.end <= self.len(),
            "{range:?} of {} bytes",
            self.len()
        );
        let start = self.range.start;
        Bytes {
            storage: self.storage.clone(),
            range: start + range.start..start + range.end,
        }
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.storage.as_slice()[self.range.clone()]
    }
}

/// An array of numbers in any format.
#[derive(Clone)]
pub struct Tensor {
    /// How the numbers are stored.
    pub format: &'static Format,
    /// The dimensions, outermost first; the last one is contiguous.
    pub shape: Vec<usize>,
    /// The blocks; their number matches the shape exactly.
    pub data: Bytes,
}

impl Tensor {
    /// Creates a tensor over `data`, whose length must match `shape`.
    pub fn new(format: &'static Format, shape: Vec<usize>, data: Bytes) -> Result<Tensor> {
        let expected = format.tensor_bytes(&shape)?;
        if data.len() != expected {
            return Err(Error::DataLength {
                format: format.name,
                shape,
                found: data.len(),
                expected,
            });
        }
        Ok(Tensor {
            format,
            shape,
            data,
        })
    }

    /// Number of values.
    pub fn len(&self) -> usize {
        self.data.len() / self.format.block_bytes * self.format.block_len
    }

    /// Whether the tensor has no values.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Decodes all values, in order.
    pub fn to_f32(&self) -> Vec<f32> {
        let mut values = vec![0.0; self.len()];
        self.format.decode(&self.data, &mut values);
        values
    }

    /// Returns the tensor's rows and columns as a matrix: the product of all dimensions but the last, and the last. A tensor with one
    /// dimension has one row.
    pub fn rows_cols(&self) -> (usize, usize) {
        match self.shape.split_last() {
            Some((&cols, outer)) => (outer.iter().product(), cols),
            None => (1, 1),
        }
    }
}

impl std::fmt::Debug for Tensor {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {:?}", self.format, self.shape)
    }
}
