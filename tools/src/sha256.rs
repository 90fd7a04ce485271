//! SHA-256 of files, as hexadecimal digits.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

/// Returns the hash of the concatenated files.
///
/// # Errors
/// A file cannot be read.
pub fn of_files(paths: &[impl AsRef<Path>]) -> Result<String> {
    let mut hash = Sha256::new();
    let mut buffer = vec![0; 1 << 20];
    for path in paths {
        let path = path.as_ref();
        let mut file = File::open(path).map_err(|e| Error::io(path, e))?;
        loop {
            match file.read(&mut buffer).map_err(|e| Error::io(path, e))? {
                0 => break,
                count => hash.update(&buffer[..count]),
            }
        }
    }
    Ok(digits(&hash.finalize()))
}

/// Returns the hash of `bytes`.
pub fn of_bytes(bytes: &[u8]) -> String {
    digits(&Sha256::digest(bytes))
}

/// Returns the hexadecimal digits of `bytes`.
pub fn digits(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
