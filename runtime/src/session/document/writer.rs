//! Writing a state file record by record, so that a killed run continues where it stopped.

use std::fs::{File, TryLockError};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use super::file::{Contents, StateFile, bad, write_record};
use super::format::{Description, Sum};
use crate::error::{Error, Result};

/// Suffix of a file that is not complete yet.
const PARTIAL: &str = ".partial";

/// A state file that is being written, under its name with `.partial` after it until it is complete.
pub struct StateWriter {
    path: PathBuf,
    partial: PathBuf,
    file: File,
    chain: Sum,
    tokens_hash: Sum,
}

impl StateWriter {
    /// Begins the file that will be `path`, or continues what a killed run has written of it; returns that too. A torn record at its end
    /// is dropped.
    ///
    /// # Errors
    /// [`Error::Io`], also if another process writes the file; [`Error::Snapshot`] if the partial file is of another session.
    pub fn begin(
        path: impl AsRef<Path>,
        description: &Description,
    ) -> Result<(Self, Option<StateFile>)> {
        let path = path.as_ref();
        // A link's target is replaced, and a folder is refused before anything is read.
        let path = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
        if path.exists() {
            waterline_quant::open_file(&path).map_err(|e| Error::io(&path, "cannot write", e))?;
        }
        let mut partial = path.clone().into_os_string();
        partial.push(PARTIAL);
        let partial = PathBuf::from(partial);
        let failed = |e| Error::io(&partial, "cannot write", e);
        let mut file = open(&partial).map_err(failed)?;
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => {
                return Err(bad(&partial, "another process is writing this file"));
            }
            // A file system without locks.
            Err(TryLockError::Error(error)) if error.kind() != ErrorKind::Unsupported => {
                return Err(failed(error));
            }
            _ => {}
        }
        let header = description
            .encode()
            .map_err(|e| Error::invalid("a state file", e.to_string()))?;
        let mut found = vec![0; header.len()];
        let count = read_most(&mut file, &mut found).map_err(failed)?;
        if !header.starts_with(&found[..count]) {
            return Err(bad(
                &partial,
                "it was begun with another model or other options; remove it to begin again",
            ));
        }
        let mut writer = StateWriter {
            chain: Sha256::digest(&header).into(),
            tokens_hash: [0; 32],
            path,
            partial: partial.clone(),
            file,
        };
        if count < header.len() {
            writer.cut(0).map_err(failed)?;
            writer.file.write_all(&header).map_err(failed)?;
            return Ok((writer, None));
        }
        let again = File::open(&partial).map_err(failed)?;
        let (mut read, _) = StateFile::walk(&partial, again)?;
        let sound = (0..read.records().len()).take_while(|&at| read.verify_record(at).is_ok());
        let sound = sound.count();
        if sound < read.records().len() {
            writer.cut(read.offset(sound)).map_err(failed)?;
            let again = File::open(&partial).map_err(failed)?;
            read = StateFile::walk(&partial, again)?.0;
        }
        writer.cut(read.end()).map_err(failed)?;
        writer.chain = read.chain();
        writer.tokens_hash = read.records().last().map_or([0; 32], |it| it.tokens_hash);
        Ok((writer, Some(read).filter(|_| sound > 0)))
    }

    fn cut(&mut self, length: u64) -> io::Result<()> {
        self.file.set_len(length)?;
        self.file.seek(SeekFrom::Start(length)).map(|_| ())
    }

    /// Appends a record.
    pub(super) fn append(&mut self, contents: Contents<'_>) -> Result<()> {
        let before = (&self.chain, &self.tokens_hash);
        let written = write_record(&mut self.file, before, contents);
        (self.chain, self.tokens_hash) =
            written.map_err(|e| Error::io(&self.partial, "cannot write", e))?;
        Ok(())
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// [`Error::Io`]; the partial file then stays.
    pub fn finish(self) -> Result<()> {
        let done = self.file.sync_all();
        let done = done.and_then(|()| std::fs::rename(&self.partial, &self.path));
        done.map_err(|e| Error::io(&self.path, "cannot write", e))
    }
}

/// Opens or creates a file that is no link.
fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true);
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => options.create_new(true).open(path),
        Err(error) => Err(error),
        Ok(found) if found.is_file() => options.open(path),
        Ok(_) => Err(io::Error::new(
            ErrorKind::InvalidInput,
            "it is a link or no file; remove it",
        )),
    }
}

/// Reads until the buffer is full or the file ends.
fn read_most(file: &mut File, buffer: &mut [u8]) -> io::Result<usize> {
    let mut count = 0;
    while count < buffer.len() {
        match file.read(&mut buffer[count..]) {
            Ok(0) => break,
            Ok(more) => count += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(count)
}
