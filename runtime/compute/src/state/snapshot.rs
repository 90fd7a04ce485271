//! A session's state as a value: in memory, and as a file.
//!
//! The file: a magic number and version, the model's fingerprint, the table of state tensors as JSON, the arena (which holds
//! position, sampler, history and last logits as well), the user's note, and a checksum of all before it.

use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

use waterline_quant::{NewFile, open_file, read_bytes};

use super::arena::Arena;
use super::plan::{HISTORY, StatePlan, StateTensorPlan};
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"WLSTATE1";
/// Longest state tensor table or note that is believed.
const LARGEST: u64 = 1 << 28;

/// A copy of a session.
#[derive(Clone)]
pub struct Snapshot {
    fingerprint: u64,
    arena: Arena,
    /// Kept with the state, not interpreted: a program's own notes, such as the messages of a chat.
    pub note: Vec<u8>,
}

impl Snapshot {
    /// A state of the model with this fingerprint.
    #[doc(hidden)]
    pub fn new(fingerprint: u64, arena: Arena) -> Self {
        Snapshot {
            fingerprint,
            arena,
            note: Vec::new(),
        }
    }

    /// What differs for different models.
    #[doc(hidden)]
    pub fn fingerprint(&self) -> u64 {
        self.fingerprint
    }

    /// The state.
    #[doc(hidden)]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The state's bytes, to overwrite. Where a session takes them over, it checks its counters.
    #[doc(hidden)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.arena.bytes_mut()
    }

    /// Bytes of the state.
    pub fn bytes(&self) -> usize {
        self.arena.bytes().len()
    }

    /// Every state tensor with its bytes.
    pub fn tensors(&self) -> impl Iterator<Item = (&StateTensorPlan, &[u8])> {
        let bytes = self.arena.bytes();
        self.arena
            .plan()
            .tensors()
            .iter()
            .map(move |tensor| (tensor, &bytes[tensor.offset..tensor.offset + tensor.bytes]))
    }

    /// Writes the snapshot to `path`, a file that only its owner may read. It appears when it is whole; until then what had its
    /// name stays.
    ///
    /// # Errors
    /// [`Error::Io`], also if `path` is something other than a file.
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let path = path.as_ref();
        let write = || {
            let mut file = NewFile::create_private(path)?;
            self.write(&mut file)?;
            file.finish()
        };
        write().map_err(|e| Error::io(path, "cannot save the session", e))
    }

    /// Writes the snapshot to `out`.
    pub fn write(&self, out: &mut impl Write) -> std::io::Result<()> {
        let tensors = serde_json::to_vec(self.arena.plan().tensors())?;
        let mut out = Checked {
            inner: out,
            hash: crc32fast::Hasher::new(),
        };
        out.write_all(MAGIC)?;
        out.write_all(&self.fingerprint.to_le_bytes())?;
        for part in [&tensors[..], self.arena.bytes(), &self.note] {
            out.write_all(&(part.len() as u64).to_le_bytes())?;
            out.write_all(part)?;
        }
        let sum = out.hash.clone().finalize();
        out.inner.write_all(&sum.to_le_bytes())
    }

    /// Reads a snapshot file.
    pub fn load(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let file = open_file(path).map_err(|e| Error::io(path, "cannot open", e))?;
        let size = file
            .metadata()
            .map_err(|e| Error::io(path, "cannot open", e))?
            .len();
        Self::read(
            &mut std::io::BufReader::new(file),
            size,
            &path.display().to_string(),
        )
    }

    /// Reads a snapshot of `size` bytes from `input`, which errors call `name`.
    pub fn read(input: &mut impl Read, size: u64, name: &str) -> Result<Self> {
        let bad = |reason: &str| Error::Snapshot {
            file: name.into(),
            reason: reason.into(),
        };
        let failed = |error: std::io::Error| match error.kind() {
            ErrorKind::UnexpectedEof => bad("the file ends too early"),
            ErrorKind::OutOfMemory => Error::memory("a saved session", "free some memory"),
            _ => Error::io(Path::new(name), "cannot read", error),
        };
        let mut input = Checked {
            inner: input,
            hash: crc32fast::Hasher::new(),
        };
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(failed)?;
        if &magic != MAGIC {
            return Err(bad("this is not a saved session of this version"));
        }
        let mut number = [0; 8];
        let mut next = |input: &mut Checked<_>| -> Result<u64> {
            input.read_exact(&mut number).map_err(failed)?;
            Ok(u64::from_le_bytes(number))
        };
        let fingerprint = next(&mut input)?;
        let length = next(&mut input)?;
        if length > LARGEST.min(size) {
            return Err(bad("its tensor table is longer than the file"));
        }
        let json = read_bytes(&mut input, length).map_err(failed)?;
        let mut tensors: Vec<StateTensorPlan> =
            serde_json::from_slice(&json).map_err(|_| bad("its tensor table is damaged"))?;
        // Older files call the history "log".
        let history = tensors
            .get_mut(HISTORY)
            .filter(|tensor| tensor.name == "log");
        if let Some(tensor) = history {
            tensor.name = "history".into();
        }
        let length = next(&mut input)?;
        let plan = StatePlan::of_placed(tensors).filter(|plan| plan.bytes() as u64 == length);
        let Some(plan) = plan.filter(|_| length <= size) else {
            return Err(bad("its tensor table and its state do not fit together"));
        };
        let mut arena = Arena::new(Arc::new(plan))?;
        input.read_exact(arena.bytes_mut()).map_err(failed)?;
        let length = next(&mut input)?;
        if length > LARGEST.min(size) {
            return Err(bad("its note is longer than the file"));
        }
        let note = read_bytes(&mut input, length).map_err(failed)?;
        let sum = input.hash.clone().finalize();
        let mut stored = [0; 4];
        input.inner.read_exact(&mut stored).map_err(failed)?;
        if u32::from_le_bytes(stored) != sum {
            return Err(bad("the checksum does not match: the file is damaged"));
        }
        if input.inner.read(&mut [0]).map_err(failed)? != 0 {
            return Err(bad("it goes on after its checksum"));
        }
        Ok(Snapshot {
            fingerprint,
            arena,
            note,
        })
    }
}

/// Counts a checksum of all that passes.
struct Checked<T> {
    inner: T,
    hash: crc32fast::Hasher,
}

impl<T: Write> Write for Checked<T> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Checked<T> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let n = self.inner.read(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }
}
