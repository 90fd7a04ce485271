//! The files of a store's directory that this process has found.

use std::collections::HashMap;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use waterline_quant::open_private_file;

use super::file::{self, Head};
use super::tree::Key;

const EXTENSION: &str = "prefix";

/// The known files of the directory.
#[derive(Default)]
pub struct Files {
    pub known: HashMap<u64, Known>,
    /// The directory's modification time when it was last listed.
    pub read_at: Option<SystemTime>,
}

/// A file of the directory.
pub struct Known {
    pub bytes: u64,
    pub used: SystemTime,
    /// The file's head; `None` if the file cannot be used.
    pub head: Option<Head>,
}

impl Known {
    /// Reads the head of file `id`.
    pub fn read(path: &Path, id: u64) -> io::Result<Self> {
        let file = open_private_file(path)?;
        let about = file.metadata()?;
        let head = file::read_head(&mut BufReader::new(&file), about.len())?;
        if head.id() != id {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "its name does not match its contents",
            ));
        }
        Ok(Known {
            bytes: about.len(),
            used: about.modified()?,
            head: Some(head),
        })
    }

    /// An entry for a file that cannot be used but counts towards the size.
    pub fn unusable(path: &Path) -> Self {
        let about = std::fs::symlink_metadata(path).ok();
        let used = about.as_ref().and_then(|about| about.modified().ok());
        Known {
            bytes: about.map_or(0, |about| about.len()),
            used: used.unwrap_or(SystemTime::UNIX_EPOCH),
            head: None,
        }
    }
}

impl Files {
    /// Total size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.known.values().map(|known| known.bytes).sum()
    }

    /// The chain of files that leads to the deepest checkpoint whose tokens are a prefix of `tokens`, if it is deeper than `position`.
    /// Only files with these tokens make it read the model for its fingerprint.
    pub fn chain(&self, key: &Key, tokens: &[u32], position: u64) -> Vec<u64> {
        let heads = self
            .known
            .iter()
            .filter_map(|(&id, known)| Some((id, known.head.as_ref()?)));
        let is_alike =
            |(_, head): &(u64, &Head)| head.shape == key.shape && head.label == key.label();
        let mut heads: Vec<(u64, &Head)> = heads.filter(is_alike).collect();
        heads.sort_by_key(|(_, head)| head.position);
        let mut matched: HashMap<u64, &Head> = HashMap::new();
        let mut best = None;
        for (id, head) in heads {
            let start = head.position - head.tokens.len() as u64;
            let follows = match head.parent {
                0 => start == 0,
                parent => matched
                    .get(&parent)
                    .is_some_and(|parent| parent.position == start),
            };
            let rest = tokens.get(start as usize..).unwrap_or_default();
            let is_prefix = follows && rest.starts_with(&head.tokens);
            if !is_prefix || key.model.fingerprint().ok() != Some(head.model) {
                continue;
            }
            matched.insert(id, head);
            let is_whole = head.position < tokens.len() as u64 || head.logits > 0;
            if is_whole && head.position > position {
                best = Some(id);
            }
        }
        let mut chain: Vec<u64> = best.into_iter().collect();
        while let Some(head) = chain
            .last()
            .and_then(|id| matched.get(id))
            .filter(|head| head.parent != 0)
        {
            chain.push(head.parent);
        }
        chain.reverse();
        chain
    }
}

/// The number in the name of a checkpoint's file.
pub fn id_of(path: &Path) -> Option<u64> {
    let is_ours = path
        .extension()
        .is_some_and(|extension| extension == EXTENSION);
    let stem = path.file_stem()?.to_str()?;
    (is_ours && stem.len() == 16).then(|| u64::from_str_radix(stem, 16).ok())?
}

/// The path of file `id`.
pub fn path_of(folder: &Path, id: u64) -> PathBuf {
    folder.join(format!("{id:016x}.{EXTENSION}"))
}
