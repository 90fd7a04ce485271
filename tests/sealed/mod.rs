//! Makes all hashes of a state file right again, so that a test can change anything in it.

#![allow(dead_code)] // each test binary uses a part

use sha2::{Digest, Sha256};

fn padded(bytes: usize) -> Option<usize> {
    bytes.checked_next_multiple_of(64)
}

fn number(file: &[u8], at: usize) -> Option<usize> {
    let bytes = file.get(at..at.checked_add(8)?)?.try_into().ok()?;
    usize::try_from(u64::from_le_bytes(bytes)).ok()
}

/// The offset of each record's head and the ends of its sections, as far as they lie within the file.
pub fn records(file: &[u8]) -> Vec<[usize; 6]> {
    let mut found = Vec::new();
    let header = number(file, 8).and_then(|length| padded(length.checked_add(16)?));
    let mut at = header;
    while let Some(head) = at {
        at = None;
        let sizes = [(16, 4), (56, 1), (64, 1), (72, 4), (80, 1)];
        let mut ends = [head; 6];
        let mut end = head.checked_add(256);
        for (index, (field, unit)) in sizes.into_iter().enumerate() {
            let bytes =
                number(file, head + field).and_then(|count| padded(count.checked_mul(unit)?));
            end = end
                .zip(bytes)
                .and_then(|(end, bytes)| end.checked_add(bytes));
            ends[index + 1] = end.unwrap_or(usize::MAX);
        }
        if ends[5] <= file.len() && ends[5] > head {
            found.push(ends);
            at = Some(ends[5]);
        }
    }
    found
}

/// Computes every hash anew.
pub fn seal(file: &mut [u8]) {
    let records = records(file);
    let Some(&[first, ..]) = records.first() else {
        return;
    };
    let mut chain: [u8; 32] = Sha256::digest(&file[..first]).into();
    let mut tokens_hash = [0; 32];
    for [head, tokens, rows, _, _, end] in records {
        let count = number(file, head + 16).unwrap_or(0);
        let hash = Sha256::new_with_prefix(tokens_hash);
        let hash = hash.chain_update(&file[head + 256..head + 256 + 4 * count]);
        tokens_hash = hash.finalize().into();
        let hashes = [
            tokens_hash,
            Sha256::digest(&file[tokens..rows]).into(),
            Sha256::digest(&file[rows..end]).into(),
        ];
        file[head + 96..head + 192].copy_from_slice(hashes.as_flattened());
        let hash = Sha256::new_with_prefix(chain);
        chain = hash.chain_update(&file[head..head + 192]).finalize().into();
        file[head + 192..head + 224].copy_from_slice(&chain);
    }
}
