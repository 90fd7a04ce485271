//! HMAC-SHA256 (RFC 2104) of the data that passes through a reader or writer, and the key of a store's folder.
//!
//! The key is a file of the folder that only its owner can read. A file without a hash by this key was not written by a store of this
//! folder: it came from elsewhere or was changed.

use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use sha2::{Digest, Sha256};
use waterline_quant::{NewFile, open_private_file};

/// Bytes of a key and of a hash.
pub const TAG: usize = 32;
/// Bytes of a block of SHA-256.
const BLOCK: usize = 64;
/// The name of the key's file.
const NAME: &str = "key";

/// A key.
#[derive(Clone, Copy)]
pub struct Key([u8; TAG]);

impl Key {
    /// A key of given bytes.
    pub const fn new(bytes: [u8; TAG]) -> Self {
        Key(bytes)
    }

    /// Reads the key of a private folder, or writes a random one.
    ///
    /// # Errors
    /// The file exists but is a link, of another user, readable by others, or not a key.
    pub fn of_folder(folder: &Path) -> io::Result<Self> {
        let path = folder.join(NAME);
        loop {
            match read_key(&path) {
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                found => return found,
            }
            let mut file = NewFile::replace_private(&path)?;
            file.write_all(&random()?)?;
            match file.finish_first() {
                Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
                // Another process may have been first; its key counts.
                _ => {}
            }
        }
    }

    fn padded(&self, pad: u8) -> [u8; BLOCK] {
        let mut block = [pad; BLOCK];
        for (byte, key) in block.iter_mut().zip(self.0) {
            *byte ^= key;
        }
        block
    }
}

fn read_key(path: &Path) -> io::Result<Key> {
    let wrong = |reason: &str| Err(io::Error::new(ErrorKind::InvalidData, reason));
    let file = open_private_file(path)?;
    let about = file.metadata()?;
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::mode(&about) & 0o077 != 0 {
        return wrong(
            "others may read the key of the prefix store; remove it, and its checkpoints",
        );
    }
    let mut bytes = [0; TAG];
    if about.len() != TAG as u64 {
        return wrong("it is not the key of a prefix store; remove it");
    }
    (&file).read_exact(&mut bytes)?;
    Ok(Key(bytes))
}

/// Random bytes of the system.
#[cfg(unix)]
fn random() -> io::Result<[u8; TAG]> {
    let mut bytes = [0; TAG];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

/// Random bytes: hashes by random keys, which the standard library takes from the system.
#[cfg(not(unix))]
fn random() -> io::Result<[u8; TAG]> {
    use std::hash::{BuildHasher, RandomState};
    let mut hash = Sha256::new();
    for number in 0..8u64 {
        hash.update(RandomState::new().hash_one(number).to_le_bytes());
    }
    Ok(hash.finalize().into())
}

/// A reader or writer that computes the keyed hash of the data passing through it.
pub struct Keyed<T> {
    inner: T,
    key: Key,
    hash: Sha256,
}

impl<T> Keyed<T> {
    /// Starts a hash over no data.
    pub fn new(inner: T, key: &Key) -> Self {
        Keyed {
            inner,
            key: *key,
            hash: Sha256::new_with_prefix(key.padded(0x36)),
        }
    }

    /// The hash of the data so far.
    pub fn tag(&self) -> [u8; TAG] {
        let inner = self.hash.clone().finalize();
        let outer = Sha256::new_with_prefix(self.key.padded(0x5c));
        outer.chain_update(inner).finalize().into()
    }
}

impl<T: Read> Keyed<T> {
    /// Reads a hash and returns whether it matches the data before it.
    pub fn check(&mut self) -> io::Result<bool> {
        let mut found = [0; TAG];
        self.inner.read_exact(&mut found)?;
        // All bytes are compared, so that the time tells nothing about the first difference.
        let pairs = self.tag().into_iter().zip(found);
        Ok(pairs.fold(0, |all, (one, other)| all | (one ^ other)) == 0)
    }
}

impl<T: Write> Keyed<T> {
    /// Writes the hash of the data before it.
    pub fn finish(mut self) -> io::Result<()> {
        let tag = self.tag();
        self.inner.write_all(&tag)
    }
}

impl<T: Write> Write for Keyed<T> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Keyed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(bytes)?;
        self.hash.update(&bytes[..count]);
        Ok(count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::hex;

    #[test]
    fn the_hash_is_that_of_rfc_4231() {
        // Test case 1, whose key is shorter than ours: it is padded with zeros.
        let mut key = [0; TAG];
        key[..20].fill(0x0b);
        let mut keyed = Keyed::new(Vec::new(), &Key::new(key));
        keyed.write_all(b"Hi There").unwrap();
        assert_eq!(
            hex(&keyed.tag()),
            "b0344c61d8db38535ca8afceaf0bf12b881dc200c9833da726e9376c2e32cff7"
        );
    }

    #[cfg(unix)]
    #[test]
    fn a_folder_has_one_key_that_only_its_owner_reads() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let folder = tempfile::tempdir().unwrap();
        let of = || Key::of_folder(folder.path()).map(|key| key.0);
        let first = of().unwrap();
        assert_ne!(first, [0; TAG]);
        assert_eq!(of().unwrap(), first);
        let path = folder.path().join(NAME);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let set = |mode| std::fs::set_permissions(&path, PermissionsExt::from_mode(mode));
        set(0o644).unwrap();
        assert!(of().unwrap_err().to_string().contains("others may read"));
        set(0o600).unwrap();
        std::fs::write(&path, [1; TAG + 1]).unwrap();
        assert!(of().unwrap_err().to_string().contains("not the key"));
        let elsewhere = folder.path().join("elsewhere");
        std::fs::rename(&path, &elsewhere).unwrap();
        symlink(&elsewhere, &path).unwrap();
        assert!(of().unwrap_err().to_string().contains("a link"));
        std::fs::remove_file(&path).unwrap();
        assert_ne!(of().unwrap(), first);
    }
}
