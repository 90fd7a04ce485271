//! Tensors in blocks of MXFP4 whose codes and scales are two tensors, as gpt-oss stores its experts: `w_blocks` `[.., blocks, 16]` and
//! `w_scales` `[.., blocks]`.
//!
//! A byte holds two adjacent numbers, the first in its low half. In the format's own blocks the halves of a byte are 16 numbers apart, so
//! the codes are reordered once, when the tensor is read. No number is rounded.

use std::collections::BTreeMap;

use safetensors::tensor::Dtype;

use super::Entry;
use crate::MXFP4;
use crate::error::{Error, Result};
use crate::room::ask_room;
use crate::storage::{Bytes, Tensor};

/// Bytes of a block's codes.
const CODES: usize = 16;

/// The scales of a tensor's blocks.
pub(super) struct Blocks {
    scales: Bytes,
}

/// Finds the tensors in blocks, gives them their logical names and shapes, and removes their scales from `entries`.
pub(super) fn attach(entries: &mut BTreeMap<String, Entry>) -> Result<()> {
    let names: Vec<String> = entries.keys().cloned().collect();
    for stored in &names {
        let Some(name) = stored.strip_suffix("_blocks") else {
            continue;
        };
        let scales = format!("{name}_scales");
        let is_bytes = |name: &str| entries.get(name).is_some_and(|e| e.dtype == Dtype::U8);
        if !is_bytes(stored) || !is_bytes(&scales) || entries.contains_key(name) {
            continue;
        }
        let (Some(codes), Some(scales)) = (entries.remove(stored), entries.remove(&scales)) else {
            continue;
        };
        let shape = match (codes.shape.split_last(), scales.shape.split_last()) {
            (Some((&CODES, blocks)), Some((count, outer))) if blocks == scales.shape => {
                [outer, &[count.saturating_mul(MXFP4.block_len)]].concat()
            }
            _ => {
                let found = format!("shape {:?} with scales {:?}", codes.shape, scales.shape);
                let item = format!("tensor '{stored}'");
                let expected = format!("a scale for every {CODES} bytes");
                return Err(Error::invalid(&codes.file, item, found, expected));
            }
        };
        let entry = Entry {
            shape,
            blocks: Some(Blocks {
                scales: scales.data,
            }),
            ..codes
        };
        entries.insert(name.into(), entry);
    }
    Ok(())
}

impl Blocks {
    /// Returns the tensor in MXFP4.
    pub fn repack(&self, entry: &Entry) -> Result<Tensor> {
        let (codes, _) = entry.data.as_chunks::<CODES>();
        let bytes = MXFP4.tensor_bytes(&entry.shape)?;
        ask_room(bytes.saturating_mul(2))?;
        let mut data = Vec::new();
        data.try_reserve_exact(bytes)
            .map_err(|_| Error::Memory { bytes })?;
        for (codes, scale) in codes.iter().zip(self.scales.iter()) {
            data.push(*scale);
            data.extend(reordered(codes));
        }
        Tensor::new(&MXFP4, entry.shape.clone(), Bytes::copy_from(&data)?)
    }
}

/// Codes whose bytes hold numbers 2 i and 2 i + 1 as codes whose bytes hold numbers i and i + 16.
fn reordered(codes: &[u8; CODES]) -> [u8; CODES] {
    let code = |i: usize| codes[i / 2] >> (4 * (i % 2)) & 15;
    std::array::from_fn(|i| code(i) | code(i + CODES) << 4)
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use super::*;

    fn attached(codes: &[usize], scales: &[usize]) -> Result<Option<Vec<usize>>> {
        let entry = |shape: &[usize]| Entry {
            file: "test".into(),
            dtype: Dtype::U8,
            shape: shape.to_vec(),
            data: Bytes::from_vec(vec![0; shape.iter().product()]),
            packing: None,
            blocks: None,
            used: AtomicBool::new(false),
        };
        let mut entries = BTreeMap::from([
            ("w_blocks".to_string(), entry(codes)),
            ("w_scales".to_string(), entry(scales)),
        ]);
        attach(&mut entries)?;
        Ok(entries.remove("w").map(|entry| entry.shape))
    }

    #[test]
    fn every_block_has_a_scale() {
        let shape = attached(&[2, 5, 3, 16], &[2, 5, 3]).expect("a tensor");
        assert_eq!(shape, Some(vec![2, 5, 96]));
        for (codes, scales) in [
            (&[16][..], &[2, 3][..]),
            (&[3, 16], &[]),
            (&[], &[]),
            (&[3, 8], &[3]),
            (&[3, 16], &[4]),
        ] {
            assert!(attached(codes, scales).is_err(), "{codes:?} {scales:?}");
        }
    }

    #[test]
    fn reordered_codes_are_the_numbers_of_the_pairs() {
        let mut codes = [0; CODES];
        for (i, byte) in codes.iter_mut().enumerate() {
            *byte = ((2 * i) % 16) as u8 | (((2 * i + 1) % 16) as u8) << 4;
        }
        codes[15] = 0x0f;
        let mut block = vec![128];
        block.extend(reordered(&codes));
        let mut found = [0.0; 32];
        MXFP4.decode(&block, &mut found);
        const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];
        for (i, found) in found.into_iter().enumerate() {
            let code = match i {
                30 => 15,
                31 => 0,
                _ => i % 16,
            };
            let value = 2.0 * VALUES[code % 8];
            assert_eq!(found, if code < 8 { value } else { -value }, "number {i}");
        }
    }
}
