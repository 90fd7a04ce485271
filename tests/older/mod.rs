//! Writes saved sessions in the older format, which stores every byte of the arena, so that a test can change any of them.

#![allow(dead_code)] // each test binary uses a part

use waterline::Snapshot;

/// Returns the file of a snapshot of the model with this label in the format that begins with WLSTATE1.
pub fn file(snapshot: &Snapshot, label: u64) -> Vec<u8> {
    let mut new = Vec::new();
    snapshot.write(&mut new).expect("memory");
    let number = |at: usize| u64::from_le_bytes(new[at..at + 8].try_into().expect("eight bytes"));
    let table = number(40) as usize;
    let mut arena = vec![0; number(48 + table) as usize];
    for (tensor, bytes) in snapshot.tensors() {
        arena[tensor.offset..][..bytes.len()].copy_from_slice(bytes);
    }
    let mut file = b"WLSTATE1".to_vec();
    file.extend(label.to_le_bytes());
    file.extend(&new[40..56 + table]);
    file.extend(arena);
    file.extend((snapshot.note.len() as u64).to_le_bytes());
    file.extend(&snapshot.note);
    file.extend(crc32fast::hash(&file).to_le_bytes());
    file
}
