//! A checksum of the data that passes through a reader or writer.

use std::io::{Read, Result, Write};

/// A reader or writer that computes a checksum of the data passing through it.
pub struct Summed<T> {
    inner: T,
    hash: crc32fast::Hasher,
}

impl<T> Summed<T> {
    /// Starts a checksum over no data.
    pub fn new(inner: T) -> Self {
        let hash = crc32fast::Hasher::new();
        Summed { inner, hash }
    }

    /// The checksum so far.
    pub fn sum(&self) -> u32 {
        self.hash.clone().finalize()
    }
}

impl<T: Read> Summed<T> {
    /// Reads a checksum and returns whether it matches the data before it.
    pub fn check(&mut self) -> Result<bool> {
        let expected = self.sum();
        let mut found = [0; 4];
        self.read_exact(&mut found)?;
        Ok(u32::from_le_bytes(found) == expected)
    }
}

impl<T: Write> Write for Summed<T> {
    fn write(&mut self, bytes: &[u8]) -> Result<usize> {
        let n = self.inner.write(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }

    fn flush(&mut self) -> Result<()> {
        self.inner.flush()
    }
}

impl<T: Read> Read for Summed<T> {
    fn read(&mut self, bytes: &mut [u8]) -> Result<usize> {
        let n = self.inner.read(bytes)?;
        self.hash.update(&bytes[..n]);
        Ok(n)
    }
}
