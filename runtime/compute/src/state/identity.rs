//! The identity of a model: a hash of its description and of every byte of its tensors.
//!
//! A state continues correctly only on the model that computed it, so files of states name this hash. It is computed on first use, since
//! most sessions need none. The digests of tensors in mapped files are cached in the user's cache folder under the file's device, inode,
//! size and times, so each large file is read for them once.

mod cache;

use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};

use once_cell::sync::OnceCell;
use sha2::{Digest, Sha256};
use waterline_quant::{Bytes, Tensor, ask_room};

use crate::error::Result;
use crate::weights::Tensors;

/// Bytes that a thread hashes at a time.
const CHUNK: usize = 16 << 20;
/// Memory per chunk while a model is hashed.
const OF_CHUNK: usize = 256;
/// Bytes of each tensor that the label covers.
const SAMPLE: usize = 4096;

/// SHA-256.
pub(super) type Sum = [u8; 32];

/// A hash that differs between models: SHA-256 of a description and of all tensors.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint(pub Sum);

impl fmt::Display for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex(&self.0))
    }
}

/// Returns bytes in hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The identity of an opened model. It keeps the model's tensors.
pub struct Identity {
    label: u64,
    description: String,
    tensors: Vec<(String, Tensor)>,
    fingerprint: OnceCell<Fingerprint>,
}

impl Identity {
    /// The identity of a model with this description and, of `tensors`, those called `names`.
    pub fn new(description: String, names: Vec<String>, tensors: &Tensors) -> Self {
        let mut label = Fnv::new();
        label.add(description.as_bytes());
        let mut found = Vec::with_capacity(names.len());
        for name in names {
            if let Some(tensor) = tensors.get(&name) {
                label.add(tensor.format.name.as_bytes());
                label.add(&tensor.data[..tensor.data.len().min(SAMPLE)]);
                found.push((name, tensor.clone()));
            }
        }
        Identity {
            label: label.0,
            description,
            tensors: found,
            fingerprint: OnceCell::new(),
        }
    }

    /// A hash of the description and of the first bytes of each tensor. It costs little and names folders and files; models that differ
    /// only after these bytes share it.
    pub fn label(&self) -> u64 {
        self.label
    }

    /// The hash of all bytes, computed on first use by half of the processor's threads.
    pub fn fingerprint(&self) -> Result<Fingerprint> {
        let make = || self.computed(&cache::Cache::of_user());
        self.fingerprint.get_or_try_init(make).copied()
    }

    /// Whether both are the same model. Reads the tensors only if they are different openings with the same label.
    pub fn is_same(&self, other: &Self) -> bool {
        std::ptr::eq(self, other)
            || self.label == other.label
                && matches!((self.fingerprint(), other.fingerprint()), (Ok(one), Ok(two)) if one == two)
    }

    fn computed(&self, cache: &cache::Cache) -> Result<Fingerprint> {
        let (mapped, own): (Vec<usize>, Vec<usize>) =
            (0..self.tensors.len()).partition(|&index| self.data(index).stamp().is_some());
        let mut sums = vec![[0; 32]; self.tensors.len()];
        let mut fill = |indices: &[usize], found: &[Sum]| {
            for (&index, &sum) in indices.iter().zip(found) {
                sums[index] = sum;
            }
        };
        fill(&own, &self.hashed(&own)?);
        let places: Vec<&Bytes> = mapped.iter().map(|&index| self.data(index)).collect();
        let found = cache.find_or(&places, || self.hashed(&mapped))?;
        fill(&mapped, &found);
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(self.description.as_bytes());
        for ((name, tensor), sum) in self.tensors.iter().zip(&sums) {
            add(name.as_bytes());
            add(tensor.format.name.as_bytes());
            add(sum);
        }
        Ok(Fingerprint(hash.finalize().into()))
    }

    fn data(&self, index: usize) -> &Bytes {
        &self.tensors[index].1.data
    }

    /// The hashes of the tensors `indices`: of their sizes and the hashes of their chunks.
    fn hashed(&self, indices: &[usize]) -> Result<Vec<Sum>> {
        let chunks = |&index: &usize| self.data(index).chunks(CHUNK);
        let chunks: Vec<&[u8]> = indices.iter().flat_map(chunks).collect();
        ask_room(chunks.len() * OF_CHUNK)?;
        let mut sums = all_hashed(&chunks).into_iter();
        let sum = |&index: &usize| {
            let bytes = self.data(index).len();
            let mut hash = Sha256::new_with_prefix((bytes as u64).to_le_bytes());
            for sum in sums.by_ref().take(bytes.div_ceil(CHUNK)) {
                hash.update(sum);
            }
            hash.finalize().into()
        };
        Ok(indices.iter().map(sum).collect())
    }
}

/// Hashes chunks on half of the processor's threads, or on this one if there are no others.
fn all_hashed(chunks: &[&[u8]]) -> Vec<Sum> {
    let next = AtomicUsize::new(0);
    let work = || {
        let mut sums = Vec::new();
        while let Some((index, chunk)) = {
            let index = next.fetch_add(1, Ordering::Relaxed);
            chunks.get(index).map(|chunk| (index, chunk))
        } {
            sums.push((index, Sha256::digest(chunk).into()));
        }
        sums
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get().div_ceil(2));
    let others = threads.min(chunks.len()).saturating_sub(1);
    let mut sums: Vec<(usize, Sum)> = std::thread::scope(|scope| {
        let spawn = |_| std::thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (0..others).filter_map(spawn).collect();
        let mut sums = work();
        sums.extend(
            others
                .into_iter()
                .filter_map(|other| other.join().ok())
                .flatten(),
        );
        sums
    });
    sums.sort_unstable_by_key(|(index, _)| *index);
    sums.into_iter().map(|(_, sum)| sum).collect()
}

/// The 64-bit FNV-1a hash.
struct Fnv(u64);

impl Fnv {
    fn new() -> Self {
        Fnv(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }
}

#[cfg(test)]
#[path = "identity/tests.rs"]
mod tests;
