//! The digests of tensors in mapped files, in the user's cache folder: safe to delete at any time. A folder that others may write to is
//! not used.

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use sha2::{Digest, Sha256};
use waterline_quant::{
    Bytes, NewFile, cache_folder, check_private_folder, create_private_folder, open_private_file,
};

use super::{Fingerprint, Sum};
use crate::error::Result;

/// The first bytes of a file, with the version of the digests.
const MAGIC: &[u8; 8] = b"WLSUMS01";
/// Fewer bytes are hashed in less time than a file takes.
const LEAST: usize = 64 << 20;
/// A file that changed fewer seconds ago may change again within the resolution of its time.
const SETTLED: i64 = 10;

/// A folder of digests, if there is a usable one.
pub(super) struct Cache {
    folder: Option<PathBuf>,
    least: usize,
    settled: i64,
}

impl Cache {
    /// The folder `waterline/fingerprints` in the user's cache folder.
    pub fn of_user() -> Self {
        let folder = cache_folder().map(|cache| cache.join("fingerprints"));
        Cache {
            folder,
            least: LEAST,
            settled: SETTLED,
        }
    }

    /// Returns the digests of these parts of mapped files from the cache, or makes and stores them.
    pub fn find_or(
        &self,
        parts: &[&Bytes],
        make: impl FnOnce() -> Result<Vec<Sum>>,
    ) -> Result<Vec<Sum>> {
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let path = self.path(parts).filter(|_| bytes >= self.least);
        let Some(path) = path else {
            return make();
        };
        if let Some(found) = read(&path, parts.len()) {
            return Ok(found);
        }
        let made = make()?;
        // Without the file, the next run hashes again.
        let _ = write(&path, &made);
        Ok(made)
    }

    /// The file for these parts: its name is a hash of where they are. `None` if a file has just changed.
    fn path(&self, parts: &[&Bytes]) -> Option<PathBuf> {
        let folder = self.folder.as_ref()?;
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let now = i64::try_from(now.ok()?.as_secs()).ok()?;
        let mut hash = Sha256::new();
        for part in parts {
            let (stamp, offset) = part.stamp()?;
            if now.saturating_sub(stamp.newest()) < self.settled {
                return None;
            }
            for number in stamp.numbers() {
                hash.update(number.to_le_bytes());
            }
            hash.update((offset as u64).to_le_bytes());
            hash.update((part.len() as u64).to_le_bytes());
        }
        let name = Fingerprint(hash.finalize().into());
        Some(folder.join(name.to_string()))
    }
}

fn read(path: &Path, count: usize) -> Option<Vec<Sum>> {
    check_private_folder(path.parent()?).ok()?;
    let bytes = MAGIC.len() + (count + 1) * size_of::<Sum>();
    let mut file = Vec::new();
    let input = open_private_file(path).ok()?;
    input.take(bytes as u64).read_to_end(&mut file).ok()?;
    let sums = file.strip_prefix(MAGIC)?;
    let (sums, check) = sums.split_at_checked(count * size_of::<Sum>())?;
    let is_whole = Sha256::digest(sums).as_slice() == check;
    is_whole.then(|| sums.as_chunks().0.to_vec())
}

fn write(path: &Path, sums: &[Sum]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    create_private_folder(folder)?;
    check_private_folder(folder)?;
    let mut file = NewFile::replace_private(path)?;
    file.write_all(MAGIC)?;
    file.write_all(sums.as_flattened())?;
    file.write_all(&Sha256::digest(sums.as_flattened()))?;
    file.finish()
}

#[cfg(all(test, unix))]
impl Cache {
    /// A cache for files of any size.
    pub fn at(folder: PathBuf) -> Self {
        Cache {
            folder: Some(folder),
            least: 0,
            settled: SETTLED,
        }
    }

    /// A cache for files of any size and age.
    pub fn settled(folder: PathBuf) -> Self {
        Cache {
            settled: i64::MIN,
            ..Cache::at(folder)
        }
    }
}
