//! A session's state as a value: in memory, and as a file.
//!
//! File layout: a magic number with the version, the model's fingerprint, the table of state tensors as JSON, the used parts of the arena
//! (which include position, sampler, history and last logits), the grid, a hash of the tokens, the user's note, and a checksum of
//! everything before it. Older files hold the model's label instead of its fingerprint; the oldest hold the complete arena, and neither the
//! grid nor the hash.

use std::io::{ErrorKind, Read, Write};
use std::path::Path;
use std::sync::Arc;

use waterline_quant::{NewFile, ask_room, ask_room_for_text, open_file, read_bytes};

use super::arena::Arena;
use super::identity::{Fingerprint, Identity};
use super::plan::{HISTORY, StatePlan, StateTensorPlan};
use super::sparse::{self, Found};
use super::summed::Summed;
use crate::error::{Error, Result};

const MAGIC: &[u8; 8] = b"WLSTATE3";
/// Magic number of an older file, which holds the model's label.
const LABEL_MAGIC: &[u8; 8] = b"WLSTATE2";
/// Magic number of a still older file, which also holds the complete arena.
const ARENA_MAGIC: &[u8; 8] = b"WLSTATE1";
/// Memory that an entry of the state tensor table takes as text, in bytes, including the growth of the text buffer.
const LONGEST_ENTRY: usize = 1 << 10;
/// Largest accepted size of the state tensor table or the note, in bytes.
const LARGEST: u64 = 1 << 28;

/// The model of a snapshot.
#[derive(Clone)]
enum Origin {
    /// A model of this process.
    Opened(Arc<Identity>),
    /// The model that a file names.
    Named(Fingerprint),
    /// The model that an older file names, by the label.
    Labelled(u64),
}

/// A copy of a session.
#[derive(Clone)]
pub struct Snapshot {
    origin: Origin,
    arena: Arena,
    /// The positions at which the chunks of tokens ended, hashed to one number.
    #[doc(hidden)]
    pub grid: u64,
    /// A hash of all tokens, if they are known.
    #[doc(hidden)]
    pub tokens: Option<u64>,
    /// Data stored with the state but not interpreted: a program's own data, such as the messages of a chat.
    pub note: Vec<u8>,
}

impl Snapshot {
    /// Creates a snapshot of a state of this model.
    #[doc(hidden)]
    pub fn new(model: Arc<Identity>, arena: Arena) -> Self {
        Snapshot {
            origin: Origin::Opened(model),
            arena,
            grid: 0,
            tokens: None,
            note: Vec::new(),
        }
    }

    /// Whether this is a state of `model`. A file of an earlier version names a model by its label, and is one of every model with that
    /// label.
    #[doc(hidden)]
    pub fn is_of(&self, model: &Identity) -> bool {
        match &self.origin {
            Origin::Opened(own) => own.is_same(model),
            Origin::Named(own) => model.fingerprint().is_ok_and(|found| found == *own),
            Origin::Labelled(own) => model.label() == *own,
        }
    }

    /// Gives the snapshot to this model, whose state it then holds.
    #[doc(hidden)]
    pub fn set_model(&mut self, model: Arc<Identity>) {
        self.origin = Origin::Opened(model);
    }

    /// The state.
    #[doc(hidden)]
    pub fn arena(&self) -> &Arena {
        &self.arena
    }

    /// The state's bytes, mutable. A session that restores the snapshot checks its counters.
    #[doc(hidden)]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        self.arena.bytes_mut()
    }

    /// Size of the state in bytes.
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

    /// Writes the snapshot to `path`, as a file that only its owner may read. The file appears when it is complete; until then an earlier
    /// file of that name stays.
    ///
    /// # Errors
    /// [`Error::Io`], also if `path` exists and is not a regular file.
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
        let tensors = self.arena.plan().tensors();
        let asked = ask_room(tensors.len().saturating_mul(LONGEST_ENTRY));
        asked.map_err(|_| std::io::Error::from(ErrorKind::OutOfMemory))?;
        let tensors = serde_json::to_vec(tensors)?;
        let mut out = Summed::new(out);
        let named = |fingerprint: Fingerprint| [&MAGIC[..], &fingerprint.0].concat();
        out.write_all(&match &self.origin {
            Origin::Opened(model) => named(model.fingerprint().map_err(std::io::Error::other)?),
            Origin::Named(fingerprint) => named(*fingerprint),
            Origin::Labelled(label) => [&LABEL_MAGIC[..], &label.to_le_bytes()].concat(),
        })?;
        out.write_all(&(tensors.len() as u64).to_le_bytes())?;
        out.write_all(&tensors)?;
        sparse::write(&self.arena, &mut out)?;
        out.write_all(&self.grid.to_le_bytes())?;
        out.write_all(&self.tokens.unwrap_or(0).to_le_bytes())?;
        out.write_all(&(self.note.len() as u64).to_le_bytes())?;
        out.write_all(&self.note)?;
        let sum = out.sum();
        out.write_all(&sum.to_le_bytes())
    }

    /// Size of the snapshot as a file, in bytes.
    pub fn file_bytes(&self) -> u64 {
        let mut counted = Counted(0);
        // A writer that only counts cannot fail.
        let _ = self.write(&mut counted);
        counted.0
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

    /// Reads a snapshot of `size` bytes from `input`. Error messages call it `name`.
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
        let mut input = Summed::new(input);
        let mut magic = [0; 8];
        input.read_exact(&mut magic).map_err(failed)?;
        let is_whole = &magic == ARENA_MAGIC;
        if ![MAGIC, LABEL_MAGIC, ARENA_MAGIC].contains(&&magic) {
            return Err(bad("this is not a saved session of this version"));
        }
        let mut number = [0; 8];
        let mut next = |input: &mut Summed<_>| -> Result<u64> {
            input.read_exact(&mut number).map_err(failed)?;
            Ok(u64::from_le_bytes(number))
        };
        let origin = if &magic == MAGIC {
            let mut fingerprint = [0; 32];
            input.read_exact(&mut fingerprint).map_err(failed)?;
            Origin::Named(Fingerprint(fingerprint))
        } else {
            Origin::Labelled(next(&mut input)?)
        };
        let length = next(&mut input)?;
        if length > LARGEST.min(size) {
            return Err(bad("its tensor table is longer than the file"));
        }
        let json = read_bytes(&mut input, length).map_err(failed)?;
        ask_room_for_text(json.len())?;
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
        let plan = StatePlan::from_placed(tensors).filter(|plan| plan.bytes() as u64 == length);
        let Some(plan) = plan.filter(|_| length <= size || !is_whole) else {
            return Err(bad("its tensor table and its state do not fit together"));
        };
        let (mut grid, mut tokens) = (u64::from_le_bytes(*ARENA_MAGIC), 0);
        // Untouched memory is not resident, so a small file takes little memory.
        let mut arena = Arena::untouched(Arc::new(plan))?;
        let found = if is_whole {
            sparse::read_whole(&mut input, &mut arena)
        } else {
            sparse::read(&mut input, &mut arena)
        };
        match found.map_err(failed)? {
            Found::State => {}
            Found::TooMuch => return Err(bad("its state is longer than its tensor table says")),
            Found::NotFinite(tensor) => {
                let reason = format!("tensor {tensor} holds a value that is not finite");
                return Err(bad(&reason));
            }
        }
        if !is_whole {
            (grid, tokens) = (next(&mut input)?, next(&mut input)?);
        }
        let length = next(&mut input)?;
        if length > LARGEST.min(size) {
            return Err(bad("its note is longer than the file"));
        }
        let note = read_bytes(&mut input, length).map_err(failed)?;
        if !input.check().map_err(failed)? {
            return Err(bad("the checksum does not match: the file is damaged"));
        }
        if input.read(&mut [0]).map_err(failed)? != 0 {
            return Err(bad("it goes on after its checksum"));
        }
        Ok(Snapshot {
            origin,
            arena,
            grid,
            tokens: Some(tokens).filter(|&tokens| tokens != 0),
            note,
        })
    }
}

/// A writer that counts bytes.
struct Counted(u64);

impl Write for Counted {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
